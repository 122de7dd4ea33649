"""The movable jobs and the waiting jobs for which they may move, found from the plan and from Slurm's readings."""

from collections.abc import Sequence

from policy.cluster.fleet import Fleet
from policy.formats.errors import FormatError, NotNow
from policy.formats.flags import parse_time
from policy.formats.plan_fields import MOVABLE, MOVE_UNTIL, MOVES, SIGNAL, TIER, holds_place
from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.base import Policy
from policy.plan.jobs.waiting import Waiting
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import claim_on
from policy.plan.ledger.tracker import Picture
from policy.plan.queue.plan import Plan
from policy.plan.relocation.remaining import EndedRuns, slowest
from policy.plan.relocation.worth import WORTH_LOOKING, Mover, WaitingGang
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
        self._begun: dict[tuple[int, int], float] = {}
        """Moves of the last hour: job and start time, with that time again as a float."""
        self._of: tuple[Reading, list[Mover]] | None = None
        self._ended = EndedRuns()

    def never(self, job_id: int) -> None:
        """Excludes a job for good, since Slurm would not requeue it."""
        self._never.add(job_id)
        self._of = None

    def note(self, job_id: int, at: float) -> None:
        """Notes that a move has begun."""
        self._begun[job_id, int(at)] = at

    def in_the_last_hour(self, at: float) -> int:
        """Returns the number of moves of all jobs in the last hour."""
        self._begun = {one: when for one, when in self._begun.items() if when > at - HOUR}
        return len(self._begun)

    def of(self, reading: Reading, fleet: Fleet) -> list[Mover]:
        """Returns all jobs that may be moved now."""
        if self._of is None or self._of[0] is not reading:
            self._ended.see(reading.jobs, reading.at)
            self._never &= {job.id for job in reading.jobs} if self._never else set()
            able = [job for job in reading.jobs if self._may_move(job)]
            able = sorted(able, key=lambda job: (job.gpus or 0).bit_count() * len(job.nodes))[:MOST_MOVERS]
            found = [self._mover(job, fleet, reading.at) for job in able]
            self._of = reading, [mover for mover in found if mover is not None]
            if self._reader is not None:
                self._reader[1].forget({job.id for job in able})
            for job in reading.jobs:
                for when in job.known.get(MOVES, ()):
                    self._begun.setdefault((job.id, when), float(when))
        return [
            mover for mover in self._of[1]
            if sum(job_id == mover.id and when > reading.at - HOUR for (job_id, _), when in self._begun.items())
            < self._rules.per_job
        ]  # fmt: skip

    def _may_move(self, job: JobFacts) -> bool:
        plan = job.known
        if job.state != "RUNNING" or MOVABLE not in plan or job.id in self._never:
            return False
        if not holds_place(plan) or not job.gpus or sorted(job.required) != sorted(job.nodes):
            return False
        # The last task of an array has the array's number, which for Slurm means the whole array.
        whole = not (job.share or job.guest or job.het or job.array == job.id) and TIER not in plan
        return whole and MOVE_UNTIL not in plan and job.wants_gpus and not job.reservation

    def _mover(self, job: JobFacts, fleet: Fleet, at: float) -> Mover | None:
        nodes = tuple(fleet.index[name] for name in job.nodes)
        said = job.known.get(MOVABLE, "")
        # A job with a signal saves its work on it. With a COST its user has said what the move loses. Otherwise all
        # work since its start counts as lost.
        saves = bool(said) or SIGNAL in job.known
        try:
            demand = self.demand(job, fleet, at)
        except FormatError:
            return None
        mask = job.gpus or 0
        stretch = slowest(fleet, demand.app_class, nodes, mask)
        return Mover(
            id=job.id,
            demand=demand,
            nodes=nodes,
            mask=mask,
            cost=float(parse_time(said) if said else self._rules.cost),
            lost=0.0 if saves else max(0.0, at - (job.start or at)),
            # To predict takes time, and only jobs on slow GPUs gain by what is left.
            left=self._ended.left(job, at, stretch) if stretch >= WORTH_LOOKING else 0.0,
        )

    def demand(self, job: JobFacts, fleet: Fleet, at: float) -> Demand:
        """Returns what a job needs, wherever it runs."""
        if self._reader is None or self._reader[0] is not fleet:
            self._reader = fleet, Reader(fleet, self._classes)
        return self._reader[1].read(job, at).demand

    def who_waits(self, queue: Sequence[Waiting], at: float, after: float) -> list[int]:
        """Returns the first jobs in line that wait for room and have waited for at least `after` seconds."""
        found: list[int] = []
        for entry in queue:
            if len(found) == MOST_GANGS:
                break
            job, demand = entry.job, entry.demand
            alone = demand.share is None and not (entry.guest.only or job.het or job.tasks)
            waits = (
                entry.last.start != 0.0 and entry.may_start_at(at) and at - max(job.submitted, job.begin or 0) >= after
            )
            if job.wants_gpus and alone and waits and demand.gpus > 1:
                found.append(job.id)
        return found

    def gang(self, entry: Waiting, plan: Plan, picture: Picture, policy: Policy) -> tuple[WaitingGang | None, Book]:
        """Returns a waiting job, or None if its start is not in sight, and a book with all claims but its own."""
        assert plan.book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
        book = without_claim(entry, plan, picture)
        at = book.cluster.at
        expected = entry.last.start
        demand, _ = entry.demand_at(at)
        if demand is not entry.demand:
            # When its wait for the level ends, it also takes GPUs that are farther apart.
            relaxed = _soonest(book, entry.demand, policy)
            if relaxed is not None:
                relaxed = max(entry.level.until, relaxed)
                expected = relaxed if expected is None else min(expected, relaxed)
        return (None if not expected else WaitingGang(entry.job.id, demand, expected)), book


def without_claim(entry: Waiting, plan: Plan, picture: Picture) -> Book:
    """Returns a copy of the plan's book without the claim of one waiting job."""
    assert plan.book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
    book, touched = Book(plan.book.cluster), set(entry.last.place)
    if not touched:
        return book
    picture.put_back(book, touched)
    at = book.cluster.at
    for other in plan.queue:
        if other is entry or touched.isdisjoint(other.last.place) or other.guest.only:
            continue
        here = [node for node in other.last.place if node in touched]
        demand, _ = other.demand_at(at)
        book.claim(claim_on(book.fleet, demand, here, other.last.mask, other.last.start or at))
    return book


def _soonest(book: Book, demand: Demand, policy: Policy) -> float | None:
    try:
        return book.soonest(demand, policy)[1] or book.cluster.at
    except NotNow:
        return None


def began(job: JobFacts) -> float:
    """Returns the time at which a job's present move began."""
    return float(max(job.known.get(MOVES, ()), default=0))
