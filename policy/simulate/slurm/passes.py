# SPDX-License-Identifier: Apache-2.0
"""The two passes by which Slurm starts jobs: the main pass and backfill.

Main pass: it tries jobs in order. A pinned job that cannot start takes its nodes out of the pass. A job without a pin
that cannot start ends the pass.

Backfill: it tries jobs in order. Each gets the first start that the ends of running jobs and earlier plans leave. A
start now is made at once; a later one reserves whole nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice

import numpy as np

from policy.cluster.view import View
from policy.formats.arrays import Bools
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.plan.ledger.later_places import ends_sooner
from policy.plan.ledger.places import free_now
from policy.request.demand import A_YEAR, Demand
from policy.simulate.slurm.backfill.ahead import pin_fits
from policy.simulate.slurm.backfill.profile import BackfillProfile
from policy.simulate.slurm.backfill.stepped import SteppedBackfill
from policy.simulate.slurm.nodes.ledger import NEVER
from policy.simulate.slurm.nodes.tree_choice import TreeChoice, berth_of
from policy.simulate.slurm.queue.jobs import Task
from policy.simulate.slurm.queue.priority import Queue
from policy.simulate.slurm.queue.running import RunningJobs
from policy.simulate.slurm.queue.waits import WaitClocks, WaitKind
from policy.simulate.slurm.settings import SlurmSettings
from topology.network.fabric import LEVELS
from topology.network.groups import LevelGroups

_GROUPS_TRIED = 8
"""Most leaves or pods that are offered one by one to a policy without levels of its own."""

Start = Callable[[Task, Berth, float], None]


class QueuePasses:
    """Runs the main pass and backfill over one queue."""

    def __init__(
        self,
        queue: Queue,
        running: RunningJobs,
        waits: WaitClocks,
        policy: Policy,
        settings: SlurmSettings,
        start: Start,
        phase: float = 0.0,
    ) -> None:
        """Sets the `policy` that places jobs at their start; `phase` is how far past a minute Slurm's clock is."""
        self._queue = queue
        self._running = running
        self._ledger = running.ledger
        self._waits = waits
        self._settings = settings
        self._start = start
        self._policy = policy
        self._stepped: SteppedBackfill | None = None
        self._switches: TreeChoice | None = None
        """Slurm's choice of nodes, if `--switches` may delay a start."""
        if settings.delays is not None:
            self._policy = choice = TreeChoice(self._ledger, tree=settings.tree)
            self._stepped = SteppedBackfill(
                choice,
                settings.delays.resolution,
                settings.slurm,
                phase,
                self._may_not_hold,
                self._waits_for_leaf,
                lambda task, nodes, now: self._start(
                    task, self._pinned(task) if task.pin else choice.on(task.demand, self.view(), nodes), now
                ),
            )
            self._switches = None if settings.berthd else choice
        self._refused: dict[tuple[WaitKind, int], int] = {}
        """The state of the ledger in which no place was found, by kind and by id of the candidates."""
        self._everywhere = np.ones(self._ledger.up.size, np.bool_)

    def main(self, now: float) -> None:
        """Starts jobs in order; the first that cannot start ends the pass, or only bars its nodes."""
        settings = self._settings
        if not (settings.berthd or self._ledger.fits(self._queue.shapes)):
            return
        if settings.pinned:
            self._walk(self._tried(settings.default_queue_depth), now, planned_nodes_are_shut=True)
            return
        barred: set[int] = set()
        stopped = False
        for task in self._tried(settings.default_queue_depth):
            if stopped:
                _tell(task, "Priority")
            elif task.pin:
                self._start_pinned(task, barred, now)
            elif not self._try(task, self._open_without(barred), now):
                stopped = True
                _tell(task, "Resources")
                if not settings.berthd:
                    return

    def backfill(self, now: float) -> None:
        """Plans a start for each job in order, and starts those that can start now."""
        tried = self._settings.bf_max_job_test
        if self._stepped is not None:
            self._stepped.run(self._tried(tried), self._running.tasks.values(), now)
        elif self._ledger.fits(self._queue.shapes):
            self._walk(self._tried(tried), now, planned_nodes_are_shut=False)

    def view(self, open_nodes: Bools | None = None) -> View:
        """Returns the free resources of these nodes, or of all that may take a job."""
        ledger = self._ledger
        open_nodes = ledger.open if open_nodes is None else open_nodes
        return View(ledger.fleet, ledger.free, ledger.cpus, ledger.fleet.mem, open_nodes, self._everywhere)

    def _pinned(self, task: Task) -> Berth:
        """Returns the place that a job is pinned to."""
        masks = (task.pin_mask,) * len(task.pin)
        return berth_of(task.demand, self.view(), task.pin, masks, "the place that it is pinned to")

    def _waits_for_leaf(self, task: Task, nodes: Sequence[int], now: float) -> bool:
        """Tells whether `--switches` keeps a job from nodes of several leaves; its time runs from the first try."""
        if self._switches is None or not task.switch_wait or self._switches.switches.on_one_leaf(np.asarray(nodes)):
            return False
        return now - (now if task.tried is None else task.tried) < task.switch_wait

    def _open_without(self, barred: AbstractSet[int]) -> Bools:
        if not barred:
            return self._ledger.open
        open_nodes = self._ledger.open.copy()
        open_nodes[list(barred)] = False
        return open_nodes

    def _start_pinned(self, task: Task, barred: set[int], now: float) -> None:
        """Starts a pinned job, or takes its nodes out of this pass."""
        if self._may_not_hold(task):
            return
        if not barred.isdisjoint(task.pin):
            _tell(task, "ReqNodeNotAvail")
        elif self._pin_is_free(task):
            self._start(task, self._pinned(task), now)
        else:
            _tell(task, "Resources")
            barred.update(task.pin)

    def _pin_is_free(self, task: Task) -> bool:
        """Tells whether a job's pinned GPUs and its cores are free, and its nodes may take it."""
        return self._ledger.is_open(task.pin) and pin_fits(task, self._ledger.free, self._ledger.cpus)

    def over_quota(self, task: Task) -> bool:
        """Tells whether a job's account would hold more than its quota."""
        quota = self._settings.quotas.gpus.get(task.quota)
        return quota is not None and self._running.held.get(task.quota, 0) + task.job.gpus > quota

    def _may_not_hold(self, task: Task) -> bool:
        """Tells whether a job's account may not hold its GPUs now, not even as a borrower."""
        if not self.over_quota(task) or task.expected <= self._settings.quotas.borrow_s:
            return False
        _tell(task, "AssocGrpGRES")
        return True

    def _tried(self, most: int) -> list[Task]:
        """Returns the jobs that a pass tries.

        Jobs over their quota do not count towards `most`; those that may borrow come after all others.
        """
        if not self._settings.quotas.gpus:
            return list(islice(self._queue, most))
        borrow = self._settings.quotas.borrow_s
        within: list[Task] = []
        borrowers: list[Task] = []
        for task in self._queue:
            if not self.over_quota(task):
                within.append(task)
                if len(within) == most:
                    break
            elif task.expected > borrow:
                _tell(task, "AssocGrpGRES")
            elif len(borrowers) < most:
                borrowers.append(task)
        return within + borrowers

    def _walk(self, tasks: Sequence[Task], now: float, *, planned_nodes_are_shut: bool) -> None:
        profile = BackfillProfile(self._ledger, now)
        shortest = _shortest_from(tasks)
        for place, task in enumerate(tasks):
            # Once no job further down can start, the plans of this pass change nothing.
            for shape, durations in shortest:
                if profile.longest(shape[1]) >= durations[place] and self._ledger.fits((shape,)):
                    break
            else:
                return
            duration = task.expected
            if task.pin:
                self._walk_pinned(task, profile, now)
                continue
            least = min(k for _, k in task.shapes)
            if profile.longest(least) >= duration and self._try(task, profile.open_for(duration), now, profile):
                profile.touch(task.berth.nodes if task.berth else ())
                continue
            if not self._is_planned(task):
                continue
            plan = profile.earliest(task.demand.every_split[0], duration)
            # Where nothing runs, no end will make the policy take a job that it refuses: others are not kept waiting.
            if plan is not None and (self._running.tasks or plan[0] > now):
                start, nodes = plan
                profile.reserve(nodes, -NEVER if planned_nodes_are_shut else start, start + duration)

    def _walk_pinned(self, task: Task, profile: BackfillProfile, now: float) -> None:
        start = None if self._may_not_hold(task) else profile.earliest_on(task.pin, task.pin_mask, task.expected)
        if start is None:
            return
        if start <= now and self._pin_is_free(task):
            self._start(task, self._pinned(task), now)
            profile.touch(task.pin)
        else:
            profile.reserve(task.pin, start, start + task.expected)

    def _try(self, task: Task, candidates: Bools, now: float, profile: BackfillProfile | None = None) -> bool:
        """Starts a job on some of these nodes if it can start now.

        A job that may be split waits for fewer nodes if it is expected to end sooner there.
        """
        if self._may_not_hold(task):
            return False
        if task.tried is None:
            task.tried = now
        demand, whole = task.demand, candidates is self._ledger.up
        if not self._ledger.fits(task.shapes):
            return False
        refused = task.kind, id(demand.candidates)
        if whole and self._refused.get(refused) == self._ledger.version:
            return False
        view = self.view(candidates)
        try:
            berth = free_now(demand, lambda one: place_within(self._policy, one, view))
        except NotNow:
            if whole:
                self._refused[refused] = self._ledger.version
                self._waits.no_place(task.kind)
            return False
        if not self._takes(task, berth, now, profile):
            return False
        self._start(task, berth, now)
        return True

    def _takes(self, task: Task, berth: Berth, now: float, profile: BackfillProfile | None) -> bool:
        """Tells whether a job starts on a place that is free, instead of waiting for a better one."""
        if self._waits_for_leaf(task, berth.nodes, now):
            return False
        if not task.demand.splits:
            return True
        return not self._waits_for_fewer(task, berth, now, profile or BackfillProfile(self._ledger, now))

    def _is_planned(self, task: Task) -> bool:
        """Tells whether nodes are kept for a job that cannot start now."""
        return not self.over_quota(task)

    def _waits_for_fewer(self, task: Task, berth: Berth, now: float, profile: BackfillProfile) -> bool:
        fewest = task.demand.every_split[0]
        plan = None if len(berth.nodes) == fewest.n else profile.earliest(fewest, task.expected)
        if plan is None:
            return False
        costs, level = self._ledger.fleet.costs, "node" if fewest.n == 1 else fewest.level
        cost = costs.locality(fewest.model, fewest.app_class, level, fewest.gpus)
        demand = replace(fewest, limit=int(min(task.expected, A_YEAR)))
        return not ends_sooner(demand, berth, plan[0], cost, now)


