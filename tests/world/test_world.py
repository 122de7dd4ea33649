"""Seeds that are played in every run, for a bounded time; more of them, longer, in `make test-hard`."""

from __future__ import annotations

import os
import time

import pytest

from tests.world.checks import ViolationError
from tests.world.script import drawn
from tests.world.shrink import as_test, shrunk
from tests.world.world import DeterministicWorld

SECONDS = 60.0
HARD_SECONDS = 900.0
EVENTS = 300


def run(first: int, seconds: float) -> int:
    """Plays seeds in a row; the first that finds something is shrunk, and told as a test."""
    until, seed = time.monotonic() + seconds, first
    while time.monotonic() < until:
        script = drawn(seed, EVENTS)
        with DeterministicWorld() as world:
            try:
                world.play(script)
            except ViolationError as problem:
                found = problem
            else:
                seed += 1
                continue
        raise ViolationError(f"seed {seed}: {found}{as_test(seed, shrunk(script, found), found)}")
    return seed - first


@pytest.mark.slow
def test_seeds_find_nothing_within_a_minute() -> None:
    assert run(0, SECONDS) > 0


@pytest.mark.hard
@pytest.mark.timeout(HARD_SECONDS * 2)
def test_fresh_seeds_find_nothing_within_a_quarter_of_an_hour() -> None:
    assert run(int.from_bytes(os.urandom(4), "big"), HARD_SECONDS) > 0


def test_a_seed_is_the_same_events_each_time() -> None:
    told = []
    for _ in range(2):
        with DeterministicWorld() as world:
            world.play(drawn(11, 120), calm=False)
            told.append((world.happened, world.door.calls, world.clock.passed, sorted(world.cluster.jobs)))
    assert told[0] == told[1]
