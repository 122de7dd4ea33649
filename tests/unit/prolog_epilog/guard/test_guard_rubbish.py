# SPDX-License-Identifier: Apache-2.0
"""What a user writes into his job's page is nobody else's trouble: neither the guard's nor the next GPU's."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prolog_epilog.errors import StateError
from prolog_epilog.guard.measure.heartbeat import OwnerHeartbeat
from prolog_epilog.guard.seats.seat import GuardedSeat
from prolog_epilog.injob import word
from prolog_epilog.injob.word import AT, LAUNCHES, OPEN, PEAK, READY, STEP_NS, STEPS, UNTIL, USED, WordSlot, map_order
from prolog_epilog.node import cgroups, freezer
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import arrivals
from prolog_epilog.tenants.arrivals import Arrival
from tests.examples import examples
from tests.unit.guard_world import GIB, UUID, Program, World

pytestmark = pytest.mark.slow

GUEST, HOST = 7, 107
OTHER_GUEST, OTHER_HOST = 8, 108
OTHER_UUID = "GPU-00000000-0000-0000-0000-000000000002"
DAY_NS = 86_400 * 10**9
UPTIME_NS = 400 * DAY_NS
"""The longer a machine has been up, the larger are the numbers that could be true."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(time, "monotonic_ns", lambda: UPTIME_NS)
    made = World(tmp_path)
    monkeypatch.setattr(cgroups, "job_of", lambda pid: job_of(made, pid))
    yield made
    made.close()


def job_of(world: World, pid: int) -> int | None:
    return next((one.job for one in world.programs.values() if one.process.pid == pid), None)


def host(world: World, job: int = HOST, uuid: str = UUID) -> WordSlot:
    """A host of which a test writes the page."""
    program = world.comes(job, "guaranteed", step=0.4, uuid=uuid)
    program.step = 0.0
    assert program.place is not None
    return program.place


def guest(world: World, job: int = GUEST, uuid: str = UUID) -> Program:
    return world.comes(job, "opportunistic", step=0.2, uuid=uuid)


def lease(program: Program) -> int:
    return int(map_order(program.word)[UNTIL])


def mishaps(world: World) -> list[str]:
    """What the guard had not reckoned with, by its log."""
    return [said for said in world.said if "Error" in said]


def writes(world: World, place: WordSlot, steps: int, step_ns: int, at_ns: int | None = None) -> None:
    place.numbers[STEP_NS] = step_ns
    place.numbers[STEPS] = steps
    place.numbers[AT] = round(world.now * 1e9) if at_ns is None else at_ns
    world.seconds(0.3)


def test_steps_that_take_no_time_do_not_stop_the_guard(world: World) -> None:
    place = host(world)
    one = guest(world)
    for steps, step_ns in ((1, 1), (2, 10**9 + 1), (2 + 2**60, 10**9 + 2)):
        writes(world, place, steps, step_ns)
    world.seconds(2)

    assert mishaps(world) == []
    assert one.order().duty < OPEN


def test_a_host_whose_clock_goes_back_for_days_does_not_stop_the_guard(world: World) -> None:
    place = host(world)
    for step in range(1, 40):
        writes(world, place, step, step * 4 * 10**8, UPTIME_NS - (10 * DAY_NS if step > 20 else 0) - 10**9 + step)

    assert mishaps(world) == []


def test_time_does_not_go_back_in_what_is_heard_of_a_host() -> None:
    heartbeat = OwnerHeartbeat()
    beat = word.WordBeat(1, 100, False, True, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ())
    heard = []
    for steps, at in ((0, 50), (1, 50), (2, 10), (3, 51)):
        rank = replace(beat, steps=steps, step_ns=steps * 10**9, at_ns=at * 10**9)
        one = heartbeat.take(50.0, {(UUID, 1): rank}, alone=True)
        heard += [one.at] if one else []

    assert heard == [50.0, 50.0, 51.0]


