"""Backfill's table of what is planned: stretches of time, and the nodes that nothing planned holds in each."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from policy.cluster import Bools


class Reserved:
    """`node_space` of sched/backfill. Nodes are held whole, from one multiple of `bf_resolution` to another."""

    def __init__(self, count: int, now: float, resolution: float) -> None:
        self._resolution = resolution
        self._begins = [now // resolution * resolution]
        self._open: list[Bools] = [np.ones(count, np.bool_)]

    def open_for(self, start: float, end: float, usable: Bools) -> tuple[Bools, float | None]:
        """Of usable nodes those that are open from one moment to another, and when a later start may have others.

        A stretch that opens no node that was not open before is no such moment: Slurm does not try again for it.
        """
        open_nodes, later = usable.copy(), None
        last = len(self._begins) - 1
        for number, begin in enumerate(self._begins):
            over = self._begins[number + 1] if number < last else None
            if later is None and over is not None and over > start:
                opened = usable & self._open[number + 1] & ~(open_nodes & self._open[number])
                later = over if opened.any() else None
            if over is not None and over <= start:
                continue
            if begin > end:
                if later is None and number + 1 < last:
                    later = self._begins[number + 2]
                break
            open_nodes &= self._open[number]
        return open_nodes, later

    def slot(self, start: float, limit: float) -> tuple[float, float]:
        """What a job that starts then is given."""
        begin = start // self._resolution * self._resolution
        return begin, (start + limit + self._resolution - 1) // self._resolution * self._resolution

    def overlaps(self, nodes: Sequence[int], begin: float, end: float) -> bool:
        """Whether some of the nodes are held at some time in between."""
        chosen = list(nodes)
        first = max(0, bisect_left(self._begins, begin + 1) - 1)
        last = max(first + 1, bisect_left(self._begins, end))
        return not all(bool(self._open[number][chosen].all()) for number in range(first, last))

    def reserve(self, nodes: Sequence[int], begin: float, end: float) -> None:
        """Close nodes for a time."""
        begin = max(begin, self._begins[0])
        first = self._cut(begin)
        last = self._cut(max(end, begin + self._resolution))
        for number in range(first, last):
            self._open[number][list(nodes)] = False

    def _cut(self, at: float) -> int:
        """The stretch that begins at a moment; made where there is none."""
        number = bisect_left(self._begins, at)
        if number == len(self._begins) or self._begins[number] != at:
            self._begins.insert(number, at)
            self._open.insert(number, self._open[number - 1].copy())
        return number
