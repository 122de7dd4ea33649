# SPDX-License-Identifier: Apache-2.0
"""The index of a queue yields the same jobs as a walk along the whole of it, in the same order."""

import random
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from policy.formats.arrays import FAR
from policy.placement.berth import BerthPolicy
from policy.plan.jobs.waiting import GuestPart, LastPlan, Matter, Shape, Waiting
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue import plan as plan_module
from policy.plan.queue.index import QueueIndex
from policy.plan.queue.plan import Plan
from policy.plan.queue.walk import Walk
from policy.request.settings import Settings
from tests.bench.plan import World
from tests.examples import seeds


@dataclass
class Walked:
    """A walk that finds places for some of the jobs that it is given, and remembers which it was given."""

    drawn: random.Random
    most: int
    empty: bool = True
    refused: dict[object, int] = field(default_factory=dict)
    left_to: set[int] = field(default_factory=set)
    given: list[int] = field(default_factory=list)

    @property
    def state(self) -> SimpleNamespace:
        return SimpleNamespace(ledger=self)

    @property
    def most_free(self) -> int:
        return self.most

    def has_refused(self, shape: Shape, limit: int) -> bool:
        return self.refused.get(shape, FAR) <= limit

    def leaves_empty_nodes(self, entry: Waiting) -> bool:
        return self.empty and id(entry.demand.candidates) not in self.left_to

    def plan(self, entry: Waiting, touched: AbstractSet[int]) -> None:
        """A job on these nodes stays or leaves them; any other one comes here, or its shape is refused."""
        self.given.append(entry.job.id)
        if not touched.isdisjoint(entry.last.place):
            entry.last.place = entry.last.place if self.drawn.random() < 0.5 else (self.drawn.randrange(8),)
        elif self.drawn.random() < 0.3:
            entry.last.place, entry.last.start = (self.drawn.choice(sorted(touched)),), 0.0
            self.most -= self.drawn.random() < 0.3
        elif entry.plain:
            self.refused[entry.shape] = min(entry.demand.limit, self.refused.get(entry.shape, entry.demand.limit))
        if entry.collects and entry.last.start != 0.0:
            self.left_to.add(id(entry.demand.candidates))
            self.empty = self.empty and self.drawn.random() < 0.8


def places(drawn: random.Random, most: int) -> tuple[int, ...]:
    """The nodes of a claim; none for one job of ten."""
    return tuple(sorted({drawn.randrange(8) for _ in range(most)})) if drawn.random() < 0.9 else ()


def queue_of(drawn: random.Random) -> list[Waiting]:
    """Jobs with all that the index asks for; candidates are told apart by their identity."""
    candidates = [object() for _ in range(3)]
    queue = []
    for number in range(80):
        gpus = drawn.choice([1, 1, 2, 4, 8])
        collects = gpus == 8 and drawn.random() < 0.5
        queue.append(
            SimpleNamespace(
                job=SimpleNamespace(id=number, het=int(drawn.random() < 0.05)),
                guest=GuestPart(only=drawn.random() < 0.05, may_ride_from=FAR if drawn.random() < 0.9 else 5.0),
                last=LastPlan(place=places(drawn, 1 + collects), start=drawn.choice([0.0, None, 50.0, 60.0])),
                plain=drawn.random() < 0.8,
                shape=(gpus,),
                least_free=gpus if drawn.random() < 0.95 else FAR,
                demand=SimpleNamespace(limit=drawn.choice([60, 600]), candidates=drawn.choice(candidates)),
                collects=collects,
            )
        )
    for entry in queue:
        if entry.plain:
            entry.least_free = entry.shape[0]
        entry.wants_seat = entry.guest.only or entry.guest.may_ride_from < FAR
        entry.matters = {Matter.COMPONENTS: entry.job.het, Matter.GUESTS: entry.wants_seat}
        entry.matters = frozenset(matter for matter, there in entry.matters.items() if there)
    return cast("list[Waiting]", queue)


def along_the_queue(queue: list[Waiting], walk: Walked, touched: AbstractSet[int]) -> Iterator[Waiting]:
    """Asks each job of the queue."""
    for entry in queue:
        fits = entry.least_free <= walk.most and not (entry.plain and walk.has_refused(entry.shape, entry.demand.limit))
        gathers = entry.collects and walk.leaves_empty_nodes(entry)
        here = not touched.isdisjoint(entry.last.place)
        if not entry.guest.only and (here or (entry.last.start != 0.0 and (fits or gathers))):
            yield entry


@seeds(30, more=300)
def test_the_index_yields_what_a_walk_along_the_whole_queue_does(seed: int) -> None:
    found = []
    for by_index in (True, False):
        drawn, walks = random.Random(seed), list[Walked]()
        queue = queue_of(drawn)
        index = QueueIndex(queue)
        for _ in range(6):
            touched = frozenset(drawn.sample(range(8), drawn.choice([1, 1, 2, 3])))
            walk = Walked(drawn, drawn.choice([0, 1, 2, 8]))
            concerned = index.concerned(cast("Walk", walk), touched)
            for entry in concerned if by_index else along_the_queue(queue, walk, touched):
                walk.plan(entry, touched)
            walks.append(walk)
        found.append([walk.given for walk in walks])

    assert found[0] == found[1]
    assert any(found[0])


@pytest.mark.parametrize("first", [frozenset[int](), frozenset({1_000})])
def test_notices_use_the_index_that_a_pass_has_left(first: frozenset[int], monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(32, 60)
    fleet = world.fleet()
    plan, tracker, made = Plan(BerthPolicy(), Settings()), Tracker(fleet), list[int]()
    reading = world.reading()
    tracker.update(reading)
    plan.first = first
    plan.replan(tracker.book(), reading.jobs)
    plan.expect_notices()

    def counted(line: list[Waiting]) -> QueueIndex:
        made.append(len(line))
        return QueueIndex(line)

    monkeypatch.setattr(plan_module, "QueueIndex", counted)

    for _ in range(3):
        job = world.end_one()
        tracker.end(job.id, job.nodes[0])
        assert plan.freed(tracker, {fleet.index[job.nodes[0]]}, reading.jobs) is not None
    assert made == []

    plan.first = frozenset({plan.queue[0].job.id})
    plan.expect_notices()
    assert made == [len(plan.queue)]


def test_the_index_names_guests_and_components() -> None:
    queue = queue_of(random.Random(1))
    index = QueueIndex(queue)

    assert list(index.present.guests) == [one for one in queue if one.guest.only or one.guest.may_ride_from < FAR]
    assert list(index.present.het) == [one for one in queue if one.job.het]
