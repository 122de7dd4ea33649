# SPDX-License-Identifier: Apache-2.0
"""Hosts without a heartbeat, judged by what the library counts in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from prolog_epilog.guard.measure.heartbeat import OwnerHeartbeat, WorkRate
from prolog_epilog.guard.measure.signals import HostBeat
from prolog_epilog.injob.word import LAUNCHES, READY, WordBeat
from tests.unit.guard_world import Program, World

pytestmark = pytest.mark.slow

HOST, GUEST = 107, 7
SILENT = WordBeat(1, 100, True, False, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ())
PLACE = ("GPU-a", 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


Launches = Callable[[float], float]


def hear(heartbeat: OwnerHeartbeat, launches: Launches, begin: float, end: float) -> list[float]:
    """The step times that ten looks a second make of so many launches by each moment."""
    found = []
    for tenth in range(round(begin * 10), round(end * 10)):
        now = tenth / 10
        beat = heartbeat.take(now, {PLACE: replace(SILENT, launches=round(launches(now)))}, alone=True)
        if beat is not None:
            found.append(beat.took / beat.steps)
    return found


def bursts(period: float, part: float = 0.2) -> Launches:
    """A program that launches all of a step at its begin, and then waits for the GPU."""
    return lambda now: 500 * (now // period + min(1.0, now % period / period / part)) + 1


def test_a_host_that_launches_half_as_fast_takes_twice_as_long() -> None:
    heartbeat = OwnerHeartbeat()
    alone = hear(heartbeat, lambda now: 1000 * now + 1, 0, 30)
    beside = hear(heartbeat, lambda now: 30_001 + 500 * (now - 30), 30, 60)

    assert len(alone) > 8
    assert fmean(beside[2:]) / fmean(alone) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("period", [0.5, 0.7, 1.3])
def test_a_window_ends_between_two_steps_where_launches_pause(period: float) -> None:
    times = hear(OwnerHeartbeat(), bursts(period), 0, 120)

    assert pstdev(times) / fmean(times) < 0.05  # two looks, each up to a tenth late, in one and a half seconds


def test_what_a_program_rests_by_itself_is_nobodys_harm() -> None:
    heartbeat = OwnerHeartbeat()
    before = hear(heartbeat, lambda now: 1000 * now + 1, 0, 20)
    resting = hear(heartbeat, lambda _: 19_901, 20, 40)
    after = hear(heartbeat, lambda now: 19_901 + 1000 * (now - 40), 40, 60)

    assert resting == []
    assert max(after) == pytest.approx(fmean(before), rel=0.1)


def test_who_tells_steps_is_judged_by_them_alone() -> None:
    heartbeat = OwnerHeartbeat()
    hear(heartbeat, lambda now: 1000 * now + 1, 0, 20)
    before = heartbeat.measure
    python = replace(SILENT, slot=2, library=False, ready=True)

    def told(now: float, steps: int) -> HostBeat | None:
        step = replace(python, steps=steps, step_ns=round(0.5e9) * steps, at_ns=round(now * 1e9))
        return heartbeat.take(now, {PLACE: replace(SILENT, launches=99_999), ("GPU-a", 2): step}, alone=True)

    assert told(20.0, 1) is None  # what came before is not known
    assert heartbeat.measure == before + 1
    assert told(20.5, 2) == HostBeat(20.5, 1, 0.5)


def test_a_new_process_in_the_same_place_begins_anew() -> None:
    heartbeat = OwnerHeartbeat()
    hear(heartbeat, lambda now: 1000 * now + 1, 0, 20)
    words = {PLACE: replace(SILENT, pid=101, launches=50_000)}
    assert heartbeat.take(20.0, words, alone=True) is None
    assert heartbeat.take(24.0, {PLACE: replace(words[PLACE], launches=50_100)}, alone=True) is None
    times = [
        beat.took / beat.steps
        for at in range(28, 60, 4)
        if (beat := heartbeat.take(at, {PLACE: replace(words[PLACE], launches=50_000 + 25 * (at - 20))}, alone=True))
    ]

    assert times == pytest.approx([0.5] * len(times), rel=0.05)  # an eighth of its own first window
    assert len(times) > 5


def test_a_program_that_launches_a_graph_every_few_seconds_has_each_for_a_step() -> None:
    times = hear(OwnerHeartbeat(), lambda now: now // 4 + 1, 0, 100)

    assert times == pytest.approx([4.0] * len(times), abs=0.11)
    assert len(times) > 10


def test_a_process_that_neither_steps_nor_launches_is_not_waited_for() -> None:
    rate = WorkRate()
    words = {PLACE: SILENT, ("GPU-b", 1): replace(SILENT, launches=10)}

    assert set(rate.heard(0.0, words)) == {("GPU-b", 1)}


@pytest.mark.parametrize("launches", [1, 7, 2**62])
def test_few_launches_and_absurd_ones_are_no_trouble(launches: int) -> None:
    heartbeat = OwnerHeartbeat()
    times = hear(heartbeat, lambda now: min(2**62, launches * (now // 3 + 1)), 0, 60)

    assert all(0.0 < one < 60.0 for one in times)


def paired(world: World, step: float) -> tuple[Program, Program]:
    """A host that only launches, and a guest that runs beside it."""
    host = world.comes(HOST, "guaranteed", step=step, tells=False)
    world.seconds(70)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(10)
    assert guest.order().duty > 0
    return host, guest


def test_a_host_that_only_launches_is_protected_within_the_bound_and_its_guest_works(world: World) -> None:
    world.harm = 0.2
    host, guest = paired(world, 0.1)
    before, began = host.done, guest.done
    world.seconds(120)

    assert host.done - before > 120 / 0.1 * 0.95
    assert guest.done - began > 120 / 0.2 * 0.1
    assert world.seat.slowdown < 0.2


def test_the_first_step_ends_what_was_learned_of_launches(world: World) -> None:
    host, guest = paired(world, 0.5)
    learned = world.seat.decider.baseline.step

    assert host.place is not None
    host.tells, host.done, host.place.numbers[READY] = True, 0.0, 1
    shut = world.seconds(5, until=lambda: guest.order().duty == 0)
    assert shut < 3
    world.seconds(20)

    assert world.seat.decider.baseline.step == pytest.approx(0.5, rel=0.02)
    assert learned != pytest.approx(0.5, rel=0.2)
    assert guest.order().duty > 0


def test_the_next_process_is_measured_behind_a_shut_gate(world: World) -> None:
    """Its pace beside the guest must not be taken for its pace alone."""
    first, guest = paired(world, 0.1)

    assert first.place is not None
    first.done, first.place.numbers[LAUNCHES] = 0.0, 0
    world.seconds(0.3)
    assert guest.order().duty == 0
    world.seconds(30)
    assert guest.order().duty > 0
