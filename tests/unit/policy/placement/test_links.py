# SPDX-License-Identifier: Apache-2.0
"""Links beside all else that decides: kinds of nodes, slow GPUs, distance, and what other jobs need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.cost import CostModel
from policy.cluster.fleet import Fleet
from policy.formats.errors import NotNow
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.placement.speed import ALIKE
from policy.request.demand import Demand
from policy.simulate.world import Layout, build, build_of, view
from tests.examples import examples
from topology.machines import machine
from topology.network.fabric import Fabric

FULL = 0xFF


def fleet_of(*kinds: str, communication: float = 0.1, scores: Sequence[Sequence[float]] | None = None) -> Fleet:
    """Nodes of named kinds, called after them, without leaves."""
    names = [f"n{place}-{kind}" for place, kind in enumerate(kinds)]
    machines = {name: machine(kind, name) for name, kind in zip(names, kinds, strict=True)}
    tables = None if scores is None else {"compute": np.array(scores)}
    return build_of(machines, Fabric.flat(names), tables, CostModel(communication=communication))


def place(fleet: Fleet, k: int, free: Mapping[int, int] | None = None, n: int = 1) -> Berth:
    masks = fleet.full.copy()
    for node, mask in (free or {}).items():
        masks[node] = mask
    demand = Demand(n, k, cpus=0, mem=0, level="any", limit=3_600, candidates=fleet.ready)
    return BerthPolicy().place(demand, view(fleet, masks))


@pytest.mark.parametrize(
    ("k", "worse", "better"),
    [
        (8, "a6000-pairs", "dgx-1v"),
        (6, "a6000-pairs", "dgx-1v"),
        (4, "l40s", "dgx-1v"),
        (4, "dgx-a100", "h100-4"),
        (4, "a100-pcie", "dgx-1v"),
        (8, "dgx-1v", "dgx-a100"),
    ],
)
def test_an_idle_node_whose_narrowest_cut_is_wider_goes_first(k: int, worse: str, better: str) -> None:
    fleet = fleet_of(worse, better)

    assert place(fleet, k).names == (f"n1-{better}",)
    assert place(fleet, k, n=1, free={1: 0}).names == (f"n0-{worse}",)


def test_a_gang_goes_to_the_kind_with_the_wider_cut_too() -> None:
    assert place(fleet_of("a6000-pairs", "a6000-pairs", "dgx-1v", "dgx-1v"), 8, n=2).nodes == (2, 3)


def test_a_job_on_one_gpu_leaves_links_to_those_that_need_them() -> None:
    fleet = fleet_of("hgx-h100", "dgx-1v", "a6000-pairs", "l40s")

    assert place(fleet, 1).nodes == (3,)
    assert place(fleet, 1, free={3: 0}).nodes == (2,)
    assert place(fleet, 1, free={3: 0, 2: 0}).nodes == (1,)
    assert place(fleet, 1, free={0: 0b1000}).nodes == (0,), "a GPU that is left alone has no links to give"
    assert place(fleet_of("hgx-h100", "hgx-h100", "l40s", "l40s"), 1, n=2).nodes == (2, 3)


def test_what_narrow_links_cost_is_part_of_the_cost() -> None:
    fleet = fleet_of("dgx-1v")

    assert place(fleet, 4).cost == 1.0
    assert place(fleet, 4, free={0: 0b11011110}).cost == pytest.approx(1.1, abs=1e-3), "half as wide as a whole quad"
    assert place(fleet_of("dgx-1v", communication=0.0), 4, free={0: 0b11011110}).cost == 1.0


@pytest.mark.parametrize(
    ("slower", "communication", "gpus"),
    [(1.05, 0.1, (0, 3)), (1.15, 0.1, (1, 3)), (1.05, 0.0, (1, 3)), (1.15, 0.3, (0, 3))],
)
def test_a_slower_gpu_with_better_links_is_taken_where_the_cost_says_so(
    slower: float, communication: float, gpus: tuple[int, ...]
) -> None:
    """GPUs 0 and 3 of a DGX-1V have two links, 1 and 3 have one."""
    fleet = fleet_of("dgx-1v", communication=communication, scores=[[slower, *([1.0] * 7)]])

    assert place(fleet, 2, free={0: 0b1011}).gpus == gpus


def test_a_gang_on_parts_of_nodes_lies_near_where_better_links_are_far() -> None:
    """Two leaves of two DGX-1V. GPUs 0 and 3 have two links and are free in both leaves, 0 and 1 one, in one leaf."""
    fleet = build(Layout(4, 8, nodes_per_leaf=2), None, CostModel(communication=0.05), machine("dgx-1v", "n0"))
    masks = np.array([0b1011, 0b0011, 0b1001, 0b1000])
    demand = Demand(2, 2, cpus=0, mem=0, level="any", limit=3_600, candidates=fleet.ready)

    found = BerthPolicy().place(demand, view(fleet, masks))

    assert (found.nodes, found.gpus, found.level) == ((0, 1), (0, 1), "leaf")
    assert found.cost == pytest.approx(1.05 * 1.17, abs=1e-3)
    free_in_a_leaf = np.array([0b1011, 0b1011, 0b1001, 0b1000])
    assert BerthPolicy().place(demand, view(fleet, free_in_a_leaf)).gpus == (0, 3)


@settings(max_examples=examples(80), deadline=None)
@given(
    kind=st.sampled_from(["dgx-1v", "a6000-pairs"]),
    masks=st.lists(st.integers(0, FULL), min_size=8, max_size=8),
    n=st.integers(2, 3),
    k=st.integers(1, 5),
    communication=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_no_gang_on_parts_of_nodes_costs_more_than_it_needs(
    kind: str, masks: list[int], n: int, k: int, communication: float
) -> None:
    """Eight nodes in four leaves and two pods; a place within 2 % of the cheapest counts as equal."""
    fleet = build(Layout(8, 8, 2, 2), None, CostModel(communication=communication), machine(kind, "n0"))
    demand = Demand(n, k, cpus=0, mem=0, level="any", limit=3_600, candidates=fleet.ready)
    now = view(fleet, np.array(masks))
    every = (sum(1 << gpu for gpu in gpus) for gpus in combinations(range(8), k))
    able = ((mask, [node for node in range(8) if masks[node] & mask == mask]) for mask in every)
    costs = [
        BerthPolicy.spread(demand, now, nodes, [mask] * n, "").cost
        for mask, having in able
        for nodes in combinations(having, n)
    ]

    if not costs:
        with pytest.raises(NotNow):
            BerthPolicy().place(demand, now)
    else:
        assert BerthPolicy().place(demand, now).cost <= min(costs) / (1 - ALIKE) ** 2
