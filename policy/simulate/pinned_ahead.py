"""What backfill looks at: when running jobs give back what they hold, and what is reserved already."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from policy.cluster import Bools
from policy.placement.tables import Ints
from policy.simulate.pinned_choice import Choice
from policy.simulate.pinned_jobs import Record
from policy.simulate.pinned_nodes import Nodes

FIRST_WINDOW = 30.0
"""Seconds within which ends of running jobs are looked at as one; each next window is at least twice as wide."""


class Ahead:
    """What comes free when, as far as running jobs' limits tell: one row now, and one after each batch of ends."""

    def __init__(self, nodes: Nodes, choice: Choice, running: Iterable[Record], now: float) -> None:
        self._choice = choice
        self._moments, self._gpus, self._cpus = _rows(nodes, running, now)
        self._counts: Ints = np.bitwise_count(self._gpus)
        self._room: dict[tuple[int, int], Bools] = {}

    def starts_now(self, record: Record) -> bool:
        """Whether there is room for a job now, whatever is reserved."""
        if record.pin:
            return pin_fits(record, self._gpus[0], self._cpus[0])
        return int(np.count_nonzero(self._room_for(record)[0])) >= record.nodes_wanted

    def soonest(self, record: Record, open_nodes: Bools) -> tuple[float, tuple[int, ...]] | None:
        """When and on which of some nodes there is room."""
        if record.pin:
            if all(open_nodes[node] for node in record.pin):
                for moment, gpus, cpus in zip(self._moments, self._gpus, self._cpus, strict=True):
                    if pin_fits(record, gpus, cpus):
                        return moment, record.pin
            return None
        enough = np.count_nonzero(self._room_for(record) & open_nodes, axis=1) >= record.nodes_wanted
        for row in np.flatnonzero(enough).tolist():
            nodes = self._choice.nodes_for(record, open_nodes, self._counts[row], self._cpus[row])
            # Enough of them, but not of one block.
            if nodes is not None:
                return self._moments[row], nodes
        return None

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


def _rows(nodes: Nodes, running: Iterable[Record], now: float) -> tuple[list[float], Ints, Ints]:
    """Moments, and the GPUs and cores that are free from each on."""
    gpus, cpus = nodes.gpus.copy(), nodes.cpus.copy()
    moments, rows_of_gpus, rows_of_cpus = [now], [gpus.copy()], [cpus.copy()]
    ending = sorted(running, key=lambda record: (record.end_by_limit, record.id))
    ends = [max(record.end_by_limit, now + 1) for record in ending]
    at, window = 0, FIRST_WINDOW
    while at < len(ending):
        first = ends[at]
        while at < len(ending) and ends[at] <= first + window:
            record = ending[at]
            for node, mask, cores in zip(record.nodes, record.masks, record.cores, strict=True):
                gpus[node] |= mask
                cpus[node] += sum(cores)
            at += 1
        moments.append(ends[at - 1])
        rows_of_gpus.append(gpus.copy())
        rows_of_cpus.append(cpus.copy())
        window *= 2
        while at < len(ending) and ends[at] > first + window:
            window *= 2
    return moments, np.array(rows_of_gpus), np.array(rows_of_cpus)


class Reserved:
    """Stretches of time, and the nodes that no reservation holds in each."""

    def __init__(self, count: int, now: float) -> None:
        self._begins = [now]
        self._open: list[Bools] = [np.ones(count, np.bool_)]

    def open_for(self, start: float, limit: float) -> tuple[Bools, float | None]:
        """Nodes that are open for so long from a moment on, and when that may next be otherwise."""
        first = max(0, bisect_left(self._begins, start + 1e-9) - 1)
        open_nodes = self._open[first]
        for number in range(first + 1, len(self._begins)):
            if self._begins[number] > start + limit:
                break
            open_nodes = open_nodes & self._open[number]
        return open_nodes, self._begins[first + 1] if first + 1 < len(self._begins) else None

    def reserve(self, nodes: Sequence[int], begin: float, end: float) -> None:
        """Close nodes for a time."""
        begin = max(begin, self._begins[0])
        first, last = self._cut(begin), self._cut(end)
        for number in range(first, last):
            self._open[number][list(nodes)] = False

    def _cut(self, at: float) -> int:
        """The stretch that begins at a moment; made where there is none."""
        number = bisect_left(self._begins, at)
        if number == len(self._begins) or self._begins[number] != at:
            self._begins.insert(number, at)
            self._open.insert(number, self._open[number - 1].copy())
        return number
