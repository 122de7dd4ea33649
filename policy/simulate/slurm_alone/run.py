"""Simulates Slurm's scheduling event by event, with the policies that berthd has, on a trace instead of a cluster.

    >>> from policy.placement.slurm_like import SlurmPolicy
    >>> from policy.simulate.jobs import TraceJob
    >>> from policy.simulate.world import Layout, build
    >>> first = TraceJob("1", gpus=8, submit=0, work=600, limit=900)
    >>> jobs = [first, TraceJob("2", gpus=4, submit=60, work=600, limit=900)]
    >>> outcome = run(jobs, build(Layout(nodes=1, gpus_per_node=8)), SlurmPolicy())
    >>> outcome.starts["2"], outcome.ends["2"]
    (600.0, 1200.0)

Modelled: the order of the queue, the main pass, backfill with planned starts on whole nodes, limits that kill, quotas
of accounts, levels of locality that are relaxed step by step, requeue, slow and failed nodes. Not modelled: CPUs and
memory, the time that Slurm's own passes and epilogs take, dependencies, arrays, preemption by partition.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from policy.formats.errors import UsageError
from policy.history.runtime import KnownAtSubmission, RunTimes
from policy.placement.base import Berth, Policy
from policy.simulate.pal_rounds.rooms import empty_nodes
from policy.simulate.result import SimulationOutcome, Stretch
from policy.simulate.slurm_alone.jobs import Task, Tasks
from policy.simulate.slurm_alone.ledger import Ledger
from policy.simulate.slurm_alone.main_pass import QueuePasses
from policy.simulate.slurm_alone.moving import LOOK_EVERY, Relocator
from policy.simulate.slurm_alone.priority import Queue
from policy.simulate.slurm_alone.running import RunningJobs
from policy.simulate.slurm_alone.settings import LocalityRule, Multifactor, Quotas, SlurmSettings
from policy.simulate.slurm_alone.waits import SIZES, WaitClocks, size_class, totals

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.simulate.jobs import TraceJob

__all__ = ["LocalityRule", "Multifactor", "Quotas", "SlurmSettings", "run"]

_RANKS = {
    "end": 0,
    "kill": 0,
    "node": 1,
    "submit": 2,
    "relax": 3,
    "overrun": 4,
    "priority": 5,
    "backfill": 6,
    "move": 7,
}
"""The order of events at one moment."""


def run(
    jobs: "Sequence[TraceJob]", fleet: "Fleet", policy: Policy, settings: SlurmSettings | None = None
) -> SimulationOutcome:
    """Plays a trace; the same input gives the same outcome, but for `wall_s`."""
    began = perf_counter()
    world = _World(jobs, fleet, policy, settings or SlurmSettings())
    world.play()
    return world.outcome(began)


class _NodeChange(NamedTuple):
    node: int
    factor: float
    begins: bool


class _World:
    """The queue, the running jobs, and the events to come."""

    def __init__(self, jobs: "Sequence[TraceJob]", fleet: "Fleet", policy: Policy, settings: SlurmSettings) -> None:
        self._settings = settings
        self._policy = policy
        self._fleet = fleet
        self._events: list[tuple[float, int, int, str, object, int]] = []
        self._serial = count()
        self._ledger = Ledger(fleet)
        self._running = RunningJobs(self._ledger, settings, self._schedule)
        self._queue = Queue(settings, int(fleet.size.sum()))
        self._waits = WaitClocks(self._ledger, settings.quotas.gpus, self._running.held)
        self._passes = QueuePasses(self._queue, self._running, self._waits, policy, settings, self._start)
        moving = settings.moving
        self._relocator = Relocator(self._ledger, policy, moving, settings.movable) if moving.enabled else None
        self._run_times = RunTimes() if settings.durations == "predicted" else None
        tasks = Tasks(fleet, settings, policy)
        self._tasks = [tasks.of(index, job) for index, job in enumerate(jobs)]
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._levels: dict[str, str] = {}
        """Level of each job's first berth."""
        self._killed = 0
        self._requeues = 0
        self._backfill_at = -1.0
        self._counted_at = -1.0
        self._looked_at = -1.0
        for task in self._tasks:
            self._push(task.job.submit, "submit", task, 0)
        for event in settings.events:
            self._push(event.start, "node", _NodeChange(event.node, event.factor, begins=True), 0)
            self._push(event.end, "node", _NodeChange(event.node, event.factor, begins=False), 0)

    def play(self) -> None:
        """Plays events until all jobs have ended."""
        events, left = self._events, len(self._tasks)
        while len(self._ends) < left:
            if not events:
                raise UsageError(
                    f"{len(self._queue)} jobs can never start, first job {next(iter(self._queue)).job.id}; "
                    f"a node that they need never comes back"
                )
            now = events[0][0]
            self._waits.advance(now)
            changed = backfill = move = False
            while events and events[0][0] == now:
                _, _, _, what, subject, serial = heapq.heappop(events)
                if what == "backfill":
                    backfill = True
                elif what == "move":
                    move = True
                else:
                    changed |= self._happens(what, subject, serial, now)
            if changed:
                self._passes.main(now)
                self._preempt(now)
            if backfill:
                self._passes.backfill(now)
            if move:
                self._relocate(now)
            if (changed or move) and len(self._queue):
                self._come_back(now)

    def outcome(self, began: float) -> SimulationOutcome:
        """Returns the outcome."""
        chosen = self._settings.measured
        measured = [task.job for task in self._tasks if chosen is None or task.job.id in chosen]
        first = min((job.submit for job in measured), default=0.0)
        last = max((self._ends[job.id] for job in measured), default=0.0)
        levels = {size: Counter[str]() for size in SIZES}
        for job in measured:
            levels[size_class(job.gpus)][self._levels[job.id]] += 1
        stretches = sorted(self._running.stretches, key=lambda one: (one.start, one.job))
        return SimulationOutcome(
            policy=self._policy.name,
            jobs=measured,
            starts=self._starts,
            ends=self._ends,
            stretches=stretches,
            gpus=int(self._fleet.size.sum()),
            gpu_seconds_held=sum(
                len(one.gpus) * max(0.0, min(one.end, last) - max(one.start, first)) for one in stretches
            ),
            wall_s=perf_counter() - began,
            moves=self._requeues + (self._relocator.moves if self._relocator else 0),
            extra={
                "waits": totals(self._waits, {job.id: job.gpus for job in measured}),
                "levels": {size: dict(counted) for size, counted in levels.items()},
                "killed": self._killed,
                **({"moved": self._relocator.moves} if self._relocator else {}),
                **self._empty_nodes(stretches),
            },
        )

    def _empty_nodes(self, stretches: Sequence[Stretch]) -> dict[str, float]:
        sizes = self._fleet.size
        share, seconds = empty_nodes(stretches, sizes.size, int(sizes.max()), int(sizes.sum()))
        return {"empty_nodes": share, "empty_nodes_s": seconds}

    def _push(self, at: float, what: str, subject: object, serial: int) -> None:
        heapq.heappush(self._events, (at, _RANKS[what], next(self._serial), what, subject, serial))

    def _schedule(self, at: float, what: str, task: Task) -> None:
        self._push(at, what, task, task.waits if what == "overrun" else task.serial)

    def _come_back(self, now: float) -> None:
        """Schedules the next backfill, relocation search and priority update, each on its own clock."""
        if self._settings.backfill and self._backfill_at <= now:
            every = self._settings.bf_interval_s
            self._backfill_at = (now // every + 1) * every
            self._push(self._backfill_at, "backfill", None, 0)
        if self._relocator is not None and self._looked_at <= now:
            self._looked_at = (now // LOOK_EVERY + 1) * LOOK_EVERY
            self._push(self._looked_at, "move", None, 0)
        if self._settings.order == "slurm" and self._counted_at <= now:
            every = self._settings.multifactor.calc_period_s
            self._counted_at = (now // every + 1) * every
            self._push(self._counted_at, "priority", None, 0)

    def _happens(self, what: str, subject: object, serial: int, now: float) -> bool:
        """Handles one event; tells whether it may let a job start."""
        if isinstance(subject, _NodeChange):
            for task in self._running.node_changes(subject.node, subject.factor, now, begins=subject.begins):
                self._requeue(task, now)
            return True
        if what == "priority":
            self._queue.reorder(now)
            return True
        assert isinstance(subject, Task)  # noqa: S101 - narrows the type
        if what == "submit":
            self._expect(subject)
            self._wait(subject, now)
        elif what == "relax":
            if subject.waits != serial or not subject.waiting:
                return False
            self._waits.go(subject.job.id)
            self._queue.relax(subject)
            self._waits.come(subject.job.id, subject.kind)
            self._plan_relaxing(subject, now)
        elif what == "overrun":
            if subject.waits == serial and subject.berth is not None:
                self._running.overrun(subject)
        elif subject.serial != serial:
            return False
        else:
            self._end(subject, now, killed=what == "kill")
        return True

    def _expect(self, task: Task) -> None:
        """Sets the duration that the plan assumes for a job."""
        if self._settings.durations == "true":
            task.expected = task.median = min(task.job.work, task.limit) if self._settings.kill else task.job.work
        elif self._run_times is not None:
            guess = self._run_times.predict(_asked(task))
            task.expected, task.median = min(guess.high, task.limit), min(guess.median, task.limit)

    def _wait(self, task: Task, now: float) -> None:
        task.step = 0
        task.waits += 1
        task.waiting = True
        self._queue.add(task, now)
        self._waits.come(task.job.id, task.kind)
        self._plan_relaxing(task, now)

    def _plan_relaxing(self, task: Task, now: float) -> None:
        if task.step + 1 < len(task.steps):
            self._push(now + task.patience(self._fleet.costs), "relax", task, task.waits)

    def _start(self, task: Task, berth: Berth, now: float) -> None:
        self._queue.remove(task)
        task.waiting = False
        self._waits.go(task.job.id)
        self._running.start(task, berth, now)
        self._queue.usage.change(task.sharing, task.job.gpus, now)
        if task.job.id not in self._starts:
            self._starts[task.job.id] = now
            self._levels[task.job.id] = berth.level

    def _end(self, task: Task, now: float, *, killed: bool) -> None:
        self._running.stop(task, now)
        self._queue.usage.change(task.sharing, -task.job.gpus, now)
        self._ends[task.job.id] = now
        self._killed += killed
        if self._run_times is not None:
            self._run_times.learn(_asked(task), now - task.started)
        if self._passes.rolled is not None:
            self._passes.rolled.learn(task, now - task.started)

    def _requeue(self, task: Task, now: float) -> None:
        self._running.requeue(task, now)
        self._queue.usage.change(task.sharing, -task.job.gpus, now)
        self._requeues += 1
        self._wait(task, now)

    def _relocate(self, now: float) -> None:
        """Moves running jobs where that is worth it.

        The waiting job for which room is made holds its GPUs at once; they idle while the others move.
        """
        relocator = self._relocator
        if relocator is None or (found := relocator.look(self._queue, self._running.tasks.values(), now)) is None:
            return
        for task, _ in found.movers:
            self._running.stop(task, now)
            task.debt = relocator.debt(task)
        if found.gang is not None:
            gang, berth = found.gang
            gang.debt += self._settings.moving.grace + self._settings.moving.restart
            self._start(gang, berth, now)
        for task, berth in found.movers:
            self._running.start(task, berth, now)

    def _preempt(self, now: float) -> None:
        """Requeues borrowers, the last started first, until the first job within its quota can start."""
        above = self._settings.quotas.preempt_above
        ledger = self._ledger
        if above is None or ledger.busy < above * int(self._fleet.size.sum()):
            return
        head = next((task for task in self._queue if not self._passes.over_quota(task)), None)
        if head is None:
            return
        for task in sorted(self._running.tasks.values(), key=lambda task: (-task.started, -task.index)):
            quota = self._settings.quotas.gpus.get(task.quota)
            if quota is None or self._running.held[task.quota] <= quota:
                continue
            if ledger.fits(head.shapes):
                break
            self._requeue(task, now)
        self._passes.main(now)


def _asked(task: Task) -> KnownAtSubmission:
    job = task.job
    return KnownAtSubmission(job.user, job.name, job.account, job.gpus, task.limit)
