# SPDX-License-Identifier: Apache-2.0
"""Whoever chooses places, a job is split over nodes by the rule of berthd, and starts at the same place and time."""

from dataclasses import replace
from functools import partial

import pytest

from policy.cluster.cost import CostModel, one_factor
from policy.cluster.fleet import Fleet
from policy.placement.registry import create
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.settings import Delays, LocalityRule, SlurmSettings
from policy.simulate.world import Layout, build

COSTS = CostModel({"*": one_factor(leaf=1.2, pod=1.5, any=2.0)})
FLEET = build(Layout(4, 8, nodes_per_leaf=2), costs=COSTS)
APART = build(Layout(2, 8, nodes_per_leaf=1, leaves_per_pod=2), costs=COSTS)
"""No leaf has two nodes."""


def busy(seconds: float, nodes: int = 4) -> list[TraceJob]:
    """Jobs that leave one GPU free on each node for so long."""
    return [TraceJob(f"b{node}", gpus=7, submit=0, work=seconds, limit=seconds, nodes=1) for node in range(nodes)]


def pair(**changes: object) -> TraceJob:
    return TraceJob(**{"id": "pair", "gpus": 2, "submit": 10, "work": 1_200, "limit": 2_400, **changes})  # type: ignore[arg-type]


def by_policy(
    jobs: list[TraceJob], *, splits: bool, level: str = "leaf", wait: int = 600, fleet: Fleet = FLEET
) -> SimulationOutcome:
    rule = LocalityRule(level, wait, splits=splits)
    settings = SlurmSettings(pinned=True, localities={"pair": rule})
    return run(jobs, fleet, create("berth"), settings)


def by_berthd(
    jobs: list[TraceJob],
    *,
    splits: bool,
    level: str = "leaf",
    wait: int = 600,
    fleet: Fleet = FLEET,
    delays: Delays | None = None,
) -> SimulationOutcome:
    rule = LocalityRule(level, wait, splits=splits)
    settings = SlurmSettings(berthd=True, localities={"pair": rule}, delays=delays, bf_interval_s=2)
    return run([replace(job, cpus=1) for job in jobs], fleet, create("berth"), settings)


MODES = pytest.mark.parametrize("play", [by_policy, by_berthd, partial(by_berthd, delays=Delays())])


def nodes_of(outcome: SimulationOutcome, fleet: Fleet = FLEET) -> list[int]:
    [stretch] = [one for one in outcome.stretches if one.job == "pair"]
    return sorted({gpu // int(fleet.size.max()) for gpu in stretch.gpus})


@MODES
def test_a_job_starts_on_two_nodes_of_a_leaf_where_one_split_would_wait(play: object) -> None:
    assert callable(play)
    old, new = play([*busy(6_000), pair()], splits=False), play([*busy(6_000), pair()], splits=True)

    assert old.starts["pair"] >= 6_000
    assert new.starts["pair"] == pytest.approx(10, abs=5)
    assert nodes_of(new) in ([0, 1], [2, 3])
    assert new.ends["pair"] - new.starts["pair"] == pytest.approx(1_200 * 1.2)


@MODES
def test_a_job_waits_for_one_node_that_comes_free_soon(play: object) -> None:
    """20 % of half its limit is 240 s: a wait of 100 s is shorter."""
    assert callable(play)
    outcome = play([*busy(120), pair()], splits=True)

    assert len(nodes_of(outcome)) == 1
    assert outcome.starts["pair"] == pytest.approx(120, abs=5)


@MODES
def test_a_wait_for_one_node_ends_on_the_nearest_nodes(play: object) -> None:
    assert callable(play)
    outcome = play([*busy(6_000, nodes=2), pair()], splits=True, wait=300, fleet=APART)

    assert outcome.starts["pair"] == pytest.approx(310, abs=35)
    assert len(nodes_of(outcome)) == 2
    assert outcome.ends["pair"] - outcome.starts["pair"] == pytest.approx(1_200 * 1.5)


@MODES
def test_a_job_with_a_number_of_nodes_keeps_it(play: object) -> None:
    assert callable(play)
    outcome = play([*busy(3_000), pair(nodes=1)], splits=True)

    assert outcome.starts["pair"] >= 3_000
    assert len(nodes_of(outcome)) == 1
