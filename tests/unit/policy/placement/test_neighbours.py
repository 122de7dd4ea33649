# SPDX-License-Identifier: Apache-2.0
"""What neighbours on a node cost: a small job alone or packed, and the nodes that stay empty."""

from __future__ import annotations

import pytest

from policy.cluster.cost import NEIGHBOURS, PUBLISHED, CostModel, Table
from policy.placement.base import Berth
from policy.placement.berth import KEPT_EMPTY, BerthPolicy
from policy.request.demand import Demand
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.world import Layout, build, view

NODES = 40
COSTLY: Table = {**PUBLISHED, "*": {**PUBLISHED["*"], NEIGHBOURS: {1: 1.52}}}


def place(
    k: int, free: dict[int, int], table: Table = COSTLY, slow: dict[int, float] | None = None, **other: object
) -> Berth:
    fleet = build(Layout(NODES, 8), None, CostModel(table))
    if slow is not None:
        fleet.scores["compute"] = fleet.size[:, None].repeat(8, axis=1) * 0.0 + 1.0  # type: ignore[index]
        for node, factor in slow.items():
            fleet.scores["compute"][node] = factor
    masks = fleet.full.copy()
    for node, mask in free.items():
        masks[node] = mask
    demand = Demand(1, k, 0, 0, "any", 3_600, fleet.ready, **other)  # type: ignore[arg-type]
    return BerthPolicy().place(demand, view(fleet, masks))


def test_a_small_job_gets_a_node_of_its_own_where_neighbours_cost_more() -> None:
    found = place(2, {0: 0b1111})

    assert found.nodes != (0,)
    assert "on an empty node, as neighbours cost 1.52" in found.why


@pytest.mark.parametrize("table", [PUBLISHED, {**PUBLISHED, "*": {NEIGHBOURS: {4: 1.52}}}])
def test_a_job_that_neighbours_cost_nothing_is_packed(table: Table) -> None:
    assert place(2, {0: 0b1111}, table).nodes == (0,)


def test_the_last_empty_nodes_are_kept_for_jobs_that_need_whole_ones() -> None:
    kept = int(KEPT_EMPTY * NODES)
    taken = dict.fromkeys(range(NODES - kept), 15)

    assert place(2, taken).nodes[0] in taken
    del taken[0]
    assert place(2, taken).nodes == (0,)
    assert place(8, taken).nodes[0] not in taken


@pytest.mark.parametrize(("slow", "alone"), [(1.4, True), (1.6, False)])
def test_an_empty_node_with_slow_gpus_is_weighed_against_neighbours(slow: float, alone: bool) -> None:
    found = place(2, {0: 0b1111}, slow=dict.fromkeys(range(1, NODES), slow))

    assert (found.nodes != (0,)) is alone


def test_an_account_with_a_row_of_its_own_runs_that_model() -> None:
    lines = ["name,level,width,factor", "vision,neighbours,1,1.5"]
    costs = CostModel.of_site(lines)

    assert costs.accounts == {"vision"}
    assert place(2, {0: 0b1111}, costs.localities, model="vision").nodes != (0,)
    assert place(2, {0: 0b1111}, costs.localities).nodes == (0,)


def test_in_the_simulator_jobs_on_one_node_slow_each_other_down_for_as_long_as_both_run() -> None:
    fleet = build(Layout(1, 8), None, CostModel({"*": {NEIGHBOURS: {1: 1.5}}}))
    jobs = [
        TraceJob("first", 2, 0.0, 100.0, limit=1_000.0),
        TraceJob("second", 2, 50.0, 100.0, limit=1_000.0),
    ]
    outcome = run(jobs, fleet, BerthPolicy())

    # 50 s alone and 50 s of work beside the second; that one has 50 s of work done by then.
    assert outcome.ends["first"] == pytest.approx(125.0)
    assert outcome.ends["second"] == pytest.approx(175.0)
