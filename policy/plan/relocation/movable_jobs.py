# SPDX-License-Identifier: Apache-2.0
"""The movable jobs and the waiting jobs for which they may move, found from the plan and from Slurm's readings."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from policy.cluster.fleet import Fleet
from policy.formats.errors import FormatError, NotNow
from policy.formats.flags import parse_time
from policy.formats.plan_fields import MOVABLE, MOVE_UNTIL, MOVES, SIGNAL, TIER, holds_place
from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.base import Policy
from policy.plan.jobs.ended_runs import EndedRuns
from policy.plan.jobs.waiting import Waiting
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import claim_on
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.plan.relocation.worth import WORTH_LOOKING, Mover, WaitingGang, slowest
from policy.request.demand import Demand
from policy.request.settings import RelocationRules as Rules
from policy.sharing.classes import Classes

MOST_GANGS = 3
"""Waiting jobs, the first in line, for which a relocation may make room."""

MOST_MOVERS = 400
"""Running jobs that are considered, the smallest first: they find a place most easily. To read a job takes time."""

HOUR = 3_600.0


class Movers:
    """The jobs that may be moved now."""

    def __init__(self, rules: Rules, classes: Classes | None = None) -> None:
        self._rules = rules
        self._classes = classes
        self._reader: tuple[Fleet, Reader] | None = None
        self._never: set[int] = set()
        self._begun: set[tuple[int, int]] = set()
        """Moves of the last hour: job and start time."""
        self._of: tuple[Reading, list[Mover]] | None = None
        self._ended = EndedRuns()

    def never(self, job_id: int) -> None:
        """Excludes a job for good, since Slurm would not requeue it."""
        self._never.add(job_id)
        self._of = None

    def note(self, job_id: int, at: float) -> None:
        """Notes that a move has begun."""
        self._begun.add((job_id, int(at)))

    def in_the_last_hour(self, at: float) -> int:
        """Returns the number of moves of all jobs in the last hour."""
        self._begun = {one for one in self._begun if one[1] > at - HOUR}
        return len(self._begun)

    def of(self, reading: Reading, fleet: Fleet) -> list[Mover]:
        """Returns all jobs that may be moved now."""
        if self._of is None or self._of[0] is not reading:
            present = {job.id for job in reading.jobs}
            running = [job for job in reading.jobs if job.state == "RUNNING" and job.wants_gpus]
            self._ended.see(running, present, reading.at)
            self._never &= present
            able = [job for job in running if self._may_move(job)]
            able = sorted(able, key=lambda job: (job.gpus or 0).bit_count() * len(job.nodes))[:MOST_MOVERS]
            found = [self._mover(job, fleet, reading.at) for job in able]
            self._of = reading, [mover for mover in found if mover is not None]
            if self._reader is not None:
                self._reader[1].forget({job.id for job in able})
            self._begun |= {(job.id, when) for job in reading.jobs for when in job.known.get(MOVES, ())}
        self.in_the_last_hour(reading.at)
        moves = Counter(job_id for job_id, _ in self._begun)
        return [mover for mover in self._of[1] if moves[mover.id] < self._rules.per_job]

    def _may_move(self, job: JobFacts) -> bool:
        plan = job.known
        if MOVABLE not in plan or job.id in self._never:
            return False
        if not holds_place(plan) or not job.gpus or sorted(job.required) != sorted(job.nodes):
            return False
        # The last task of an array has the array's number, which for Slurm means the whole array.
        whole = not (job.share or job.guest or job.het or job.array == job.id) and TIER not in plan
        return whole and MOVE_UNTIL not in plan and not job.reservation

    def _mover(self, job: JobFacts, fleet: Fleet, at: float) -> Mover | None:
        nodes, mask = tuple(fleet.index[name] for name in job.nodes), job.gpus or 0
        said = job.known.get(MOVABLE, "")
        try:
            demand = self.demand(job, fleet, at)
        except FormatError:
            return None
        # A job with a signal saves its work on it. With a COST its user has said what the move loses. Otherwise all
        # work since its start counts as lost.
        lost = 0.0 if said or SIGNAL in job.known else max(0.0, at - (job.start or at))
        cost = float(parse_time(said) if said else self._rules.cost)
        # To predict takes time, and only jobs on slow GPUs gain by what is left.
        stretch = slowest(fleet, demand, nodes, mask)
        left = self._ended.left(job, at, stretch) if stretch >= WORTH_LOOKING else 0.0
        return Mover(job.id, demand, nodes, mask, cost, lost, left)

    def demand(self, job: JobFacts, fleet: Fleet, at: float) -> Demand:
        """Returns what a job needs, wherever it runs."""
        if self._reader is None or self._reader[0] is not fleet:
            self._reader = fleet, Reader(fleet, self._classes)
        return self._reader[1].read(job, at).demand


def first_in_line(queue: Sequence[Waiting], at: float, after: float) -> list[int]:
    """Returns the first jobs that wait for room and have waited for at least `after` seconds."""
    return [entry.job.id for entry in islice((one for one in queue if _waits(one, at, after)), MOST_GANGS)]


def _waits(entry: Waiting, at: float, after: float) -> bool:
    job, demand = entry.job, entry.demand
    alone = demand.share is None and not (entry.guest.only or job.het or job.tasks)
    waits = entry.last.start != 0.0 and entry.may_start_at(at) and at - max(job.submitted, job.begin or 0) >= after
    return job.wants_gpus and alone and waits and demand.gpus > 1


def gang_of(entry: Waiting, plan: Plan, tracker: Tracker, policy: Policy) -> tuple[WaitingGang | None, Book]:
    """Returns a waiting job, or None if its start is not in sight, and a book with all claims but its own."""
    assert plan.book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
    book, touched = Book(plan.book.cluster), set(entry.last.place)
    at = book.cluster.at
    if touched:
        tracker.put_back(book, touched)
        for other in plan.queue:
            here = [node for node in other.last.place if node in touched]
            if here and other is not entry and not other.guest.only:
                demand, _ = other.demand_at(at)
                book.claim(claim_on(book.fleet, demand, here, other.last.mask, other.last.start or at))
    expected = entry.last.start
    demand, _ = entry.demand_at(at)
    if demand is not entry.demand:
        # When its wait for the level ends, it also takes GPUs that are farther apart.
        with suppress(NotNow):
            relaxed = max(entry.level.until, book.soonest(entry.demand, policy)[1])
            expected = relaxed if expected is None else min(expected, relaxed)
    return (WaitingGang(entry.job.id, demand, expected) if expected else None), book
