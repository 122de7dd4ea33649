# SPDX-License-Identifier: Apache-2.0
"""Workloads and machines that are made up: the same for the same seed, and alike to what they stand for."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from policy.formats.arrays import Floats
from policy.simulate.inputs.others import shifted
from policy.simulate.inputs.scores import grids
from policy.simulate.study import WAYS, Way
from tests.bench.paper.draw import (
    VARIABILITIES,
    Weather,
    drawn_jobs,
    measured_runs,
    noisy,
    slow_nodes,
    whole_nodes,
)

DAY = 86_400.0


def drawn(folder: Path, app_class: str, way: Way) -> Floats:
    path = folder / f"{app_class}.csv"
    path.write_text("\n".join(measured_runs(app_class, 5)), encoding="utf-8")
    return grids([f"{app_class}={path}"], 64, 4, way=way, seed=1)[app_class]


@pytest.mark.parametrize("app_class", VARIABILITIES)
@pytest.mark.parametrize("way", WAYS)
def test_made_up_runs_are_read_as_measured_ones(tmp_path: Path, app_class: str, way: Way) -> None:
    scores = drawn(tmp_path, app_class, way)

    assert scores.shape == (64, 4)
    assert np.median(scores) == pytest.approx(1.0, abs=0.02)
    assert scores.min() > 0.85


def test_single_runs_have_outliers_that_medians_have_not(tmp_path: Path) -> None:
    assert drawn(tmp_path, "compute", "one-run").max() > 1.4
    assert drawn(tmp_path, "compute", "median").max() < 1.2


def test_the_gpus_of_a_node_are_alike(tmp_path: Path) -> None:
    together, apart = drawn(tmp_path, "compute", "nodes"), drawn(tmp_path, "compute", "median")

    # Share of the variance that lies between nodes; by chance it is a quarter.
    shares = [scores.mean(axis=1).var() / scores.var() for scores in (together, apart)]

    assert shares[0] > 0.7
    assert shares[1] < 0.4


def test_jobs_are_as_wide_as_in_the_traces_that_they_stand_for() -> None:
    jobs = drawn_jobs(2000, 5.0, 1)

    assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    assert sum(job.gpus == 1 for job in jobs) / len(jobs) == pytest.approx(0.42, abs=0.03)
    hours = np.array([job.gpus * job.work for job in jobs]) / 3600
    assert hours.min() >= 0.05
    assert 50 < hours.max() <= 100
    assert len({job.app_class for job in jobs}) == 4


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: drawn_jobs(20, 1.0, seed),
        lambda seed: measured_runs("compute", seed),
        lambda seed: shifted(drawn_jobs(20, 1.0, 1), 60.0, seed),
        lambda seed: slow_nodes(8, Weather(1.0), 10 * DAY, seed),
        lambda seed: noisy({"compute": np.ones((4, 4))}, 0.1, seed)["compute"].tolist(),
        lambda seed: whole_nodes({"compute": np.arange(32.0).reshape(8, 4)}, 8, seed)["compute"].tolist(),
    ],
)
def test_a_seed_says_it_all(draw: object) -> None:
    assert callable(draw)
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_shifts_are_bounded_and_leave_the_jobs_as_they_are() -> None:
    jobs = drawn_jobs(200, 5.0, 1)

    moved = shifted(jobs, 600.0, 1)

    assert all(
        abs(one.submit - other.submit) <= 600 and one.submit >= 0 for one, other in zip(jobs, moved, strict=True)
    )
    assert [(one.id, one.work) for one in jobs] == [(one.id, one.work) for one in moved]


def test_whole_nodes_keep_their_gpus_and_classes_together() -> None:
    real = {"compute": np.arange(32.0).reshape(8, 4), "memory": 100 + np.arange(32.0).reshape(8, 4)}

    found = whole_nodes(real, 12, 3)

    assert (found["memory"] - found["compute"] == 100).all()
    assert {tuple(row) for row in found["compute"][:8]} == {tuple(row) for row in real["compute"]}
    assert {tuple(row) for row in found["compute"][8:]} < {tuple(row) for row in real["compute"]}


def test_noise_has_the_size_that_is_asked_for() -> None:
    believed = noisy({"compute": np.full((200, 4), 2.0)}, 0.03, 1)["compute"]

    assert believed.std() / 2.0 == pytest.approx(0.03, rel=0.15)
    assert believed.mean() == pytest.approx(2.0, rel=0.01)


def test_nodes_are_slow_as_often_and_as_long_as_is_asked() -> None:
    weather = Weather(days_between=2.0, hours=(1.0, 3.0), factor=(1.5, 2.0))

    events = slow_nodes(50, weather, 100 * DAY, 1)

    assert len(events) / 50 / 100 == pytest.approx(0.5 / (1 + 1 / 24), rel=0.1)
    assert all(3600 <= event.end - event.start <= 3 * 3600 and 1.5 <= event.factor <= 2.0 for event in events)
    of_one = [event for event in events if event.node == 7]
    assert all(one.end <= other.start for one, other in pairwise(of_one))
