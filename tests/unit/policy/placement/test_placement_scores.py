# SPDX-License-Identifier: Apache-2.0
"""Berth's own policy where GPUs have scores, and nodes have leaves."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.cost import CostModel, one_factor
from policy.cluster.fleet import Fleet
from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.placement.speed import ALIKE
from policy.request.demand import Demand
from policy.simulate.world import Layout, build, view
from tests.examples import examples
from tests.unit import policy_world
from tests.unit.policy_world import book, machine, reading

LEAF_POD = CostModel({"*": one_factor(leaf=1.3, pod=1.7, any=1.7)})


def demand(fleet: Fleet, n: int, k: int, **changes: object) -> Demand:
    facts: dict[str, object] = {"cpus": 0, "mem": 0, "level": "any", "limit": 3600, "candidates": fleet.ready}
    return Demand(n, k, **{**facts, **changes})  # type: ignore[arg-type]


def slowest(fleet: Fleet, berth: Berth) -> float:
    table = fleet.scores["compute"]
    return max(
        float(table[node, place])
        for node, mask in zip(berth.nodes, berth.masks, strict=True)
        for place in range(table.shape[1])
        if mask >> place & 1
    )


def random_world(seed: int, nodes: int = 6, gpus: int = 4, **plan: int) -> tuple[Fleet, View]:
    draw = np.random.default_rng(seed)
    scores = draw.choice([0.95, 1.0, 1.1, 1.4, 2.8], (nodes, gpus), p=[0.3, 0.4, 0.15, 0.1, 0.05])
    fleet = build(Layout(nodes, gpus, **plan), {"compute": scores}, LEAF_POD if plan else None)
    return fleet, view(fleet, draw.integers(0, 1 << gpus, nodes))


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 4))
def test_on_one_node_no_set_is_faster_by_more_than_what_is_alike(seed: int, k: int) -> None:
    fleet, now = random_world(seed)
    table = fleet.scores["compute"]
    possible = [
        max(table[node, place] for place in places)
        for node in range(6)
        for places in combinations([p for p in range(4) if now.free[node] >> p & 1], k)
    ]
    if not possible:
        with pytest.raises(NotNow):
            BerthPolicy().place(demand(fleet, 1, k), now)
        return

    berth = BerthPolicy().place(demand(fleet, 1, k), now)

    assert slowest(fleet, berth) <= min(possible) * (1 + ALIKE)
    assert berth.mask & ~int(now.free[berth.nodes[0]]) == 0
    assert berth.mask.bit_count() == k


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 4))
def test_no_gang_of_whole_nodes_would_be_cheaper_elsewhere(seed: int, n: int) -> None:
    fleet, now = random_world(seed, nodes=8, nodes_per_leaf=2, leaves_per_pod=2)
    whole = [node for node in range(8) if int(now.free[node]) == 15]
    costs = {
        nodes: max(fleet.scores["compute"][list(nodes)].max(axis=1))
        * LEAF_POD.locality("", "compute", fleet.fabric.level(nodes), 4 * n)
        for nodes in combinations(whole, n)
    }
    if not costs:
        with pytest.raises(NotNow):
            BerthPolicy().place(demand(fleet, n, 4), now)
        return

    berth = BerthPolicy().place(demand(fleet, n, 4), now)

    assert costs[berth.nodes] <= min(costs.values()) * (1 + ALIKE) ** 2
    assert berth.cost == pytest.approx(costs[berth.nodes])


def test_a_gang_takes_the_leaf_that_it_fills_best() -> None:
    fleet = build(Layout(12, 4, nodes_per_leaf=4), costs=LEAF_POD)
    free = fleet.full.copy()
    free[[4, 5]] = 0  # The second leaf has two whole nodes left, the others four.

    berth = BerthPolicy().place(demand(fleet, 2, 4), view(fleet, free))

    assert berth.nodes == (6, 7)
    assert berth.level == "leaf"
    assert "all in one leaf" in berth.why


def test_a_gang_wider_than_a_leaf_takes_few_leaves() -> None:
    fleet = build(Layout(12, 4, nodes_per_leaf=4), costs=LEAF_POD)
    free = fleet.full.copy()
    free[[0, 1]] = 0

    berth = BerthPolicy().place(demand(fleet, 6, 4), view(fleet, free))

    assert len({node // 4 for node in berth.nodes}) == 2


def test_a_slow_node_near_by_is_worth_less_than_a_fast_one_far_away() -> None:
    scores = np.ones((4, 4))
    scores[1] = 2.8
    fleet = build(Layout(4, 4, nodes_per_leaf=2), {"compute": scores}, LEAF_POD)
    free = fleet.full.copy()
    free[3] = 0  # Only 0 and 1 are a leaf, and 1 is slow.

    assert BerthPolicy().place(demand(fleet, 2, 4), view(fleet, free)).nodes == (0, 2)


def test_links_decide_among_gpus_that_are_alike() -> None:
    # A cube mesh: GPUs 0 and 3 are joined by two links, and are a little slower than 0 and 1, joined by one.
    scores = np.full((1, 8), 1.5)
    scores[0, [0, 1, 3]] = 1.0, 1.0, 1.01
    fleet = build(Layout(1, 8), {"compute": scores}, machine=machine("n0", "v100"))

    assert BerthPolicy().place(demand(fleet, 1, 2), view(fleet, fleet.full)).gpus == (0, 3)


@pytest.mark.parametrize(
    ("slower", "crowded", "gpus"),
    [(1.019, False, (0, 3)), (1.021, False, (0, 1)), (1.09, True, (0, 3)), (1.11, True, (0, 1))],
)
def test_scores_are_alike_within_two_percent_and_within_ten_where_most_gpus_are_taken(
    slower: float, crowded: bool, gpus: tuple[int, ...]
) -> None:
    """GPUs 0 and 3 are joined by two links, 0 and 1 by one."""
    scores = np.full((1, 8), 1.5)
    scores[0, [0, 1, 3]] = 1.0, 1.0, slower
    fleet = build(Layout(1, 8), {"compute": scores}, machine=machine("n0", "v100"))
    now = replace(view(fleet, fleet.full), crowded=crowded)

    assert BerthPolicy().place(demand(fleet, 1, 2), now).gpus == gpus


@pytest.mark.parametrize("slower", [1.0, 1.01, 1.019])
def test_a_node_with_just_enough_gpus_goes_before_one_that_would_be_broken_into(slower: float) -> None:
    scores = np.ones((3, 8))
    scores[0, 4:], scores[1, 1::2], scores[2, 2] = 1.4, slower, 1.4
    fleet = build(Layout(3, 8), {"compute": scores})
    free = np.array([0xFF, 0b1111, 0b11111])

    assert BerthPolicy().place(demand(fleet, 1, 4), view(fleet, free)).nodes == (1,)
    # Four fast ones of five break their island; so do four of eight, and that node has more left over.
    free[1] = 0
    assert BerthPolicy().place(demand(fleet, 1, 4), view(fleet, free)).nodes == (2,)


def test_a_job_on_one_node_leaves_whole_leaves_to_gangs() -> None:
    fleet = build(Layout(6, 4, nodes_per_leaf=2), costs=LEAF_POD)
    free = np.array([15, 15, 15, 1, 15, 15])

    assert BerthPolicy().place(demand(fleet, 1, 4), view(fleet, free)).nodes == (2,)


def test_where_most_gpus_are_taken_a_little_speed_is_no_reason_to_break_a_leaf() -> None:
    scores = np.ones((4, 4))
    scores[2] = 1.08
    fleet = build(Layout(4, 4, nodes_per_leaf=2), {"compute": scores}, LEAF_POD)
    now = view(fleet, np.array([15, 15, 15, 0]))

    assert BerthPolicy().place(demand(fleet, 1, 4), now).nodes != (2,)
    assert BerthPolicy().place(demand(fleet, 1, 4), replace(now, crowded=True)).nodes == (2,)

    scores[2] = 1.2
    slow = replace(fleet, scores={"compute": scores})
    assert BerthPolicy().place(demand(slow, 1, 4), replace(now, fleet=slow, crowded=True)).nodes != (2,)


def test_a_cluster_is_crowded_when_most_of_its_gpus_are_taken() -> None:
    def crowded(first: int, second: int) -> bool:
        nodes = [policy_world.node("n1", used=first), policy_world.node("n2", used=second)]
        return book(reading(nodes)).cluster.now(60).crowded

    assert not crowded(0, 0)
    assert not crowded(0, 0xFF)
    assert crowded(1, 0xFF)
