# SPDX-License-Identifier: Apache-2.0
"""slurmctld's backfill step by step, for pinned jobs and others, as in 24.11 to 26.05.

The steps are those of sched/backfill of 24.11.5, because its rounding decides which job passes which.

A node on which an epilog runs takes no job, though Slurm's data shows its GPUs as free.
"""

from collections.abc import Callable, Iterable, Sequence
from math import floor

import numpy as np

from policy.simulate.slurm.backfill.ahead import Ahead
from policy.simulate.slurm.backfill.reserved import Reserved, bits
from policy.simulate.slurm.nodes.tree_choice import TreeChoice
from policy.simulate.slurm.queue.jobs import Task

ENDS_BY_NODES = "25.05"
"""From the second release of this version on, a job on other nodes does not delay a start that backfill plans."""


class SteppedBackfill:
    """Runs backfill on one cluster."""

    def __init__(
        self,
        choice: TreeChoice,
        resolution: float,
        slurm: str,
        phase: float,
        may_not_hold: Callable[[Task], bool],
        waits_for_leaf: Callable[[Task, Sequence[int], float], bool],
        begin: Callable[[Task, Sequence[int], float], None],
    ) -> None:
        """Takes seconds past a full minute on Slurm's clock as `phase`, and what is asked before a job starts."""
        self._ledger = choice.ledger
        self._choice = choice
        self._resolution = resolution
        self._by_nodes = slurm >= ENDS_BY_NODES
        self._phase = phase
        self._may_not_hold = may_not_hold
        self._waits_for_leaf = waits_for_leaf
        self._begin = begin

    def run(self, waiting: Sequence[Task], running: Iterable[Task], now: float) -> None:
        """Runs one backfill pass, in Slurm's whole seconds."""
        moment = floor(now + self._phase)
        up = bits(np.flatnonzero(self._ledger.up).tolist())
        holding = [(self._end_of(task), task) for task in running]
        ahead = self._look_ahead(holding, moment)
        plan = Reserved(self._ledger.up.size, moment, self._resolution)
        for task in waiting:
            if task.tried is None:
                task.tried = now
        last = _last_that_fits(waiting, ahead)
        for number, task in enumerate(waiting):
            if number > last:
                return
            if self._may_not_hold(task):
                continue
            found = self._soonest(task, ahead, plan, up, moment, now)
            if found is None:
                continue
            start, nodes = found
            if start > moment:
                plan.reserve(nodes, *plan.slot(start, task.demand.limit))
                continue
            self._begin(task, nodes, now)
            holding.append((self._end_of(task), task))
            ahead = self._look_ahead(holding, moment)
            last = _last_that_fits(waiting[: last + 1], ahead)

    def _end_of(self, task: Task) -> int:
        return floor(task.ends_by + self._phase)

    def _look_ahead(self, holding: Sequence[tuple[int, Task]], moment: int) -> Ahead:
        return Ahead(self._ledger, self._choice, holding, moment, by_nodes=self._by_nodes)

    def _soonest(
        self, task: Task, ahead: Ahead, plan: Reserved, up: int, moment: int, now: float
    ) -> tuple[float, tuple[int, ...]] | None:
        """Returns the start and the nodes of a job beside the plans for those before it; a start at `moment` is now."""
        usable, limit = up & bits(task.pin) if task.pin else up, task.demand.limit
        later: float | None = moment
        while later is not None:
            start_at = later
            open_nodes, later = plan.open_for(start_at, start_at + limit, usable)
            if open_nodes.bit_count() < task.demand.n:
                continue
            found = ahead.soonest(task, plan.as_array(open_nodes), start_at, later)
            if found is None:
                continue
            start, nodes = found
            if start <= moment:
                if self._may_start(task, nodes, now):
                    return start, nodes
                start, later = moment + 1, None
            if plan.overlaps(nodes, *plan.slot(start, limit)):
                later = start if start > start_at else start + self._resolution
            elif later is None or start <= later:
                return start, nodes
        return None

    def _may_start(self, task: Task, nodes: Sequence[int], now: float) -> bool:
        """Tells whether a job's GPUs and cores are free there; a job beyond its time limit still holds its own."""
        ledger, here = self._ledger, list(nodes)
        if not ledger.is_open(nodes) or (ledger.cpus[here] < task.cpus).any():
            return False
        if (np.bitwise_count(ledger.free[here]) < task.demand.k).any():
            return False
        return bool(task.pin) or not self._waits_for_leaf(task, nodes, now)


def _last_that_fits(waiting: Sequence[Task], ahead: Ahead) -> int:
    """Returns the place of the last job that has room now; plans for jobs behind it change nothing."""
    return next((at for at in reversed(range(len(waiting))) if ahead.starts_now(waiting[at])), -1)
