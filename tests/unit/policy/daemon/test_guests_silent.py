# SPDX-License-Identifier: Apache-2.0
"""Guests that have to leave while slurmctld does not answer: none is lost."""

from dataclasses import dataclass, replace

import pytest

from policy.formats.errors import NoAnswer
from policy.formats.slurm_facts import JobText
from tests.unit.guest_world import guest
from tests.unit.policy.daemon.test_guests_daemon import Slurm, evictions
from tests.unit.policy_world import NOW


@dataclass
class Flapping(Slurm):
    """Slurm, which leaves some questions about a job unanswered."""

    unanswered: int = 0

    def job(self, job_id: int) -> JobText:
        if self.unanswered:
            self.unanswered -= 1
            raise NoAnswer("Unable to contact slurm controller")
        return super().job(job_id)


@pytest.mark.parametrize("unanswered", [0, 1, 5])
def test_one_that_its_warning_killed_is_run_again_once_slurm_answers(unanswered: int) -> None:
    slurm, one = Flapping(), guest(5, "n1", 0)
    leaving = evictions(slurm, evict_grace=60)
    leaving.begin(one, "its GPU is needed", NOW)
    slurm.state, slurm.unanswered = "FAILED", unanswered
    for second in range(1, 10):
        leaving.step([], NOW + second)
    leaving.step([replace(one, state="PENDING")], NOW + 10)

    assert slurm.done[2:] == ["requeue 5"]


def test_one_that_ended_by_itself_is_asked_for_no_more() -> None:
    slurm, one = Flapping(), guest(5, "n1", 0)
    leaving = evictions(slurm, evict_grace=60)
    leaving.begin(one, "its GPU is needed", NOW)
    slurm.state, slurm.unanswered = "COMPLETED", 1
    for second in range(1, 10):
        leaving.step([], NOW + second)

    assert not leaving._going
    assert len(slurm.done) == 2


@pytest.mark.parametrize(
    ("state", "done", "ends"),
    [
        ("FAILED", ["requeue 5"], True),
        ("COMPLETED", [], True),
        ("RUNNING", ["evict 5"], True),
        # It brought MPS down, and failed of that.
        ("FAILED", [], False),
    ],
)
def test_one_that_its_guard_ends_meanwhile_is_run_again_once_slurm_answers(
    state: str, done: list[str], *, ends: bool
) -> None:
    slurm, one = Flapping(silent=True, unanswered=99), guest(5, "n1", 0)
    leaving = evictions(slurm)
    assert leaving.obey(one, "its guard says so", NOW, {"n1": NOW + 600}, ends=ends) == 0
    assert not leaving.has_asked(5), "the guard puts it back itself if it can"
    leaving.step([], NOW + 6)

    slurm.silent, slurm.unanswered, slurm.state, slurm.ended = False, 0, state, state != "RUNNING"
    for second in range(7, 20):
        leaving.step([one] if state == "RUNNING" else [], NOW + second)

    assert slurm.done == done
    assert leaving.has_asked(5) == (state == "RUNNING")


def test_one_that_its_guard_has_put_back_by_itself_keeps_its_next_run() -> None:
    slurm, one = Flapping(silent=True, unanswered=99), guest(5, "n1", 0)
    leaving = evictions(slurm)
    leaving.obey(one, "its guard says so", NOW, {"n1": NOW + 600}, ends=True)
    slurm.silent, slurm.unanswered = False, 0
    again = replace(one, start=int(NOW) + 130)
    for second in range(140, 160):
        leaving.step([again], NOW + second)

    assert slurm.done == []
    assert not leaving._going
