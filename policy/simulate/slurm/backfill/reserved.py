# SPDX-License-Identifier: Apache-2.0
"""Backfill's table of plans: stretches of time, and in each the nodes that no plan holds."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np

from policy.formats.arrays import Bools


class Reserved:
    """The `node_space` of sched/backfill, in which whole nodes are held between multiples of `bf_resolution`.

    Sets of nodes are whole numbers here, a bit for each node, because they are read a million times.
    """

    def __init__(self, count: int, now: float, resolution: float) -> None:
        self._count = count
        self._resolution = resolution
        self._begins = [now // resolution * resolution]
        self._open = [(1 << count) - 1]

    def open_for(self, start: float, end: float, usable: int) -> tuple[int, float | None]:
        """Returns the usable nodes that are open from one moment to another, and the next start that may have others.

        A stretch that opens no node that was closed before is no such start: Slurm does not try again for it.
        """
        open_nodes, later = usable, None
        begins, last = self._begins, len(self._begins) - 1
        for number in range(max(0, bisect_right(begins, start) - 1), last + 1):
            here = self._open[number]
            if later is None and number < last and usable & self._open[number + 1] & ~(open_nodes & here):
                later = begins[number + 1]
            if begins[number] > end:
                if later is None and number + 1 < last:
                    later = begins[number + 2]
                break
            open_nodes &= here
        return open_nodes, later

    def slot(self, start: float, limit: float) -> tuple[float, float]:
        """Returns the start and the end of the slot for a job that starts then."""
        begin = start // self._resolution * self._resolution
        return begin, (start + limit + self._resolution - 1) // self._resolution * self._resolution

    def overlaps(self, nodes: Iterable[int], begin: float, end: float) -> bool:
        """Tells whether some of the nodes are held at some time in between."""
        chosen = bits(nodes)
        first = max(0, bisect_right(self._begins, begin) - 1)
        last = max(first + 1, bisect_left(self._begins, end))
        return any(chosen & ~held for held in self._open[first:last])

    def reserve(self, nodes: Iterable[int], begin: float, end: float) -> None:
        """Closes nodes for a time."""
        begin = max(begin, self._begins[0])
        first = self._cut(begin)
        last = self._cut(max(end, begin + self._resolution))
        others = ~bits(nodes)
        for number in range(first, last):
            self._open[number] &= others
        self._join(max(0, first - 1), last)

    def _cut(self, at: float) -> int:
        """Returns the stretch that begins at a moment; it is made if there is none."""
        number = bisect_left(self._begins, at)
        if number == len(self._begins) or self._begins[number] != at:
            self._begins.insert(number, at)
            self._open.insert(number, self._open[number - 1])
        return number

    def _join(self, first: int, last: int) -> None:
        """Joins the first two neighbouring stretches that do not differ; like Slurm, it joins only one pair."""
        for number in range(first, last):
            if self._open[number] == self._open[number + 1]:
                del self._begins[number + 1], self._open[number + 1]
                return

    def as_array(self, nodes: int) -> Bools:
        """Returns a set as the array that the rest of the simulation uses."""
        raw = np.frombuffer(nodes.to_bytes(-(-self._count // 8), "little"), np.uint8)
        return np.unpackbits(raw, count=self._count, bitorder="little").view(np.bool_)


def bits(nodes: Iterable[int]) -> int:
    """Returns a set of nodes as a number.

    >>> bits([0, 3])
    9
    """
    return sum(1 << node for node in nodes)
