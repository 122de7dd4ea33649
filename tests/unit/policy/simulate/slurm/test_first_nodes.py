# SPDX-License-Identifier: Apache-2.0
"""A plan reads the first nodes by the time at which they come free: it is that of all of them."""

from __future__ import annotations

import numpy as np
import pytest

from policy.placement.slurm_like import SlurmPolicy
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.slurm.backfill import profile
from policy.simulate.slurm.nodes.ledger import Ledger
from policy.simulate.slurm.settings import SlurmSettings
from policy.simulate.world import Layout, build, demand_of


def trace(seed: int) -> list[TraceJob]:
    """Jobs of one node and of several, far more than the cluster holds."""
    draw = np.random.default_rng(seed)
    works = (60.0 * 10 ** draw.uniform(0.5, 2.5, 120)).tolist()
    widths = draw.choice((1, 2, 4, 8, 16, 24), 120).tolist()
    return [
        TraceJob(str(number), width, 20.0 * number, work, limit=work * (1.5 + number % 2))
        for number, (width, work) in enumerate(zip(widths, works, strict=True))
    ]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pinned", [True, False])
def test_the_first_nodes_alone_plan_as_all_do(monkeypatch: pytest.MonkeyPatch, seed: int, pinned: bool) -> None:
    starts = []
    for first in (1, 3, 10**6):
        monkeypatch.setattr(profile, "_FIRST", first)
        outcome = run(trace(seed), build(Layout(6, 8)), SlurmPolicy(), SlurmSettings(pinned=pinned))
        starts.append(outcome.starts)

    assert starts[0] == starts[1] == starts[2]
    assert any(starts[0][job.id] > job.submit for job in trace(seed))


def plans(seed: int) -> list[tuple[float, list[int]] | None]:
    """What one pass plans for jobs of one node and of two, while others start on nodes that it has touched."""
    fleet, draw = build(Layout(24, 8)), np.random.default_rng(seed)
    ledger = Ledger(fleet)
    for node, until in enumerate(draw.integers(1, 8, 24).tolist()):
        ledger.take([node], [0b11111111], 10.0 * until)
    one_pass, found = profile.BackfillProfile(ledger, now=0.0), []
    one, two = (demand_of(TraceJob("a", 8 * nodes, 0.0, 100.0, nodes=nodes), fleet) for nodes in (1, 2))
    for number in range(30):
        plan = one_pass.earliest(two if number % 5 == 4 else one, 100.0)
        found.append(plan)
        if plan is not None:
            one_pass.reserve(plan[1], plan[0], plan[0] + 100.0)
        started = int(draw.integers(24))
        ledger.expect([started], [0b11111111], 10.0 * int(draw.integers(1, 30)))
        one_pass.touch([started])
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("first", [1, 3, 8])
def test_more_nodes_are_read_where_all_of_the_first_are_touched(
    monkeypatch: pytest.MonkeyPatch, seed: int, first: int
) -> None:
    whole = plans(seed)
    monkeypatch.setattr(profile, "_FIRST", first)

    assert plans(seed) == whole


@pytest.mark.parametrize("least", [1, 2, 3, 4, 9])
def test_nodes_of_one_time_stand_by_number(least: int) -> None:
    ready = np.array([5.0, 1.0, 5.0, 1.0, np.inf, 5.0])

    line = profile._first_of(ready, least)

    assert line.nodes.tolist() == [1, 3, 0, 2, 5, 4][: line.nodes.size]
    assert line.nodes.size >= min(least, ready.size)
    assert line.whole == (line.nodes.size == ready.size)
