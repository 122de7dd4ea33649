"""Application classes: by name, by rule, by clusters, and on what was measured of PAL's models."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from policy.simulate.inputs.models import ITERATION_S, app_class
from topology.calibrate.classes import MODELS, ClassProfile, by_rule, class_of, cluster, silhouette

DATA = Path(os.environ.get("BERTH_DATA", Path(__file__).parents[5] / "shared" / "data"))
ACTIVITY = DATA / "traces" / "colocation" / "lucid_single.csv"


def test_pals_six_models_have_its_classes() -> None:
    assert {model: class_of(model) for model in ITERATION_S} == {model: app_class(model) for model in ITERATION_S}
    assert len(MODELS) == 6
    assert class_of("unheard-of") == "compute"


@pytest.mark.parametrize(
    ("compute", "memory", "expected"),
    [(0.8, 0.2, "compute"), (0.5, 0.5, "mixed"), (0.2, 0.7, "memory"), (0.02, 0.01, "memory"), (0.0, 0.0, "memory")],
)
def test_a_single_profile_is_classed_by_what_it_keeps_busy(compute: float, memory: float, expected: str) -> None:
    assert by_rule(ClassProfile("one", compute, memory)) == expected


def test_clusters_are_found_and_named_from_the_busiest_on() -> None:
    random = np.random.default_rng(1)
    centres = {"compute": (0.8, 0.2), "mixed": (0.5, 0.5), "memory": (0.1, 0.8)}
    profiles = [
        ClassProfile(f"{name}{number}", *np.clip(random.normal(centre, 0.03), 0, 1))
        for name, centre in centres.items()
        for number in range(8)
    ]

    found = cluster(profiles)

    assert all(name.startswith(app_class) for name, app_class in found.items())
    assert cluster(profiles[::-1]) == found


def test_few_profiles_are_classed_by_rule() -> None:
    assert cluster([]) == {}
    assert cluster([ClassProfile("a", 0.9, 0.1), ClassProfile("b", 0.1, 0.9)]) == {"a": "compute", "b": "memory"}


def test_silhouette_is_great_for_the_right_clusters() -> None:
    points = np.array([(0, 0), (0, 1), (10, 0), (10, 1)], float)

    assert silhouette(points, np.array([0, 0, 1, 1])) == pytest.approx(0.9, abs=0.01)
    assert silhouette(points, np.array([0, 1, 0, 1])) < 0


@pytest.mark.published
@pytest.mark.skipif(not ACTIVITY.exists(), reason=f"{ACTIVITY} is not at hand; BERTH_DATA names its data folder")
def test_measured_activity_of_pals_models_gives_its_classes() -> None:
    """PAL's own profiles are not public. Lucid measured five of its six models (GPT-2 not) with other counters."""
    names = {"ResNet50": "resnet50", "BERT": "BERT", "DCGAN": "DCGAN", "VGG": "vgg19", "PointNet": "PointNet"}
    profiles: dict[str, tuple[int, ClassProfile]] = {}
    with ACTIVITY.open() as lines:
        for row in csv.DictReader(lines):
            name, batch = names.get(row["model"]), int(row["batchsize"])
            if name and row["amp"] == "0" and batch >= profiles.get(name, (0, None))[0]:
                shares = float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100
                profiles[name] = (batch, ClassProfile(name, *shares))

    found = cluster([profile for _, profile in profiles.values()], count=4)

    assert found == {name: class_of(name) for name in names.values()}
