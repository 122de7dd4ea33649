# SPDX-License-Identifier: Apache-2.0
"""Simulates Slurm event by event: the queue, the running jobs, and the events to come.

Modelled: the order of the queue, the main pass, backfill with planned starts on whole nodes, limits that kill, quotas
of accounts, levels of locality that are relaxed step by step, requeue, slow and failed nodes. With `delays` also cores,
and the time that passes, epilogs and berthd take. Not modelled: memory, arrays, preemption by partition.

Places are chosen by a placement policy at the start of a job, or by a `PlaceChooser` that pins waiting jobs. Both find
the same queue, passes, quotas and nodes.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from random import Random
from time import perf_counter
from typing import Protocol

from policy.cluster.fleet import Fleet
from policy.formats.errors import UsageError
from policy.history.runtime import RunTimes
from policy.placement.base import Berth, Policy
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.events import NodeEvent
from policy.simulate.pal_rounds.rooms import empty_nodes
from policy.simulate.result import SimulationOutcome, Stretch
from policy.simulate.slurm.clock import Clock, Loop
from policy.simulate.slurm.nodes.ledger import Ledger
from policy.simulate.slurm.passes import QueuePasses
from policy.simulate.slurm.queue.jobs import Task, Tasks
from policy.simulate.slurm.queue.priority import Queue
from policy.simulate.slurm.queue.running import RunningJobs
from policy.simulate.slurm.queue.waits import SIZES, WaitClocks, size_class, totals
from policy.simulate.slurm.settings import INSTANT, SlurmSettings

RANKS = {
    "end": 0,
    "kill": 0,
    "node": 1,
    "submit": 2,
    "relax": 3,
    "overrun": 4,
    "priority": 5,
    "plan": 6,
    "main": 7,
    "backfill": 8,
    "next": 9,
}
"""The order of events at one moment, if nothing takes time."""

BEFORE = 1.0
"""Seconds for which berthd has had a snapshot when the first job is submitted."""

CALC_PERIOD = 300.0
"""Seconds after which Slurm computes all priorities again (Slurm's default)."""

SCHED_INTERVAL = 60.0
"""Seconds after which Slurm runs a main pass even without a request for one (Slurm's default)."""

REQUEUE_DELAY = 121.0
"""Seconds for which Slurm holds a requeued job by default."""

STUCK_AFTER = 2 * 86_400.0
"""Seconds without a running job, or one to come, after which waiting jobs are taken to wait for ever."""

MINUTE = 60.0
"""Seconds; the place of the first job within its minute decides how backfill rounds."""


NOTHING_WRITTEN: Mapping[str, object] = {"updates": 0, "denied": 0, "reasons": {}}


class PlaceChooser(Protocol):
    """Chooses places before jobs start, and pins the jobs to them."""

    def submitted(self, task: Task) -> None:
        """Answers a submission."""

    def changed(self) -> None:
        """Notes that Slurm's state has changed."""

    def notice(self, node: int, go_on: Callable[[float], None]) -> None:
        """Takes an Epilog's notice that a job has ended on a node; `go_on` gets the time of the answer."""

    def figures(self) -> Mapping[str, object]:
        """Returns what was written into jobs, counted."""


class SlurmWorld:
    """The queue, the running jobs, and the events to come."""

    def __init__(self, jobs: Sequence[TraceJob], fleet: Fleet, policy: Policy, settings: SlurmSettings) -> None:
        self.fleet = fleet
        self.settings = settings
        self.delays = settings.delays or INSTANT
        first = min((job.submit for job in jobs), default=0.0)
        self._draw = Random(settings.seed)  # noqa: S311 - for experiments, not a secret
        begins, phase = first - BEFORE - self.delays.read - self.delays.plan, 0.0
        if settings.delays:
            phase = self._draw.uniform(0, MINUTE)
            # slurmctld checks at the start of each second whether a pass was requested.
            begins -= (begins + phase) % self.delays.main
        self.clock = Clock(begins)
        self.planner: PlaceChooser | None = None
        self.written: list[tuple[float, str, Mapping[str, str]]] = []
        """Segments in the order in which they were written, if the outcome is to have them."""
        self.ledger = Ledger(fleet)
        self.running = RunningJobs(self.ledger, settings, self._schedule)
        self.queue = Queue(settings.order)
        self.held: dict[int, Task] = {}
        """Requeued jobs, until they may start again."""
        self._waits = WaitClocks(self.ledger, settings.quotas.gpus, self.running.held)
        self._passes = QueuePasses(self.queue, self.running, self._waits, policy, settings, self._start, phase)
        self._run_times = RunTimes() if settings.durations == "predicted" else None
        tasks = Tasks(fleet, settings, None if settings.berthd else policy)
        self.tasks = [tasks.of(index, job) for index, job in enumerate(jobs)]
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._levels: dict[str, str] = {}
        """Level of each job's first berth."""
        self._killed = self._requeues = self._unplanned = 0
        self._due: set[str] = set()
        """Holds the work that is due before this moment ends."""
        self._main = Loop(self.clock, self.delays.main, self._main_pass)
        self._anyway = Loop(self.clock, SCHED_INTERVAL, self._main_pass)
        self._backfill = self._loop("backfill", settings.bf_interval_s, self._backfill_pass)
        self._reorder = self._loop("priority", CALC_PERIOD, self._update_priorities)
        self._then: dict[str, tuple[Task, float]] = {}
        self._longest_wait = max((task.switch_wait for task in self.tasks), default=0.0)
        self._to_come = 0
        """Submissions and changes of nodes that are still to come."""
        self._progress_at = begins
        """The last moment at which a job came, started or ended, or a node changed."""
        for task in self.tasks:
            if task.job.id in settings.after:
                before, wait = settings.after[task.job.id]
                self._then[before] = task, wait
            else:
                self._comes(task.job.submit, "submit", partial(self._submit, task))
        for event in settings.events:
            for moment, begins_then in ((event.start, True), (event.end, False)):
                self._comes(moment, "node", partial(self._node_changes, event, begins=begins_then))

    def play(self) -> None:
        """Plays events until all jobs have ended, or nothing more can start; the others then count as never started."""
        left = len(self.tasks)
        while len(self._ends) < left:
            moment = self.clock.next()
            if moment is None or self._is_stuck(moment):
                waiting = [*self.queue, *self.held.values()]
                never = (
                    f"{len(waiting)} jobs can never start, first job {waiting[0].job.id}: "
                    "the policy gives them no place, or a node that they need never comes back"
                )
                if not self._ends:
                    raise UsageError(never)
                sys.stderr.write(f"berth simulate: {never}; the figures leave them out\n")
                return
            self._waits.advance(moment)
            self.clock.step()

    def outcome(self, policy: str, began: float) -> SimulationOutcome:
        """Returns the outcome of a policy; `began` is when the simulation was started, by `perf_counter`."""
        measured = [task.job for task in self.tasks if task.job.id in self._ends]
        first = min((job.submit for job in measured), default=0.0)
        last = max((self._ends[job.id] for job in measured), default=0.0)
        levels = {size: Counter[str]() for size in SIZES}
        with_gpus = [job for job in measured if job.gpus]
        for job in with_gpus:
            levels[size_class(job.gpus)][self._levels[job.id]] += 1
        stretches = sorted(self.running.stretches, key=lambda one: (one.start, one.job))
        left = len(self.tasks) - len(measured)
        never = {"never_started": left} if left else {}
        extra: dict[str, object] = {"killed": self._killed, **never, **self._empty_nodes(stretches)}
        if self.settings.counts_cores:
            extra |= {"unplanned": self._unplanned, **NOTHING_WRITTEN}
        if self.planner:
            extra |= self.planner.figures()
        return SimulationOutcome(
            policy=policy,
            jobs=measured,
            starts=self._starts,
            ends=self._ends,
            stretches=stretches,
            gpus=int(self.fleet.size.sum()),
            gpu_seconds_held=sum(
                len(one.gpus) * max(0.0, min(one.end, last) - max(one.start, first)) for one in stretches
            ),
            wall_s=perf_counter() - began,
            moves=self._requeues,
            extra={
                "waits": totals(self._waits, {job.id: job.gpus for job in with_gpus}),
                "levels": {size: dict(counted) for size, counted in levels.items()},
                **extra,
            },
            written=self.written,
        )

    def _empty_nodes(self, stretches: Sequence[Stretch]) -> dict[str, float]:
        sizes = self.fleet.size
        share, seconds = empty_nodes(stretches, sizes.size, int(sizes.max()), int(sizes.sum()))
        return {"empty_nodes": share, "empty_nodes_s": seconds}

    def _is_stuck(self, moment: float) -> bool:
        """Tells whether for a long time there were only passes without effect, and nothing else is to come."""
        if self.running.tasks or self.held or self._to_come:
            self._progress_at = moment
        return moment > self._progress_at + STUCK_AFTER + self._longest_wait

    # The events

    def _comes(self, moment: float, what: str, act: Callable[[], None]) -> None:
        """Schedules a submission or a change of a node; what never comes is left out."""
        if isfinite(moment):
            self._to_come += 1
            self._at(moment, what, act)

    def _at(self, moment: float, what: str, act: Callable[[], None]) -> None:
        """Schedules an event; with delays the first scheduled of one moment comes first, as in Slurm's own loops."""
        self.clock.at(moment, act, RANKS[what] if self.settings.delays is None else 0)

    def _loop(self, what: str, every: float, act: Callable[[], None]) -> Loop:
        """Makes a loop; if nothing takes time, its moments are multiples of its period."""
        if self.settings.delays is not None:
            return Loop(self.clock, every, act)
        return Loop(self.clock, every, act, began=0.0, rank=RANKS[what])

    def soon(self, what: str, act: Callable[[], None]) -> None:
        """Schedules an action once for the end of this moment."""
        if what not in self._due:
            self._due.add(what)
            self._at(self.clock.now, what, partial(self._do, what, act))

    def _do(self, what: str, act: Callable[[], None]) -> None:
        self._due.discard(what)
        act()

    def changed(self, *, asks_for_pass: bool = False) -> None:
        """Notes that Slurm's state has changed; a change may ask for a main pass."""
        if self.planner is not None:
            self.planner.changed()
        if self.settings.delays is not None:
            self._wake()
            if asks_for_pass:
                self._main.wake()
        elif asks_for_pass:
            self.soon("main", self._main_pass)
            self.soon("next", self._wake)

    def _schedule(self, at: float, what: str, task: Task) -> None:
        if what == "overrun":
            self._at(at, what, partial(self._overrun, task, task.waits))
        else:
            self._at(at + self.delays.end, what, partial(self._end, task, task.serial, killed=what == "kill"))

    def _wake(self) -> None:
        """Wakes backfill and the update of priorities while jobs wait."""
        if len(self.queue):
            if self.settings.backfill:
                self._backfill.wake()
            if self.settings.order == "slurm":
                self._reorder.wake()

    def _submit(self, task: Task) -> None:
        self._to_come -= 1
        if self.planner is not None and task.demand.k:
            self.planner.submitted(task)
        if self.delays.submit:
            self.clock.at(self.clock.now + self.delays.submit, partial(self._enter, task))
        else:
            self._enter(task)

    def _enter(self, task: Task) -> None:
        now = task.entered = self.clock.now
        if task.switch_wait:
            # A wait for a level ends on its own: in whole seconds of berthd, and from the first try of plain Slurm.
            for after in (0, 1, 1 + self.settings.bf_interval_s):
                self.clock.at(now + task.switch_wait + after, self.changed)
        self._expect(task)
        self._wait(task)
        self.changed(asks_for_pass=True)

    def _expect(self, task: Task) -> None:
        """Sets the duration that the plan assumes for a job."""
        if self.settings.durations == "true":
            task.expected = task.median = min(task.job.work, task.limit) if self.settings.kill else task.job.work
        elif self._run_times is not None:
            guess = self._run_times.predict(task.known_at_submission)
            task.expected, task.median = min(guess.high, task.limit), min(guess.median, task.limit)

    def _wait(self, task: Task) -> None:
        task.step = 0
        task.waits += 1
        task.waiting, task.state, task.facts = True, "PENDING", None
        self.queue.add(task, self.clock.now)
        self._waits.come(task.job.id, task.kind)
        self._plan_relaxing(task)

    def _plan_relaxing(self, task: Task) -> None:
        if task.step + 1 < len(task.steps):
            moment = self.clock.now + task.locality.wait_s
            self._at(moment, "relax", partial(self._relax, task, task.waits))

    def _relax(self, task: Task, waits: int) -> None:
        if task.waits != waits or not task.waiting:
            return
        self._waits.go(task.job.id)
        self.queue.relax(task)
        self._waits.come(task.job.id, task.kind)
        self._plan_relaxing(task)
        self.changed(asks_for_pass=True)

    def _overrun(self, task: Task, waits: int) -> None:
        if task.waits == waits and task.berth is not None:
            self.running.overrun(task)
        self.changed(asks_for_pass=True)

    def _update_priorities(self) -> None:
        self.queue.reorder(self.clock.now)
        self.changed(asks_for_pass=True)

    def _main_pass(self) -> None:
        waiting = len(self.queue)
        self._passes.main(self.clock.now)
        if self.settings.delays and waiting:
            self._anyway.wake()

    def _backfill_pass(self) -> None:
        self._passes.backfill(self.clock.now)

    def _start(self, task: Task, berth: Berth, now: float) -> None:
        self.queue.remove(task)
        task.waiting = False
        self._waits.go(task.job.id)
        self.running.start(task, berth, now)
        self._unplanned += bool(task.job.gpus and not task.pin)
        if task.job.id not in self._starts:
            self._starts[task.job.id] = task.begun
            self._levels[task.job.id] = berth.level
        if self.settings.counts_cores:
            self.changed()

    # The ends

    def _end(self, task: Task, serial: int, *, killed: bool) -> None:
        """Ends a job, unless it was stopped before."""
        if task.serial != serial:
            return
        nodes = self._stop(task, task.ended)
        self._ends[task.job.id] = task.ended
        self._killed += killed
        if self._run_times is not None:
            self._run_times.learn(task.known_at_submission, self.clock.now - task.started)
        if task.job.id in self._then:
            following, wait = self._then[task.job.id]
            self._comes(self.clock.now + wait, "submit", partial(self._submit, following))
        self._clean_up(task, nodes)

    def _stop(self, task: Task, at: float) -> Sequence[int]:
        """Takes a job off its GPUs; returns its nodes."""
        assert task.berth is not None, "only running jobs stop"  # noqa: S101 - narrows the type
        nodes = task.berth.nodes
        self.running.stop(task, at)
        return nodes

    def _clean_up(self, task: Task, nodes: Sequence[int]) -> None:
        """Runs the epilogs of a job that slurmctld has seen end."""
        if self.settings.delays is None:
            self._gone(task)
            self.changed(asks_for_pass=True)
            return
        task.state, task.epilogs = "COMPLETING", len(nodes)
        for node in nodes:
            self.ledger.epilog(node, 1)
        self.changed()
        for node in nodes:
            self.clock.at(self.clock.now + self.delays.notice, partial(self._epilog, task, node))

    def _epilog(self, task: Task, node: int) -> None:
        """Runs an epilog, which asks berthd and waits for its answer, at most `most_held_up` seconds."""
        now, delays = self.clock.now, self.delays
        if not delays.epilogs:
            # slurmd reports the end, and slurmctld requests a pass instead of running one.
            self._epilog_over(task, node)
            self._main.wake()
        elif self.planner is None:
            self._end_epilog(task, node, now)
        elif delays.lost_notices and self._draw.random() < delays.lost_notices:
            self._end_epilog(task, node, now + delays.most_held_up)
        else:
            latest = now + delays.most_held_up
            answered = [False]

            def go_on(moment: float) -> None:
                if not answered[0]:
                    answered[0] = True
                    self._end_epilog(task, node, min(moment, latest))

            self.planner.notice(node, go_on)

    def _end_epilog(self, task: Task, node: int, answered: float) -> None:
        def over() -> None:
            self._epilog_over(task, node)
            if not task.epilogs:
                self._main_pass()

        self.clock.at(answered + self.delays.epilog, over)

    def _epilog_over(self, task: Task, node: int) -> None:
        self.ledger.epilog(node, -1)
        task.epilogs -= 1
        if not task.epilogs:
            self._gone(task)
        self.changed()

    def _gone(self, task: Task) -> None:
        """Notes that a job has left all its nodes; a requeued job is held for some time."""
        task.state, task.facts = "COMPLETED", None
        if task.begin is not None:
            task.state = "PENDING"
            self.held[task.id] = task

    # Requeued jobs

    def _hold(self, task: Task, nodes: Sequence[int]) -> None:
        task.begin = self.clock.now + REQUEUE_DELAY
        self._clean_up(task, nodes)
        self.clock.at(task.begin, partial(self.release, task))

    def release(self, task: Task) -> None:
        """Lets a requeued job start again."""
        if task.begin is None or task.state != "PENDING":
            return
        task.begin = None
        del self.held[task.id]
        self._wait(task)
        self.changed(asks_for_pass=True)

    def _node_changes(self, event: NodeEvent, *, begins: bool) -> None:
        self._to_come -= 1
        for task in self.running.node_changes(event.node, event.factor, self.clock.now, begins=begins):
            self._requeue(task)
        self.changed(asks_for_pass=True)

    def _requeue(self, task: Task) -> None:
        now = self.clock.now
        nodes = task.berth.nodes if task.berth else ()
        self.running.requeue(task, now)
        self._requeues += 1
        if self.settings.delays is None:
            self._wait(task)
        else:
            self._hold(task, nodes)
