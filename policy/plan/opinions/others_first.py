"""Lets waiting jobs of berthd's plan go first where the roll-out of the queue says so (policy/plan/jobs/roll_out.py).

Run times are predicted from the jobs that ended while this process ran (policy/history/runtime.py). A job is held back
by a pass at most until it has waited for others as long as it was expected to run when it first did; this bound is
kept in the plan's memory of the job.

Bounded work: it asks nothing where more than `MOST_RUNNING` jobs run, and stops after `MOST_LOOKS` looks at nodes in a
pass; then jobs start as if there were no roll-out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf

import numpy as np

from policy.cluster.fleet import Fleet
from policy.formats.arrays import FAR
from policy.placement.base import Berth, Policy
from policy.plan.jobs.ended_runs import EndedRuns, number_of_gpus
from policy.plan.jobs.roll_out import MOST_JOBS, MOST_NODES, End, Held, Looks, QueuedJob, RoomAhead, still_to_run
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.book import Book
from policy.plan.ledger.later_places import on_busy_nodes
from policy.plan.ledger.places import berth_of
from policy.plan.ledger.tracker import HOLDING
from policy.plan.opinions.opinion import HeldBack, Opinion, PassState, Reason
from policy.request.demand import A_YEAR, ANY_SPREAD, Demand
from topology.fabric import FabricLevel

MOST_RUNNING = 256
"""Running jobs; where more run, GPUs come free all the time, and the predictions would take too long."""

MOST_LOOKS = 40_000
"""Looks at nodes in one pass, some 10 ms."""

_LEVELS: tuple[FabricLevel, ...] = ("nvlink", "leaf", "pod")


def groups_of(fleet: Fleet) -> dict[str, list[int]]:
    """Returns the group of each node at the levels that the fleet has."""
    return {level: groups.of.tolist() for level in _LEVELS if (groups := fleet.fabric.at(level)).any}


def slowest_by_node(fleet: Fleet, demand: Demand) -> list[float]:
    """Returns the score of the k-th fastest GPU of each node; infinite where the job may not run."""
    able = demand.candidates & (fleet.size >= demand.k)
    table = fleet.scores.get(demand.app_class)
    slowest = np.ones(able.size)
    if table is not None:
        exists = np.arange(table.shape[1]) < fleet.size[:, None]
        slowest = np.sort(np.where(exists, table, np.inf), axis=1)[:, min(demand.k, table.shape[1]) - 1]
    found: list[float] = np.where(able, slowest, np.inf).tolist()
    return found


def reach_of(fleet: Fleet, demand: Demand, levels: Iterable[str]) -> dict[str, float]:
    """Returns the factor on the job's run time where its nodes meet at each level; empty on one node."""
    if demand.n == 1:
        return {}
    costs = fleet.costs
    return {one: costs.locality(demand.model, demand.app_class, one, demand.gpus) for one in (*levels, "any")}


@dataclass(slots=True)
class LetsOthers:
    """A record of how a job let others go first, kept from pass to pass."""

    since: float | None = None
    """Time at which it first did."""
    until: float = FAR
    """Time after which it does no more."""
    goes_to: tuple[int, ...] = ()
    """Nodes on which it was to start at once when they were free; it is not called back from them."""


