# SPDX-License-Identifier: Apache-2.0
"""All scripts of a few steps go well, and an exploration finds a planted fault by a shortest script."""

from __future__ import annotations

import pytest

from tests.world.clock import Replaced
from tests.world.explore import PROTOCOL, START, explore, fingerprint
from tests.world.planted import PLANTED
from tests.world.world import DeterministicWorld

WHOLE = ("submit", "whole", 3, 20, "COMPLETED", 0)


def test_all_scripts_of_two_steps_are_safe() -> None:
    found = explore(2, seconds=300.0, calm=False)
    assert not found.problem, (found.problem, found.script)
    assert found.whole
    assert found.by_depth[0] > 1


@pytest.mark.hard
@pytest.mark.timeout(1_800)
def test_all_scripts_of_three_steps_are_safe_and_come_to_a_good_end() -> None:
    found = explore(3, seconds=1_500.0, calm=True)
    assert not found.problem, (found.problem, found.script)
    assert found.whole
    assert found.calmed == sum(found.by_depth)


def test_a_planted_fault_is_found_by_a_shortest_script() -> None:
    fault = next(one for one in PLANTED if one.name == "given places are forgotten with each snapshot")
    put = Replaced()
    fault.plant(put)
    try:
        found = explore(4, seconds=300.0, calm=False, alphabet=(WHOLE, ("pass", 1), ("hear",)))
    finally:
        put.undo()
    assert "given" in found.problem
    assert found.script[len(START) :] == (("pass", 1), WHOLE, ("hear",), WHOLE)


def test_without_the_fault_the_same_scripts_are_safe() -> None:
    found = explore(4, seconds=300.0, calm=False, alphabet=(WHOLE, ("pass", 1), ("hear",)))
    assert found.whole
    assert not found.problem


def test_a_state_is_the_same_however_it_is_reached() -> None:
    told = []
    for order in (("node", "down", 0), ("node", "drain", 1)), (("node", "drain", 1), ("node", "down", 0)):
        with DeterministicWorld() as world:
            world.play((*START, *order), calm=False)
            told.append(fingerprint(world))
    assert told[0] == told[1]


def test_the_protocol_has_each_step_once() -> None:
    assert len(set(PROTOCOL)) == len(PROTOCOL)
