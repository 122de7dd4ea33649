# SPDX-License-Identifier: Apache-2.0
"""Slurm's rules where running jobs are moved by berthd's own search, on the ledger's numbers.

It moves the jobs of any policy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from policy.cluster.snapshot import COLUMNS, Cluster
from policy.formats.arrays import FAR
from policy.history.runtime import RunTimes
from policy.placement.base import Berth, Policy
from policy.plan.jobs.ended_runs import left_of
from policy.plan.ledger.book import Book
from policy.plan.relocation.worth import Mover, WaitingGang, off_slow, open_for
from policy.request.demand import A_YEAR
from policy.request.settings import RelocationRules
from policy.simulate.slurm.backfill.profile import BackfillProfile
from policy.simulate.slurm.clock import Loop
from policy.simulate.slurm.settings import SlurmSettings
from policy.simulate.slurm.world import RANKS, SlurmWorld

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.cluster.fleet import Fleet
    from policy.request.demand import Demand
    from policy.simulate.jobs import TraceJob
    from policy.simulate.result import SimulationOutcome
    from policy.simulate.slurm.nodes.ledger import Ledger
    from policy.simulate.slurm.queue.jobs import Task

LOOK_EVERY = 60.0
"""Seconds between two searches; berthd's own are ten apart, which makes no difference to jobs of hours."""

MOST_GANGS, MOST_AHEAD = 3, 100
"""Most waiting jobs for which room is searched, and how far down the queue they may stand."""

HOUR = 3_600.0


@dataclass(frozen=True, slots=True)
class MovingSettings(SlurmSettings):
    """Settings by which running jobs may be moved; the rules are those of `site.moving`."""

    movable: Mapping[str, float] = field(default_factory=dict)
    """Jobs that may be moved, by id, and what a move costs each, in seconds."""


class Relocation(NamedTuple):
    """The jobs that move and their new berths, and the waiting job that can start then."""

    movers: "list[tuple[Task, Berth]]"
    gang: "tuple[Task, Berth] | None"


@dataclass(slots=True)
class Relocator:
    """Searches for jobs that are worth moving, and remembers when each job was moved."""

    ledger: "Ledger"
    policy: Policy
    rules: RelocationRules
    movable: Mapping[str, float]
    """Jobs with `--movable`, and the cost of a move for each, in seconds."""
    _moved: list[tuple[float, str]] = field(default_factory=list)
    _waits_since: dict[int, float] = field(default_factory=dict)
    moves: int = 0
    _times: RunTimes = field(default_factory=RunTimes)

    def look(self, queue: "Iterable[Task]", running: "Iterable[Task]", now: float) -> Relocation | None:
        """Returns the jobs to move now."""
        waiting = list(islice(queue, MOST_AHEAD))
        self._waits_since = {task.index: self._waits_since.get(task.index, now) for task in waiting}
        self._moved = [(at, job) for at, job in self._moved if at > now - HOUR]
        if len(self._moved) >= self.rules.per_hour:
            return None
        tasks = {task.index + 1: task for task in running if self._may_move(task)}
        movers = [self._mover(number, task, now) for number, task in tasks.items()]
        if not movers:
            return None
        book = self._book(now)
        profile, looked = BackfillProfile(self.ledger, now), 0
        for task in waiting:
            found = profile.earliest(task.demand, task.expected)
            if self._waits(task, now) and found is not None and found[0] > now and looked < MOST_GANGS:
                looked += 1
                book.cluster.hole_until[:] = profile.hole_until
                gang = WaitingGang(task.index + 1, _timed(task.demand, task.expected), found[0])
                proposal = open_for(gang, book, movers, self.policy, self.rules)
                if proposal is not None and proposal.berth is not None:
                    self._note([tasks[move.mover.id] for move in proposal.moves], now)
                    there = [(tasks[move.mover.id], move.berth) for move in proposal.moves]
                    return Relocation(there, (task, proposal.berth))
            if found is not None:
                profile.reserve(found[1], found[0], found[0] + task.expected)
        book.cluster.hole_until[:] = profile.hole_until
        proposal = off_slow(book, movers, self.policy, self.rules)
        if proposal is None:
            return None
        [move] = proposal.moves
        self._note([tasks[move.mover.id]], now)
        return Relocation([(tasks[move.mover.id], move.berth)], None)

    def learn(self, task: "Task", now: float) -> None:
        """Notes that a job has ended; what a moved one has run since its move is only a part, and tells nothing."""
        ran = now - task.started
        if task.served <= ran * task.job.gpus:
            self._times.learn(task.known_at_submission, ran)

    def debt(self, task: "Task") -> float:
        """Returns the seconds in which a moved job computes nothing, or repeats earlier work."""
        return self.movable[task.job.id] + self.rules.restart

    def _note(self, tasks: "Iterable[Task]", now: float) -> None:
        moved = [(now, task.job.id) for task in tasks]
        self._moved += moved
        self.moves += len(moved)

    def _waits(self, task: "Task", now: float) -> bool:
        return task.demand.gpus > 1 and now - self._waits_since[task.index] >= self.rules.after

    def _may_move(self, task: "Task") -> bool:
        if task.job.id not in self.movable or task.berth is None:
            return False
        if any(mask != task.berth.masks[0] for mask in task.berth.masks):
            return False
        return sum(job == task.job.id for _, job in self._moved) < self.rules.per_job

    def _mover(self, number: int, task: "Task", now: float) -> Mover:
        berth = task.berth
        assert berth is not None, "only running jobs are moved"
        demand = _timed(replace(task.demand, level="any"), task.expected)
        return Mover(number, demand, berth.nodes, berth.mask, self.movable[task.job.id], 0.0, self._left(task, now))

    def _left(self, task: "Task", now: float) -> float:
        """Returns the seconds for which a job is expected to run on, as berthd expects it."""
        ran = task.served / task.job.gpus + now - task.started
        if task.known:
            return max(0.0, task.median - ran)
        most = max(0.0, task.limit - (now - task.started)) if task.limit < A_YEAR else inf
        return left_of(self._times.predict(task.known_at_submission), ran, task.cost, most)

    def _book(self, now: float) -> Book:
        """Returns the free resources and the plans; the ends of running jobs are in the profile."""
        ledger, fleet = self.ledger, self.ledger.fleet
        count = len(fleet.names)
        free = np.where(ledger.up, ledger.free, 0)
        times = np.full((count, COLUMNS), FAR)
        times[:, 0] = now
        gpus = np.repeat(fleet.full[:, None], COLUMNS, axis=1)
        gpus[:, 0] = free
        cpus, mem = (np.repeat(one[:, None], COLUMNS, axis=1) for one in (fleet.cpus, fleet.mem))
        far = np.full(count, FAR)
        everywhere = np.ones(count, np.bool_)
        return Book(
            Cluster(
                fleet=fleet,
                at=now,
                up=ledger.up,
                quiet=everywhere,
                times=times,
                gpus=gpus,
                cpus=cpus,
                mem=mem,
                gpus_now=free,
                cpus_now=fleet.cpus,
                mem_now=fleet.mem,
                hole_until=far,
                reserved_from=far.copy(),
                pieces=np.zeros(count, np.int64),
            )
        )


