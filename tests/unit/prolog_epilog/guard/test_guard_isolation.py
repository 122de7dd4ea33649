# SPDX-License-Identifier: Apache-2.0
"""Throws from every function that the guard's turn reaches, for a second: the next GPU is guarded all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

from prolog_epilog.guard.mishaps import Mishaps
from prolog_epilog.guard.seats import keeper as seats
from prolog_epilog.guard.seats.keeper import Keeper
from prolog_epilog.guard.seats.seat import GuardedSeat
from tests.examples import sample_or_all, sampled
from tests.unit.guard_world import World
from tests.unit.policy.plan.test_isolation import settrace_for, settrace_on

from .test_guard_rubbish import OTHER_UUID, lease, pair_of_seats, world

__all__ = ["world"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NODE_SIDE = str(Path(__file__).parents[4] / "prolog_epilog")
TURN = {Keeper.turn.__code__, Keeper._attempt.__code__, seats._whose.__code__}
"""The turn itself, which runs its parts apart."""
LEAST = 100


def seat_of(frame: FrameType | None) -> tuple[bool, str | None]:
    """Tells whether a frame is in a turn of the keeper, and of which GPU."""
    uuid = None
    while frame is not None:
        one = frame.f_locals.get("self")
        if uuid is None and isinstance(one, GuardedSeat):
            uuid = one.uuid
        if frame.f_code is Keeper.turn.__code__:
            return True, uuid
        frame = frame.f_back
    return False, uuid


def is_part(frame: FrameType) -> bool:
    code = frame.f_code
    of_mishaps = Path(code.co_filename).name == "mishaps.py"
    return code.co_filename.startswith(NODE_SIDE) and code not in TURN and not of_mishaps


def reached(made: World) -> list[CodeType]:
    found: dict[CodeType, None] = {}

    def note(frame: FrameType) -> None:
        inside, uuid = seat_of(frame.f_back)
        if inside and uuid != OTHER_UUID and is_part(frame):
            found.setdefault(frame.f_code)

    with settrace_on(NODE_SIDE, note):
        made.seconds(6)
    return list(found)


@contextmanager
def throwing(code: CodeType) -> Iterator[list[str]]:
    """Throws each time that the function is called for the first GPU, or for the node."""
    thrown: list[str] = []

    def throw(frame: FrameType) -> None:
        inside, uuid = seat_of(frame.f_back)
        if inside and uuid != OTHER_UUID:
            thrown.append(code.co_qualname)
            raise RuntimeError("thrown")

    with settrace_for(code, throw):
        yield thrown


@sample_or_all(20)
def test_a_fault_in_any_function_leaves_the_other_gpu_guarded(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int | None
) -> None:
    now = [time.monotonic_ns()]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    _, second = pair_of_seats(world)
    every = reached(world)
    assert len(every) >= LEAST
    chosen = sampled(every, count)
    from_how_many = 0

    for code in chosen:
        name = f"{Path(code.co_filename).name}:{code.co_qualname}"
        said = len(world.said)
        world.keeper._mishaps = Mishaps(world.keeper.say)
        now[0] += 10**9
        before = lease(second)
        with throwing(code) as thrown:
            world.seconds(1.2)
        from_how_many += bool(thrown)
        assert lease(second) > before, name
        now[0] += 10**9
        world.seconds(0.2)

        assert second.process.poll() is None, name
        assert not thrown or any("thrown" in line for line in world.said[said:]), name
    assert from_how_many >= 0.5 * len(chosen)
