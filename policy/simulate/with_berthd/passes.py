"""slurmctld's main pass and backfill, for pinned jobs and others, as in 24.11 to 26.05.

Main pass: it tries jobs in order. A pinned job that cannot start takes its nodes out of the pass. A job without a pin
that cannot start ends the pass, because it blocks the partition.

Backfill: it tries jobs in order. Each gets the first start that the limits of running jobs and earlier plans leave. A
start now is made at once; a later one reserves whole nodes. The steps are those of sched/backfill of 24.11.5, because
its rounding decides which job passes which.

A node on which an epilog runs takes no job, though Slurm's data shows its GPUs as free.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import floor

import numpy as np

from policy.formats.arrays import Bools
from policy.simulate.with_berthd.ahead import Ahead, pin_fits
from policy.simulate.with_berthd.choice import SlurmsChoice
from policy.simulate.with_berthd.jobs import SimulatedJob
from policy.simulate.with_berthd.nodes import Nodes
from policy.simulate.with_berthd.reserved import Reserved, bits
from policy.simulate.with_berthd.settings import PinnedSettings

ENDS_BY_NODES = "25.05"
"""From the second release of this version on, a job on other nodes does not delay a start that backfill plans."""

Start = Callable[[SimulatedJob, tuple[int, ...], tuple[int, ...]], None]


class ClusterPasses:
    """Runs main pass and backfill on one cluster."""

    def __init__(self, nodes: Nodes, settings: PinnedSettings, start: Start, phase: float = 0.0) -> None:
        """Sets the `phase`: the seconds past a full minute on Slurm's clock at the first moment."""
        self._nodes = nodes
        self._all = (1 << nodes.count) - 1
        self._choice = SlurmsChoice(nodes)
        self._depth = settings.queue_depth
        self._resolution = settings.delays.resolution
        self._by_nodes = settings.slurm >= ENDS_BY_NODES
        self._phase = phase
        self._switches = not settings.berthd
        self._start = start

    def main(self, queue: Iterable[SimulatedJob], now: float) -> None:
        """Runs one main pass."""
        nodes = self._nodes
        barred = np.zeros(nodes.count, np.bool_).tolist()
        quiet = nodes.quiet
        blocked = False
        for record in list(islice(queue, self._depth)):
            if blocked:
                _wait_for(record, "Priority")
            elif record.pin:
                if any(barred[node] for node in record.pin):
                    _wait_for(record, "ReqNodeNotAvail")
                elif all(quiet[node] for node in record.pin) and pin_fits(record, nodes.gpus, nodes.cpus):
                    self._start(record, record.pin, (record.pin_mask,) * len(record.pin))
                else:
                    _wait_for(record, "Resources")
                    for node in record.pin:
                        barred[node] = True
            elif not self._start_unpinned(record, quiet & ~np.array(barred), now):
                _wait_for(record, "Resources")
                blocked = True

    def _start_unpinned(self, record: SimulatedJob, open_nodes: Bools, now: float) -> bool:
        nodes = self._nodes
        if record.tried is None:
            record.tried = now
        found = self._choice.nodes_for(record, open_nodes, np.bitwise_count(nodes.gpus), nodes.cpus)
        if found is None or self._waits_for_leaf(record, found, now):
            return False
        self._start(record, found, self._choice.gpus_for(record, found))
        return True

    def _waits_for_leaf(self, record: SimulatedJob, found: Sequence[int], now: float) -> bool:
        """Tells whether `--switches` keeps a job from nodes of several leaves; its time runs from the first try."""
        if not (self._switches and record.asked.wait) or self._choice.on_one_leaf(found):
            return False
        return now - (now if record.tried is None else record.tried) < record.asked.wait

    def backfill(self, queue: Iterable[SimulatedJob], running: Iterable[SimulatedJob], now: float) -> None:
        """Runs one backfill pass, in Slurm's whole seconds."""
        moment = floor(now + self._phase)
        holding = [(self._end_of(record), record) for record in running]
        ahead = self._look_ahead(holding, moment)
        plan = Reserved(self._nodes.count, moment, self._resolution)
        waiting = list(islice(queue, self._depth))
        for record in waiting:
            if record.tried is None:
                record.tried = now
        last = _last_that_fits(waiting, ahead)
        for number, record in enumerate(waiting):
            if number > last:
                return
            found = self._soonest(record, ahead, plan, moment, now)
            if found is None:
                continue
            start, nodes = found
            if start > moment:
                plan.reserve(nodes, *plan.slot(start, record.limit))
                continue
            masks = (record.pin_mask,) * len(nodes) if record.pin else self._choice.gpus_for(record, nodes)
            self._start(record, nodes, masks)
            holding.append((self._end_of(record), record))
            ahead = self._look_ahead(holding, moment)
            last = _last_that_fits(waiting[: last + 1], ahead)

    def _end_of(self, record: SimulatedJob) -> int:
        return floor(record.end_by_limit + self._phase)

    def _look_ahead(self, holding: Sequence[tuple[int, SimulatedJob]], moment: int) -> Ahead:
        return Ahead(self._nodes, self._choice, holding, moment, by_nodes=self._by_nodes)

    def _soonest(
        self, record: SimulatedJob, ahead: Ahead, plan: Reserved, moment: int, now: float
    ) -> tuple[float, tuple[int, ...]] | None:
        """Returns the start and the nodes of a job beside the plans for those before it; a start at `moment` is now."""
        usable = bits(record.pin) if record.pin else self._all
        later: float | None = moment
        while later is not None:
            start_at = later
            open_nodes, later = plan.open_for(start_at, start_at + record.limit, usable)
            if open_nodes.bit_count() < record.nodes_wanted:
                continue
            found = ahead.soonest(record, plan.as_array(open_nodes), start_at, later)
            if found is None:
                continue
            start, nodes = found
            if start <= moment:
                if self._may_start(record, nodes, now):
                    return start, nodes
                start, later = moment + 1, None
            if plan.overlaps(nodes, *plan.slot(start, record.limit)):
                later = start if start > start_at else start + self._resolution
            elif later is None or start <= later:
                return start, nodes
        return None

    def _may_start(self, record: SimulatedJob, nodes: Sequence[int], now: float) -> bool:
        free = self._nodes.free_for(record, nodes)
        if not free or not all(self._nodes.quiet[node] for node in nodes):
            return False
        return bool(record.pin) or not self._waits_for_leaf(record, nodes, now)


def _last_that_fits(waiting: Sequence[SimulatedJob], ahead: Ahead) -> int:
    """Returns the place of the last job that has room now; plans for jobs behind it change nothing."""
    return next((at for at in reversed(range(len(waiting))) if ahead.starts_now(waiting[at])), -1)


def _wait_for(record: SimulatedJob, reason: str) -> None:
    if record.reason != reason:
        record.reason = reason
        record.changed()
