"""Places that are not free yet: which is best for a job, and for those that wait behind it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policy.formats.arrays import FAR
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.gang import LEVELS_OF_NODES
from policy.placement.speed import ALIKE_IN_A_CROWD, node_scores
from policy.plan.book import Book
from policy.plan.waiting_jobs import Waiting
from policy.request.demand import Demand

GATHER_EVERY = 5.0
"""Seconds between two looks of one job for a sooner place, or a sixtieth of its time limit if that is longer."""

FIRST = 8
"""Jobs on several nodes, the first in line, that may look again after `FIRST_EVERY`: they have waited longest."""

FIRST_EVERY = 1.0
"""Seconds between two looks of one of these, or a sixtieth of its time limit if that is longer."""

USUAL_PART = 0.5
"""How much of its time limit a job is taken to use, where places that start or run differently are compared."""

FOR_OTHERS = 600.0
"""Seconds, or half of its time limit if that is shorter, by which a job may end later than it could, so that jobs that
wait behind it get its GPUs sooner."""


def worth_moving(limit: float) -> float:
    """Seconds that a job must gain by moving to a place that is not free yet either.

    >>> worth_moving(60), worth_moving(600), worth_moving(86_400)
    (4.0, 30.0, 60.0)
    """
    return min(60.0, max(4.0, limit / 20))


@dataclass(slots=True)
class Memory:
    """What is remembered of a job from pass to pass."""

    looked: float = 0.0
    """When it last looked for a sooner place."""
    end: float = FAR
    """The soonest end that was ever in sight for it."""
    refuses_since: float | None = None
    """When it could first have started on GPUs that are too slow for it."""
    blamed: frozenset[str] = frozenset()
    """Of a job of several partitions, those that did not start it on a free place, until `blamed_until`."""
    blamed_until: float = 0.0


class Place(NamedTuple):
    """A place and when it comes free, 0 for now."""

    berth: Berth
    start: float


def expected_end(demand: Demand, start: float, cost: float, at: float) -> float:
    """When a job is taken to end that starts then on a place of this cost."""
    return max(start, at) + cost * USUAL_PART * demand.limit


def latest_end(demand: Demand, soonest: float) -> float:
    """When a job may end at the latest, so that jobs that wait behind it get its GPUs sooner."""
    return soonest + min(FOR_OTHERS, demand.limit / 2)


def weight(book: Book, demand: Demand, start: float, cost: float, crowd: int) -> float:
    """A job's end, and what its place costs the others.

    For each job that waits for room, the seconds that a job needs there times the part of all GPUs that it holds.
    """
    others = crowd * demand.n * demand.k / max(1, int(book.fleet.size.sum()))
    return expected_end(demand, start, cost, book.cluster.at) + cost * USUAL_PART * demand.limit * others


def first_place(book: Book, demand: Demand, policy: Policy) -> Place:
    """Where a job that comes is pinned: what is free now, unless it is expected to end sooner on faster GPUs.

    Of places that are not free yet, that which is best for it and for those who wait.
    """
    found, at = ways(book, demand, policy), book.cluster.at
    ends = [expected_end(demand, one.start, one.berth.cost, at) for one in found]
    if found[0].start == 0.0:
        return found[ends.index(min(ends))]
    fair = [one for one, end in zip(found, ends, strict=True) if end <= latest_end(demand, min(ends))]
    return min(fair, key=lambda one: weight(book, demand, one.start, one.berth.cost, book.cluster.waiting))


def ways(book: Book, demand: Demand, policy: Policy) -> list[Place]:
    """The place that is free first, and of a job on several nodes those without the GPUs that slow it down there."""
    place = Place(*book.soonest(demand, policy))
    found = [place]
    while (faster := faster_than(place.berth, book, demand, policy)) is not None:
        place = faster
        found.append(place)
    return found


def faster_than(berth: Berth, book: Book, demand: Demand, policy: Policy) -> Place | None:
    """The first place whose slowest GPU is clearly faster; None for a job on one node, for which one is never far."""
    fleet = book.fleet
    if demand.n == 1 or not policy.weighs_scores or fleet.scores_of(demand.app_class) is None:
        return None
    slowest = node_scores(fleet, demand.app_class, np.arange(len(fleet.names)), berth.mask)
    there = float(slowest[list(berth.nodes)].max())
    faster = demand.within(slowest < there * (1 - ALIKE_IN_A_CROWD))
    if not faster.could_be_held:
        return None
    try:
        place = Place(*book.soonest(faster, policy))
    except NotNow:
        return None
    return place if place.berth.cost < berth.cost else None


class Outlook:
    """What comes free and when, as one pass sees it."""

    def __init__(self, book: Book, policy: Policy, memories: dict[int, Memory]) -> None:
        """`memories` outlive the pass."""
        self._book = book
        self._policy = policy
        self._memories = memories
        self.crowd = 0
        """GPU jobs that wait for nothing but room."""

    def has_turn(self, entry: Waiting, before_it: int) -> bool:
        """Whether a job may look for a place that is not free yet either: now and then, for looking is dear.

        `before_it` are the jobs on several nodes that wait before it in line.
        """
        at = self._book.cluster.at
        memory = self._memory(entry)
        every = FIRST_EVERY if before_it < FIRST else GATHER_EVERY
        if at - memory.looked < max(every, entry.demand.limit / 60):
            return False
        memory.looked = at
        return True

    def best(self, entry: Waiting, demand: Demand, start: float | None = None) -> Place | None:
        """The place that is best for a job and those behind it; where it is now it would start at `start`.

        Near nodes may be worth a later start, but not an end that is much later than one that was in sight before.
        """
        places = []
        for level in LEVELS_OF_NODES[LEVELS_OF_NODES.index("leaf") :] if demand.level == "any" else (demand.level,):
            try:
                places += ways(self._book, demand.at_level(level), self._policy)
            except NotNow:
                continue
        if not places:
            return None
        ends = [self._end(demand, place.start, place.berth.cost) for place in places]
        memory = self._memory(entry)
        memory.end = min(memory.end, *ends)
        if start is not None:
            memory.end = min(memory.end, self._end(demand, start, self._cost(entry, demand)))
        latest = max(latest_end(demand, memory.end), min(ends))
        fair = [place for place, end in zip(places, ends, strict=True) if end <= latest]
        return min(fair, key=lambda place: self._weight(demand, place.start, place.berth.cost))

    def why_better(self, entry: Waiting, demand: Demand, start: float, place: Place) -> str:
        """Why a place is worth a move from where a job would start at `start`; empty where it is not."""
        cost = self._cost(entry, demand)
        gain = self._weight(demand, start, cost) - self._weight(demand, place.start, place.berth.cost)
        if gain <= worth_moving(demand.limit):
            return ""
        if self._end(demand, place.start, place.berth.cost) < self._end(demand, start, cost):
            return "it is expected to end sooner there"
        return f"nearer nodes come free soon enough, and {self.crowd} jobs wait for room"

    def refuses(self, entry: Waiting, demand: Demand, berth: Berth, start: float | None) -> bool:
        """Whether a job on several nodes had better wait than start now on slow GPUs: it is expected to end sooner.

        By time limits it is; most jobs end before, so that the wait is shorter still. It never waits for longer than
        the slow GPUs would cost it in all of its time limit. Where it is pinned now it would start at `start`.
        """
        if demand.n == 1 or not self._policy.weighs_scores:
            return False
        end, cost = self._end(demand, 0.0, berth.cost), berth.cost
        faster = faster_than(berth, self._book, demand, self._policy)
        if faster is not None and self._end(demand, faster.start, faster.berth.cost) < end:
            cost = faster.berth.cost
        elif start is not None and self._is_faster(entry, demand, berth):
            pinned = self._cost(entry, demand)
            cost = pinned if self._end(demand, start, pinned) < end else cost
        memory, at = self._memory(entry), self._book.cluster.at
        if memory.refuses_since is None:
            memory.refuses_since = at
        entry.refuses_until = memory.refuses_since + (berth.cost - cost) * demand.limit
        return at < entry.refuses_until

    def _is_faster(self, entry: Waiting, demand: Demand, berth: Berth) -> bool:
        """Compare the GPUs that a job is pinned to with those of another place: true where they are clearly faster."""
        fleet = self._book.fleet
        there, here = (
            float(node_scores(fleet, demand.app_class, np.array(nodes), mask).max())
            for nodes, mask in ((entry.nodes, entry.mask), (berth.nodes, berth.mask))
        )
        return there < here * (1 - ALIKE_IN_A_CROWD)

    def _memory(self, entry: Waiting) -> Memory:
        return self._memories.setdefault(entry.job.id, Memory())

    def _end(self, demand: Demand, start: float, cost: float) -> float:
        return expected_end(demand, start, cost, self._book.cluster.at)

    def _weight(self, demand: Demand, start: float, cost: float) -> float:
        return weight(self._book, demand, start, cost, self.crowd)

    def _cost(self, entry: Waiting, demand: Demand) -> float:
        view = self._book.cluster.now(demand.limit)
        return Policy.spread(demand, view, entry.nodes, [entry.mask] * len(entry.nodes), "").cost
