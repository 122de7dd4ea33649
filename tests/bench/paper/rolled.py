# SPDX-License-Identifier: Apache-2.0
"""Slurm's rules where jobs that could start now may let others go first (policy/plan/jobs/roll_out.py)."""

from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from policy.history.runtime import RunTimes
from policy.plan.jobs.promise import PlainJob, Promise, plain_starts
from policy.plan.jobs.roll_out import MOST_JOBS, End, QueuedJob, RoomAhead, still_to_run
from policy.plan.opinions.others_first import able_nodes
from policy.simulate.slurm.passes import QueuePasses
from policy.simulate.slurm.world import SlurmWorld

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from policy.cluster.fleet import Fleet
    from policy.placement.base import Berth, Policy
    from policy.simulate.jobs import TraceJob
    from policy.simulate.slurm.backfill.profile import BackfillProfile
    from policy.simulate.slurm.nodes.ledger import Ledger
    from policy.simulate.slurm.queue.jobs import Task
    from policy.simulate.slurm.queue.running import RunningJobs
    from policy.simulate.slurm.settings import SlurmSettings


class RolledQueue:
    """Holds jobs back, each for a bounded time, by run times that are predicted from the jobs that ended."""

    def __init__(self, ledger: "Ledger", running: "RunningJobs") -> None:
        self._ledger = ledger
        self._running = running
        self._times = RunTimes()
        self._promises: dict[int, Promise] = {}
        self._at = -1.0
        self.held: frozenset[int] = frozenset()
        """Jobs that let others go first at this moment."""

    def learn(self, task: "Task", seconds: float) -> None:
        """Notes that a job has ended."""
        self._times.learn(task.known_at_submission, seconds)

    def promise(self, task: "Task", queue: "Iterable[Task]", now: float) -> None:
        """Promises a job a start as it enters the queue."""
        start = self._planned(queue, now).get(task.index)
        if start is not None:
            self._promises[task.index] = Promise.made(now, start, self._times.predict(task.known_at_submission).median)

    def _planned(self, line: "Iterable[Task]", now: float) -> dict[int, float]:
        """Returns the starts that plain Slurm would plan for jobs in this order, each to its time limit."""
        ends = []
        for one in self._running.tasks.values():
            if one.berth is not None:
                masks = zip(one.berth.nodes, one.berth.masks, strict=True)
                ends += [(one.started + one.limit, (node,), mask.bit_count()) for node, mask in masks]
        jobs = [PlainJob(one.index, one.demand.n, one.demand.k, one.limit) for one in line]
        return plain_starts(now, self._ledger.counts.tolist(), ends, jobs)

    def holds(self, task: "Task", now: float) -> bool:
        """Tells whether a job lets others go first at this moment."""
        return self._at == now and task.index in self.held

    def waits(self, task: "Task", berth: "Berth", queue: "Sequence[Task]", now: float) -> bool:
        """Tells whether a job that could start on this berth lets others go first."""
        if self._at != now:
            self._at, self.held = now, frozenset()
        if not self._running.tasks:
            return False
        jobs = [self._queued(one, now) for one in queue]
        own = next((one for one in jobs if one.number == task.index), None)
        if own is None:
            return False

        def keeps(first: "AbstractSet[int]") -> bool:
            line = sorted(queue, key=lambda one: one.index not in first)
            return self._planned(line, now).get(task.index, inf) <= own.latest

        moment = RoomAhead(now, self._ledger.counts.tolist(), list(self._ends(now)))
        if moment.gain_of_waiting(own, berth.nodes, berth.cost, jobs, self.held, keeps) <= 0.0:
            return False
        self.held |= {task.index}
        return True

    def _queued(self, task: "Task", now: float) -> QueuedJob:
        demand, promise = task.demand, self._promises.get(task.index)
        return QueuedJob(
            task.index,
            demand.n,
            demand.k,
            self._times.predict(task.known_at_submission).mean,
            able_nodes(self._ledger.fleet, demand).tolist(),
            promise.latest if promise else now,
        )

    def _ends(self, now: float) -> "Iterable[End]":
        for task in self._running.tasks.values():
            if task.berth is not None:
                expected = self._times.predict(task.known_at_submission).mean
                left = still_to_run(expected, now - task.started, task.limit)
                for node, mask in zip(task.berth.nodes, task.berth.masks, strict=True):
                    yield End(now + max(1.0, left), (node,), mask.bit_count())


class RolledPasses(QueuePasses):
    """A job that could start now starts only if it lets nobody go first, and no nodes are kept for one that does."""

    def __init__(self, world: "RolledWorld", policy: "Policy") -> None:
        super().__init__(world.queue, world.running, world._waits, policy, world.settings, world._start)
        self.rolled = RolledQueue(world.ledger, world.running)
        self._clock = world.clock

    def _takes(self, task: "Task", berth: "Berth", now: float, profile: "BackfillProfile | None") -> bool:
        if not super()._takes(task, berth, now, profile):
            return False
        return not self.rolled.waits(task, berth, list(islice(self._queue, MOST_JOBS)), now)

    def _is_planned(self, task: "Task") -> bool:
        return super()._is_planned(task) and not self.rolled.holds(task, self._clock.now)


class RolledWorld(SlurmWorld):
    """The simulated Slurm whose passes hold jobs back; for pinned jobs only, as berthd's are."""

    def __init__(self, jobs: "Sequence[TraceJob]", fleet: "Fleet", policy: "Policy", settings: "SlurmSettings") -> None:
        super().__init__(jobs, fleet, policy, settings)
        self._passes: RolledPasses = RolledPasses(self, policy)

    def _enter(self, task: "Task") -> None:
        super()._enter(task)
        self._passes.rolled.promise(task, self.queue, self.clock.now)

    def _end(self, task: "Task", serial: int, *, killed: bool) -> None:
        if task.serial == serial:
            self._passes.rolled.learn(task, self.clock.now - task.started)
        super()._end(task, serial, killed=killed)
