# SPDX-License-Identifier: Apache-2.0
"""What pinned jobs exclude names no node that may be taken out of slurm.conf."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from policy.cluster.fleet import Fleet
from policy.daemon.known.fleets import AWAY_FOR, LOOK_EVERY, Absences
from policy.daemon.write.lists import MOST_A_PASS, Lists
from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.slurm_facts import JobFacts
from policy.formats.slurm_syntax.excluded_nodes import mark_of
from policy.slurm import fields
from tests.unit.policy_world import NOW, fleet, node, reading, running, waiting

NAMES = ("n1", "n2", "n3", "n4")


def test_a_node_that_takes_no_jobs_for_long_is_named_no_more_until_it_is_back() -> None:
    absences = Absences()
    here, away = [node("n1"), node("n2")], [node("n1"), node("n2", up=False)]

    assert absences.of(here, NOW) == frozenset()
    assert absences.of(away, NOW + LOOK_EVERY) == frozenset()
    assert absences.of(away, NOW + AWAY_FOR) == frozenset()
    assert absences.of(away, NOW + LOOK_EVERY + AWAY_FOR) == {"n2"}
    # Each change makes all places be computed anew: not at every look.
    assert absences.of(here, NOW + LOOK_EVERY + AWAY_FOR + 1) == {"n2"}
    assert absences.of(here, NOW + 2 * LOOK_EVERY + AWAY_FOR) == frozenset()


def test_a_node_that_was_back_in_between_is_away_since_then() -> None:
    absences = Absences()
    away = [node("n1", up=False)]
    assert absences.of([node("n1")], NOW) == frozenset()
    assert absences.of(away, NOW + LOOK_EVERY) == frozenset()
    assert absences.of([node("n1")], NOW + AWAY_FOR) == frozenset()

    assert absences.of(away, NOW + AWAY_FOR + LOOK_EVERY) == frozenset()


def test_a_dynamic_node_is_never_named() -> None:
    absences = Absences()
    assert absences.of([node("n1", dynamic=True), node("n2")], NOW) == {"n1"}
    assert absences.of([node("n2"), node("n3", dynamic=True)], NOW + 1) == {"n3"}
    assert fields.is_dynamic("IDLE+DYNAMIC_NORM")
    assert not fields.is_dynamic("MIXED+PLANNED")


class Pins:
    """Remembers whose place was written again."""

    def __init__(self, *, refuses: bool = False, silent: bool = False) -> None:
        self.again: list[int] = []
        self.silent, self._refuses = silent, refuses

    def pin_again(self, job: JobFacts) -> None:
        self.again.append(job.id)
        if self._refuses:
            raise SlurmError("Invalid node name specified")
        if self.silent:
            raise NoAnswer("Unable to contact slurm controller")


def world(*unnamed: str) -> Fleet:
    return replace(fleet(reading([node(name) for name in NAMES])), unnamed=frozenset(unnamed))


def told(known: Fleet, job_id: int, **changes: object) -> JobFacts:
    """A job that waits for n1 and excludes what it should on this fleet."""
    return waiting(job_id, "n1", 0b1, segment={"others": mark_of(known.others.but(["n1"]))}, **changes)


def write_all(lists: Lists, jobs: Sequence[JobFacts]) -> int:
    written = 0
    while lists.write_one({job.id: job for job in jobs}, ()) is not None:
        written += 1
    return written


def test_lists_that_name_a_node_that_may_go_are_written_again_some_in_each_pass() -> None:
    before, after = world(), world("n4")
    assert after.others.but(["n1"]) == "n[2-3]"
    jobs = [told(before, job_id) for job_id in range(10, 10 + MOST_A_PASS + 2)]
    no_list, runs = waiting(5, "n1", 0b10, reason="JobHeldUser"), running(6, "n2", 0xFF, 600)
    right = told(after, 7)
    everybody = [no_list, runs, right, *jobs]
    pins = Pins()
    lists = Lists(pins)  # type: ignore[arg-type]

    lists.look(before, everybody)
    assert write_all(lists, everybody) == 0
    lists.look(after, everybody)
    assert write_all(lists, everybody) == MOST_A_PASS
    lists.look(after, everybody)
    assert write_all(lists, everybody) == 2
    assert pins.again == [job.id for job in jobs]


def test_a_job_that_cannot_be_changed_is_not_tried_for_ever() -> None:
    jobs = [told(world(), 10), waiting(11, "n1", 0b10)]
    pins = Pins(refuses=True)
    lists = Lists(pins)  # type: ignore[arg-type]
    known = world("n4")
    for _ in range(3):
        lists.look(known, jobs)
        write_all(lists, jobs)

    assert sorted(pins.again) == [10, 11]


def test_a_list_that_slurm_did_not_answer_for_is_written_in_a_later_pass() -> None:
    """Else the job would name the node for good, and could not be changed any more once the node is gone."""
    before, after = world(), world("n4")
    jobs = [told(before, 10), told(before, 11)]
    pins = Pins(silent=True)
    lists = Lists(pins)  # type: ignore[arg-type]
    lists.look(before, jobs)
    lists.look(after, jobs)
    write_all(lists, jobs)
    assert len(pins.again) == 1, "each try may take long"

    pins.silent = False
    lists.look(after, jobs)
    write_all(lists, jobs)

    assert sorted(pins.again[1:]) == [10, 11]


def test_a_node_that_comes_back_makes_nobody_be_written_again() -> None:
    jobs = [told(world("n4"), 10)]
    pins = Pins()
    lists = Lists(pins)  # type: ignore[arg-type]
    lists.look(world("n4"), jobs)
    assert write_all(lists, jobs) == 0
    lists.look(world(), jobs)

    assert write_all(lists, jobs) == 0


def test_the_log_says_what_to_do_where_a_node_was_taken_out_too_early(capsys: pytest.CaptureFixture[str]) -> None:
    lists = Lists(Pins())  # type: ignore[arg-type]
    jobs = [told(world(), 10), waiting(5, "n1", 0b10)]
    lists.look(world(), jobs)
    lists.look(fleet(reading([node(name) for name in NAMES[:-1]])), jobs)

    assert "n4 Slurm knows it no more, and refuses every change to those of 1 jobs" in capsys.readouterr().err


def test_a_job_gets_its_list_when_it_may_start() -> None:
    job = waiting(10, "n1", 0b1)
    nobodys = [
        replace(job, id=21, reason="JobHeldUser"),
        replace(job, id=22, reason="Dependency"),
        replace(job, id=23, excluded=("n3",)),
        replace(job, id=24, share=30),
        replace(job, id=25, guest=True),
        replace(job, id=26, required=()),
        replace(job, id=27, gpus=None),
    ]
    pins = Pins()
    lists = Lists(pins)  # type: ignore[arg-type]
    jobs = [*nobodys, job]
    lists.look(world(), jobs)

    assert write_all(lists, jobs) == 1
    assert pins.again == [10]
    # There is none to write where it would be too long, or nobody else is there.
    lists.look(world(*NAMES[1:]), jobs)
    assert write_all(lists, jobs) == 0
