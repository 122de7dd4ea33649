# SPDX-License-Identifier: Apache-2.0
"""The benchmark's own yardstick: the exact posterior, held against a plain enumeration."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.bench.paper.fleet import FleetPlan, draw
from tests.bench.scores import cluster_figures
from tests.bench.scores_clusters import Row, _published, rows
from tests.bench.scores_exact import exact
from tests.bench.scores_fleets import Found, found

PLAN = FleetPlan(nodes=6, gpus=2, visits=2, slow_gpus=0.2, slow_nodes=0.1, waiting=0.2, silent=1.0)


def test_the_exact_posterior_is_that_of_a_plain_enumeration() -> None:
    from scipy.stats import multivariate_normal  # noqa: PLC0415 - half a second, for every run's collection

    fleet = draw(PLAN, 3)
    gpu, visit = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    waits = np.log(np.linspace(*PLAN.wait, 10_001))
    same_gpu, same_visit = gpu[:, None] == gpu, visit[:, None] == visit
    for node in range(PLAN.nodes):
        total, mean, slow = 0.0, np.zeros(2), np.zeros(2)
        for chips in product((0, 1), repeat=2):
            chance = np.prod([0.2 if chip else 0.8 for chip in chips]) * 0.9 + 0.1 * (chips == (1, 1))
            for waited in product((0, 1), repeat=2):
                prior = chance * np.prod([0.2 if one else 0.8 for one in waited])
                shifts = np.log(PLAN.slow) * np.array(chips)[gpu] + waits.mean() * np.array(waited)[visit]
                covariance = PLAN.node**2 + PLAN.gpu**2 * same_gpu + PLAN.node_run**2 * same_visit
                covariance = covariance + PLAN.gpu_run**2 * np.eye(4)
                covariance = covariance + waits.var() * same_visit * np.array(waited)[visit]
                seen = fleet.times[node].ravel()
                weight = prior * multivariate_normal(shifts, covariance).pdf(seen)
                cross = PLAN.node**2 + PLAN.gpu**2 * (np.arange(2)[:, None] == gpu)
                total += weight
                mean += weight * (
                    cross @ np.linalg.solve(covariance, seen - shifts) + np.log(PLAN.slow) * np.array(chips)
                )
                slow += weight * np.array(chips)

        assert exact(fleet).mean[node] == pytest.approx(mean / total, abs=1e-9)
        assert exact(fleet).slow[node] == pytest.approx(slow / total, abs=1e-9)


def test_runs_that_show_why_they_do_not_count_are_left_out_of_the_exact_posterior_too() -> None:
    fleet = draw(replace(PLAN, silent=0.0, stuck=(1,)), 3)

    assert exact(fleet).slow[1] == pytest.approx([0.2 * 0.9 + 0.1] * 2)


def test_recall_and_precision_are_those_of_all_fleets_together() -> None:
    some = found([(np.array([1, 1, 0], bool), np.array([1, 0, 1], bool)), (np.array([1], bool), np.array([1], bool))])

    assert some == Found(right=2, missed=1, wrongly=1)
    assert (some.recall, some.precision) == pytest.approx((2 / 3, 2 / 3))


def test_a_published_table_is_the_truth_of_its_cluster_and_one_run_to_us(tmp_path: Path) -> None:
    lines = ["GPU_ID,Node_ID,PerfVar_classA,PerfVar_classB"]
    random = np.random.default_rng(1)
    for gpu in range(32):
        slow = 2.8 if gpu == 5 else float(np.exp(random.normal(0.0, 0.02)))
        lines.append(f"{gpu},{gpu // 4},{slow},{float(np.exp(random.normal(0.0, 0.005)))}")
    (tmp_path / "map.csv").write_text("\n".join(lines) + "\n")
    cluster = _published("a map", tmp_path / "map.csv", seed=0)

    assert cluster.raw is cluster.truth
    assert {name: grid.shape for name, grid in cluster.posterior.items()} == dict.fromkeys(
        ("compute", "mixed"), (16, 4)
    )
    # Eight nodes of four GPUs, each drawn twice.
    slowest = cluster.truth["compute"] == 2.8
    assert slowest.sum() == 2
    assert (cluster.posterior["compute"][slowest] < 2.8).all()
    rest = np.log(cluster.posterior["compute"][~slowest])
    assert rest.std() < np.log(cluster.truth["compute"][~slowest]).std()


def test_without_the_published_data_there_are_no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.scores_clusters.data_folder", lambda: None)

    assert rows([], range(1)) == []


def test_the_gain_by_cluster_is_told_beside_that_of_raw_scores() -> None:
    [figure] = cluster_figures([Row("Frontera, 32 GPUs", "its next run", 0.97, 0.95, 0.93)])

    assert (figure.name, figure.value, figure.peer_value) == ("pal_jct_frontera_32_gpus_its_next_run", 0.95, 0.97)
