# SPDX-License-Identifier: Apache-2.0
"""Predicts the start of a job as select/cons_tres does for backfill, if running jobs use their time limits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policy.formats.arrays import Bools
from policy.simulate.slurm.nodes.ledger import Ledger
from policy.simulate.slurm.nodes.tree_choice import TreeChoice
from policy.simulate.slurm.queue.jobs import Task
from topology.sets.tables import Ints

FIRST_WINDOW = 30
"""Seconds within which ends of running jobs are handled together; each next window is at least twice as wide."""


@dataclass(frozen=True, slots=True)
class _Row:
    """The free resources once some of the running jobs have ended."""

    gpus: Ints
    cpus: Ints
    counts: Ints


class Ahead:
    """A table with a row for the free resources now, and one after each end of a running job."""

    def __init__(
        self,
        ledger: Ledger,
        choice: TreeChoice,
        running: Sequence[tuple[int, Task]],
        now: int,
        *,
        by_nodes: bool,
    ) -> None:
        """Takes the `running` jobs, each with the second in which it ends.

        With `by_nodes` a planned start is the end of the last job on the chosen nodes, as from 25.05.1 on. Before, it
        is the end of the last job on any node that the job might have.
        """
        self._choice = choice
        self._now = now
        self._by_nodes = by_nodes
        ending = sorted(running, key=lambda one: (one[0], one[1].index))
        self._ends: Ints = np.array([end for end, _ in ending], np.int64)
        held = [
            (place, node, mask, sum(cores))
            for place, (_, task) in enumerate(ending)
            if task.berth
            for node, mask, cores in zip(task.berth.nodes, task.berth.masks, task.cores, strict=True)
        ]
        # One entry for each job and node, because a full table would be too large for a big cluster.
        self._job, self._node, self._mask, self._cores = np.array(held, np.int64).reshape(-1, 4).T.copy()
        # Rows are made on demand; few are needed.
        self._rows = {0: _Row(ledger.free.copy(), ledger.cpus.copy(), np.bitwise_count(ledger.free))}
        self._room: dict[tuple[int, int, int], Bools] = {}

    def starts_now(self, task: Task) -> bool:
        """Tells whether there is room for a job now, without regard to reservations."""
        if task.pin:
            return pin_fits(task, self._rows[0].gpus, self._rows[0].cpus)
        return int(np.count_nonzero(self._room_for(task, 0))) >= task.demand.n

    def soonest(
        self, task: Task, open_nodes: Bools, start: float, until: float | None
    ) -> tuple[float, tuple[int, ...]] | None:
        """Returns the start and the nodes of a job among the open nodes; ends of jobs after `until` are ignored.

        `start` is the earliest start to plan for; it may be now.
        """
        if start <= self._now and (nodes := self._nodes_in(0, task, open_nodes)):
            return self._now, nodes
        over = int(self._ends.searchsorted(start, "left"))
        if nodes := self._nodes_in(over, task, open_nodes):
            return start, nodes
        last = self._ends.size if until is None else int(self._ends.searchsorted(until, "right"))
        if not self._enough(last, task, open_nodes):
            return None
        among = self._of_jobs(over, last)
        near: Ints = np.unique(self._job[among][open_nodes[self._node[among]]])
        if not near.size:
            return None
        for row in self._batches(near):
            if nodes := self._nodes_in(row, task, open_nodes):
                return self._end(row, near, nodes), nodes
        return None

    def _batches(self, near: Ints) -> list[int]:
        """Returns the rows after each batch of ends of the jobs that hold nodes which this job might have.

        A job that holds none of them is skipped without a check of the window. The next job joins the batch whenever it
        ends.
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
            among = self._of_jobs(int(near[0]), row)
            last = int(self._job[among][np.isin(self._node[among], nodes)].max(initial=near[0]))
        return max(int(self._ends[last]), self._now + 1)

    def _of_jobs(self, first: int, last: int) -> slice:
        """Returns the slice of what these jobs hold."""
        begin, end = self._job.searchsorted([first, last]).tolist()
        return slice(begin, end)

    def _row(self, number: int) -> _Row:
        """Returns the free resources after so many jobs have ended."""
        if number not in self._rows:
            before = max(known for known in self._rows if known < number)
            among = self._of_jobs(before, number)
            gpus, cpus = self._rows[before].gpus.copy(), self._rows[before].cpus.copy()
            np.bitwise_or.at(gpus, self._node[among], self._mask[among])
            np.add.at(cpus, self._node[among], self._cores[among])
            self._rows[number] = _Row(gpus, cpus, np.bitwise_count(gpus))
        return self._rows[number]

    def _nodes_in(self, number: int, task: Task, open_nodes: Bools) -> tuple[int, ...]:
        """Returns nodes for a job by the free resources of one row."""
        if not self._enough(number, task, open_nodes):
            return ()
        if task.pin:
            return task.pin
        # There may be enough nodes, but not in one block.
        row = self._row(number)
        return self._choice.nodes_for(task.demand, open_nodes, row.counts, row.cpus) or ()

    def _enough(self, number: int, task: Task, open_nodes: Bools) -> bool:
        if task.pin:
            row = self._row(number)
            return bool(open_nodes[list(task.pin)].all()) and pin_fits(task, row.gpus, row.cpus)
        return int(np.count_nonzero(self._room_for(task, number) & open_nodes)) >= task.demand.n

    def _room_for(self, task: Task, number: int) -> Bools:
        """Marks, for one row, the nodes with as many GPUs and cores as a job needs there."""
        key = (number, task.demand.k, task.cpus)
        if key not in self._room:
            row = self._row(number)
            self._room[key] = (row.counts >= task.demand.k) & (row.cpus >= task.cpus)
        return self._room[key]


def pin_fits(task: Task, gpus: Ints, cpus: Ints) -> bool:
    """Tells whether a job's pinned GPUs and its cores are free."""
    mask = task.pin_mask
    return all(int(gpus[node]) & mask == mask and int(cpus[node]) >= task.cpus for node in task.pin)
