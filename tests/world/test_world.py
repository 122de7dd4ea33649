# SPDX-License-Identifier: Apache-2.0
"""Fresh seeds that are played in every run, for a bounded time; more of them, longer, in `make test-hard`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.examples import SEED
from tests.world import closers
from tests.world.checks import ViolationError
from tests.world.kinds import KINDS, WorldKind
from tests.world.nodes.script import drawn_nodes
from tests.world.nodes.world import NodeWorld
from tests.world.script import Step, drawn
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


FULL: tuple[Step, ...] = (
    ("site", 1024, 0, 2), ("start",), ("pass", 1), ("hear",),
    *[("submit", "whole", size, 1_500, "COMPLETED", 0) for size in (3, 3, 3, 1)],
    ("pass", 1), ("write", 50), ("sched", 0), ("pass", 1), ("hear",),
    *[("submit", "whole", size, 60, "COMPLETED", 0) for size in (3, 0, 1, 2, 0, 3)],
    *[("pass", 1), ("write", 50), ("sched", 1)] * 5,
)  # fmt: skip
"""All GPUs are taken, and six jobs wait for some of them."""


def test_jobs_behind_a_full_cluster_have_plain_reasons() -> None:
    with DeterministicWorld() as world:
        world.play(FULL, calm=False)
        assert Counter(job.reason for job in world.cluster.order()) == {"Resources": 1, "Priority": 5}


@pytest.mark.parametrize("whole", [0, 1])
def test_a_job_that_closes_its_partition_starts_on_its_place_without_berthd(whole: int) -> None:
    with DeterministicWorld() as world:
        world.play([*FULL, ("kill", whole)], calm=False)
        first = world.cluster.order()[0]
        assert closers.closes(first)
        (place,) = closers.place_of(first)
        for job in [job for job in world.cluster.jobs.values() if job.holds]:
            world.cluster.finish(job, "COMPLETED")
            for node in sorted(job.ends_on):
                world.cluster.epilog_done(job.id, node)
        world.step(("sched", 1))
        assert first.nodes == (place,)


@pytest.mark.parametrize("draw", [drawn, drawn_whole])
def test_a_script_has_more_of_the_kinds_that_are_named(draw: Callable[..., list[Step]]) -> None:
    steps, others = draw(11, 400, words=frozenset({"array", "reserve"})), draw(11, 400)
    assert {step[1] for step in steps[20:] if step[0] == "submit"} == {"array"}
    assert sum(step[0] == "reserve" for step in steps) > 2 * sum(step[0] == "reserve" for step in others)


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
