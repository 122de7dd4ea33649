# SPDX-License-Identifier: Apache-2.0
"""Plans the starts of one scheduling pass.

As in Slurm's backfill, a planned start reserves whole nodes for as long as the job may run, however few of their GPUs
it needs. A job may use such a node earlier if it is sure to have ended by then. Nothing is planned between two planned
starts on one node: each node keeps the start of the first and the end of the last.

A pass plans for hundreds of jobs, so no plan reads all nodes. Those that come free first are sorted once, and more
where they do not do. Only nodes that this pass has *touched*, by a plan or by a start, are checked again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from policy.formats.arrays import Bools, Floats
from policy.request.demand import Demand
from policy.simulate.slurm.nodes.ledger import NEVER, Ledger
from topology.sets.tables import Ints

_FIRST = 64
"""Nodes that are sorted at first."""


class _Line(NamedTuple):
    """The first nodes by the time at which they have k GPUs free, those of one time by number."""

    nodes: Ints
    ready: Floats
    whole: bool
    """All nodes."""


class _Starts(NamedTuple):
    """Some nodes, the time at which each has enough GPUs, and the time at which a job could start there."""

    nodes: Ints
    ready: Floats
    start: Floats


class BackfillProfile:
    """The plans on each node, in addition to the running jobs in the ledger."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self._ledger = ledger
        self._now = now
        nodes = ledger.up.size
        self.hole_until = np.full(nodes, NEVER)
        """The time at which the first planned job starts there."""
        self._free_after = np.full(nodes, -NEVER)
        self._is_touched = np.zeros(nodes, np.bool_)
        self._order_touched = np.empty(nodes, np.int64)
        self._touched = self._order_touched[:0]
        self._untouched_with = list(ledger.nodes_with)
        """The number of untouched nodes that have exactly so many GPUs free."""
        self._counts = ledger.counts.copy()
        """Free GPUs at the start of the pass."""
        self._lines: dict[tuple[int, int], _Line] = {}
        self._firsts: dict[tuple[int, int], int] = {}
        self._longest: dict[int, float] = {}

    def open_for(self, duration: float) -> Bools:
        """Marks nodes that a job of this duration can use now without delaying a planned one."""
        return self._ledger.up & (self.hole_until >= self._now + duration)

    def longest(self, k: int) -> float:
        """Returns the longest duration for which some node has k GPUs free now."""
        found = self._longest.get(k)
        if found is None:
            found = NEVER
            if not any(self._untouched_with[k:]):
                nodes = self._touched
                until = np.where(self._ledger.counts[nodes] >= k, self.hole_until[nodes], self._now)
                found = float(until.max(initial=self._now)) - self._now
            self._longest[k] = found
        return found

    def touch(self, nodes: Sequence[int]) -> None:
        """Notes that something has started on these nodes, or is planned there."""
        count = self._touched.size
        for node in nodes:
            # A full node allows no start now, whatever is planned on it.
            if self._counts[node]:
                self._longest.clear()
            if not self._is_touched[node]:
                self._is_touched[node] = True
                self._order_touched[count] = node
                count += 1
                if self._ledger.up[node]:
                    self._untouched_with[self._counts[node]] -= 1
        self._touched = self._order_touched[:count]

    def reserve(self, nodes: Sequence[int], start: float, end: float) -> None:
        """Plans a job on these nodes."""
        self.touch(nodes)
        for node in nodes:
            self.hole_until[node] = min(self.hole_until[node], start)
            self._free_after[node] = max(self._free_after[node], end)

    def earliest(self, demand: Demand, duration: float) -> tuple[float, list[int]] | None:
        """Returns the time and the nodes at which a demand is expected to fit; None if no end is known."""
        if demand.n <= 1:
            return self._one(demand, duration)
        groups = self._ledger.fleet.fabric.within(demand.level)
        if groups is None:
            # Among so many nodes at the head of the line, n are untouched.
            line, _ = self._line(demand, demand.n + self._touched.size)
            first = line.nodes[: demand.n + self._touched.size]
            ready = line.ready[: first.size]
            keep = ~self._is_touched[first]
            untouched = _Starts(first[keep], ready[keep], ready[keep])
            return self._several(demand.n, duration, _joined(untouched, self._starts(self._touched, demand, duration)))
        everywhere = self._starts(np.arange(self._ledger.up.size), demand, duration)
        found = [
            plan
            for group in range(groups.count)
            if (plan := self._several(demand.n, duration, _some(everywhere, groups.of[everywhere.nodes] == group)))
        ]
        return min(found, key=lambda plan: plan[0], default=None)

    def earliest_on(self, nodes: Sequence[int], mask: int, duration: float) -> float | None:
        """Returns the time at which a job fits on the GPUs that it is pinned to; None if no end is known."""
        ready = max(self._ledger.free_at(nodes, mask), self._now)
        if ready == NEVER:
            return None
        here = list(nodes)
        if ready + duration <= float(self.hole_until[here].min()):
            return ready
        return max(ready, float(self._free_after[here].max()))

    def _one(self, demand: Demand, duration: float) -> tuple[float, list[int]] | None:
        line, key = self._line(demand)
        first = self._first_untouched(line, key)
        while first == line.nodes.size and not line.whole:
            line, _ = self._line(demand, 4 * first)
            first = self._first_untouched(line, key)
        start, node = NEVER, -1
        if self._touched.size:
            touched = self._starts(self._touched, demand, duration)
            best = int(touched.start.argmin())
            start, node = float(touched.start[best]), int(touched.nodes[best])
        if first < line.nodes.size and line.ready[first] < start:
            start, node = float(line.ready[first]), int(line.nodes[first])
        return None if start == NEVER else (start, [node])

    def _first_untouched(self, line: _Line, key: tuple[int, int]) -> int:
        first = self._firsts.get(key, 0)
        while first < line.nodes.size and self._is_touched[line.nodes[first]]:
            first += 1
        self._firsts[key] = first
        return first

    def _several(self, n: int, duration: float, starts: _Starts) -> tuple[float, list[int]] | None:
        """Returns the first moment at which n of these nodes can start a job together."""
        nodes, ready, start = starts
        if nodes.size < n:
            return None
        hole, after = self.hole_until[nodes], self._free_after[nodes]
        for moment in np.sort(start)[n - 1 :].tolist():
            if moment == NEVER:
                return None
            # A node that fits earlier may be planned for another job by then.
            fits = (ready <= moment) & ((moment + duration <= hole) | (moment >= after))
            if int(fits.sum()) >= n:
                return moment, np.sort(nodes[fits])[:n].tolist()
        return None

    def _starts(self, here: Ints, demand: Demand, duration: float) -> _Starts:
        ready = np.where(demand.candidates[here], self._ledger.soonest[here, demand.k - 1], NEVER)
        np.maximum(ready, self._now, out=ready)
        fits_hole = ready + duration <= self.hole_until[here]
        return _Starts(here, ready, np.where(fits_hole, ready, np.maximum(ready, self._free_after[here])))

    def _line(self, demand: Demand, least: int = 1) -> tuple[_Line, tuple[int, int]]:
        """Returns at least so many nodes of the line, or all."""
        key = (id(demand.candidates), demand.k)
        line = self._lines.get(key)
        if line is None or not (line.whole or line.nodes.size >= least):
            ready = np.where(demand.candidates, self._ledger.soonest[:, demand.k - 1], NEVER)
            np.maximum(ready, self._now, out=ready)
            line = self._lines[key] = _first_of(ready, max(least, _FIRST))
            # Touched nodes may stand elsewhere in it than before.
            self._firsts[key] = 0
        return line, key


def _first_of(ready: Floats, least: int) -> _Line:
    """Sorts the first nodes alone: finding out which they are reads all others, and does not sort them."""
    if least < ready.size:
        # All of the last one's time belong to them, as it is the number that sorts those.
        first = np.flatnonzero(ready <= np.partition(ready, least - 1)[least - 1])
        nodes = first[np.argsort(ready[first], kind="stable")]
    else:
        nodes = np.argsort(ready, kind="stable")
    return _Line(nodes, ready[nodes], nodes.size == ready.size)


def _joined(first: _Starts, second: _Starts) -> _Starts:
    return _Starts(
        np.concatenate([first.nodes, second.nodes]),
        np.concatenate([first.ready, second.ready]),
        np.concatenate([first.start, second.start]),
    )


def _some(starts: _Starts, which: Bools) -> _Starts:
    return _Starts(starts.nodes[which], starts.ready[which], starts.start[which])