def test_a_guest_that_claims_more_memory_than_there_is_is_asked_for_what_it_can_have(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(20)
    one = guest(world)
    assert one.place is not None
    places = [one.place, *(WordSlot(one.word) for _ in range(14))]
    for place in places:
        place.numbers[READY] = 1
        place.numbers[USED] = place.numbers[PEAK] = 2**62
    world.memory = 0.9
    world.seconds(5)

    assert mishaps(world) == []
    assert 0 < one.order().memory <= 80 * GIB


def test_a_target_beyond_any_gpu_is_written_as_the_largest_there_is(tmp_path: Path) -> None:
    (made,) = word.create(tmp_path / "42", (UUID,), os.getuid(), os.getgid())

    word.OrderPage(made).give(0, 2**70, 2**70, quota=2**70, lease_s=1)

    order = word.read_order(map_order(made))
    assert order.memory == order.host_bound == order.quota == 2**62


def pair_of_seats(world: World) -> tuple[Program, Program]:
    """A host and its guest on each of two GPUs; the guests."""
    world.harm = 0.2
    world.comes(HOST, "guaranteed", step=0.4)
    world.comes(OTHER_HOST, "guaranteed", step=0.4, uuid=OTHER_UUID)
    first, second = guest(world), guest(world, OTHER_GUEST, OTHER_UUID)
    world.seconds(30)
    assert list(world.keeper.seats) == [UUID, OTHER_UUID]
    return first, second


def break_first_seat(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    """From now on nothing can be made of what its host tells."""
    hear = GuardedSeat._hear

    def broken(seat: GuardedSeat, *words: Any, **more: Any) -> Any:
        if seat.uuid == UUID:
            raise problem
        return hear(seat, *words, **more)

    monkeypatch.setattr(GuardedSeat, "_hear", broken)


def test_what_fails_at_one_seat_leaves_the_next_one_its_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair_of_seats(world)
    assert first.order().duty > 100
    before = lease(second)

    break_first_seat(monkeypatch, ZeroDivisionError("float division by zero"))
    monkeypatch.setattr(time, "monotonic_ns", lambda: UPTIME_NS + 10**9)
    world.seconds(1.5)

    assert lease(second) > before
    assert first.order().duty == 100  # as beside a host that fell silent
    (said,) = mishaps(world)
    assert f"job {HOST}" in said
    assert f"job {GUEST}" in said
    assert "ZeroDivisionError" in said


def test_a_host_that_is_heard_again_is_measured_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = pair_of_seats(world)
    with monkeypatch.context() as patch:
        break_first_seat(patch, ZeroDivisionError("float division by zero"))
        world.seconds(1)
    world.seconds(1)
    assert first.order().duty == 0

    world.seconds(20)

    assert first.order().duty > 100


def test_a_guest_that_has_to_leave_is_ended_though_its_host_is_not_heard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair_of_seats(world)
    break_first_seat(monkeypatch, ZeroDivisionError("float division by zero"))
    world.memory = 0.97
    world.seconds(45)

    assert first.process.poll() is not None
    assert second.process.poll() is not None


def test_where_no_lease_can_be_written_the_next_seat_is_held_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair_of_seats(world)
    lease_of = freezer.lease

    def full(paths: Paths, job: int, seconds: float = freezer.LEASE_SECONDS) -> None:
        if job == GUEST:
            raise StateError(f"cannot write {paths.frozen / str(job)}: no space left on device")
        lease_of(paths, job, seconds)

    monkeypatch.setattr(freezer, "lease", full)
    first.obeys = second.obeys = False
    for _ in range(80):
        world.tick()
        if second.frozen:
            break

    assert second.frozen
    assert not first.frozen
    told = [said for said in world.said if "no space left" in said]
    assert len(told) == 1
    assert f"job {GUEST}" in told[0]


def test_a_guest_that_cannot_be_frozen_makes_room_all_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StateError("no space left on device")

    one = guest(world)
    world.seconds(2)
    monkeypatch.setattr(freezer, "lease", full)
    # A job without a berth, before whose first task the guest has to be gone.
    arrivals.announce(world.paths, Arrival(OTHER_HOST, (UUID,), planned=False))
    world.seconds(10)

    assert one.process.poll() is not None
    assert f"requeue {GUEST}" in world.slurm.asked


NUMBERS = st.sampled_from([0, 1, 2, 10**6, 4 * 10**8, 10**9, 2**32, 2**53, UPTIME_NS, 2**62, 2**64 - 1]) | st.integers(
    0, 2**64 - 1
)
GROWTH = st.tuples(
    st.sampled_from([0, 1, 1, 2, 1000, 10**9, 2**60]),
    st.sampled_from([0, 1, 10**3, 4 * 10**8, 4 * 10**8, 10**9, 100 * DAY_NS]),
    st.sampled_from([0, 1, 50 * DAY_NS, 300 * DAY_NS, UPTIME_NS - 10**9, UPTIME_NS]),
)
"""Steps, their time, and when the last one ended: as odd as they come, but often enough of a kind that is believed."""


@settings(max_examples=examples(30))
@given(
    told=st.lists(GROWTH, min_size=1, max_size=15),
    launches=st.lists(NUMBERS, max_size=4),
    rubbish=st.lists(st.tuples(st.integers(1, 25), NUMBERS), max_size=8),
    memory=st.sampled_from([0.3, 0.9]),
    by_launches=st.booleans(),
)
def test_no_page_stops_the_guard_or_keeps_it_from_its_guests(
    told: list[tuple[int, int, int]],
    launches: list[int],
    rubbish: list[tuple[int, int]],
    memory: float,
    by_launches: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic_ns", lambda: UPTIME_NS)
        world = World(Path(folder))
        patch.setattr(cgroups, "job_of", lambda pid: job_of(world, pid))
        try:
            place, one = host(world), guest(world)
            assert one.place is not None
            steps = step_ns = 0
            for more, longer, at in told:
                steps, step_ns = steps + more, step_ns + longer
                if by_launches:
                    place.numbers[LAUNCHES] = min(steps, 2**64 - 1)
                    world.seconds(1)
                else:
                    writes(world, place, min(steps, 2**64 - 1), min(step_ns, 2**64 - 1), at)
            world.memory = memory
            for number in launches:
                place.numbers[LAUNCHES] = number
                world.seconds(1)
            for at, number in rubbish:
                for page in (place, one.place):
                    page.numbers[at] = number
                world.seconds(0.2)
            world.seconds(1)

            assert mishaps(world) == []
            assert lease(one) >= UPTIME_NS
        finally:
            world.close()
