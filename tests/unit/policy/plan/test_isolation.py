# SPDX-License-Identifier: Apache-2.0
"""Throws from every function of the plan in turn: one job is left to Slurm, the others get their places."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.changes import Change, Move, Release
from policy.plan.ledger.isolation import LEFT_FOR, Isolation
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.guests.guest_pass import GuestPass
from policy.plan.opinions.opinion import Opinion
from policy.plan.opinions.without_gpus import WithoutGpus
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.unit import guest_world
from tests.unit.policy_world import NOW, book, fleet, node, reading, running, waiting

POLICY = str(Path(__file__).parents[4] / "policy")
BAD, GOOD = 5, 9
INSIDE = {Isolation.job.__code__, Isolation.once.__code__, Isolation.group.__code__}


def world(at: float = NOW) -> Reading:
    """Two nodes are taken, the others free; jobs of all kinds wait, of which two should be moved."""
    jobs: list[JobFacts] = [
        running(1, "n1", 0xFF, 5_000),
        waiting(BAD, "n1", 0b11),
        waiting(6, "n1,n2", 0b11, required=("n1", "n2"), count=2, segment={"nodes": "n1,n2", "n": "2"}),
        running(7, "n3", 0, 0, state="PENDING", nodes=(), required=(), start=None, end=None, wants_gpus=False),
        waiting(8, "n4", 0b1, state="ARRAY", array=8, tasks="1-3"),
        waiting(GOOD, "n1", 0b11),
    ]
    return reading([node(f"n{number}") for number in range(1, 5)], jobs, at=at)


def of(changes: list[Change], job_id: int) -> list[Change]:
    return [change for change in changes if change.job.id == job_id]


def concerned(frame: FrameType | None) -> tuple[bool, int | None]:
    """Whether a frame is inside of a step that is kept apart, and of which job."""
    while frame is not None:
        if frame.f_code in INSIDE:
            job = frame.f_locals.get("job")
            return True, None if job is None else job.id
        frame = frame.f_back
    return False, None


Trace = Callable[[FrameType, str, object], None]


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def settrace_on(folder: str, at_call: Callable[[FrameType], None]) -> AbstractContextManager[None]:
    """Calls this at each call of a function whose file lies in a folder; what it throws, the function throws."""

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            at_call(frame)

    return tracing(trace)


def settrace_for(code: CodeType, at_call: Callable[[FrameType], None]) -> AbstractContextManager[None]:
    """Calls this at each call of one function; three times as quick as a look at every function's file."""

    def trace(frame: FrameType, _event: str, _: object) -> None:
        if frame.f_code is code:
            at_call(frame)

    return tracing(trace)


@contextmanager
def traced(at_call: Callable[[FrameType], None]) -> Iterator[None]:
    """The same for the functions of the policy side, but for what isolates."""
    with settrace_on(POLICY, lambda frame: None if frame.f_code in INSIDE else at_call(frame)):
        yield


def called_for(wanted: int | None) -> dict[CodeType, str]:
    """Functions that a pass calls in steps about this job, or about many."""
    found: dict[CodeType, str] = {}

    def note(frame: FrameType) -> None:
        inside, job_id = concerned(frame.f_back)
        if inside and job_id == wanted:
            found[frame.f_code] = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"

    look = world()
    with traced(note):
        Plan(BerthPolicy(), Settings()).replan(book(look), look.jobs)
    return found


def throwing(plan: Plan, code: CodeType, wanted: int | None) -> list[Change]:
    """A pass in which one function throws the first time that it is called for this job."""

    def throw(frame: FrameType) -> None:
        if concerned(frame.f_back) == (True, wanted):
            raise RuntimeError("thrown")

    look = world()
    opened = book(look)
    with settrace_for(code, throw):
        return plan.replan(opened, look.jobs)


def test_without_a_fault_both_jobs_move() -> None:
    look = world()
    changes = Plan(BerthPolicy(), Settings()).replan(book(look), look.jobs)

    assert all(isinstance(of(changes, job_id)[0], Move) for job_id in (BAD, GOOD))


def test_a_fault_in_any_function_about_a_job_costs_that_job_alone() -> None:
    functions = called_for(BAD)
    assert len(functions) > 25

    for code, name in functions.items():
        told: list[str] = []
        plan = Plan(BerthPolicy(), Settings(), tell=told.append)
        changes = throwing(plan, code, BAD)

        assert [type(change) for change in of(changes, BAD)] == [Release], name
        assert [type(change) for change in of(changes, GOOD)] == [Move], name
        assert plan.isolation.count == len(told) == 1, name
        assert "JobId=5 is left to Slurm" in told[0], name


def test_a_fault_in_any_step_about_many_jobs_ends_that_step_alone() -> None:
    functions = called_for(None)
    assert functions

    for code, name in functions.items():
        told: list[str] = []
        plan = Plan(BerthPolicy(), Settings(), tell=told.append)
        changes = throwing(plan, code, None)

        assert [type(change) for change in of(changes, GOOD)] == [Move], name
        assert (plan.isolation.count, len(told)) == (1, 1), name


def test_a_job_that_was_left_alone_is_planned_again_later() -> None:
    plan = Plan(BerthPolicy(), Settings())
    throwing(plan, next(iter(called_for(BAD))), BAD)

    soon, late = world(NOW + 1), world(NOW + LEFT_FOR + 1)
    assert of(plan.replan(book(soon), soon.jobs), BAD) == []
    assert [type(change) for change in of(plan.replan(book(late), late.jobs), BAD)] == [Move]


def test_a_fault_in_what_an_ended_job_frees_costs_that_job_alone() -> None:
    look = world()
    tracker = Tracker(fleet(look))
    tracker.update(look)
    told: list[str] = []
    plan = Plan(BerthPolicy(), Settings(), tell=told.append)
    plan.replan(tracker.book(), look.jobs)

    def throw(frame: FrameType) -> None:
        if concerned(frame.f_back) == (True, BAD):
            raise RuntimeError("thrown")

    with traced(throw):
        changes = plan.freed(tracker, [0, 1, 2, 3], look.jobs)

    assert changes is not None
    assert [type(change) for change in of(changes, BAD)] == [Release]
    assert plan.isolation.count == len(told) == 1


@pytest.mark.parametrize("opinion", [GuestPass, WithoutGpus])
def test_jobs_of_an_opinion_that_could_not_begin_are_left_as_they_are(
    opinion: type[Opinion], monkeypatch: pytest.MonkeyPatch
) -> None:
    def throw(*_: object) -> bool:
        raise RuntimeError("thrown")

    guest, cpus = 10, 11
    without = running(cpus, "", 0, 0, state="PENDING", nodes=(), required=(), start=None, end=None, wants_gpus=False)
    jobs = [guest_world.parked(guest), without, running(1, "n1", 0xFF, 5_000), waiting(GOOD, "n1", 0b11)]
    monkeypatch.setattr(opinion, "begin", throw)
    changes = guest_world.plan([guest_world.node("n1", used=0xFF), guest_world.node("n2")], jobs)

    its_own = guest if opinion is GuestPass else cpus
    assert of(changes, its_own) == []
    assert [type(change) for change in of(changes, GOOD)] == [Move]
