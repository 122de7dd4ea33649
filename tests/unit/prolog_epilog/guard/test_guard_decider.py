# SPDX-License-Identifier: Apache-2.0
"""What the guard does: each case a story of a host, its guest, and what has to happen to whom."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.guard.decide.decider import Action, Decider, Do, DutyRecord, GuestState
from prolog_epilog.guard.decide.law import Law
from prolog_epilog.guard.measure.machine import State
from prolog_epilog.guard.measure.signals import DeviceSample, HostBeat
from prolog_epilog.settings.guard_keys import GuardSettings
from tests.bench.guard.laws.fixed import Fixed

CALM = {"utilisation": 0.3, "sm_active": 0.2, "clock": 1.0, "memory": 0.4}
FULL = {**CALM, "memory": 0.97}


class Story:
    """A decider that is told one second after another; the host makes a step of `step` s each time."""

    def __init__(self, law: Law | None = None, *, mps: bool = True, alone: int = 60) -> None:
        self.now = 0.0
        self.decider = Decider(GuardSettings(), law or Fixed(0.5), Fixed(0.25), 0.0, mps=mps)
        self.log: list[tuple[float, Action]] = []
        self.seconds(alone)
        self.did(self.decider.guest_arrives(self.now))

    def did(self, actions: Sequence[Action]) -> None:
        self.log += [(self.now, action) for action in actions]

    def seconds(
        self,
        count: int,
        step: float | None = 1.0,
        guest: GuestState | None = None,
        device: dict[str, float] | None = None,
    ) -> None:
        for _ in range(count):
            self.now += 1.0
            beat = HostBeat(self.now, 1, step) if step else None
            sample = DeviceSample(self.now, **(device or CALM))  # type: ignore[arg-type]
            self.did(self.decider.tick(self.now, beat, sample, guest))

    def done(self, since: float = 0.0) -> list[Do]:
        return [action.do for at, action in self.log if at >= since]

    @property
    def last(self) -> Action:
        return self.log[-1][1]


def test_the_gate_is_shut_when_a_guest_comes_and_opens_when_the_host_is_known() -> None:
    story = Story()

    assert (story.last.do, story.last.duty) == (Do.GATE, 0.0)
    story.seconds(1)
    assert (story.last.do, story.last.duty) == (Do.GATE, 0.5)


def test_without_a_baseline_the_gate_stays_shut_until_there_is_one() -> None:
    story = Story(alone=0)
    story.seconds(7)
    assert story.decider.duty == 0.0

    story.seconds(2)
    assert story.decider.duty == 0.5


def test_nothing_is_done_while_nothing_changes() -> None:
    story = Story()
    story.seconds(200)

    assert story.done() == [Do.GATE, Do.GATE]


def test_the_guest_is_paused_now_and_then_to_measure_the_host_alone() -> None:
    story = Story()
    story.seconds(700)
    shut = [at for at, action in story.log[2:] if action.duty == 0.0]
    opened = [at for at, action in story.log[2:] if action.duty == 0.5]

    assert [round(at - 60.0) for at in shut] == pytest.approx([300, 602], abs=10)
    assert all(0 < end - begin <= 10 for begin, end in zip(shut, opened, strict=True))
    assert story.last.cause == "the host's step time"


def test_a_host_that_became_faster_is_measured_anew() -> None:
    """Else the gain would hide the harm that the guest does."""
    story = Story()
    story.seconds(10)
    story.seconds(40, step=0.8)

    assert story.decider.baseline.step == pytest.approx(0.8)
    assert story.decider.duty == 0.5


def test_a_host_that_became_slower_than_any_guest_can_make_it_is_measured_anew() -> None:
    story = Story(Fixed(0.1))
    story.seconds(10)
    story.seconds(60, step=1.5)

    assert story.decider.baseline.step == pytest.approx(1.5)


def test_a_gpu_without_metrics_is_given_up_and_one_that_the_guard_did_not_look_at_is_not() -> None:
    story = Story(alone=90)
    for _ in range(16):
        assert story.decider.machine.state is State.HEALTHY
        story.now += 1.0
        story.did(story.decider.tick(story.now))
    assert story.decider.machine.state is State.DISABLED

    away = Story(alone=90)
    away.now += 88.0
    away.did(away.decider.tick(away.now))
    assert away.decider.machine.state is State.HEALTHY
    assert Do.REQUEUE not in away.done()


def test_a_host_that_falls_silent_keeps_a_small_guest() -> None:
    story = Story()
    story.seconds(10)
    story.seconds(20, step=None)
    assert story.last == Action(Do.GATE, "the host ends no steps any more", 0.1)

    story.seconds(2)
    assert story.decider.duty == 0.5


def test_a_host_that_never_reports_is_left_to_the_law_for_blind_hosts() -> None:
    story = Story(alone=0)
    story.seconds(29, step=None)
    assert story.decider.duty == 0.0

    story.seconds(2, step=None)
    assert story.last == Action(Do.GATE, "the host reports no steps", 0.25)


def test_a_gate_that_does_not_answer_is_replaced_by_the_freezer() -> None:
    story = Story()
    story.seconds(5)
    story.seconds(3, guest=GuestState(obeys=False))

    assert (story.last.do, story.last.duty) == (Do.FREEZER, 0.5)
    story.seconds(20, step=None)
    assert story.last.do is Do.FREEZER  # for good, and told once
    assert story.done().count(Do.FREEZER) == 2


def test_a_gate_that_answers_late_is_forgiven() -> None:
    story = Story()
    story.seconds(5)
    for _ in range(5):
        story.seconds(1, guest=GuestState(obeys=False))
        story.seconds(1, guest=GuestState())

    assert Do.FREEZER not in story.done()


def test_an_owner_that_tolerates_guests_is_measured_first() -> None:
    story = Story()
    story.seconds(20)
    story.did(story.decider.owner_arrives(story.now, Fixed(0.3), tolerates=True, evict_grace_s=30.0))
    assert (story.last.do, story.last.duty) == (Do.GATE, 0.0)

    story.seconds(11, step=2.0)
    assert story.decider.baseline.step == pytest.approx(2.0)
    assert story.last == Action(Do.GATE, "the host's step time", 0.3)


def test_an_owner_that_tolerates_none_is_protected_at_once_and_the_guest_may_save_its_work() -> None:
    story = Story()
    story.seconds(20)
    begin = story.now
    story.did(story.decider.owner_arrives(begin, Fixed(1.0), tolerates=False, evict_grace_s=10.0))

    assert story.done(begin) == [Do.GATE, Do.LEAVE]
    assert story.decider.duty == 0.0
    story.seconds(9)
    assert story.done(begin) == [Do.GATE, Do.LEAVE]
    story.seconds(1)
    assert story.last.do is Do.TERMINATE
    story.seconds(6)
    assert story.done(begin) == [Do.GATE, Do.LEAVE, Do.TERMINATE, Do.REQUEUE]


def test_at_grace_0_the_guest_is_ended_in_the_same_moment() -> None:
    story = Story()
    story.seconds(20)
    begin = story.now
    story.did(story.decider.owner_arrives(begin, Fixed(1.0), tolerates=False, evict_grace_s=0.0))

    assert story.done(begin) == [Do.GATE, Do.TERMINATE]


def test_a_guest_that_leaves_by_itself_is_not_ended_again() -> None:
    story = Story()
    story.seconds(20)
    begin = story.now
    story.did(story.decider.owner_arrives(begin, Fixed(1.0), tolerates=False, evict_grace_s=10.0))
    story.seconds(30, guest=GuestState(runs=False))

    assert story.done(begin) == [Do.GATE, Do.LEAVE]


def test_a_job_without_a_berth_gets_its_gpu_by_the_freezer() -> None:
    story = Story()
    story.seconds(20)
    begin = story.now
    story.did(story.decider.end_now(begin, "a job without a berth was given this GPU"))

    assert story.done(begin) == [Do.FREEZER, Do.TERMINATE]


def test_a_shorter_grace_overtakes_a_longer_one_and_never_the_other_way() -> None:
    story = Story()
    story.seconds(20)
    begin = story.now
    story.did(story.decider.owner_arrives(begin, Fixed(1.0), tolerates=False, evict_grace_s=100.0))
    story.did(story.decider.end_now(begin, "a job without a berth was given this GPU"))
    assert story.last.do is Do.TERMINATE
    story.seconds(10)
    story.did(story.decider.owner_arrives(story.now, Fixed(1.0), tolerates=False, evict_grace_s=50.0))
    story.seconds(60)

    assert story.done(begin).count(Do.TERMINATE) == 1
    assert story.done(begin).count(Do.REQUEUE) == 1


def test_memory_is_asked_back_before_the_guest_has_to_go() -> None:
    story = Story()
    story.seconds(20)
    begin = story.now
    story.seconds(1, device={**CALM, "memory": 0.9})
    assert story.done(begin) == [Do.MEMORY]

    story.seconds(1)
    story.seconds(3, device=FULL)
    assert story.done(begin) == [Do.MEMORY, Do.MEMORY, Do.GATE, Do.LEAVE]
    assert "97% of the memory" in story.last.cause


@pytest.mark.parametrize("xid", [46, 48, 79, 119, 140, 150, 154])
def test_hardware_faults_end_the_guest_and_drain_the_gpu(xid: int) -> None:
    story = Story()
    story.seconds(20)
    begin = story.now
    story.did(story.decider.fault(begin, xid))

    assert story.done(begin) == [Do.GATE, Do.TERMINATE, Do.DRAIN]
    assert story.decider.machine.state is State.DISABLED
    assert story.decider.transitions[-1].cause == f"Xid {xid}"


@pytest.mark.parametrize("xid", [63, 68, 92, 94, 4711])
def test_what_the_driver_has_dealt_with_and_what_nobody_knows_changes_nothing(xid: int) -> None:
    story = Story(mps=True)
    story.seconds(20)
    before = story.decider.machine.state

    assert story.decider.fault(story.now, xid) == []
    assert story.decider.machine.state is before


def test_an_application_fault_takes_everyone_along_only_where_mps_is_shared() -> None:
    shared, apart = Story(mps=True), Story(mps=False)
    for story in (shared, apart):
        story.seconds(20)
        story.did(story.decider.fault(story.now, 31))

    assert shared.done(shared.now) == [Do.GATE, Do.TERMINATE, Do.RESET]
    assert apart.done(apart.now) == []
    assert apart.decider.machine.state is State.HEALTHY


def test_lost_metrics_send_the_guest_away() -> None:
    story = Story()
    story.seconds(20)
    begin = story.now
    for second in range(1, 18):
        story.now = begin + second
        story.did(story.decider.tick(story.now, HostBeat(story.now, 1, 1.0)))

    assert story.done(begin) == [Do.GATE, Do.LEAVE]
    assert "no metrics for 16 s" in story.last.cause


def test_each_action_has_a_cause() -> None:
    story = Story()
    story.seconds(400)
    story.did(story.decider.fault(story.now, 0))

    assert all(action.cause for _, action in story.log)


@given(
    st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 1.0)), min_size=1, max_size=30),
    st.floats(0.0, 20.0),
    st.floats(0.01, 20.0),
)
def test_the_record_gives_the_mean_duty_of_any_span(
    changes: list[tuple[float, float]], back: float, length: float
) -> None:
    record, at, told = DutyRecord(1e6), 0.0, [(float("-inf"), 0.0)]
    for after, duty in changes:
        at += after
        record.set(at, duty)
        told.append((at, duty))
    begin = at - back
    end = begin + length
    points = sorted({begin, end, *(when for when, _ in told if begin < when < end)})
    area = 0.0
    for left, right in pairwise(points):
        area += (right - left) * next(duty for when, duty in reversed(told) if when <= left)

    assert record.mean(begin, end) == pytest.approx(area / (end - begin), abs=1e-6)


def test_a_newer_word_replaces_one_that_was_not_felt_yet() -> None:
    record = DutyRecord(100.0)
    record.set(10.15, 0.0)
    record.set(10.05, 0.5)

    assert record.mean(10.2, 20.0) == 0.5


def test_each_guest_has_a_law_of_its_own() -> None:
    story = Story(Fixed(0.5))
    story.seconds(2)
    assert story.last.duty == 0.5
    story.decider.guest_left(story.now)
    story.did(story.decider.guest_arrives(story.now, Fixed(0.125), Fixed(0.0625)))
    assert story.last.duty == 0.0
    story.seconds(2)
    assert story.last.duty == 0.125
    story.seconds(20, step=None)
    assert story.last.duty <= 0.125


def test_a_guest_has_its_own_time_to_answer_whatever_the_one_before_it_did() -> None:
    story = Story()
    story.seconds(3, guest=GuestState(obeys=False))
    assert story.last.do is Do.FREEZER
    story.decider.guest_left(story.now)
    story.seconds(60)

    came = story.now
    story.did(story.decider.guest_arrives(came))
    story.seconds(1, guest=GuestState(obeys=False))
    assert Do.FREEZER not in story.done(came)
    story.seconds(2, guest=GuestState(obeys=False))
    assert story.last.do is Do.FREEZER
