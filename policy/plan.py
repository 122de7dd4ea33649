"""The plan of the waiting jobs: where each stands in line, and which pins have to move.

Jobs are taken in Slurm's own order and each claims its place, so that none that comes later can delay it. A pin moves
only where the job could start now elsewhere and not where it is, where its place is gone, or where its wait for a
level ended: everything else would only cost updates. The place of a job that nothing overtakes is therefore fixed
until it starts.

A pass looks at all waiting jobs; what one ended job frees is planned by looking only at the nodes that it left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policy.book import Book, Claim, claim_on
from policy.cluster import Fleet
from policy.demand import Demand
from policy.errors import FormatError, NotNow
from policy.facts import JobFacts
from policy.picture import HOLDING, Picture
from policy.placement.base import Berth, Policy
from policy.settings import Settings
from policy.tasks import waiting_tasks
from policy.waiting import Reader, Shape, Waiting, ours, without_gpus

STUCK_AFTER = 120
"""Seconds for which a job may fail to start on a place that looks free, before its place is given up."""

MOST_EXPECTED = 100
"""Jobs without GPUs, the first in line, that room is left for: those behind them start long after."""

WORTH_MOVING = 60
"""Seconds that a relaxed job must gain by moving to a place that is not free yet either."""

_BLAMES_PLACE = ("Resources", "ReqNodeNotAvail", "Nodes_required", "Reservation")


@dataclass(frozen=True, slots=True)
class Move:
    """Pin a waiting job elsewhere."""

    job: JobFacts
    berth: Berth
    start: float
    """0 for at once."""
    reason: str
    task: int | None = None
    """The task of an array that gets a place of its own."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give a waiting job back to Slurm."""

    job: JobFacts
    reason: str


Change = Move | Release


