# SPDX-License-Identifier: Apache-2.0
"""The planning process's loop: how much is written between two passes, and who is heard meanwhile."""

import gc
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from policy.daemon.passes import planning
from policy.daemon.passes.handover import HURRY

TICK = 0.25


class Clock:
    """Time passes where the loop waits and where the planner works, and nowhere else."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def select(self, heard: list[Any], _1: list[Any], _2: list[Any], wait: float) -> tuple[list[Any], ...]:
        found = select.select(heard, [], [], 0)
        self.now += 0.0 if found[0] else wait
        return found


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(planning, "time", made)
    monkeypatch.setattr(planning, "select", SimpleNamespace(select=made.select))
    yield made
    # The loop takes the collection of garbage into its own hands.
    gc.enable()
    gc.unfreeze()


class Answerer:
    """The ends of the channel; the loop ends when theirs is closed."""

    def __init__(self) -> None:
        self.channel, self.theirs = socket.socketpair()

    def close(self) -> None:
        self.theirs.close()
        self.channel.close()


@pytest.fixture
def answerer() -> Iterator[Answerer]:
    made = Answerer()
    yield made
    made.close()


class Epilogs:
    """Stands for the listener: whoever has written to it is found at the next look."""

    def __init__(self) -> None:
        self.theirs, self._ours = socket.socketpair()
        self.in_charge, self.late, self.busy_until = True, 0, 0.0

    def fileno(self) -> int:
        return self._ours.fileno()

    def ready(self) -> list[str]:
        try:
            return self._ours.recv(64, socket.MSG_DONTWAIT).decode().split()
        except BlockingIOError:
            return []

    def close(self) -> None:
        self.theirs.close()
        self._ours.close()


@pytest.fixture
def epilogs() -> Iterator[Epilogs]:
    made = Epilogs()
    yield made
    made.close()


class Passes:
    """A planner whose passes take so long and plan so many changes."""

    def __init__(self, clock: Clock, takes: float, changes: int, write_takes: float = 0.01) -> None:
        self._clock, self._takes, self._changes, self._write_takes = clock, takes, changes, write_takes
        self._left = 0
        self.answerer: Answerer | None = None
        self.begun: list[float] = []
        self.written: list[int] = []
        """How many writes followed each pass."""
        self.done: list[str] = []
        self.before_write: Callable[[], None] = lambda: None
        self.in_charge = True
        self.notices_late = 0
        self.look_takes = 0.0
        self.last = 2
        """The pass that ends the loop."""

    def one_pass(self, *, ended: bool) -> None:
        assert not ended, "the answerer has asked for no ended jobs"
        if len(self.begun) == self.last and self.answerer is not None:
            self.answerer.theirs.close()
        self.begun.append(self._clock.now)
        self.written.append(0)
        self._clock.now += self._takes
        # What was not written is planned anew.
        self._left = self._changes

    def write_one(self) -> bool:
        if not self._left:
            return False
        self.before_write()
        self._clock.now += self._write_takes
        self._left -= 1
        self.written[-1] += 1
        self.done.append("write")
        return True

    def take(self, found: Sequence[str]) -> None:
        self.done += found

    def hand_over_if_due(self) -> None:
        """Nothing has changed for the answerer."""

    def run(self, answerer: Answerer, listener: Any = None) -> None:
        """Two passes, and a third that ends the loop."""
        self.answerer = answerer
        planning._passes(self, answerer.channel, TICK, listener)  # type: ignore[arg-type]


def test_after_a_pass_longer_than_the_tick_all_is_written_and_then_nothing_is_waited_for(
    clock: Clock, answerer: Answerer
) -> None:
    planner = Passes(clock, 2 * TICK, changes=10)

    planner.run(answerer)

    assert planner.written[:2] == [10, 10]
    assert planner.begun[1] - planner.begun[0] == pytest.approx(2 * TICK + 10 * 0.01)


def test_writing_takes_half_as_long_as_a_long_pass_at_most(clock: Clock, answerer: Answerer) -> None:
    planner = Passes(clock, 2 * TICK, changes=1_000)

    planner.run(answerer)

    assert planner.begun[1] - planner.begun[0] == pytest.approx(3 * TICK, abs=0.01)
    assert planner.written[0] == pytest.approx(TICK / 0.01, abs=1)


def test_an_epilog_is_heard_between_two_writes_after_a_long_pass(
    clock: Clock, answerer: Answerer, epilogs: Epilogs
) -> None:
    planner = Passes(clock, 2 * TICK, changes=5)

    def end_a_job() -> None:
        if planner.done == ["write"] * 2:
            epilogs.theirs.send(b"epilog")

    planner.before_write = end_a_job
    planner.run(answerer, epilogs)

    assert planner.done[:6] == ["write", "write", "write", "epilog", "write", "write"]


def test_a_pile_of_notices_is_told_to_take_longer_than_one(
    clock: Clock, answerer: Answerer, epilogs: Epilogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, told = Passes(clock, 2 * TICK, changes=9), list[float]()

    def end_jobs() -> None:
        if len(planner.done) < 9:
            epilogs.theirs.send(b"one" if len(planner.done) < 8 else b"of many " * 7)

    def take(found: Sequence[str]) -> None:
        planner.done += ["taken"]
        told.append(epilogs.busy_until - clock.now)
        clock.now += 0.002 * len(found)

    monkeypatch.setattr(planner, "take", take)
    planner.before_write = end_jobs
    planner.run(answerer, epilogs)

    assert told[-2:] == pytest.approx([0.002, 0.002 * 14])


def test_a_pass_is_expected_to_take_as_long_as_the_longest_of_the_last(
    clock: Clock, answerer: Answerer, epilogs: Epilogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, told = Passes(clock, 2 * TICK, changes=0), list[float]()
    one_pass = planner.one_pass

    def passes(*, ended: bool) -> None:
        told.append(epilogs.busy_until - clock.now)
        one_pass(ended=ended)
        planner._takes = TICK

    monkeypatch.setattr(planner, "one_pass", passes)
    planner.last = 3
    planner.run(answerer, epilogs)

    assert told == pytest.approx([0.0, 2 * TICK, 2 * TICK, 2 * TICK])


def test_a_new_submission_does_not_cut_the_writes_after_a_long_pass_short(clock: Clock, answerer: Answerer) -> None:
    planner = Passes(clock, 2 * TICK, changes=10)
    answerer.theirs.send(HURRY)

    planner.run(answerer)

    assert planner.written[0] == 10


@pytest.mark.parametrize("takes", [0.0, 0.5 * TICK, 0.9 * TICK])
def test_a_pass_shorter_than_the_tick_is_followed_by_the_next_a_tick_after_it_began(
    clock: Clock, answerer: Answerer, takes: float
) -> None:
    planner = Passes(clock, takes, changes=1_000)

    planner.run(answerer)

    # The write that is under way when the tick ends, and one more.
    assert planner.begun[1] - planner.begun[0] == pytest.approx(TICK, abs=0.021)
    assert planner.written[0] == pytest.approx((TICK - takes) / 0.01, abs=2)


def test_where_nothing_is_left_to_write_the_loop_waits_for_the_tick(clock: Clock, answerer: Answerer) -> None:
    planner = Passes(clock, 0.02, changes=2)

    planner.run(answerer)

    assert planner.written[0] == 2
    assert planner.begun[1] - planner.begun[0] == pytest.approx(TICK)


@pytest.mark.parametrize(("look_takes", "pause"), [(0.04, 1.0), (0.06, 1.2), (0.25, 1.25), (0.75, 1.0)])
def test_where_a_look_takes_long_slurm_is_let_alone_for_longer(
    clock: Clock, answerer: Answerer, look_takes: float, pause: float
) -> None:
    planner = Passes(clock, look_takes * TICK, changes=2)
    planner.look_takes = look_takes * TICK

    planner.run(answerer)

    assert planner.begun[1] - planner.begun[0] == pytest.approx(pause * TICK)


@pytest.mark.parametrize(("takes", "seconds"), [(0.002, 10.0), (0.4, 400.0)])
def test_garbage_is_collected_more_seldom_where_it_takes_longer(
    clock: Clock, answerer: Answerer, monkeypatch: pytest.MonkeyPatch, takes: float, seconds: float
) -> None:
    collected = list[float]()

    def collect() -> None:
        collected.append(clock.now)
        clock.now += takes

    monkeypatch.setattr(gc, "collect", collect)
    planner = Passes(clock, 0.02, changes=0)
    planner.last = int(2.5 * seconds / TICK)

    planner.run(answerer)

    assert [after - before for before, after in pairwise(collected)] == pytest.approx([seconds] * 2, abs=2 * TICK)
