# SPDX-License-Identifier: Apache-2.0
"""What must come of users' changes: the campaign of faults tells what is wrong, and nothing that is Slurm's right."""

import random
from unittest.mock import Mock

import pytest

from tests.hard.faults.invariants import JobSeen
from tests.hard.faults.users import LATER, NICE, Change, ChangingUsers

NOW = 1_795_842_000.0


def users(what: str, *, at: float = NOW, until: float = float("inf")) -> ChangingUsers:
    made = ChangingUsers(Mock(), random.Random(1))
    made.changes[7].append(Change(what, 7, at, until))
    return made


def record(*, started: float = 0.0, nice: int = 0) -> JobSeen:
    return JobSeen(7, "RUNNING", "None", 0, 0, "", "", {}, [], nice=nice, started=started)


@pytest.mark.parametrize("what", ["hold", "cancel"])
def test_a_held_or_cancelled_job_that_slurm_chose_nodes_for_later_is_wrong(what: str) -> None:
    [said] = users(what).wrong([record(started=NOW + 30)], [(7, 0, NOW + 31)])

    assert f"30 s after its user's {what}" in said or f"31 s after its user's {what}" in said


def test_a_launch_that_was_under_way_goes_on() -> None:
    assert list(users("cancel").wrong([record(started=NOW - 1)], [(7, 0, NOW + 6)])) == []


def test_a_job_that_was_released_may_start() -> None:
    held = users("hold", until=NOW + 20)

    assert list(held.wrong([record(started=NOW + 30)], [(7, 0, NOW + 31)])) == []


def test_what_slurmctld_forgot_is_held_against_nobody() -> None:
    killed = users("hold")
    killed.losses.append(NOW + 5)

    assert list(killed.wrong([record(started=NOW + 30)], [(7, 0, NOW + 31)])) == []


def test_a_job_that_was_put_off_starts_no_sooner() -> None:
    early, late = [(7, 0, NOW + LATER / 2)], [(7, 0, NOW + LATER)]

    assert len(list(users("begin").wrong([record()], early))) == 1
    assert list(users("begin").wrong([record()], late)) == []


def test_a_nice_that_its_user_set_stays() -> None:
    assert list(users("nice").wrong([record(nice=NICE)], [])) == []
    assert len(list(users("nice").wrong([record()], []))) == 1
