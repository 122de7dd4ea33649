"""Places that are not free yet: which is best for a job, and for those that wait behind it."""

from dataclasses import dataclass
from typing import NamedTuple

from policy.book import Book
from policy.cluster import FAR
from policy.demand import Demand
from policy.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.gang import LEVELS_OF_NODES
from policy.waiting import Waiting

GATHER_EVERY = 3.0
"""Seconds between two looks of one job for a sooner place, or a sixtieth of its time limit if that is longer."""

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


class Place(NamedTuple):
    """A place and when it comes free, 0 for now."""

    berth: Berth
    start: float


class Outlook:
    """What comes free and when, as one pass sees it."""

    def __init__(self, book: Book, policy: Policy, memories: dict[int, Memory]) -> None:
        """`memories` outlive the pass."""
        self._book = book
        self._policy = policy
        self._memories = memories
        self._gpus = max(1, int(book.fleet.size.sum()))
        self.crowd = 0
        """GPU jobs that wait for nothing but room."""

    def has_turn(self, entry: Waiting) -> bool:
        """Whether a job may look for a place that is not free yet either: now and then, for looking is dear."""
        at = self._book.cluster.at
        memory = self._memory(entry)
        if at - memory.looked < max(GATHER_EVERY, entry.demand.limit / 60):
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
                places.append(Place(*self._book.soonest(demand.at_level(level), self._policy)))
            except NotNow:
                continue
        if not places:
            return None
        ends = [self._end(demand, place.start, place.berth.cost) for place in places]
        memory = self._memory(entry)
        memory.end = min(memory.end, *ends)
        if start is not None:
            memory.end = min(memory.end, self._end(demand, start, self._cost(entry, demand)))
        latest = max(memory.end + min(FOR_OTHERS, demand.limit / 2), min(ends))
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

    def _memory(self, entry: Waiting) -> Memory:
        return self._memories.setdefault(entry.job.id, Memory())

    def _end(self, demand: Demand, start: float, cost: float) -> float:
        return max(start, self._book.cluster.at) + cost * USUAL_PART * demand.limit

    def _weight(self, demand: Demand, start: float, cost: float) -> float:
        """A job's end, and what its place costs the others.

        For each job that waits for room, the seconds that a job needs there times the part of all GPUs that it holds.
        """
        others = self.crowd * demand.n * demand.k / self._gpus
        return self._end(demand, start, cost) + cost * USUAL_PART * demand.limit * others

    def _cost(self, entry: Waiting, demand: Demand) -> float:
        view = self._book.cluster.now(demand.limit)
        return Policy.spread(demand, view, entry.nodes, [entry.mask] * len(entry.nodes), "").cost
