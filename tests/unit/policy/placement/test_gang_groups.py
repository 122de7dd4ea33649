"""Groups of nodes for gangs, and which nodes of a group a gang is given."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from policy.placement.gang import _fullest_group, _least_missed, _of_both
from topology.fabric import NOBODY


def test_nodes_are_together_only_where_both_groupings_have_them_together() -> None:
    leaves = np.array([0, 0, 0, 1, 1, NOBODY, 1, 1])
    blocks = np.array([0, 0, 1, 1, 1, 1, NOBODY, 0])

    found = _of_both(leaves, blocks).tolist()

    assert found[0] == found[1]
    assert found[3] == found[4]
    assert len({found[0], found[2], found[3], found[7], NOBODY}) == 5
    assert found[5:7] == [NOBODY, NOBODY]


def chosen(slowest: list[float], leaves: list[int], n: int = 2) -> list[int]:
    """The nodes that a gang is given of those that are able, all of them empty."""
    full = np.full(len(slowest), 0xFF)
    fleet = SimpleNamespace(fabric=SimpleNamespace(leaf=np.array(leaves)), full=full)
    view: Any = SimpleNamespace(fleet=fleet, free=full, crowded=False)
    demand: Any = SimpleNamespace(n=n)
    return sorted(_least_missed(demand, view, np.arange(len(slowest)), np.array(slowest)).tolist())


@pytest.mark.parametrize("slowest", [[1.0, 1.5, 2.0], [2.0, 1.0, 1.5], [1.5, 2.0, 1.0]])
def test_a_gang_has_as_many_nodes_as_it_needs_and_no_slower_ones(slowest: list[float]) -> None:
    assert chosen(slowest, [0, 0, 0]) == sorted(np.argsort(slowest)[:2].tolist())


def test_nodes_of_a_known_leaf_come_before_those_of_which_nobody_knows_where_they_are() -> None:
    assert chosen([1.0, 1.0, 1.0, 1.0], [NOBODY, NOBODY, 0, 0]) == [2, 3]
    assert chosen([1.0, 1.0], [NOBODY, 0], n=1) == [1]


def test_the_best_group_is_the_one_whose_slowest_needed_node_is_fastest() -> None:
    view: Any = SimpleNamespace(crowded=False)
    demand: Any = SimpleNamespace(n=2)
    # The second group has fewer nodes, and its second node is slow.
    found = _fullest_group(demand, view, np.array([1.0, 1.0, 9.0, 1.0, 1.5]), np.array([0, 0, 0, 1, 1]))

    assert found is not None
    assert found.tolist() == [0, 1, 2]
