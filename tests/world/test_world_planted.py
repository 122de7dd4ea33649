"""Each known fault is found within a minute, but for those that the world cannot see."""

from __future__ import annotations

import pytest

from tests.world.planted import PLANTED, PlantedFault, found

NOT_FOUND = {
    "a dead node looks alive": "a second rule gives a job back that does not start on a place that looks free",
    "old jobs are remembered for ever": "a script has some dozens of jobs, fewer than the bound of any container",
}


@pytest.mark.hard
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [one for one in PLANTED if one.name not in NOT_FOUND], ids=lambda one: one.name)
def test_a_planted_fault_is_found(fault: PlantedFault) -> None:
    # A machine with other work gets more time than the minute that it takes on a core of its own.
    _, _, words = found(fault, 300.0)
    assert words
