"""What backfill asks select/cons_tres: when a job could start, if running jobs use their time limits."""

from collections.abc import Sequence

import numpy as np

from policy.cluster import Bools
from policy.placement.tables import Ints
from policy.simulate.pinned_choice import Choice
from policy.simulate.pinned_jobs import Record
from policy.simulate.pinned_nodes import Nodes

FIRST_WINDOW = 30
"""Seconds within which ends of running jobs are looked at as one; each next window is at least twice as wide."""


class Ahead:
    """What is free now, and once the first, the first two... of the running jobs have ended: a row for each."""

    def __init__(
        self, nodes: Nodes, choice: Choice, running: Sequence[tuple[int, Record]], now: int, *, by_nodes: bool
    ) -> None:
        """`running`: with the second in which each ends.

        `by_nodes`: a planned start is the end of the last job on the nodes that were chosen, as from 25.05.1 on;
        before, it is the end of the last job on any node that the job might have.
        """
        self._choice = choice
        self._now = now
        self._by_nodes = by_nodes
        ending = sorted(running, key=lambda one: (one[0], one[1].id))
        self._ends: Ints = np.array([end for end, _ in ending], np.int64)
        freed = np.zeros((len(ending) + 1, nodes.count), np.int64)
        cores = np.zeros_like(freed)
        freed[0], cores[0] = nodes.gpus, nodes.cpus
        for row, (_, record) in enumerate(ending, 1):
            freed[row, record.nodes] = record.masks
            cores[row, record.nodes] = [sum(held) for held in record.cores]
        self._on: Bools = cores[1:] > 0
        self._gpus: Ints = np.bitwise_or.accumulate(freed)
        self._cpus: Ints = cores.cumsum(axis=0)
        self._counts: Ints = np.bitwise_count(self._gpus)
        self._room: dict[tuple[int, int], Bools] = {}

    def starts_now(self, record: Record) -> bool:
        """Whether there is room for a job now, whatever is reserved."""
        if record.pin:
            return pin_fits(record, self._gpus[0], self._cpus[0])
        return int(np.count_nonzero(self._room_for(record)[0])) >= record.nodes_wanted

    def soonest(
        self, record: Record, open_nodes: Bools, start: float, until: float | None
    ) -> tuple[float, tuple[int, ...]] | None:
        """When, of these nodes, on which; for a start after now. Ends of jobs after `until` are not looked at."""
        if start <= self._now and (nodes := self._nodes_in(0, record, open_nodes)):
            return self._now, nodes
        over = int(self._ends.searchsorted(start, "left"))
        if nodes := self._nodes_in(over, record, open_nodes):
            return start, nodes
        last = self._ends.size if until is None else int(self._ends.searchsorted(until, "right"))
        near: Ints = over + np.flatnonzero((self._on[over:last] & open_nodes).any(axis=1))
        if not near.size or not self._enough(int(near[-1]) + 1, record, open_nodes):
            return None
        for row in self._batches(near):
            if nodes := self._nodes_in(row, record, open_nodes):
                return self._end(row, near, nodes), nodes
        return None

    def _batches(self, near: Ints) -> list[int]:
        """Rows after each batch of ends of those jobs that hold nodes which a job might have.

        A job that holds none is passed by without a look at the window: the next is in the batch whenever it ends.
        """
        ends = self._ends
        first = int(ends[near[0]])
        base, window = first + FIRST_WINDOW - first % FIRST_WINDOW, FIRST_WINDOW
        rows: list[int] = []
        taken, row = 0, int(near[0])
        while taken < near.size:
            while row < ends.size and ends[row] > base + window:
                window *= 2
            within = int(ends.searchsorted(base + window, "right"))
            upto = int(near.searchsorted(within))
            passed = int(near[upto - 1]) + 1 if upto > taken else row
            taken = min(upto + (passed < within), near.size)
            row = int(near[taken - 1]) + 1
            rows.append(row)
            window *= 2
        return rows

    def _end(self, row: int, near: Ints, nodes: Sequence[int]) -> float:
        last = row - 1
        if self._by_nodes:
            on_them = self._on[near[0] : row, list(nodes)].any(axis=1)
            last = int(near[0]) + int(np.flatnonzero(on_them)[-1]) if on_them.any() else last
        return max(int(self._ends[last]), self._now + 1)

    def _nodes_in(self, row: int, record: Record, open_nodes: Bools) -> tuple[int, ...]:
        """Nodes for a job as they are in one row."""
        if not self._enough(row, record, open_nodes):
            return ()
        if record.pin:
            return record.pin
        # There may be enough of them, but not of one block.
        return self._choice.nodes_for(record, open_nodes, self._counts[row], self._cpus[row]) or ()

    def _enough(self, row: int, record: Record, open_nodes: Bools) -> bool:
        if record.pin:
            return bool(open_nodes[list(record.pin)].all()) and pin_fits(record, self._gpus[row], self._cpus[row])
        return int(np.count_nonzero(self._room_for(record)[row] & open_nodes)) >= record.nodes_wanted

    def _room_for(self, record: Record) -> Bools:
        """For each row the nodes with as many GPUs and cores as a job needs there."""
        key = (record.k, record.cpus)
        if key not in self._room:
            self._room[key] = (self._counts >= record.k) & (self._cpus >= record.cpus)
        return self._room[key]


def pin_fits(record: Record, gpus: Ints, cpus: Ints) -> bool:
    """Whether a job's pinned GPUs and its cores are free."""
    mask = record.pin_mask
    return all(int(gpus[node]) & mask == mask and int(cpus[node]) >= record.cpus for node in record.pin)