class OthersFirst(Opinion):
    """Decides which jobs let others go first; learns run times from pass to pass."""

    memory: dict[int, LetsOthers]
    questions_plain = True

    def __init__(self) -> None:
        super().__init__()
        self._ended = EndedRuns()
        self._few = False
        """Tells whether few enough jobs run."""
        self._fleet: Fleet | None = None
        self._groups: dict[str, list[int]] = {}
        self._scores: dict[tuple[object, ...], list[float]] = {}
        self._looks = Looks(0)
        self._held: set[int] = set()
        self._jobs: dict[int, QueuedJob] | None = None
        self._ends: list[End] = []
        self._free_before = np.zeros(0, np.int64)

    def begin(self, state: PassState) -> bool:
        book, jobs = state.ledger.book, state.jobs
        at = book.at
        found = (job for job in jobs if job.state in HOLDING and job.wants_gpus and job.start is not None)
        running = {job.id: job for job in islice(found, MOST_RUNNING + 1)}
        self._few = len(running) <= MOST_RUNNING
        if not self._few:
            self._ended.running = ()
        else:
            self._ended.see(list(running.values()), running.keys(), at)
        self._looks, self._held, self._jobs = Looks(MOST_LOOKS), set(), None
        if self._fleet is not book.fleet:
            self._fleet, self._groups = book.fleet, groups_of(book.fleet)
            self._scores.clear()
        self._free_before = book.cluster.gpus_now.copy()
        return super().begin(state)

    def hold(self, entry: Waiting, demand: Demand, berth: Berth | None, start: float | None) -> HeldBack | None:
        ledger, memory = self.ledger, self.memory.setdefault(entry.job.id, LetsOthers())
        here = entry.nodes if berth is None else tuple(berth.nodes)
        if berth is None and memory.goes_to == here:
            return None
        there = berth or berth_of(ledger.book.cluster, demand, entry.nodes, entry.mask)
        entry.last.lets = self._holds(entry, demand.on(len(here)), there, memory.until)
        if entry.last.lets is not None:
            memory.until, memory.goes_to = entry.last.lets.until, ()
            memory.since = ledger.at if memory.since is None else memory.since
            searches = berth is None or start is None
            place = on_busy_nodes(ledger.book, demand, ledger.policy) if searches else None
            if place is not None or berth is not None:
                return HeldBack("it lets others go first", place)
            entry.last.lets = None
            self._held.discard(entry.job.id)
        memory.goes_to = here
        return None

    def _holds(self, entry: Waiting, demand: Demand, berth: Berth, until: float) -> Held | None:
        """Returns the decision to hold back a job that could start on this berth now; None if it starts."""
        ledger = self.ledger
        at, cluster = ledger.at, ledger.book.cluster
        if not self._few or not self._ended.running or not _plain(entry, demand):
            return None
        if at >= until or entry.job.id in self.state.first:
            return None
        free = np.where(cluster.up, np.bitwise_count(cluster.gpus_now), 0)
        if np.count_nonzero(free) > MOST_NODES:
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
                End(at + self._ended.predict(one.job, one.demand.gpus).median, one.last.place, one.demand.k)
                for one in started.values()
                if one.job.wants_gpus
            ),
        ]
        room = RoomAhead(at, free.tolist(), ends, self._groups, self._looks)
        gain = room.gain_of_waiting(own, berth.nodes, berth.cost, queue, self._held)
        if gain <= 0.0:
            return None
        self._held.add(entry.job.id)
        return Held(gain, min(until, at + own.seconds))

    @staticmethod
    def reason(entry: Waiting, planned: Book, running: Book, policy: Policy) -> Reason | None:
        lets = entry.last.lets
        if lets is None:
            return None
        left = max(0, round(lets.until - planned.at))
        sooner = f"all waiting jobs together are expected to end {lets.gain:.0f} s sooner so"
        return Reason(
            "fair_share", f"GPUs that fit are free; it lets others go first for {left} s more at most: {sooner}", 517
        )

    def _begins(self, entry: Waiting) -> bool:
        """Tells whether a job has a place in this pass on which it starts now."""
        if entry.last.start != 0.0 or not entry.last.place:
            return False
        only = self.ledger.only
        elsewhere = only is not None and not bool(only[list(entry.last.place)].any())
        return elsewhere or entry.job.id in self.state.settled

    def _prepare(self) -> None:
        """Lists the first jobs of the queue, and the expected ends of the running ones."""
        at, fleet = self.ledger.at, self.book.fleet
        waiting = (
            one for one in self.state.queue if one.job.wants_gpus and not one.guest.only and one.may_start_at(at)
        )
        self._jobs = {one.job.id: self._queued(one, at) for one in islice(waiting, MOST_JOBS)}
        self._ends = []
        for job in self._ended.running:
            if job.share or job.guest or job.start is None or len(job.holds) != len(job.nodes):
                continue
            limit = inf if job.limit is None else job.limit
            left = still_to_run(self._ended.predict(job, number_of_gpus(job)).median, at - job.start, limit)
            for name, mask in zip(job.nodes, job.holds, strict=True):
                node = fleet.index.get(name)
                # GPUs that are free already belong to a job that has just ended.
                if node is not None and mask and not int(self._free_before[node]) & mask:
                    self._ends.append(End(at + max(1.0, left), (node,), mask.bit_count()))

    def _queued(self, entry: Waiting, at: float) -> QueuedJob:
        demand, _ = entry.demand_at(at)
        key = (demand.candidates.tobytes(), demand.app_class, demand.k)
        fleet = self._fleet
        assert fleet is not None, "a pass has begun"  # noqa: S101 - narrows the type
        if key not in self._scores:
            if len(self._scores) > 4 * MOST_JOBS:
                self._scores.clear()
            self._scores[key] = slowest_by_node(fleet, demand)
        memory = self.memory.get(entry.job.id)
        since = at if memory is None or memory.since is None else memory.since
        seconds, reach = self._ended.predict(entry.job, demand.gpus).median, reach_of(fleet, demand, self._groups)
        return QueuedJob(entry.job.id, demand.n, demand.k, seconds, self._scores[key], reach, at - since)


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
