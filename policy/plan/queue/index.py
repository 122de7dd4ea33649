# SPDX-License-Identifier: Apache-2.0
"""The queue by nodes and by shapes, so that the notice of a job's end need not walk along the whole of it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from policy.plan.jobs.waiting import Present, Shape, Waiting
from policy.plan.queue.walk import Walk


@dataclass(slots=True)
class Alike:
    """Jobs that find a place, or find none, together."""

    positions: list[int] = field(default_factory=list)
    least_free: float = 0.0
    shape: Shape | None = None
    """None: each of them has to be asked by itself."""
    limit: int = 0
    gathers: bool = False
    """True: they are here for the empty nodes that are left to them."""

    def finds_none(self, first: Waiting, walk: Walk, most: int) -> bool:
        """Tells whether no job of these, of which `first` is one, finds a place any more."""
        if self.gathers:
            return not walk.leaves_empty_nodes(first)
        if self.shape is None or self.least_free > most:
            return self.least_free > most
        return walk.state.ledger.has_refused(self.shape, self.limit)


class QueueIndex:
    """A queue's jobs by their nodes and by their shapes. Made once for a queue; notices keep it up to date."""

    def __init__(self, line: Sequence[Waiting]) -> None:
        """`line` is the queue in the order in which its jobs are planned."""
        self.line = line
        self.present = Present.of(line)
        self._on_node: defaultdict[int, list[int]] = defaultdict(list)
        """Positions of the jobs with a place on a node, and of some that had one."""
        alike: defaultdict[object, Alike] = defaultdict(Alike)
        for position, entry in enumerate(line):
            for node in entry.last.place:
                self._on_node[node].append(position)
            key = (entry.shape, entry.demand.limit) if entry.plain else (None, entry.least_free)
            group = alike[key]
            if not group.positions:
                group.least_free, group.limit = entry.least_free, entry.demand.limit
                group.shape = entry.shape if entry.plain else None
            group.positions.append(position)
            if entry.collects:
                group = alike["gathers", id(entry.demand.candidates)]
                group.gathers = True
                group.positions.append(position)
        self._alike = list(alike.values())

    def concerned(self, walk: Walk, touched: AbstractSet[int]) -> Iterator[Waiting]:
        """Yields the jobs, in order, that have a place on the touched nodes or may find one; most have neither."""
        line, most, elsewhere = self.line, walk.state.ledger.most_free, touched.isdisjoint
        here = sorted({position for node in touched for position in self._on_node.get(node, ())})
        groups = [Alike(here), *self._alike]
        turns = [
            (group.positions[0], number, 0)
            for number, group in enumerate(groups)
            if group.positions and (not number or not group.finds_none(line[group.positions[0]], walk, most))
        ]
        heapify(turns)
        last = -1
        while turns:
            position, number, turn = turns[0]
            group, entry = groups[number], line[position]
            if number and group.finds_none(entry, walk, most):
                heappop(turns)
                continue
            if turn + 1 < len(group.positions):
                heapreplace(turns, (group.positions[turn + 1], number, turn + 1))
            else:
                heappop(turns)
            place = entry.last.place
            # A job on these nodes comes by its node, any other one by its shape.
            if position == last or entry.guest.only or elsewhere(place) != bool(number):
                continue
            if number and entry.last.start == 0.0:
                continue
            last = position
            yield entry
            most = walk.state.ledger.most_free
            if entry.last.place != place:
                for node in entry.last.place:
                    self._on_node[node].append(position)
