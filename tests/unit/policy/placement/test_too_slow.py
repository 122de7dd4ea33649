# SPDX-License-Identifier: Apache-2.0
"""Nodes that cost a job and the cluster more than they bring."""

from dataclasses import replace

import numpy as np
import pytest

from policy.cluster.fleet import Fleet
from policy.placement.base import Policy
from policy.placement.berth import BerthPolicy
from policy.placement.registry import create
from policy.placement.too_slow import bounds, drain, worthwhile
from policy.request.demand import ANY_SPREAD, Demand
from policy.simulate.jobs import TraceJob
from policy.simulate.world import Layout, build, demand_of


def fleet_with(slow: float, nodes: int = 8) -> Fleet:
    """Nodes of four GPUs, of which one on the first node is so slow."""
    scores = np.ones((nodes, 4))
    scores[0, 0] = slow
    return build(Layout(nodes, 4), {"compute": scores})


def given_up(fleet: Fleet, n: int, k: int, policy: Policy | None = None, app_class: str = "compute") -> list[int]:
    demand = replace(demand_of(TraceJob("1", n * k, 0, 60, nodes=n, app_class=app_class), fleet), n=n, k=k)
    found = (policy or BerthPolicy()).worthwhile(demand, fleet)
    return np.flatnonzero(demand.candidates & ~found).tolist()


@pytest.mark.parametrize(
    ("slow", "n", "k", "nodes"),
    [
        (1.3, 1, 4, []),  # three GPUs at full speed do the work of 3, all four the work of 3.08
        (1.4, 1, 4, [0]),
        (1.2, 2, 4, [0]),  # 7 and 6.7
        (1.1, 2, 4, []),
        (2.8, 1, 3, []),  # the node has three others
        (9.0, 1, 1, []),
        (1.1, 4, 4, []),  # the work would be worth it, but not the wait for four of seven nodes
        (1.2, 4, 4, [0]),
        (2.8, 8, 4, []),  # too few are left
    ],
)
def test_a_node_is_given_up_where_its_slow_gpu_costs_more_than_it_brings(
    slow: float, n: int, k: int, nodes: list[int]
) -> None:
    assert given_up(fleet_with(slow), n, k) == nodes


def test_small_steps_are_never_given_up() -> None:
    scores = np.linspace(1.0, 2.0, 64).reshape(16, 4)

    assert not any(bounds(scores, n, 4) for n in (1, 2, 4, 8))


def test_the_strictest_bound_comes_first_and_all_slow_nodes_count() -> None:
    scores = np.ones((8, 4))
    scores[0, 0], scores[1, :2] = 4.0, 2.5

    assert [(one.gap, one.fast.tolist()[:3]) for one in bounds(scores, 1, 4)] == [
        (2.5, [False, False, True]),
        (1.6, [False, True, True]),
    ]


def test_a_place_without_a_gpu_is_no_slow_gpu() -> None:
    scores = np.ones((3, 4))
    scores[0, 2:] = np.inf

    assert bounds(scores, 1, 2) == []
    assert bounds(scores, 1, 4) == []


def test_other_classes_and_policies_without_scores_take_any_node() -> None:
    fleet = fleet_with(2.8)

    assert given_up(fleet, 2, 4, app_class="D") == []
    assert given_up(fleet, 2, 4, create("pal")) == []


def test_a_job_whose_gpus_may_lie_anywhere_takes_any() -> None:
    fleet = fleet_with(2.8)
    demand = Demand(ANY_SPREAD, 8, 0, 0, "any", 60, fleet.ready, app_class="compute")

    assert BerthPolicy().worthwhile(demand, fleet) is demand.candidates


def test_new_scores_count_at_once() -> None:
    policy, fleet = BerthPolicy(), fleet_with(2.8)
    assert given_up(fleet, 2, 4, policy) == [0]

    assert given_up(replace(fleet, scores={"compute": np.ones((8, 4))}), 2, 4, policy) == []


def test_the_wait_is_that_for_the_nodes_which_the_job_may_use() -> None:
    """Makes one of three nodes slow: two of two take half as long again as two of three."""
    scores = np.ones((20, 4))
    scores[0, 0] = 1.3
    [bound] = bounds(scores, 2, 4)
    everywhere, few = np.ones(20, np.bool_), np.arange(20) < 3

    assert not worthwhile(everywhere, everywhere, 2, [bound])[0]
    assert worthwhile(few, everywhere, 2, [bound]) is few
    assert drain(2, 2) - drain(3, 2) == pytest.approx(2 / 3)
