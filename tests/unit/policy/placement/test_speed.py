# SPDX-License-Identifier: Apache-2.0
"""The scores up to which free GPUs are offered to a job on one node, beside a look at every set."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.cost import CostModel, one_factor
from policy.cluster.fleet import Fleet
from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.berth import BerthPolicy
from policy.placement.speed import ALIKE, fast_enough, node_scores
from policy.request.demand import Demand
from policy.simulate.world import Layout, build, view
from tests.examples import examples
from tests.unit.policy_world import machine

WITHOUT_NVLINK = 1.15
COSTS = CostModel({"*": one_factor(node=WITHOUT_NVLINK)})
SCORES = [0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.5]


def pairs(scores: list[list[float]]) -> Fleet:
    """Nodes on which GPUs 0 and 1, 2 and 3 and so on are linked."""
    table = np.array(scores)
    return build(Layout(*table.shape), {"compute": table}, COSTS, machine("n0", "a6000", table.shape[1]))


def demand(fleet: Fleet, k: int, level: str = "any") -> Demand:
    return Demand(1, k, cpus=0, mem=0, level=level, limit=3600, candidates=fleet.ready)


def linked(gpus: tuple[int, ...]) -> bool:
    return len(gpus) == 1 or {one // 2 for one in gpus} == {gpus[0] // 2}


def cheapest(fleet: Fleet, now: View, k: int, level: str) -> float | None:
    """Returns the score of the slowest GPU of the set that costs least; of equal ones, a linked set's."""
    found = []
    for node, row in enumerate(fleet.scores["compute"]):
        free = [gpu for gpu in range(row.size) if int(now.free[node]) >> gpu & 1]
        for gpus in combinations(free, k):
            score = float(row[list(gpus)].max())
            if linked(gpus):
                found.append((score, 0, score))
            elif level == "any":
                found.append((score * WITHOUT_NVLINK, 1, score))
    return min(found)[2] if found else None


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), k=st.integers(1, 3), level=st.sampled_from(["any", "nvlink"]))
def test_what_is_offered_is_as_slow_as_the_cheapest_set_and_no_slower(data: st.DataObject, k: int, level: str) -> None:
    row = st.lists(st.sampled_from(SCORES), min_size=6, max_size=6)
    fleet = pairs(data.draw(st.lists(row, min_size=1, max_size=3)))
    now = view(
        fleet, np.array(data.draw(st.lists(st.integers(0, 63), min_size=fleet.size.size, max_size=fleet.size.size)))
    )

    offered = fast_enough(demand(fleet, k, level), now, fleet.ready)

    score = cheapest(fleet, now, k, level)
    assert (offered and offered[1]) == score
    if offered and score:
        fast = (fleet.scores["compute"] <= score * (1 + ALIKE)) @ (1 << np.arange(6))
        assert offered[0].tolist() == (now.free & fast).tolist()


def test_fast_gpus_without_nvlink_are_taken_where_linked_ones_are_slower_by_more_than_that_costs() -> None:
    fleet = pairs([[1.0, 1.5, 1.0, 1.5]])
    assert BerthPolicy().place(demand(fleet, 2), view(fleet, fleet.full)).gpus == (0, 2)
    fleet = pairs([[1.0, 1.1, 1.0, 1.1]])
    assert BerthPolicy().place(demand(fleet, 2), view(fleet, fleet.full)).gpus == (0, 1)


def test_a_job_that_needs_nvlink_waits_where_scores_are_known_and_no_linked_set_is_free() -> None:
    # It was a fault of berthd's own: the least of no costs was asked for.
    fleet = pairs([[1.0] * 4])
    with pytest.raises(NotNow):
        BerthPolicy().place(demand(fleet, 2, "nvlink"), view(fleet, np.array([0b0101])))


def test_gpus_up_to_the_alike_difference_are_offered_and_no_slower_ones() -> None:
    fleet = pairs([[1.0, 1.0 * (1 + ALIKE), 1.0 * (1 + ALIKE) + 1e-9, 1.5]])

    found = fast_enough(demand(fleet, 1), view(fleet, fleet.full), fleet.ready)

    assert found is not None
    assert (found[0].tolist(), found[1]) == ([0b0011], 1.0)


def test_a_linked_pair_is_found_at_the_first_score_that_completes_one() -> None:
    fleet = pairs([[0.9, 1.1, 1.0, 1.3]])

    found = fast_enough(demand(fleet, 2, "nvlink"), view(fleet, fleet.full), fleet.ready)

    assert found is not None
    assert (found[0].tolist(), found[1]) == ([0b0111], 1.1)


@pytest.mark.parametrize(("second", "least"), [(1.1, 1.1), (1.4, 1.4), (1.5, 1.5), (1.9, 1.9)])
def test_the_lowest_score_of_many_that_completes_a_linked_pair_is_found(second: float, least: float) -> None:
    fleet = pairs([[1.0, second, 1.0, 2.0, 1.3, 2.1, 1.6, 2.2]])

    offered = fast_enough(demand(fleet, 2, "nvlink"), view(fleet, fleet.full), fleet.ready)

    assert offered is not None
    assert offered[1] == least


def test_the_score_that_completes_a_pair_is_found_behind_many_that_do_not() -> None:
    alone, partners = [1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6]
    fleet = pairs([[score for pair in zip(alone, partners, strict=True) for score in pair]])

    offered = fast_enough(demand(fleet, 2, "nvlink"), view(fleet, fleet.full), fleet.ready)

    assert offered is not None
    assert offered[1] == 2.0


def test_a_pair_that_no_free_gpus_complete_is_not_found_by_scores_of_gpus_in_use() -> None:
    fleet = pairs([[1.0, 1.5, 1.1, 1.6]])
    now = view(fleet, np.array([0b0111]))

    found = fast_enough(demand(fleet, 2, "nvlink"), now, fleet.ready)

    assert found is not None
    assert (found[0].tolist(), found[1]) == ([0b0111], 1.5)
    assert fast_enough(demand(fleet, 2, "nvlink"), view(fleet, np.array([0b0101])), fleet.ready) is None


@pytest.mark.parametrize(("mask", "slowest"), [(0b0001, [0.9, 1.0]), (0b0110, [1.2, 1.1]), (0b1111, [1.3, 1.1])])
def test_a_node_is_as_slow_as_the_slowest_gpu_that_a_job_gets_there(mask: int, slowest: list[float]) -> None:
    fleet = pairs([[0.9, 1.2, 1.0, 1.3], [1.0, 1.1, 1.0, 1.0]])
    both = np.arange(2)

    assert node_scores(fleet, "compute", both, mask).tolist() == slowest
    assert node_scores(fleet, "memory", both, mask).tolist() == [1.0, 1.0], "of a class without scores all are typical"
