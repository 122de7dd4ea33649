# SPDX-License-Identifier: Apache-2.0
"""Each known fault is found within a minute, but for those that the world cannot see."""

from __future__ import annotations

import pytest

from tests.world.clock import Replaced
from tests.world.nodes.planted import NODE_PLANTED
from tests.world.planted import PLANTED, PlantedFault, found
from tests.world.whole.planted import WHOLE_PLANTED

NOT_FOUND = {
    "an eviction forgets what the guest asked for": "found in some minutes only: guests are few",
    "a notice that comes twice frees twice": "not found so far: another job has to have the GPU by the second notice",
    "a job that ended is run again": "found in some minutes only: it has to be cancelled while its node complains",
    "a guest that Slurm does not requeue stays": "found by a kept script: an owner has to wait for it in the calm",
    "an owner is sent away in place of its guest": "found by chance only: a guard has to speak beside an owner",
    "old jobs are remembered for ever": "a script has some dozens of jobs, fewer than the bound of any container",
}


@pytest.mark.parametrize("fault", dict.fromkeys((*PLANTED, *NODE_PLANTED, *WHOLE_PLANTED)), ids=lambda one: one.name)
def test_each_fault_can_be_planted(fault: PlantedFault) -> None:
    # A name that moved would plant nothing.
    put = Replaced()
    try:
        fault.plant(put)
        assert put.count > 0
    finally:
        put.undo()


@pytest.mark.hard
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [one for one in PLANTED if one.name not in NOT_FOUND], ids=lambda one: one.name)
def test_a_planted_fault_is_found(fault: PlantedFault) -> None:
    # A machine with other work gets more time than the minute that it takes on a core of its own.
    _, _, words = found(fault, 300.0)
    assert words
