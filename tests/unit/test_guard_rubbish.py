"""What a user writes into his job's page is nobody else's trouble: neither the guard's nor the next GPU's."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prolog_epilog import arrivals, cgroups
from prolog_epilog.arrivals import Arrival
from prolog_epilog.errors import StateError
from prolog_epilog.guard import freezer
from prolog_epilog.guard.heart import Heart
from prolog_epilog.injob import word
from prolog_epilog.injob.word import AT, LAUNCHES, OPEN, PEAK, READY, STEP_NS, STEPS, UNTIL, USED, Place, map_order

from .guard_world import GIB, UUID, Program, World

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


def host(world: World, job: int = HOST, uuid: str = UUID) -> Place:
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


def writes(world: World, place: Place, steps: int, step_ns: int, at_ns: int | None = None) -> None:
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
    heart = Heart()
    beat = word.Beat(1, 100, False, True, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ())
    heard = []
    for steps, at in ((0, 50), (1, 50), (2, 10), (3, 51)):
        rank = replace(beat, steps=steps, step_ns=steps * 10**9, at_ns=at * 10**9)
        one = heart.take(50.0, {(UUID, 1): rank}, alone=True)
        heard += [one.at] if one else []

    assert heard == [50.0, 50.0, 51.0]


def test_a_guest_that_claims_more_memory_than_there_is_is_asked_for_what_it_can_have(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(20)
    one = guest(world)
    assert one.place is not None
    places = [one.place, *(Place(one.word) for _ in range(14))]
    for place in places:
        place.numbers[READY] = 1
        place.numbers[USED] = place.numbers[PEAK] = 2**62
    world.memory = 0.9
    world.seconds(5)

    assert mishaps(world) == []
    assert 0 < one.order().memory <= 80 * GIB


def test_a_target_beyond_any_gpu_is_written_as_the_largest_there_is(tmp_path: Path) -> None:
    (made,) = word.create(tmp_path / "42", (UUID,), 0, -1)

    word.OrderPage(made).give(0, 2**70, 2**70, quota=2**70, lease_s=1)

    order = word.read_order(map_order(made))
    assert order.memory == order.host_bound == order.quota == 2**62
