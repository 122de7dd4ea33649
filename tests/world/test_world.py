"""Fresh seeds that are played in every run, for a bounded time; more of them, longer, in `make test-hard`."""

from __future__ import annotations

import time

import pytest

from tests.examples import SEED
from tests.world.checks import ViolationError
from tests.world.kinds import KINDS, WorldKind
from tests.world.nodes.script import drawn_nodes
from tests.world.nodes.world import NodeWorld
from tests.world.script import drawn
from tests.world.shrink import as_test, shrunk
from tests.world.whole.script import drawn_whole
from tests.world.whole.world import WholeWorld
from tests.world.world import DeterministicWorld

#: Of a processor: with other work beside it, as many seeds are played. Two minutes for all three kinds.
SECONDS = 10.0
PARTS = 4
APART = 100_000
"""Seeds from the first one of a part to that of the next."""
#: An hour for all three kinds.
HARD_SECONDS = 1_200.0


def run(first: int, seconds: float, kind: WorldKind) -> int:
    """Plays seeds in a row; the first that finds something is shrunk, and told as a test."""
    until, seed = time.process_time() + seconds, first
    while time.process_time() < until:
        script = kind.drawn(seed, kind.events)
        with kind.made() as world:
            try:
                world.play(script)
            except ViolationError as problem:
                found = problem
            else:
                seed += 1
                continue
        raise ViolationError(f"seed {seed}: {found}{as_test(seed, shrunk(script, found, of=kind), found, kind)}")
    return seed - first


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.name)
def test_fresh_seeds_find_nothing(kind: WorldKind, part: int) -> None:
    assert run(SEED + part * APART, SECONDS, kind) > 0


@pytest.mark.hard
@pytest.mark.timeout(HARD_SECONDS * 4)
@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.name)
def test_fresh_seeds_find_nothing_in_an_hour(kind: WorldKind) -> None:
    assert run(SEED, HARD_SECONDS, kind) > 0


def test_a_seed_is_the_same_events_each_time() -> None:
    told = []
    for _ in range(2):
        with DeterministicWorld() as world:
            world.play(drawn(11, 120), calm=False)
            told.append((world.happened, world.door.calls, world.clock.passed, sorted(world.cluster.jobs)))
    assert told[0] == told[1]


def test_so_is_a_seed_of_the_whole() -> None:
    told = []
    for _ in range(2):
        with WholeWorld() as world:
            world.play(drawn_whole(13, 120), calm=False)
            told.append((world.happened, world.met, world.nodes.tasks.operations, world.door.calls, world.clock.passed))
    assert told[0] == told[1]


def test_so_is_a_seed_of_the_nodes() -> None:
    told = []
    for _ in range(2):
        with NodeWorld() as world:
            world.play(drawn_nodes(12, 120), calm=False)
            told.append((world.happened, world.tasks.operations, world.clock.passed, world.side.said))
    assert told[0] == told[1]
