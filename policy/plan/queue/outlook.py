# SPDX-License-Identifier: Apache-2.0
"""The outlook: finds the best place for a job among those that come free later, and whether it is worth a move."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from policy.formats.arrays import FAR
from policy.formats.errors import NotNow
from policy.placement.base import Policy
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.book import Book
from policy.plan.ledger.later_places import LaterPlace, expected_end, latest_end, ways, weight, worth_moving
from policy.plan.ledger.places import berth_of
from policy.request.demand import Demand

GATHER_EVERY = 5.0
"""Seconds between two searches for a sooner place for one job, or 1/60 of its time limit if that is longer."""

FIRST = 8
"""Jobs on several nodes, the first in line, that search again after `FIRST_EVERY`: they have waited longest."""

FIRST_EVERY = 1.0
"""Seconds between two searches for one of these, or 1/60 of its time limit if that is longer."""


@dataclass(slots=True)
class PastSearch:
    """The searches of one job, kept from pass to pass."""

    looked: float = 0.0
    """Time of its last search for a sooner place."""
    end: float = FAR
    """The earliest end that was ever expected for it."""
    demand: Demand | None = None
    """The subject of the last search, if the next one may find the same."""
    searched_in: Hashable = None
    """The state of the cluster in which it searched."""
    places: list[LaterPlace] = field(default_factory=list)
    """The places that it found there."""


class Outlook:
    """Compares places that come free later, during one pass."""

    def __init__(self, book: Book, policy: Policy, searched: dict[int, PastSearch], crowd: int = 0) -> None:
        """`searched` outlives the pass; `crowd` counts the GPU jobs that only wait for room."""
        self._book = book
        self._policy = policy
        self._searched = searched
        self._levels = [*(level for level in ("leaf", "pod") if book.fleet.fabric.at(level).parts), "any"]
        """Levels at which other nodes come into question than at the next one."""
        self._crowd = crowd

    def has_turn(self, entry: Waiting, before_it: int) -> bool:
        """Tells whether a job may search again for a later place; notes the time if so. Searches are expensive.

        `before_it` counts the jobs on several nodes that wait before it in line.
        """
        at, memory = self._book.at, self._memory(entry)
        every = FIRST_EVERY if before_it < FIRST else GATHER_EVERY
        if at - memory.looked < max(every, entry.demand.limit / 60):
            return False
        memory.looked = at
        return True

    def best(self, entry: Waiting, demand: Demand, start: float | None = None) -> LaterPlace | None:
        """Returns the place that is best for a job and those behind it; at its present place it would start at `start`.

        Near nodes may be worth a later start, but not an end much later than the earliest that was ever expected.
        """
        memory = self._memory(entry)
        places = self._places(demand, memory)
        if not places:
            return None
        ends = [expected_end(demand, place.start, place.berth.cost, self._book.at) for place in places]
        memory.end = min(memory.end, *ends)
        if start is not None:
            memory.end = min(memory.end, expected_end(demand, start, self._cost(entry, demand), self._book.at))
        latest = max(latest_end(demand, memory.end), min(ends))
        fair = [place for place, end in zip(places, ends, strict=True) if end <= latest]
        return min(fair, key=lambda place: self._weight(demand, place.start, place.berth.cost))

    def _places(self, demand: Demand, memory: PastSearch) -> list[LaterPlace]:
        """Returns the first places on near nodes and on any, and faster ones.

        They are those of the last search where only the time has gone on since, and none of them is free yet.
        """
        cluster, policy = self._book.cluster, self._policy
        # The demand of a job is made anew for another fleet.
        searched_in = cluster.crowded, cluster.cpus_per_gpu, cluster.digest()
        if (
            memory.demand is demand
            and memory.searched_in == searched_in
            and all(place.start > cluster.at for place in memory.places)
        ):
            return memory.places
        places = []
        # On its own number of nodes, and on the fewest: a job is split further only by places that are free now.
        for one in {split.n: split for split in (demand, demand.every_split[0])}.values():
            for level in self._levels if one.level == "any" else (one.level,):
                try:
                    places += ways(self._book, one.at_level(level), policy)
                except NotNow:
                    continue
        is_alone = not (cluster.tenants or cluster.sharers or cluster.taken_later)
        memory.demand, memory.searched_in, memory.places = demand if is_alone else None, searched_in, places
        return places

    def why_better(self, entry: Waiting, demand: Demand, start: float, place: LaterPlace) -> str:
        """Returns why a place is better than the present one, where the job would start at `start`; empty if not."""
        cost = self._cost(entry, demand)
        gain = self._weight(demand, start, cost) - self._weight(demand, place.start, place.berth.cost)
        if gain <= worth_moving(demand.limit):
            return ""
        if expected_end(demand, place.start, place.berth.cost, self._book.at) < expected_end(
            demand, start, cost, self._book.at
        ):
            return "it is expected to end sooner there"
        return f"nearer nodes come free soon enough, and {self._crowd} jobs wait for room"

    def _memory(self, entry: Waiting) -> PastSearch:
        return self._searched.setdefault(entry.job.id, PastSearch())

    def _weight(self, demand: Demand, start: float, cost: float) -> float:
        return weight(self._book, demand, start, cost, self._crowd)

    def _cost(self, entry: Waiting, demand: Demand) -> float:
        return berth_of(self._book.cluster, demand, entry.nodes, entry.mask).cost
