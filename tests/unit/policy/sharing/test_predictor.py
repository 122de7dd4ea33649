# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.formats.errors import FormatError
from policy.sharing import predictor
from policy.sharing.conformal import LEVELS, Margins
from policy.sharing.predictor import Array, Fit
from tests.bench import measured_pairs, training
from tests.bench.measured_pairs import promised, read_pairs, shipped

pytestmark = pytest.mark.slow

LIGHT = predictor.profile(0.1, 0.02, 2_000)
MIDDLE = predictor.profile(0.5, 0.3, 3_500)
HEAVY = predictor.profile(0.97, 0.7, 4_000)


def law_of_the_test(own: Array, other: Array) -> float:
    return float(1 / (1 + 0.9 * own[0] * other[1]))


def table(folder: Path, models: int = 6, seed: int = 1, noise: float = 0.01) -> tuple[Path, Path]:
    """Pairs of made-up models that follow a law, in Lucid's columns."""
    random = np.random.default_rng(seed)
    solo, pairs = folder / "solo.csv", folder / "pairs.csv"
    jobs = {}
    for model in range(models):
        busy = random.uniform(0.1, 1)
        for batch in (32, 64):
            shown = min(1.0, busy * (1 + batch / 300))
            jobs[f"m{model}", batch] = (100 * shown, 70 * shown * random.uniform(0.6, 1), 2_000 + 30 * batch)
    with solo.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "batchsize", "amp", "speed", "gpu_util", "gmem_util", "gmem"])
        writer.writerows([name, batch, 0, 1.0, *values] for (name, batch), values in jobs.items())
    with pairs.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["model1", "batchsize1", "amp1", "speed1", "model2", "batchsize2", "amp2", "speed2", "gpu_util"]
        )
        listed = list(jobs.items())
        for place, (one, first) in enumerate(listed):
            for other, second in listed[place:]:
                own, beside = (predictor.profile(v[0] / 100, v[1] / 100, v[2]) for v in (first, second))
                speeds = (law_of_the_test(own, beside), law_of_the_test(beside, own))
                noisy = [speed + random.normal(0, noise) for speed in speeds]
                writer.writerow([*one, 0, noisy[0], *other, 0, noisy[1], 99])
    return pairs, solo


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return table(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def trained(made: tuple[Path, Path]) -> Fit:
    return training.train(read_pairs(*made), "a test")


def test_the_shipped_fit_knows_who_harms_whom() -> None:
    said = predictor.predict(shipped(), np.array([LIGHT, MIDDLE, HEAVY]), np.array([LIGHT, MIDDLE, HEAVY]), 0.85)

    assert said.host[2, 2] < 0.8
    assert said.host[0, 0] > 0.9
    assert (said.host[:, 0] > said.host[:, 2] - 0.02).all()
    assert said.guest == pytest.approx(said.host.T)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(1, 80_000)), min_size=1, max_size=4))
def test_any_profile_gets_a_finite_speed_and_promises_fall_with_their_level(jobs: list[tuple[float, ...]]) -> None:
    profiles = np.array([predictor.profile(*job) for job in jobs])
    least = [predictor.predict(shipped(), profiles, profiles, level).host_least for level in (0.5, 0.8, 0.95)]

    assert np.isfinite(least).all()
    assert (least[0] >= least[1]).all()
    assert (least[1] >= least[2]).all()


def test_less_is_promised_of_a_job_like_none_that_was_measured() -> None:
    fit = shipped()
    strange = np.array([[0.9, 0.02, 5.0]])
    known = fit.anchors[-1:]

    said = predictor.predict(fit, np.concatenate([known, strange]), known, 0.85)

    assert said.familiar[:, 0].tolist() == [True, False]
    shortfall = (said.host - said.host_least)[:, 0] / predictor.spread(
        predictor.law(fit.law, np.concatenate([known, strange]), known)
    )[:, 0]
    assert shortfall[1] > shortfall[0] > 0


def test_training_finds_the_law_behind_a_table(made: tuple[Path, Path]) -> None:
    pairs = read_pairs(*made)
    errors = []
    for _, test in training.folds_by_pair(pairs):
        asked = pairs.part(test)
        errors.append(np.abs(training.guess(training.fit_only(pairs.part(~test)), asked).speeds - asked.speeds).mean())

    constant = np.abs(pairs.speeds - np.median(pairs.speeds)).mean()
    assert np.mean(errors) < 0.3 * constant
    assert np.mean(errors) < 0.02


def test_promises_hold_as_often_as_they_say(trained: Fit, tmp_path: Path) -> None:
    fresh = read_pairs(*table(tmp_path, seed=1, noise=0.0101))

    for level in (0.7, 0.85, 0.95):
        kept = (fresh.speeds >= training.guess(trained, fresh, level).least).mean()
        assert kept >= level - 0.07


