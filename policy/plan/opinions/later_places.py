"""Places that are not free yet: finds the best one for a job and for the jobs that wait behind it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policy.formats.arrays import FAR
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.gang import LEVELS_OF_NODES
from policy.placement.speed import ALIKE_IN_A_CROWD, node_scores
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.book import Book
from policy.request.demand import Demand

GATHER_EVERY = 5.0
"""Seconds between two searches for a sooner place for one job, or 1/60 of its time limit if that is longer."""

FIRST = 8
"""Jobs on several nodes, the first in line, that search again after `FIRST_EVERY`: they have waited longest."""

FIRST_EVERY = 1.0
"""Seconds between two searches for one of these, or 1/60 of its time limit if that is longer."""

USUAL_PART = 0.5
"""Part of its time limit that a job is assumed to use, where places with different starts or speeds are compared."""

FOR_OTHERS = 600.0
"""Seconds by which a job may end later than it could, so that jobs behind it get its GPUs sooner.

Half of its time limit if that is shorter."""


def worth_moving(limit: float) -> float:
    """Returns the seconds that a job must gain to move to a place that is not free yet either.

    >>> worth_moving(60), worth_moving(600), worth_moving(86_400)
    (4.0, 30.0, 60.0)
    """
    return min(60.0, max(4.0, limit / 20))


@dataclass(slots=True)
class PlannedBefore:
    """Data about one job, kept from pass to pass."""

    looked: float = 0.0
    """Time of its last search for a sooner place."""
    end: float = FAR
    """The earliest end that was ever expected for it."""
    refuses_since: float | None = None
    """Time at which it could first have started on GPUs that are too slow for it."""
    blamed: frozenset[str] = frozenset()
    """Partitions, of several, that did not start it on a free place; not used for it until `blamed_until`."""
    blamed_until: float = 0.0
    lets_since: float | None = None
    """Time at which it first let other jobs go first (policy.plan.queue.ahead)."""
    lets_until: float = FAR
    """Time after which it lets no others go first any more."""
    goes_to: tuple[int, ...] = ()
    """Nodes on which it was to start at once when they were free; it is not called back from them."""
    spread_since: float | None = None
    """Time since which Slurm may start it on several nodes (policy.plan.opinions.spreading)."""
    spread_again: float = 0.0
    """Time before which it is not given back to Slurm for that again."""


class LaterPlace(NamedTuple):
    """A place, and the time at which it comes free: 0 for now."""

    berth: Berth
    start: float


def expected_end(demand: Demand, start: float, cost: float, at: float) -> float:
    """Returns the expected end of a job that starts at `start` on a place of this cost."""
    return max(start, at) + cost * USUAL_PART * demand.limit


def latest_end(demand: Demand, soonest: float) -> float:
    """Returns the latest acceptable end of a job, where a later end gives its GPUs to jobs behind it sooner."""
    return soonest + min(FOR_OTHERS, demand.limit / 2)


def weight(book: Book, demand: Demand, start: float, cost: float, crowd: int) -> float:
    """Returns a job's expected end plus what its place costs the jobs that wait; lower is better.

    The cost: waiting jobs, times the seconds that the job runs there, times its part of all GPUs of the cluster.
    """
    others = crowd * demand.n * demand.k / max(1, int(book.fleet.size.sum()))
    return expected_end(demand, start, cost, book.cluster.at) + cost * USUAL_PART * demand.limit * others


def first_place(book: Book, demand: Demand, policy: Policy) -> LaterPlace:
    """Returns the place of a new job: a free one, unless it is expected to end sooner on faster GPUs later.

    If none is free, returns the later place that is best for it and for the jobs that wait.
    """
    found, at = ways(book, demand, policy), book.cluster.at
    ends = [expected_end(demand, one.start, one.berth.cost, at) for one in found]
    if found[0].start == 0.0:
        return found[ends.index(min(ends))]
    fair = [one for one, end in zip(found, ends, strict=True) if end <= latest_end(demand, min(ends))]
    return min(fair, key=lambda one: weight(book, demand, one.start, one.berth.cost, book.cluster.waiting))


def ways(book: Book, demand: Demand, policy: Policy) -> list[LaterPlace]:
    """Returns the place that is free first; for a job on several nodes also later places with ever faster GPUs."""
    place = LaterPlace(*book.soonest(demand, policy))
    found = [place]
    while (faster := faster_than(place.berth, book, demand, policy)) is not None:
        place = faster
        found.append(place)
    return found


def faster_than(berth: Berth, book: Book, demand: Demand, policy: Policy) -> LaterPlace | None:
    """Returns the first place whose slowest GPU is clearly faster than the slowest of `berth`; else None.

    For a job on one node such a place is never far, so it only avoids nodes that cost all jobs more than they bring.
    """
    fleet = book.fleet
    if not policy.weighs_scores or fleet.scores_of(demand.app_class) is None:
        return None
    if demand.n == 1:
        worth = policy.worthwhile(demand, fleet)
        if bool(worth[list(berth.nodes)].all()):
            return None
        faster = demand.within(worth)
    else:
        slowest = node_scores(fleet, demand.app_class, np.arange(len(fleet.names)), berth.mask)
        there = float(slowest[list(berth.nodes)].max())
        faster = demand.within(slowest < there * (1 - ALIKE_IN_A_CROWD))
    if not faster.could_be_held:
        return None
    try:
        place = LaterPlace(*book.soonest(faster, policy))
    except NotNow:
        return None
    return place if place.berth.cost < berth.cost else None


class Outlook:
    """Compares places that come free later, during one pass."""

    def __init__(self, book: Book, policy: Policy, memories: dict[int, PlannedBefore]) -> None:
        """`memories` outlive the pass."""
        self._book = book
        self._policy = policy
        self._memories = memories
        self.crowd = 0
        """Number of GPU jobs that only wait for room."""

    def has_turn(self, entry: Waiting, before_it: int) -> bool:
        """Tells whether a job may search again for a later place; notes the time if so. Searches are expensive.

        `before_it` counts the jobs on several nodes that wait before it in line.
        """
        at = self._book.cluster.at
        memory = self._memory(entry)
        every = FIRST_EVERY if before_it < FIRST else GATHER_EVERY
        if at - memory.looked < max(every, entry.demand.limit / 60):
            return False
        memory.looked = at
        return True

    def best(self, entry: Waiting, demand: Demand, start: float | None = None) -> LaterPlace | None:
        """Returns the place that is best for a job and those behind it; at its present place it would start at `start`.

        Near nodes may be worth a later start, but not an end much later than the earliest that was ever expected.
        """
        places = []
        # On its own number of nodes, and on the fewest: a job is split further only by places that are free now.
        for one in {split.n: split for split in (demand, demand.every_split[0])}.values():
            for level in LEVELS_OF_NODES[LEVELS_OF_NODES.index("leaf") :] if one.level == "any" else (one.level,):
                try:
                    places += ways(self._book, one.at_level(level), self._policy)
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

    def why_better(self, entry: Waiting, demand: Demand, start: float, place: LaterPlace) -> str:
        """Returns why a place is better than the present one, where the job would start at `start`; empty if not."""
        cost = self._cost(entry, demand)
        gain = self._weight(demand, start, cost) - self._weight(demand, place.start, place.berth.cost)
        if gain <= worth_moving(demand.limit):
            return ""
        if self._end(demand, place.start, place.berth.cost) < self._end(demand, start, cost):
            return "it is expected to end sooner there"
        return f"nearer nodes come free soon enough, and {self.crowd} jobs wait for room"

    def later(self, demand: Demand) -> LaterPlace | None:
        """Returns the first place that is not free yet, on nodes without free GPUs if there are enough of them.

        Slurm keeps later jobs off the nodes of a waiting pinned job, which costs least where nothing is free.
        """
        free = np.bitwise_count(self._book.cluster.gpus_now)
        for busy in (free == 0, free < demand.k):
            here = demand.within(busy)
            if not here.could_be_held:
                continue
            try:
                place = LaterPlace(*self._book.soonest(here, self._policy))
            except NotNow:
                continue
            if place.start > self._book.cluster.at:
                return place
        return None

    def refuses(self, entry: Waiting, demand: Demand, berth: Berth, start: float | None) -> bool:
        """Tells whether a job should wait rather than start now on slow GPUs, to end sooner.

        The expected times use time limits; most jobs end before, so the real wait is shorter. The job never waits
        longer than the slow GPUs would cost it over its whole time limit. Where it is pinned now it would start at
        `start`.
        """
        if not self._policy.weighs_scores:
            return False
        if demand.n == 1 and self._policy.worthwhile(demand, self._book.fleet)[berth.nodes[0]]:
            return False
        end, cost = self._end(demand, 0.0, berth.cost), berth.cost
        faster = faster_than(berth, self._book, demand, self._policy)
        if faster is not None and self._end(demand, faster.start, faster.berth.cost) < end:
            cost = faster.berth.cost
        elif start is not None and self._is_faster(entry, demand, berth):
            pinned = self._cost(entry, demand)
            cost = pinned if self._end(demand, start, pinned) < end else cost
        return self._waits_at_most(entry, (berth.cost - cost) * demand.limit)

    def waits_for_fewer(self, entry: Waiting, demand: Demand, berth: Berth, start: float | None) -> bool:
        """Tells whether a job should wait for its place at `start` rather than start now on more nodes, to end sooner.

        As in `refuses`, it never waits longer than the distance would cost it over its whole time limit.
        """
        if not demand.splits or not start or len(berth.nodes) <= len(entry.nodes):
            return False
        cost = self._cost(entry, demand)
        gain = self._end(demand, start, cost) - self._end(demand, 0.0, berth.cost)
        if gain > worth_moving(demand.limit):
            return False
        return self._waits_at_most(entry, (berth.cost - cost) * demand.limit)

    def _waits_at_most(self, entry: Waiting, seconds: float) -> bool:
        """Tells whether a job that refuses a free place may still wait, for so long since it first refused one."""
        memory, at = self._memory(entry), self._book.cluster.at
        if memory.refuses_since is None:
            memory.refuses_since = at
        entry.last.refuses_until = memory.refuses_since + seconds
        return at < entry.last.refuses_until

    def _is_faster(self, entry: Waiting, demand: Demand, berth: Berth) -> bool:
        """Tells whether the GPUs that a job is pinned to are clearly faster than those of `berth`."""
        fleet = self._book.fleet
        there, here = (
            float(node_scores(fleet, demand.app_class, np.array(nodes), mask).max())
            for nodes, mask in ((entry.nodes, entry.mask), (berth.nodes, berth.mask))
        )
        return there < here * (1 - ALIKE_IN_A_CROWD)

    def _memory(self, entry: Waiting) -> PlannedBefore:
        return self._memories.setdefault(entry.job.id, PlannedBefore())

    def _end(self, demand: Demand, start: float, cost: float) -> float:
        return expected_end(demand, start, cost, self._book.cluster.at)

    def _weight(self, demand: Demand, start: float, cost: float) -> float:
        return weight(self._book, demand, start, cost, self.crowd)

    def _cost(self, entry: Waiting, demand: Demand) -> float:
        view = self._book.cluster.now(demand.limit)
        return Policy.spread(demand, view, entry.nodes, [entry.mask] * len(entry.nodes), "").cost