class Plan:
    """Keeps the waiting jobs' places right from pass to pass; all else it needs comes with each pass."""

    def __init__(self, policy: Policy, settings: Settings) -> None:
        self._policy = policy
        self._settings = settings
        self._reader: Reader | None = None
        self._fleet: Fleet | None = None
        self._free_since: dict[int, float] = {}
        """Since when a job's place has looked free to this plan."""
        self._running_tasks: dict[int, int] = {}
        self.book: Book | None = None
        """The book of the last pass with all that was claimed in it."""
        self.queue: list[Waiting] = []
        """The jobs of the last pass in their order."""

    def replan(self, book: Book, jobs: Iterable[JobFacts]) -> list[Change]:
        """Claim the places of all waiting jobs in the book; what has to change comes back."""
        everybody = list(jobs)
        reader = self._reader_of(book.fleet)
        changes: list[Change] = []
        queue: list[Waiting] = []
        self._running_tasks = _running_tasks(everybody)
        for job in everybody:
            if not (without_gpus(job) or ours(job)):
                continue
            try:
                queue.append(reader.read(job, book.cluster.at))
            except FormatError as problem:
                if job.wants_gpus:
                    changes.append(Release(job, f"its segment cannot be read: {problem}"))
        queue.sort(key=lambda entry: entry.order)
        reader.forget({entry.job.id for entry in queue})
        self._free_since = {
            entry.job.id: self._free_since[entry.job.id] for entry in queue if entry.job.id in self._free_since
        }
        self.book, self.queue = book, queue
        one_pass = _Pass(book, self._policy, self._settings, self._free_since, changes)
        for entry in queue:
            one_pass.settle(entry)
            if entry.job.tasks:
                one_pass.spread_tasks(entry, self._running_tasks.get(entry.job.array, 0))
        book.cluster = replace(book.cluster, waiting=sum(entry.job.wants_gpus for entry in queue))
        return changes

    def freed(self, picture: Picture, nodes: Iterable[int], jobs: Iterable[JobFacts]) -> list[Change] | None:
        """Plan again what a few changed nodes mean to the jobs of the last pass; None where only a pass can tell.

        `jobs` is the last reading's queue: a job whose facts changed since the last pass is not planned here.
        """
        if self.book is None or self._fleet is not self.book.fleet:
            return None
        book, touched = self.book, set(nodes)
        queue = self._bring_up_to_date(jobs, touched)
        if len(touched) > max(64, len(book.fleet.names) // 4):
            return None
        picture.put_back(book, touched)
        here = np.zeros(len(book.fleet.names), np.bool_)
        here[list(touched)] = True
        changes: list[Change] = []
        one_pass = _Pass(book, self._policy, self._settings, self._free_since, changes, here)
        for entry in queue:
            if touched.isdisjoint(entry.place):
                if entry.start != 0.0 and entry.job.wants_gpus and one_pass.may_fit(entry):
                    one_pass.bring(entry)
            elif touched.issuperset(entry.place):
                one_pass.settle(entry)
            else:
                one_pass.hold(entry, touched, free_now=picture.is_free(entry.place, entry.mask))
        self.queue = queue
        return changes

    def _bring_up_to_date(self, jobs: Iterable[JobFacts], touched: set[int]) -> list[Waiting]:
        """The queue of the last pass without those that are gone, with what is new or changed; adds their nodes."""
        assert self._reader is not None and self.book is not None, "there was a pass"  # noqa: S101, PT018
        known = {entry.job.id: entry for entry in self.queue}
        queue = []
        for job in jobs:
            if not (without_gpus(job) or ours(job)):
                continue
            old = known.pop(job.id, None)
            if old is not None and old.job is job:
                queue.append(old)
                continue
            try:
                entry = self._reader.read(job, self.book.cluster.at)
            except FormatError:
                continue  # the next whole pass gives it back
            if old is not None and entry.pinned_to(old.place, old.mask_planned):
                # Slurm shows what was planned.
                entry.start, entry.place, entry.mask_planned = old.start, old.place, old.mask_planned
            else:
                entry.start, entry.place = None, entry.nodes
                touched.update(entry.nodes)
                touched.update(old.place if old else ())
            queue.append(entry)
        for gone in known.values():
            touched.update(gone.place)
        queue.sort(key=lambda entry: entry.order)
        return queue

    def _reader_of(self, fleet: Fleet) -> Reader:
        if self._reader is None or self._fleet is not fleet:
            self._reader, self._fleet = Reader(fleet), fleet
        return self._reader


class _Pass:
    """One walk along the queue. Claims only ever take, so what has not fitted once will not fit later in the walk."""

    def __init__(
        self,
        book: Book,
        policy: Policy,
        settings: Settings,
        free_since: dict[int, float],
        changes: list[Change],
        only: "np.ndarray[tuple[int], np.dtype[np.bool_]] | None" = None,
    ) -> None:
        self._book = book
        self._policy = policy
        self._settings = settings
        self._free_since = free_since
        self._changes = changes
        self._only = only
        self._refused: dict[Shape, int] = {}
        """For shapes that fit nowhere now, the shortest time limit that was tried."""
        self._most: int | None = None
        self._expected = 0

    def settle(self, entry: Waiting) -> None:
        """Claim a job's place, after moving it if it has to."""
        entry.start, entry.place = None, ()
        job, book, at = entry.job, self._book, self._book.cluster.at
        if job.reason.startswith("BadConstraints") and job.wants_gpus:
            self._changes.append(Release(job, "Slurm found that the place can never start it"))
            return
        if not job.may_start:
            return
        demand, shape = entry.demand_at(at)
        if not job.wants_gpus:
            self._expect(entry, demand)
            return
        start = book.start_of(demand, entry.nodes, entry.mask) if entry.nodes else None
        stuck = False
        if start == 0.0:
            since = self._free_since.setdefault(job.id, at)
            stuck = at - since > STUCK_AFTER and job.reason.startswith(_BLAMES_PLACE)
            if not stuck:
                self._claim(entry, demand, entry.nodes, entry.mask, 0.0)
                return
            candidates = demand.candidates.copy()
            candidates[list(entry.nodes)] = False
            demand = replace(demand, candidates=candidates)
        else:
            self._free_since.pop(job.id, None)
        if self._may_change():
            move = self._better(entry, demand, shape, start)
            if move is not None:
                self._free_since.pop(job.id, None)
                self._changes.append(move)
                self._claim(entry, demand, move.berth.nodes, move.berth.mask, move.start)
                return
        if stuck:
            self._changes.append(Release(job, f"it did not start in {STUCK_AFTER} s on a place that looks free"))
        elif start is not None:
            self._claim(entry, demand, entry.nodes, entry.mask, start)

    def spread_tasks(self, entry: Waiting, running: int) -> None:
        """Give tasks of an array places of their own, as far as they can start now; one stays with the array's pin."""
        if not entry.job.may_start:
            return
        demand, shape = entry.demand_at(self._book.cluster.at)
        tasks = waiting_tasks(entry.job.tasks)
        at_the_pin = 1 if entry.start == 0.0 else 0
        room = len(tasks) if entry.job.at_once is None else entry.job.at_once - running
        for task in tasks[at_the_pin : max(0, room)]:
            if not self._may_change():
                return
            berth = self._now(demand, shape)
            if berth is None:
                return
            self._changes.append(Move(entry.job, berth, 0.0, "a task of its array can start there now", task))
            self._book.claim(claim_on(self._book.fleet, demand, berth.nodes, berth.mask, self._book.cluster.at))
            self._most = None

    def hold(self, entry: Waiting, touched: set[int], *, free_now: bool) -> None:
        """Claim again what a job on several nodes had claimed on some of them; a whole pass may find it better."""
        if not entry.job.may_start or not entry.place:
            return
        demand, _ = entry.demand_at(self._book.cluster.at)
        if free_now:
            entry.start = 0.0
        here = [place for place in entry.place if place in touched]
        start = entry.start or self._book.cluster.at
        self._book.claim(claim_on(self._book.fleet, demand, here, entry.mask_planned, start))
        self._most = None

    def may_fit(self, entry: Waiting) -> bool:
        """Whether it is worth a look if a job could start now."""
        return entry.job.may_start and entry.demand.k <= self._most_free and self._may_change()

    def bring(self, entry: Waiting) -> None:
        """Move a job to the nodes of this pass if it can start there now; its former claim stays until a full pass."""
        demand, shape = entry.demand_at(self._book.cluster.at)
        berth = self._now(demand, shape)
        if berth is not None:
            self._changes.append(Move(entry.job, berth, 0.0, "it can start there now"))
            self._claim(entry, demand, berth.nodes, berth.mask, 0.0)

    def _better(self, entry: Waiting, demand: Demand, shape: Shape, start: float | None) -> Move | None:
        relaxed = _relaxed(entry, self._book.cluster.at)
        berth = self._now(demand, shape)
        if berth is not None:
            return Move(entry.job, berth, 0.0, relaxed or "it can start there now")
        if (start is not None and not relaxed) or self._only is not None:
            return None
        try:
            berth, moment = self._book.soonest(demand, self._policy)
        except NotNow:
            return None
        if start is None:
            return Move(entry.job, berth, moment, "its former place is gone")
        return Move(entry.job, berth, moment, relaxed) if moment + WORTH_MOVING < start else None

    def _now(self, demand: Demand, shape: Shape) -> Berth | None:
        if demand.k > self._most_free or self._refused.get(shape, demand.limit + 1) <= demand.limit:
            return None
        try:
            if self._only is not None:
                demand = replace(demand, candidates=demand.candidates & self._only)
            return self._book.now(demand, self._policy)
        except NotNow:
            self._refused[shape] = min(demand.limit, self._refused.get(shape, demand.limit))
            return None

    def _expect(self, entry: Waiting, demand: Demand) -> None:
        """Leave room for a job without GPUs where Slurm will probably start it."""
        self._expected += 1
        if self._expected > MOST_EXPECTED:
            return
        found = self._book.soonest_without_gpus(demand)
        if found is not None:
            nodes, start = found
            self._claim(entry, demand, nodes, 0, start)

    def _claim(self, entry: Waiting, demand: Demand, nodes: Sequence[int], mask: int, start: float) -> None:
        at = self._book.cluster.at
        claim = claim_on(self._book.fleet, demand, nodes, mask, start or at)
        self._book.claim(claim)
        entry.start, entry.place, entry.mask_planned = start, claim.nodes, mask
        if start == 0.0:
            self._most = None
        else:
            self._bar(claim)

    def _bar(self, claim: Claim) -> None:
        # Slurm's main pass takes the nodes of a waiting pin away from jobs behind it; those start by backfill, late.
        self._book.cluster.quiet[list(claim.nodes)] = False

    def _may_change(self) -> bool:
        return self._settings.repin and len(self._changes) < self._settings.most_moves

    @property
    def _most_free(self) -> int:
        """The most GPUs that are free on one node: it spares looking for what needs more."""
        if self._most is None:
            now = self._book.cluster.gpus_now
            self._most = int(np.bitwise_count(now if self._only is None else now[self._only]).max(initial=0))
        return self._most


def _relaxed(entry: Waiting, at: float) -> str:
    """Why a job may now take less than it asked for; empty where it may not, or already has."""
    if entry.insists is None or at < entry.until:
        return ""
    level = entry.insists.level
    if (entry.job.segment or {}).get("level") != level:
        return ""
    if level == "nvlink":
        where = "one node" if entry.demand.n == 1 else f"{entry.demand.n} nodes"
        return f"its wait for NVLink between all pairs has ended, any GPUs of {where} will do"
    return f"its wait for one {level} has ended, the nearest {entry.demand.n} nodes will do"


def _running_tasks(jobs: Iterable[JobFacts]) -> dict[int, int]:
    count: dict[int, int] = {}
    for job in jobs:
        if job.array and (job.state in HOLDING or (job.state == "PENDING" and job.task is not None)):
            count[job.array] = count.get(job.array, 0) + 1
    return count
