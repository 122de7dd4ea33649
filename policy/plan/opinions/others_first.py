# SPDX-License-Identifier: Apache-2.0
"""Lets waiting jobs of berthd's plan go first where the roll-out of the queue says so (policy/plan/jobs/roll_out.py).

Run times are predicted from the jobs that ended while this process ran (policy/history/runtime.py). When a job may
start for the first time, it is promised the start that plain Slurm would plan for it (policy/plan/jobs/promise.py). It
lets others go first only while it starts by then, as expected and by time limits. Jobs of one user that ask for the
same keep their order: while one of them lets others go first, so do those behind it.

On more than `FEW_NODES` nodes jobs have promises, and none lets others go first.

Bounded work: it asks nothing where GPUs have no scores and each waiting job needs one node, nor on more than
`MOST_NODES` nodes or where more than `MOST_RUNNING` jobs run. It stops after `MOST_LOOKS` looks at nodes in a pass;
then jobs start as if there were no roll-out.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from math import inf

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.reserved import places, taken
from policy.formats.arrays import Bools
from policy.formats.slurm_facts import JobFacts
from policy.placement.base import Berth, Policy
from policy.plan.jobs.ended_runs import EndedRuns, number_of_gpus
from policy.plan.jobs.promise import PlainJob, Promise, plain_starts
from policy.plan.jobs.roll_out import MOST_JOBS, MOST_NODES, End, Held, Looks, QueuedJob, RoomAhead, still_to_run
from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.ledger.book import Book
from policy.plan.ledger.later_places import on_busy_nodes
from policy.plan.ledger.places import berth_of
from policy.plan.ledger.tracker import HOLDING
from policy.plan.opinions.opinion import HeldBack, Opinion, PassState, Reason
from policy.request.demand import A_YEAR, ANY_SPREAD, Demand
from topology.sets.tables import Ints

MOST_RUNNING = 256
"""Running jobs; where more run, GPUs come free all the time, and the predictions would take too long."""

OVER = 60.0
"""Seconds beyond its time limit from which on a job that still runs ends late."""

FEW_NODES = 32
"""Nodes of a cluster up to which jobs let others go first: on 64 it brings nothing (docs/results/slurm-rules.md)."""

MOST_LOOKS = 40_000
"""Looks at nodes in one pass, some 10 ms."""


def able_nodes(fleet: Fleet, demand: Demand) -> Bools:
    """Returns the nodes that a job may run on."""
    return demand.candidates & (fleet.size >= demand.k)


def joined_nodes(fleet: Fleet, demand: Demand) -> Ints | None:
    """Returns each node's group, of which Slurm's topology/block gives a gang nodes; None: it gets any nodes."""
    blocks = fleet.fabric.blocks
    return None if blocks is None or demand.n < 2 else blocks.joined(demand.n)


@dataclass(slots=True)
class LetsOthers:
    """A record of a waiting job, kept from pass to pass."""

    promise: Promise | None = None
    """The start that it was promised; none where plain Slurm plans none."""
    made_at: float = 0.0
    """The time of its promise, and below its nodes, GPUs and time limit of that time."""
    request: tuple[int, int, int] = (0, 0, 0)
    goes_to: tuple[int, ...] = ()
    """Nodes on which it was to start at once when they were free; it is not called back from them."""


class OthersFirst(Opinion):
    """Decides which jobs let others go first; learns run times from pass to pass."""

    about = Matter.SPEED

    memory: dict[int, LetsOthers]

    def __init__(self) -> None:
        super().__init__()
        self._promised: dict[int, LetsOthers] = {}
        """The jobs with a promise that have not been seen to run."""
        self._up, self._lost_at, self._put_off_at = 0, 0.0, 0.0
        """The nodes that are up, and the last times at which one was lost, and at which a job's end was put off."""
        self._ended = EndedRuns()
        self._looks = Looks(0)
        self._held: dict[Hashable, Held] = {}
        """The kinds of the jobs that let others go first in this pass."""
        self._jobs: dict[int, QueuedJob] | None = None
        self._ends: list[End] = []
        self._free_before = np.zeros(0, np.int64)

    def begin(self, state: PassState) -> bool:
        super().begin(state)
        book, jobs = state.ledger.book, state.jobs
        if Matter.SPEED not in state.matters or len(book.fleet.names) > MOST_NODES:
            return False
        found = (job for job in jobs if job.state in HOLDING and job.wants_gpus and job.start is not None)
        running = {job.id: job for job in islice(found, MOST_RUNNING + 1)}
        if len(running) > MOST_RUNNING:
            self._ended.running = ()
            return False
        before = {job.id: job.end or 0 for job in self._ended.running}
        ends = ((before.get(job.id, job.end), job.end) for job in running.values() if job.end is not None)
        if any(now > had > 0 or now < book.at - OVER for had, now in ends):
            self._put_off_at = book.at
        self._ended.see(list(running.values()), running.keys(), book.at)
        self._looks, self._held, self._jobs = Looks(MOST_LOOKS), {}, None
        self._free_before = book.cluster.gpus_now.copy()
        if state.touched is None:
            up, self._up = self._up, int(book.cluster.up.sum())
            self._lost_at = book.at if self._up < up else self._lost_at
            self._count_starts(running)
            self._promise()
        return True

    def _count_starts(self, running: Mapping[int, JobFacts]) -> None:
        """Counts the promises that were kept, and those that were not; forgets jobs that are gone."""
        waiting = {entry.job.id for entry in self.state.queue}
        for job_id in self._promised.keys() - waiting:
            memory, job = self._promised.pop(job_id), running.get(job_id)
            if job is not None and job.start is not None and memory.promise is not None:
                # Slurm tells whole seconds.
                kept = job.start <= memory.promise.latest + 1
                count = "promises_kept" if kept else f"promises_late.{self._cause(job, memory.made_at, running)}"
                self.counts[count] += 1

    def _cause(self, job: JobFacts, made_at: float, running: Mapping[int, JobFacts]) -> str:
        """Returns why a job started later than promised: what plain Slurm could not know either, else Berth."""
        if self._lost_at > made_at:
            return "node"
        if any(one.priority > job.priority and one.submitted > made_at for one in running.values()):
            return "priority"
        return "end" if self._put_off_at > made_at else "berth"

    def hold(self, entry: Waiting, demand: Demand, berth: Berth | None, start: float | None) -> HeldBack | None:
        many = len(self.book.fleet.names) > FEW_NODES
        if many or entry.job.id in self.state.first or not _plain(entry, demand):
            return None
        memory, ledger = self.memory.setdefault(entry.job.id, LetsOthers()), self.ledger
        here = entry.nodes if berth is None else tuple(berth.nodes)
        if berth is None and memory.goes_to == here:
            return None
        there, kind = berth or berth_of(ledger.book.cluster, demand, entry.nodes, entry.mask), _kind(entry, ledger.at)
        entry.last.lets = None
        lets = self._held.get(kind) or self._holds(entry, demand.on(len(here)), there)
        if lets is not None:
            searches = berth is None or start is None
            place = on_busy_nodes(ledger.book, demand, ledger.policy) if searches else None
            if place is not None or berth is not None:
                entry.last.lets = self._held[kind] = lets
                memory.goes_to = ()
                return HeldBack("it lets others go first", place)
        memory.goes_to = here
        return None

    def _holds(self, entry: Waiting, demand: Demand, berth: Berth) -> Held | None:
        """Returns the decision to hold back a job that could start on this berth now; None if it starts."""
        at, cluster = self.ledger.at, self.ledger.book.cluster
        if not self._ended.running or self.memory[entry.job.id].promise is None:
            return None
        if self._jobs is None:
            self._prepare()
        started = {one.job.id: one for one in self.state.queue if self._begins(one)}
        own = (self._jobs or {}).get(entry.job.id)
        queue = [job for number, job in (self._jobs or {}).items() if number not in started]
        if own is None or len(queue) < 2:
            return None
        ends = [
            *self._ends,
            *(
                End(at + self._ended.predict(one.job, one.demand.gpus).mean, one.last.place, one.demand.k)
                for one in started.values()
                if one.job.wants_gpus
            ),
        ]
        room = RoomAhead(at, self._free(cluster.gpus_now).tolist(), ends, self._looks)
        held = {job.number for job in queue if job.kind in self._held}

        def keeps(first: AbstractSet[int]) -> bool:
            line = sorted(self._line(), key=lambda one: one.job.id not in first and one.job.id not in started)
            self._looks.left -= len(line) * len(self.book.fleet.names)
            return self._planned((one, one.demand_at(at)[0]) for one in line).get(own.number, inf) <= own.latest

        gain = room.gain_of_waiting(own, berth.nodes, berth.cost, queue, held, keeps)
        return Held(gain, own.latest) if gain > 0.0 else None

    @staticmethod
    def reason(entry: Waiting, planned: Book, running: Book, policy: Policy) -> Reason | None:
        lets = entry.last.lets
        if lets is None:
            return None
        left = max(0, round(lets.until - planned.at))
        sooner = f"all waiting jobs together are expected to end {lets.gain:.0f} s sooner so"
        most = f"for {left} s more at most, so that it starts about when plain Slurm would start it"
        return Reason("fair_share", f"GPUs that fit are free; it lets others go first {most}: {sooner}", 517)

    def _begins(self, entry: Waiting) -> bool:
        """Tells whether a job has a place in this pass on which it starts now."""
        if entry.last.start != 0.0 or not entry.last.place:
            return False
        only = self.ledger.only
        elsewhere = only is not None and not bool(only[list(entry.last.place)].any())
        return elsewhere or entry.job.id in self.state.settled

    def _promise(self) -> None:
        """Promises a start to each of the first jobs that has none, or that was changed or could not start since."""
        at, new = self.ledger.at, list[tuple[Waiting, Demand]]()
        for entry in self.state.queue:
            if entry.job.id in self._promised and not entry.may_start_at(at):
                del self._promised[entry.job.id]
                self.memory.pop(entry.job.id, None)
        line = [(one, one.demand_at(at)[0]) for one in self._line()]
        for entry, demand in line:
            memory = self.memory.setdefault(entry.job.id, LetsOthers())
            request = demand.n, demand.k, demand.limit
            if memory.request != request:
                memory.request, memory.promise, memory.made_at = request, None, at
                new.append((entry, demand))
        if new:
            self._make(new, line)
        for entry, _ in line:
            entry.last.promise = self.memory[entry.job.id].promise
            self._promised[entry.job.id] = self.memory[entry.job.id]

    def _make(self, new: Iterable[tuple[Waiting, Demand]], line: Iterable[tuple[Waiting, Demand]]) -> None:
        """Makes the promises of these jobs of the line."""
        at, starts = self.ledger.at, self._planned(line)
        for entry, demand in new:
            start = starts.get(entry.job.id)
            if start is not None:
                expected = self._ended.predict(entry.job, demand.gpus).median
                self.memory[entry.job.id].promise = Promise.made(at, start, expected)

    def _planned(self, line: Iterable[tuple[Waiting, Demand]]) -> dict[int, float]:
        """Returns the starts that plain Slurm would plan for jobs in this order, each to its time limit."""
        fleet, free = self.book.fleet, self._free(self._free_before).tolist()
        jobs = [
            PlainJob(one.job.id, of.n, of.k, float(of.limit), able_nodes(fleet, of), joined_nodes(fleet, of))
            for one, of in line
        ]
        ends = self._ends_of(lambda job, _: job.limit or A_YEAR)
        return plain_starts(self.ledger.at, free, ends, jobs, self._reserved())

    def _reserved(self) -> Iterator[tuple[float, float, list[int], list[int]]]:
        """Yields from when to when each later reservation takes GPUs, its nodes, and their number on each."""
        fleet, at = self.book.fleet, self.ledger.at
        for one in (one for one in self.book.cluster.reservations if one.start > at):
            nodes = places(one, fleet)
            yield one.start, one.end, nodes, [taken(one, fleet, node) for node in nodes]

    def _line(self) -> list[Waiting]:
        """Returns the first jobs that wait for GPUs of their own."""
        at, queue = self.ledger.at, self.state.queue
        waiting = (one for one in queue if one.job.wants_gpus and not one.guest.only and one.may_start_at(at))
        return list(islice(waiting, MOST_JOBS))

    def _free(self, gpus: Ints) -> Ints:
        """Returns the number of these GPUs of each node, of those that are up."""
        return np.where(self.book.cluster.up, np.bitwise_count(gpus), 0)

    def _prepare(self) -> None:
        """Lists the first jobs of the queue, and the expected ends of the running ones."""
        at = self.ledger.at
        self._jobs = {one.job.id: self._queued(one, at) for one in self._line()}
        self._ends = list(self._ends_of(self._still_to_run))

    def _still_to_run(self, job: JobFacts, ran: float) -> float:
        limit = inf if job.limit is None else job.limit
        return ran + still_to_run(self._ended.predict(job, number_of_gpus(job)).mean, ran, limit)

    def _ends_of(self, runs: Callable[[JobFacts, float], float]) -> Iterator[End]:
        """Yields the ends of the running jobs; `runs` tells how long a job runs that has run for so long."""
        at, index = self.ledger.at, self.book.fleet.index
        for job in self._ended.running:
            if job.share or job.guest or job.start is None or len(job.holds) != len(job.nodes):
                continue
            ran = at - job.start
            left = max(1.0, runs(job, ran) - ran)
            for name, mask in zip(job.nodes, job.holds, strict=True):
                node = index.get(name)
                # GPUs that are free already belong to a job that has just ended.
                if node is not None and mask and not int(self._free_before[node]) & mask:
                    yield End(at + left, (node,), mask.bit_count())

    def _queued(self, entry: Waiting, at: float) -> QueuedJob:
        demand, _ = entry.demand_at(at)
        memory = self.memory.get(entry.job.id)
        latest = inf if memory is None or memory.promise is None else memory.promise.latest
        seconds, able = self._ended.predict(entry.job, demand.gpus).mean, able_nodes(self.book.fleet, demand).tolist()
        joined = joined_nodes(self.book.fleet, demand)
        group = None if joined is None else joined.tolist()
        return QueuedJob(entry.job.id, demand.n, demand.k, seconds, able, latest, _kind(entry, at), group)


def _kind(entry: Waiting, at: float) -> Hashable:
    """Returns a value that a user's jobs share that ask for the same."""
    demand, _ = entry.demand_at(at)
    return entry.job.user, demand.n, demand.k, demand.limit, demand.candidates.tobytes()


def _plain(entry: Waiting, demand: Demand) -> bool:
    """Tells whether a job is of the kind that may be held back: whole GPUs of its own, on nodes that are pinned.

    It needs a time limit: a job without one would keep its later place from all jobs behind it.
    """
    job = entry.job
    return not (
        demand.n == ANY_SPREAD
        or demand.limit >= A_YEAR
        or demand.share is not None
        or entry.guest.only
        or entry.must_leave
        or job.het
        or job.tasks
        or demand.may_go_elsewhere
    )
