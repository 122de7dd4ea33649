# SPDX-License-Identifier: Apache-2.0
"""Claims that a walk makes simply, or again as they were: the same plan as with each job settled anew."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest

from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Move
from policy.plan.ledger.claims import Claim, Repeat
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue import simple_claims
from policy.plan.queue.index import QueueIndex
from policy.plan.queue.plan import Plan
from policy.plan.queue.walk import Walk
from policy.request.settings import Settings
from tests.bench.plan import World
from tests.examples import seeds
from tests.unit.plan_pair import assert_same_plans


@contextmanager
def without_short_ways(*, settles: bool) -> Iterator[None]:
    """Plans each claim anew; with `settles` each job through `settle`."""
    claim_later = Book.claim_later

    def anew(self: Book, claim: Claim, _had: Repeat | None) -> Repeat | None:
        return claim_later(self, claim, None)

    with (
        mock.patch.object(Book, "repeat", return_value=False),
        mock.patch.object(Walk, "to_plan", lambda _, line: iter(line)),
        mock.patch.object(
            QueueIndex, "concerned", lambda index, _, _touched: (one for one in index.line if not one.guest.only)
        ),
        mock.patch.object(Book, "claim_later", anew),
        mock.patch.object(Book, "claim_alone", return_value=None),
        mock.patch.object(Walk, "claims_simply", return_value=False) if settles else nullcontext(),
    ):
        yield


@pytest.mark.parametrize("settles", [True, False])
@seeds(2, more=2)
def test_a_walk_with_short_ways_plans_the_same(seed: int, settles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plans of one world, pass by pass and notice by notice."""
    world = World(24 + 16 * seed, 150 + 80 * seed, seed=seed + 1)
    fleet = world.fleet()
    plans = [Plan(BerthPolicy(), Settings()) for _ in range(2)]
    pictures = [Tracker(fleet) for _ in range(2)]
    again, repeated, claimed_anew = Book.claim_again, [], []
    claim_later = Book.claim_later
    if settles:
        # `settle` takes each start as it is.
        monkeypatch.setattr(simple_claims, "AFRESH", 1)

    def counted(self: Book, claimed: Repeat) -> None:
        repeated.append(claimed)
        again(self, claimed)

    def counted_later(self: Book, claim: Claim, had: Repeat | None) -> Repeat | None:
        claimed_anew.append(claim)
        return claim_later(self, claim, had)

    def one_step(number: int, reading: Reading, ended: JobFacts | None) -> list[Change]:
        plan, tracker = plans[number], pictures[number]
        if ended is not None:
            tracker.end(ended.id, ended.nodes[0])
            return plan.freed(tracker, {fleet.index[name] for name in ended.nodes}, reading.jobs) or []
        tracker.update(reading)
        if number:
            # Timelines as lists of earlier passes hold what those of this one would.
            tracker._rows = [None] * len(fleet.names)
        return plan.replan(tracker.book(), reading.jobs)

    def both(reading: Reading, ended: JobFacts | None) -> list[list[Change]]:
        with (
            mock.patch.object(Book, "claim_again", counted),
            mock.patch.object(Book, "claim_later", counted_later),
        ):
            ours = one_step(0, reading, ended)
        with without_short_ways(settles=settles):
            return [ours, one_step(1, reading, ended)]

    assert_same_plans(world, plans, 20, both)
    assert len(repeated) > len(claimed_anew) // 10


def test_a_claim_that_fails_when_it_is_made_again_costs_its_own_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world, told = World(24, 150), list[str]()
    plan, tracker = Plan(BerthPolicy(), Settings(), tell=told.append), Tracker(world.fleet())

    def one_pass() -> None:
        world.at += 1
        reading = world.reading()
        tracker.update(reading)
        changes = plan.replan(tracker.book(), reading.jobs)
        world.obey([change for change in changes if isinstance(change, Move)])

    for _ in range(4):
        one_pass()
    [broken, *_] = [entry for entry in plan.queue if entry.last.claimed is not None]
    claim_again = Book.claim_again

    def failing(self: Book, claimed: Repeat) -> None:
        if claimed is broken.last.claimed:
            raise IndexError("planted")
        claim_again(self, claimed)

    monkeypatch.setattr(Book, "claim_again", failing)
    one_pass()

    assert len(told) == plan.isolation.count == 1
    assert f"JobId={broken.job.id} is left to Slurm" in told[0]
