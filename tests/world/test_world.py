"""Fresh seeds that are played in every run, for a bounded time; more of them, longer, in `make test-hard`."""

from __future__ import annotations

import time

import pytest

from tests.examples import SEED
from tests.world.checks import ViolationError
from tests.world.script import drawn
from tests.world.shrink import as_test, shrunk
from tests.world.world import DeterministicWorld

#: Of a processor: with other work beside it, as many seeds are played.
SECONDS = 20.0
HARD_SECONDS = 900.0
EVENTS = 300


def run(first: int, seconds: float) -> int:
    """Plays seeds in a row; the first that finds something is shrunk, and told as a test."""
    until, seed = time.process_time() + seconds, first
    while time.process_time() < until:
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
def test_fresh_seeds_find_nothing() -> None:
    assert run(SEED, SECONDS) > 0


@pytest.mark.hard
@pytest.mark.timeout(HARD_SECONDS * 2)
def test_fresh_seeds_find_nothing_within_a_quarter_of_an_hour() -> None:
    assert run(SEED, HARD_SECONDS) > 0


def test_a_seed_is_the_same_events_each_time() -> None:
    told = []
    for _ in range(2):
        with DeterministicWorld() as world:
            world.play(drawn(11, 120), calm=False)
            told.append((world.happened, world.door.calls, world.clock.passed, sorted(world.cluster.jobs)))
    assert told[0] == told[1]
