# SPDX-License-Identifier: Apache-2.0
"""Each fault that is planted in the programs of a node is found, but for those that the world seldom sees."""

from __future__ import annotations

import pytest

from tests.world.kinds import NODES
from tests.world.nodes.planted import NODE_PLANTED
from tests.world.planted import PlantedFault, found

NOT_FOUND = {
    "shares are not added up": "found by chance only: a lost Epilog's share has to meet a new one within a minute",
    "the dead-man thaws nobody": "found by chance only: a guard has to hang while it holds a guest, for 8 s",
}


@pytest.mark.hard
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [one for one in NODE_PLANTED if one.name not in NOT_FOUND], ids=lambda one: one.name)
def test_a_fault_planted_in_the_nodes_is_found(fault: PlantedFault) -> None:
    # A machine with other work gets more time than the minute that it takes on a core of its own.
    _, _, words = found(fault, 300.0, NODES)
    assert words
