# SPDX-License-Identifier: Apache-2.0
"""Promises each waiting job a start: the one that plain Slurm would plan for it, from the state of the moment.

The plan is that of Slurm's backfill (`squeue --start`): the jobs in the order of the queue, each at the first time at
which enough GPUs are free for as long as its time limit, beside the jobs planned before it; every job runs to its
limit. It knows no speeds of GPUs, and nothing that Berth holds back.

    >>> wide, small = PlainJob(1, nodes=2, gpus=4, limit=100.0), PlainJob(2, nodes=1, gpus=4, limit=60.0)
    >>> plain_starts(0.0, (4, 0), [(50.0, (1,), 4)], [wide, small])
    {1: 50.0, 2: 150.0}
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policy.formats.arrays import FAR, Bools
from topology.sets.tables import Ints

SLACK = 0.05
"""Part of the promised wait and the expected run time by which a job may start later than promised."""


@dataclass(frozen=True, slots=True)
class PlainJob:
    """A waiting job, as Slurm's backfill sees it."""

    number: int
    nodes: int
    gpus: int
    """GPUs on each node."""
    limit: float
    able: Bools | None = None
    """The nodes that it may use; None: all."""
    group: Ints | None = None
    """For each node, the group of nodes that topology/block joins for the job; None: any nodes will do."""


class Promise(NamedTuple):
    """The start that a job was promised, the latest one that keeps the promise, and its expected run time."""

    start: float
    latest: float
    run: float

    @classmethod
    def made(cls, at: float, start: float, expected: float) -> "Promise":
        """Makes the promise of a job that is expected to run for so many seconds."""
        return cls(start, start + SLACK * (start - at + expected), expected)


def plain_starts(
    at: float,
    free: Sequence[int],
    ends: Iterable[tuple[float, Sequence[int], int]],
    queue: Iterable[PlainJob],
    reserved: Iterable[tuple[float, float, Sequence[int], Sequence[int]]] = (),
) -> dict[int, float]:
    """Returns the planned start of each job that can ever start; `ends` are running jobs at their time limits.

    `reserved` are later times, with their nodes and the number of GPUs that are taken of each.
    """
    room = _Room(at, free, [end for end in ends if end[0] < FAR])
    for begin, end, nodes, gpus in reserved:
        room.reserve(begin, end, nodes, gpus)
    found = {}
    for job in queue:
        start = room.take(job)
        if start is not None:
            found[job.number] = start
    return found


class _Room:
    """The free GPUs of each node from now on: a row for each time at which they change."""

    def __init__(self, at: float, free: Sequence[int], ends: Sequence[tuple[float, Sequence[int], int]]) -> None:
        times = sorted({at, *(max(at, end) for end, _, _ in ends)})
        row = {time: number for number, time in enumerate(times)}
        changes = np.zeros((len(times), len(free)), np.int16)
        changes[0] = free
        for end, nodes, gpus in ends:
            changes[row[max(at, end)], list(nodes)] += gpus
        self._times = np.array(times, np.float64)
        self._free = changes.cumsum(axis=0, dtype=np.int16)

    def reserve(self, begin: float, end: float, nodes: Sequence[int], gpus: Sequence[int]) -> None:
        """Takes GPUs of these nodes for a later time."""
        first, last = self._row_at(begin), self._row_at(end)
        self._free[first:last, list(nodes)] -= np.array(gpus, np.int16)

    def _row_at(self, time: float) -> int:
        """Returns the row that begins at a time; makes one if there is none."""
        row = int(np.searchsorted(self._times, time))
        if row == len(self._times) or self._times[row] > time:
            self._times = np.insert(self._times, row, time)
            self._free = np.insert(self._free, row, self._free[row - 1], axis=0)
        return row

    def take(self, job: PlainJob) -> float | None:
        """Takes the GPUs of a job at the first time at which it fits; returns that time."""
        fits = self._free >= job.gpus
        if job.able is not None:
            fits &= job.able
        count = len(self._times)
        until = np.searchsorted(self._times, self._times + job.limit)
        short = np.zeros((count + 1, fits.shape[1]), np.int16)
        np.cumsum(~fits, axis=0, out=short[1:])
        whole = short[until] == short[:count]
        found = _first_room(whole, job)
        if found is None:
            return None
        row, nodes = found
        taken = nodes[np.argsort(self._free[row, nodes], kind="stable")[: job.nodes]]
        start = float(self._times[row])
        last = self._row_at(start + job.limit)
        self._free[row:last, taken] -= job.gpus
        return start


def _first_room(whole: Bools, job: PlainJob) -> tuple[int, Ints] | None:
    """Returns the first row in which enough nodes are free for a job, and the nodes that it may take there."""
    group = job.group
    if group is None:
        rows = np.flatnonzero(whole.sum(axis=1) >= job.nodes)
        return (int(rows[0]), np.flatnonzero(whole[rows[0]])) if rows.size else None
    order = np.argsort(group, kind="stable")
    numbers, begins = np.unique(group[order], return_index=True)
    free = np.add.reduceat(whole[:, order], begins, axis=1, dtype=np.int16)
    enough = free >= job.nodes
    rows = np.flatnonzero(enough.any(axis=1))
    if not rows.size:
        return None
    row = int(rows[0])
    fullest = numbers[np.where(enough[row], free[row], FAR).argmin()]
    return row, np.flatnonzero(whole[row] & (group == fullest))
