"""Each fault that is planted in the programs of a node is found, but for those that the world seldom sees."""

from __future__ import annotations

import pytest

from tests.world.kinds import NODES
from tests.world.nodes.planted import NODE_PLANTED
from tests.world.planted import PlantedFault, found

NOT_FOUND = {
    "books are written in place": "found by chance only: a program has to be killed between two calls",
}


@pytest.mark.hard
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [one for one in NODE_PLANTED if one.name not in NOT_FOUND], ids=lambda one: one.name)
def test_a_fault_planted_in_the_nodes_is_found(fault: PlantedFault) -> None:
    # A machine with other work gets more time than the minute that it takes on a core of its own.
    _, _, words = found(fault, 300.0, NODES)
    assert words
