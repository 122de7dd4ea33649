"""slurmctld's two ways to start jobs, pinned or not, as 24.11 to 26.05 do it.

Main pass: in order. A pinned job that cannot start takes its nodes out of the pass; one that is not pinned ends it,
since it blocks the partition. Backfill: in order, each job gets the first start that running jobs' limits and the
reservations of those before it leave; a start now is a start, a later one reserves whole nodes.

A node on which an epilog runs takes no job, though Slurm's picture shows its GPUs as free.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np

from policy.cluster import Bools
from policy.simulate.pinned_ahead import Ahead, Reserved, pin_fits
from policy.simulate.pinned_choice import Choice
from policy.simulate.pinned_jobs import Record
from policy.simulate.pinned_nodes import Nodes
from policy.simulate.pinned_settings import PinnedSettings

Start = Callable[[Record, tuple[int, ...], tuple[int, ...]], None]


class Passes:
    """Main pass and backfill on one cluster."""

    def __init__(self, nodes: Nodes, settings: PinnedSettings, start: Start) -> None:
        self._nodes = nodes
        self._choice = Choice(nodes)
        self._depth = settings.queue_depth
        self._resolution = settings.delays.resolution
        self._switches = not settings.berthd
        self._start = start

    def main(self, queue: Iterable[Record], now: float) -> None:
        """One main pass."""
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

    def _start_unpinned(self, record: Record, open_nodes: Bools, now: float) -> bool:
        nodes = self._nodes
        if record.tried is None:
            record.tried = now
        found = self._choice.nodes_for(record, open_nodes, np.bitwise_count(nodes.gpus), nodes.cpus)
        if found is None or self._waits_for_leaf(record, found, now):
            return False
        self._start(record, found, self._choice.gpus_for(record, found))
        return True

    def _waits_for_leaf(self, record: Record, found: Sequence[int], now: float) -> bool:
        """Whether `--switches` keeps a job from nodes of several leaves; its time runs from the first try."""
        if not (self._switches and record.asked.wait) or self._choice.on_one_leaf(found):
            return False
        return now - (now if record.tried is None else record.tried) < record.asked.wait

    def backfill(self, queue: Iterable[Record], running: Iterable[Record], now: float) -> None:
        """One backfill pass."""
        holding = list(running)
        ahead = Ahead(self._nodes, self._choice, holding, now)
        plan = Reserved(self._nodes.count, now)
        quiet = self._nodes.quiet
        waiting = list(islice(queue, self._depth))
        for record in waiting:
            if record.tried is None:
                record.tried = now
        last = _last_that_fits(waiting, ahead)
        for number, record in enumerate(waiting):
            if number > last:
                return
            found = _soonest(record, ahead, plan, now)
            if found is None:
                continue
            start, nodes = found
            if start <= now:
                if not all(quiet[node] for node in nodes):
                    start = now + 1
                elif record.pin or not self._waits_for_leaf(record, nodes, now):
                    masks = (record.pin_mask,) * len(nodes) if record.pin else self._choice.gpus_for(record, nodes)
                    self._start(record, nodes, masks)
                    holding.append(record)
                    ahead = Ahead(self._nodes, self._choice, holding, now)
                    last = _last_that_fits(waiting[: last + 1], ahead)
                    continue
            begin = start // self._resolution * self._resolution
            end = (start + record.limit) // self._resolution * self._resolution
            plan.reserve(nodes, begin, max(end, begin + self._resolution))


def _last_that_fits(waiting: Sequence[Record], ahead: Ahead) -> int:
    """The place of the last job for which there is room now: what is planned for those behind it changes nothing."""
    return next((at for at in reversed(range(len(waiting))) if ahead.starts_now(waiting[at])), -1)


def _soonest(record: Record, ahead: Ahead, plan: Reserved, now: float) -> tuple[float, tuple[int, ...]] | None:
    """When and where a job can start beside the reservations of those before it."""
    start_at: float | None = now
    while start_at is not None:
        open_nodes, later = plan.open_for(start_at, record.limit)
        found = ahead.soonest(record, open_nodes)
        if found is not None:
            start = max(found[0], start_at)
            if later is None or start <= later:
                return start, found[1]
        start_at = later
    return None


def _wait_for(record: Record, reason: str) -> None:
    if record.reason != reason:
        record.reason = reason
        record.changed()
