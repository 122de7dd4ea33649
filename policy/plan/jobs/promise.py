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
    at: float, free: Sequence[int], ends: Iterable[tuple[float, Sequence[int], int]], queue: Iterable[PlainJob]
) -> dict[int, float]:
    """Returns the planned start of each job that can ever start; `ends` are running jobs at their time limits."""
    room = _Room(at, free, [end for end in ends if end[0] < FAR])
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
        enough = np.flatnonzero(whole.sum(axis=1) >= job.nodes)
        if not enough.size:
            return None
        row = int(enough[0])
        nodes = np.flatnonzero(whole[row])
        taken = nodes[np.argsort(self._free[row, nodes], kind="stable")[: job.nodes]]
        start, last = float(self._times[row]), int(until[row])
        if last == count or self._times[last] > start + job.limit:
            self._times = np.insert(self._times, last, start + job.limit)
            self._free = np.insert(self._free, last, self._free[last - 1], axis=0)
        self._free[row:last, taken] -= job.gpus
        return start