def test_folds_cover_each_row_once_and_keep_both_orders_of_a_pair_together(made: tuple[Path, Path]) -> None:
    pairs = read_pairs(*made)
    turned = training.Pairs(
        np.concatenate([pairs.first, pairs.second]), np.concatenate([pairs.second, pairs.first]),
        np.concatenate([pairs.speeds, pairs.speeds[:, ::-1]]), [*pairs.names, *pairs.names],
    )  # fmt: skip
    folds = np.array([test for _, test in training.folds_by_pair(turned)])

    assert (folds.sum(axis=0) == 1).all()
    assert (folds[:, : len(pairs)] == folds[:, len(pairs) :]).all()
    for model, test in training.folds_by_model(pairs):
        assert all((model in names) == left for names, left in zip(pairs.names, test, strict=True))


def test_margins_are_those_of_conformal_prediction() -> None:
    shortfalls = np.arange(1.0, 100.0)

    assert training.quantiles(shortfalls)[LEVELS.index(0.9)] == 90.0
    assert training.quantiles(np.array([3.0])) == (3.0,) * len(LEVELS)


def test_false_safe_is_a_part_of_the_promised_and_recall_of_the_safe() -> None:
    speeds = np.array([[1.0, 1.0], [1.0, 0.8], [0.95, 0.92], [0.87, 1.0]])
    least = np.array([[0.95, 0.95], [0.91, 0.9], [0.8, 0.95], [0.9, 0.9]])

    figures = promised(least, speeds)

    assert figures["false_safe"] == pytest.approx(1 / 3)
    assert figures["safe_recall"] == 0.5
    assert figures["promised"] == 0.75


def test_a_fit_comes_back_as_it_was_written(trained: Fit) -> None:
    text = trained.write()

    assert Fit.read(text).write() == text
    with pytest.raises(FormatError, match=r"docs/research/sharing\.md"):
        Fit.read(text.replace('"law"', '"lore"'))
    with pytest.raises(FormatError, match="berth-fit/9"):
        Fit.read(text.replace("berth-fit/1", "berth-fit/9"))


def test_a_fit_of_a_table_is_written_and_knows_it_better_than_the_one_that_ships(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    pairs, solo = map(str, made)
    out = tmp_path / "fit.json"
    measured_pairs.main(["--pairs", pairs, "--solo", solo, "--source", "test", "--output", str(out)])

    table = read_pairs(*made)
    own, other = (
        abs(training.guess(fit, table).speeds - table.speeds).mean() for fit in (Fit.read(out.read_text()), shipped())
    )
    assert own < 0.02 < other


def test_the_packed_runs_own_figures_are_no_input(made: tuple[Path, Path], tmp_path: Path) -> None:
    pairs, solo = made
    other = tmp_path / "pairs.csv"
    other.write_text(pairs.read_text().replace(",99\n", ",1\n").replace(",99\r\n", ",1\r\n"))

    assert read_pairs(other, solo).first.tolist() == read_pairs(pairs, solo).first.tolist()


@pytest.mark.parametrize(
    ("which", "change", "says"),
    [
        ("solo", ("m3,64,0", "m9,64,0"), "has no row for m3 with batch size 64"),
        ("solo", ("gmem_util", "gmem_used"), "no column gmem_util"),
        ("pairs", ("speed1", "rate1"), "no column speed1"),
        ("solo", ("m0,32,0,1.0,", "m0,32,0,1.0,x"), "must be numbers"),
    ],
)
def test_a_wrong_table_is_named(
    made: tuple[Path, Path], tmp_path: Path, which: str, change: tuple[str, str], says: str
) -> None:
    paths = {}
    for name, path in zip(("pairs", "solo"), made, strict=True):
        paths[name] = tmp_path / path.name
        paths[name].write_text(path.read_text().replace(*change) if name == which else path.read_text())

    with pytest.raises(FormatError, match=says):
        read_pairs(paths["pairs"], paths["solo"])


def test_a_chance_is_what_the_margins_say() -> None:
    margins = Margins(tuple(np.linspace(-2.0, 3.0, len(LEVELS))), tuple(np.linspace(-4.0, 6.0, len(LEVELS))))
    known = np.array([True, False])

    for place, level in enumerate(LEVELS):
        reach = np.array([margins.known[place], margins.new[place]])
        assert margins.chance(reach, known) == pytest.approx([level, level])
    assert margins.chance(np.array([-9.0, -9.0]), known).tolist() == [0.0, 0.0]
