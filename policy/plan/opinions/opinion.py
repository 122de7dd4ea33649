# SPDX-License-Identifier: Apache-2.0
"""The contract of an opinion: what one capability says of waiting jobs while the queue is planned.

The queue walk orders jobs, claims places and moves jobs. In each pass it asks all opinions in the order of `all.py` and
knows none of them by name. An opinion that has nothing to say keeps the method that it inherits.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from policy.cluster.fit import may_wait_pinned
from policy.formats.slurm_facts import JobFacts
from policy.placement.base import Berth, Policy
from policy.plan.jobs.waiting import Matter, Present, Waiting, may_be_its_place
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Move, Release
from policy.plan.ledger.isolation import Isolation
from policy.plan.ledger.later_places import LaterPlace
from policy.plan.ledger.ledger import PlanLedger
from policy.request.demand import Demand
from policy.request.settings import Settings

Changed = Release | Move | None

STUCK_AFTER = 120
"""Seconds for which a job may fail to start on a place that looks free; then its place is given up."""
MOST_STUCK = 5
"""Places given up so, after which a job of one partition goes back to Slurm: what bars it is not seen here."""


@dataclass(slots=True)
class PassState:
    """The state of one pass, for the walk and for all opinions."""

    ledger: PlanLedger
    settings: Settings
    queue: Sequence[Waiting]
    jobs: Iterable[JobFacts]
    read: Callable[[JobFacts, float], Waiting]
    """Reads a job that runs as one that waits."""
    isolation: Isolation
    free_since: dict[int, float]
    """Times since which the jobs' places have looked free; it outlives the pass."""
    stuck: dict[int, int]
    """Numbers of places that jobs have given up because they did not start there; it outlives the pass."""
    present: Present
    first: AbstractSet[int]
    """Jobs that claim their places before all others."""
    touched: AbstractSet[int] | None = None
    """The nodes that are planned again; None for all nodes."""
    keeping: AbstractSet[int] = frozenset()
    """Jobs that have lost a node, and wait for it or for a spare one where their others are kept."""
    running: list[Waiting] = field(default_factory=list)
    """Jobs that run and have a turn in the queue."""
    settled: set[int] = field(default_factory=set)
    """Jobs that were planned in this pass."""

    @property
    def matters(self) -> frozenset[Matter]:
        """Returns the matters of the waiting jobs and of the site."""
        fleet, cluster = self.ledger.book.fleet, self.ledger.book.cluster
        of_site = {
            Matter.COUNTED: cluster.rooms or cluster.counted,
            Matter.ELSEWHERE: fleet.nodes_alone or not self.settings.pin_ahead,
            Matter.GUESTS: cluster.sharers,
            Matter.PARTITIONS: len(fleet.partitions) > 1,
            Matter.SHARES: fleet.shares.any(),
            Matter.SPEED: fleet.scores,
        }
        return self.present.matters.union(matter for matter, there in of_site.items() if there)

    @property
    def line(self) -> Sequence[Waiting]:
        """Returns the jobs in the order in which they are planned."""
        line = sorted([*self.queue, *self.running], key=lambda one: one.order) if self.running else self.queue
        return sorted(line, key=lambda one: one.job.id not in self.first) if self.first else line

    def may_wait(self, entry: Waiting) -> bool:
        """Tells whether a job may be pinned to a place that is not free yet."""
        fleet, ahead = self.ledger.book.fleet, self.settings.pin_ahead and entry.job.id not in self.keeping
        return ahead and (not fleet.nodes_alone or may_wait_pinned(entry.demand, fleet))

    def is_stuck(self, entry: Waiting) -> bool:
        """Tells whether a job has failed for too long to start on a place that looks free."""
        return self.free_for(entry) > STUCK_AFTER and may_be_its_place(entry)

    def gives_up_place(self, entry: Waiting) -> bool:
        """Notes that a job gives up its place; returns whether it may try another one."""
        given_up = self.stuck[entry.job.id] = self.stuck.get(entry.job.id, 0) + 1
        return given_up < MOST_STUCK or entry.partitions.apart

    def free_for(self, entry: Waiting) -> float:
        """Returns the seconds for which a job's place has looked free."""
        at = self.ledger.at
        return at - self.free_since.get(entry.job.id, at)


class HeldBack(NamedTuple):
    """The decision that a job does not start on GPUs that are free now."""

    why: str = ""
    """Set if the opinion chose where the job waits; else the walk does."""
    place: LaterPlace | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a job waits: a kind of `wait_reasons.KINDS`, and a sentence for the job's user."""

    kind: str
    text: str
    number: int
    """The number of the message's id."""


class Opinion:
    """One capability's say about waiting jobs; this one says nothing."""

    state: PassState
    ledger: PlanLedger
    book: Book
    about: ClassVar[Matter | None] = None
    """It is asked only in a pass where this is present; None: in each pass."""
    questions_plain = False
    """True if it may say something of a plain job (`Waiting.plain`) that can only wait for its place."""

    counts: Counter[str]
    """Its counters since berthd's start, for `berth status` and the metrics."""

    says: frozenset[str] = frozenset()
    """The methods that it does not inherit."""

    def __init_subclass__(cls) -> None:
        cls.says = frozenset(name for name in vars(Opinion) if getattr(cls, name) is not getattr(Opinion, name))

    def __init__(self, memory: dict[int, Any] | None = None) -> None:
        """`memory` is what it keeps of jobs from pass to pass, forgotten when a job waits no more."""
        self.memory = {} if memory is None else memory
        self.counts = Counter()

    def begin(self, state: PassState) -> bool:
        """Begins a pass, before any job is planned; returns whether it has anything to say in it."""
        self.state, self.ledger, self.book = state, state.ledger, state.ledger.book
        return True

    def owns(self, entry: Waiting) -> bool:
        """Tells whether no other opinion plans a job, nor the walk.

        It is asked even in a pass in which `begin` failed: the job is left as it is then.
        """
        return False

    def plan(self, entry: Waiting) -> None:
        """Plans a job that it owns, at the job's turn in the queue."""

    def narrow(self, entry: Waiting, demand: Demand) -> Demand:
        """Returns the demand on the nodes that it leaves to a job."""
        return demand

    def leave(self, entry: Waiting, demand: Demand, berth: Berth | None, task: int | None = None) -> bool:
        """Leaves a job, or a task of an array, to Slurm, which may start it without a pin; returns whether it does.

        It is asked about jobs that cannot start where they are pinned; `berth` is another place that is free now.
        """
        return False

    def hold(self, entry: Waiting, demand: Demand, berth: Berth | None, start: float | None) -> HeldBack | None:
        """Returns why a job does not start on `berth`, or where it is pinned; None if it does.

        `start` is the time at which the place of its pin comes free.
        """
        return None

    def keep(self, entry: Waiting, demand: Demand, start: float | None, *, rests: bool = False) -> Changed:
        """Returns the change of a pin that comes free at `start`, where a job finds no better place; None if it stays.

        `rests`: the job may not start yet.
        """
        return None

    def end(self) -> None:
        """Ends a pass, when all jobs have had their turn."""

    @staticmethod
    def reason(entry: Waiting, planned: Book, running: Book, policy: Policy) -> Reason | None:
        """Returns why a job waits, if that is this opinion's doing."""
        return None