def _timed(demand: "Demand", duration: float) -> "Demand":
    """Returns the demand with the expected duration as its limit, as the simulated passes plan it."""
    return replace(demand, limit=int(min(duration, A_YEAR)))


class MovingWorld(SlurmWorld):
    """The simulated Slurm in which running jobs are moved where that is worth it."""

    def __init__(self, jobs: "Sequence[TraceJob]", fleet: "Fleet", policy: Policy, settings: SlurmSettings) -> None:
        super().__init__(jobs, fleet, policy, settings)
        assert isinstance(settings, MovingSettings)
        self._relocator = Relocator(self.ledger, policy, settings.site.moving, settings.movable)
        self._relocation = Loop(self.clock, LOOK_EVERY, self._relocate, began=0.0, rank=RANKS["next"])

    def outcome(self, policy: str, began: float) -> "SimulationOutcome":
        """Returns the outcome, with the number of jobs that were moved."""
        found, moves = super().outcome(policy, began), self._relocator.moves
        return replace(found, moves=found.moves + moves, extra={**found.extra, "moved": moves})

    def _wake(self) -> None:
        if self.running.tasks:
            self._relocation.wake()
        super()._wake()

    def _end(self, task: "Task", serial: int, *, killed: bool) -> None:
        ended = task.serial == serial
        super()._end(task, serial, killed=killed)
        if ended:
            self._relocator.learn(task, self.clock.now)

    def _relocate(self) -> None:
        """Moves running jobs; the waiting job for which room is made holds its GPUs at once, which idle meanwhile."""
        relocator, now = self._relocator, self.clock.now
        self.soon("next", self._wake)
        if (found := relocator.look(self.queue, self.running.tasks.values(), now)) is None:
            return
        for task, _ in found.movers:
            self.running.stop(task, now)
            task.debt = relocator.debt(task)
        if found.gang is not None:
            gang, berth = found.gang
            gang.debt += relocator.rules.grace + relocator.rules.restart
            self._start(gang, berth, now)
        for task, berth in found.movers:
            self.running.start(task, berth, now)
