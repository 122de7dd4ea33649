"""Lets a job start now on several nodes in a form that a pin cannot say, such as 3 + 1 GPUs (policy/request/spread.py).

While no place of Berth's is free for it, and enough GPUs are free over several nodes, the job gets its user's request
back and Slurm starts it there, as it would without Berth. One that does not start within a time is pinned again.
"""

from collections.abc import Iterable

import numpy as np

from policy.formats.arrays import Bools
from policy.plan.book import Book
from policy.plan.changes import Change, Release
from policy.plan.claims import Claim
from policy.plan.later_places import PlannedBefore
from policy.plan.waiting_jobs import Waiting
from policy.request import spread
from policy.request.demand import Demand
from policy.request.spread import SpreadNeeds

OPEN_FOR = 120.0
"""Seconds for which a job may fail to start on GPUs that look free over several nodes; then it is pinned again."""

AGAIN_AFTER = 600.0
"""Seconds after which such a job may try again."""

SOON_AGAIN = 30.0
"""Seconds after a try before which there is no other, where the GPUs went to another job."""

MOST_NODES = 1_024
"""Most nodes that are counted on."""

Part = tuple[int, int]
"""A node, and the GPUs on it as bits."""


def parts_now(book: Book, needs: SpreadNeeds | None, gpus: int, limit: int) -> list[Part]:
    """Returns the fewest nodes on which so many GPUs are free for so long, or none if one node or no nodes do."""
    if needs is None or needs.candidates is None or book.fleet.nodes_alone:
        return []
    view = book.cluster.now(limit)
    for pool in needs.pools or (needs.candidates,):
        if _guests_there(book, pool):
            continue
        nodes = np.flatnonzero(pool & view.open)
        cpus, mem = view.cpus[nodes], view.mem[nodes]
        free = np.bitwise_count(view.free[nodes]).astype(np.int64)
        free[(cpus < needs.cpus) | (mem < needs.mem)] = 0
        if needs.gpu_cpus:
            free = np.minimum(free, cpus // needs.gpu_cpus)
        if needs.gpu_mem:
            free = np.minimum(free, mem // needs.gpu_mem)
        most_first = np.argsort(-free, kind="stable")[:MOST_NODES]
        together = np.cumsum(free[most_first])
        if not together.size or together[-1] < gpus or together[0] >= gpus:
            continue
        found, left = [], gpus
        for place in most_first.tolist():
            taken = min(left, int(free[place]))
            found.append((int(nodes[place]), _lowest(int(view.free[nodes[place]]), taken)))
            left -= taken
            if not left:
                return found
    return []


def _guests_there(book: Book, pool: Bools) -> bool:
    """Tells whether guests sit on GPUs that Slurm counts as free: without a seat in its request a job joins them."""
    picture = book.cluster
    return any(pool[node] and one.guest_mask & int(picture.gpus_now[node]) for node, one in picture.sharers.items())


def claims_on(needs: SpreadNeeds, parts: Iterable[Part], start: float, limit: int) -> list[Claim]:
    """Returns a claim for each node: what Slurm is expected to give there."""
    return [
        Claim(
            (node,),
            mask,
            max(needs.cpus, needs.gpu_cpus * mask.bit_count()),
            max(needs.mem, needs.gpu_mem * mask.bit_count()),
            start,
            start + limit,
        )
        for node, mask in parts
    ]


class Spreading:
    """The part of one walk along the queue that lets jobs start on several nodes."""

    def __init__(self, book: Book, changes: list[Change], memories: dict[int, PlannedBefore]) -> None:
        self._book, self._changes, self._memories = book, changes, memories
        self.free = 0
        """GPUs that no job holds; the walk keeps it up to date."""
        self.refused: dict[tuple[int, int], int] = {}
        """Shortest time limit that was tried, for each shape that has no room now."""

    def worth(self, entry: Waiting) -> bool:
        """Tells whether it is worth looking for room for a job."""
        gpus, limit = entry.spreads, entry.demand.limit
        return bool(gpus) and gpus <= self.free and self.refused.get(entry.spread_shape, limit + 1) > limit

    def start(self, entry: Waiting, demand: Demand) -> bool:
        """Lets a job start now on several nodes if there is room, and claims it; returns whether so."""
        at, is_open = self._book.at, not entry.nodes and spread.OPEN in (entry.job.segment or {})
        if demand.spread is None or at < entry.until or not (is_open or entry.nodes):
            return False
        memory = self._memories.setdefault(entry.job.id, PlannedBefore())
        if is_open and memory.spread_since is None and at >= memory.spread_again:
            memory.spread_since = at
        if is_open and memory.spread_since is not None and at - memory.spread_since > OPEN_FOR:
            memory.spread_since, memory.spread_again = None, at + AGAIN_AFTER
        if memory.spread_again > at and not (is_open and memory.spread_since is not None):
            return False
        parts = parts_now(self._book, demand.spread, entry.spreads, demand.limit)
        if not parts:
            self.refused[entry.spread_shape] = demand.limit
            return False
        if not is_open:
            memory.spread_since, memory.spread_again = at, at + SOON_AGAIN
            self._changes.append(Release(entry.job, f"it can start now on {len(parts)} nodes", for_now=True))
        for claim in claims_on(demand.spread, parts, at, demand.limit):
            self._book.note(claim)
        entry.start, entry.place = 0.0, tuple(node for node, _ in parts)
        return True


def _lowest(bits: int, count: int) -> int:
    """Returns the lowest bits.

    >>> bin(_lowest(0b1011_0100, 2))
    '0b10100'
    """
    found = 0
    for _ in range(count):
        lowest = bits & -bits
        found, bits = found | lowest, bits ^ lowest
    return found