def _tell(task: Task, reason: str) -> None:
    if task.reason != reason:
        task.reason, task.facts = reason, None


def place_within(policy: Policy, demand: Demand, view: View) -> Berth:
    """Places a job at the demand's level or nearer.

    A policy without levels of its own is offered one leaf or pod after another.
    """
    berth = policy.place(demand, view)
    if _near_enough(berth, demand):
        return berth
    groups = view.fleet.fabric.within(demand.level)
    if groups is not None:
        for group in _tightest(groups, demand, view):
            inside = View(view.fleet, view.free, view.cpus, view.mem, view.open & (groups.of == group), view.quiet)
            try:
                return policy.place(demand, inside)
            except NotNow:
                continue
    raise NotNow(f"no {demand.level} has room for it now")


def _near_enough(berth: Berth, demand: Demand) -> bool:
    if demand.n != len(berth.nodes):
        return False
    # On one node every place is near enough, but the policy itself must check for NVLink.
    if demand.n == 1 and demand.level != "nvlink":
        return True
    return LEVELS.index(berth.level) <= LEVELS.index(demand.level)


def _tightest(groups: LevelGroups, demand: Demand, view: View) -> Iterator[int]:
    """Yields groups that have room by number, those with the least to spare first."""
    counts = np.where(view.open & demand.candidates, np.bitwise_count(view.free), 0)
    room = groups.sums(counts >= demand.k)
    enough = np.flatnonzero(room >= demand.n)
    yield from enough[np.argsort(room[enough], kind="stable")][:_GROUPS_TRIED].tolist()


def _shortest_from(tasks: Sequence[Task]) -> list[tuple[tuple[int, int], list[float]]]:
    """Returns each shape, and the shortest duration from each place on."""
    durations: dict[tuple[int, int], list[float]] = {}
    for place, task in enumerate(tasks):
        for shape in task.shapes:
            if shape not in durations:
                durations[shape] = [NEVER] * len(tasks)
            durations[shape][place] = task.expected
    return [(shape, np.minimum.accumulate(found[::-1])[::-1].tolist()) for shape, found in durations.items()]
