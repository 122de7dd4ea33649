# SPDX-License-Identifier: Apache-2.0
"""Two plans of one world, of which one takes short ways: the same changes and the same books, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policy.formats.slurm_facts import JobFacts, Reading
from policy.plan.ledger.changes import Change, Move
from policy.plan.queue.plan import Plan
from tests.bench.plan import World

Both = Callable[[Reading, JobFacts | None], list[list[Change]]]
"""Plans a pass over a reading in both plans, or the notice of a job that has ended."""


def assert_same_plans(world: World, plans: Sequence[Plan], rounds: int, both: Both) -> None:
    """Plays passes and notices in turns."""
    for _ in range(rounds):
        world.at += 1 + 400 * (world.random.random() < 0.2)
        reading = world.reading()
        _obey(world, both(reading, None))
        _obey(world, both(reading, world.end_one()))
        one, other = (plan.book for plan in plans)
        assert one is not None
        assert other is not None
        for name in ("times", "gpus", "cpus", "mem", "gpus_now", "hole_until", "quiet", "pieces"):
            assert np.array_equal(getattr(one.cluster, name), getattr(other.cluster, name)), name
        assert one.cluster.pieces_wait == other.cluster.pieces_wait
        for mine, theirs in zip(plans[0].queue, plans[1].queue, strict=True):
            assert (mine.job.id, mine.last.start, mine.last.place) == (
                theirs.job.id,
                theirs.last.start,
                theirs.last.place,
            )


def _obey(world: World, found: Sequence[list[Change]]) -> None:
    ours, plain = found
    assert _told(ours) == _told(plain)
    world.obey([change for change in ours if isinstance(change, Move)])


def _told(changes: list[Change]) -> list[object]:
    return [
        (one.job.id, one.berth.nodes, one.berth.mask, one.start) if isinstance(one, Move) else one for one in changes
    ]
