# SPDX-License-Identifier: Apache-2.0
"""Timelines that a walk keeps aside: the same plan as with each claim written at once."""

import random
from unittest import mock

import pytest

from policy.cluster.snapshot import COLUMNS
from policy.cluster.timeline import State, columns, normal, taken
from policy.formats.arrays import FAR
from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change
from policy.plan.ledger.claims import Claim
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.bench.plan import World
from tests.examples import seeds
from tests.unit.plan_pair import assert_same_plans
from tests.unit.policy_world import NOW, fleet, node, reading, running


def plainly_taken(row: list[State], claim: tuple[float, float, int, int, int]) -> list[State]:
    """Says what a claim leaves, without regard to time spent."""
    start, end, mask, cpus, mem = claim
    moments = sorted({state[0] for state in row} | ({end} if end < FAR else set()))
    before = max((state for state in row if state[0] <= start), default=row[0], key=lambda state: state[0])
    left: list[State] = []
    for moment in moments:
        _, gpus, free_cpus, free_mem = max((one for one in row if one[0] <= moment), default=row[0])
        if moment < end and moment > start:
            gpus, free_cpus, free_mem = gpus & ~mask, max(0, free_cpus - cpus), max(0, free_mem - mem)
        elif moment < end:
            gpus &= ~mask
            free_cpus, free_mem = min(free_cpus, max(0, before[2] - cpus)), min(free_mem, max(0, before[3] - mem))
        left.append((moment, gpus, free_cpus, free_mem))
    return normal(left)


@pytest.mark.parametrize("seed", range(20))
def test_a_claim_leaves_what_it_plainly_leaves(seed: int) -> None:
    drawn = random.Random(seed)
    row: list[State] = [(0.0, 0xFF, 64, 1_000)]
    for _ in range(100):
        start = float(drawn.choice([0, *(int(state[0]) for state in row), drawn.randrange(90)]))
        end = FAR if drawn.random() < 0.02 else start + drawn.choice([1, 5, 30, drawn.randrange(1, 60)])
        claim = start, end, drawn.randrange(256), drawn.randrange(20), drawn.randrange(300)
        found = taken(row, *claim)
        assert found == plainly_taken(row, claim)
        assert found == normal(found)
        assert len(found) <= COLUMNS
        times, gpus, cpus, mem = columns(normal(found))
        assert list(zip(times, gpus, cpus, mem, strict=True))[: len(found)] == found
        row = found if drawn.random() < 0.9 else [(0.0, 0xFF, 64, 1_000)]


@seeds(3, more=3)
def test_a_walk_with_rows_kept_aside_plans_the_same(seed: int) -> None:
    """Two plans of one world, pass by pass and notice by notice; one writes each claim into the snapshot at once."""
    world = World(24 + 8 * seed, 150 + 40 * seed, seed=seed + 1)
    fleet = world.fleet()
    plans = [Plan(BerthPolicy(), Settings()) for _ in range(2)]
    pictures = [Tracker(fleet) for _ in range(2)]
    note = Book.note

    def at_once(self: Book, claim: Claim) -> None:
        note(self, claim)
        self._write_rows()

    def both(reading: Reading, ended: JobFacts | None) -> list[list[Change]]:
        found = []
        for number, (plan, tracker) in enumerate(zip(plans, pictures, strict=True)):
            with mock.patch.object(Book, "note", at_once if number else note):
                if ended is None:
                    tracker.update(reading)
                    found.append(plan.replan(tracker.book(), reading.jobs))
                else:
                    tracker.end(ended.id, ended.nodes[0])
                    found.append(plan.freed(tracker, {fleet.index[name] for name in ended.nodes}, reading.jobs) or [])
        return found

    assert_same_plans(world, plans, 12, both)


def test_the_timeline_of_a_free_node_is_made_once() -> None:
    """Time goes on, and nothing of the node changes; an end that has passed is put off on the other one."""
    nodes, jobs = [node("n1"), node("n2", used=0xFF)], [running(1, "n2", 0xFF, 3)]
    tracker, found = Tracker(fleet(reading(nodes, jobs))), []
    for after in (0.0, 60.0):
        tracker.update(reading(nodes, jobs, at=NOW + after))
        book = tracker.book()
        with book.rows_kept():
            found.append(dict(book.kept_rows))

    assert found[0][0] is found[1][0]
    assert [row[1][1][0] for row in found] == [NOW + 5.0, NOW + 65.0]
