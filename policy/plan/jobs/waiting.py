# SPDX-License-Identifier: Apache-2.0
"""The record of a waiting job: its needs, its pin, and one part for each opinion about it."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from policy.cluster.partitions import UsablePartitions
from policy.formats import plan_fields as fields
from policy.formats.arrays import FAR
from policy.formats.job_plan import NOTHING, JobPlan
from policy.formats.slurm_facts import JobFacts
from policy.plan.jobs.promise import Promise
from policy.plan.jobs.roll_out import Held
from policy.plan.ledger.claims import Claim, Repeat
from policy.request.constraint import conditions
from policy.request.demand import Demand
from policy.request.locality import insisted
from policy.request.share import Share
from policy.request.tiers import EXCLUSIVE
from topology.network.fabric import LEVELS

Shape = tuple[int, int, int | None, int | None, str, int]

PART_BEFORE = 3.0
"""Seconds before its begin time at which a packed job asks for its part of a GPU; berthd looks about each second."""

OF_ONE_PARTITION = ("Partition", "InvalidAccount", "InvalidQOS")
"""Slurm's reasons that hold for one partition of a job's list, and perhaps not for the others."""

_GPUS = re.compile(r"gres/gpu(?:[:=]([1-9][0-9]{0,3}))?")

_BLAMES_PLACE = ("Resources", "ReqNodeNotAvail", "Nodes_required", "Reservation")
_BLAMES_PARTITION = ("None", *OF_ONE_PARTITION)


class Matter(Enum):
    """Something that few jobs or sites have. Where it is missing, the opinions about it are not asked."""

    COMPONENTS = "components of heterogeneous jobs wait"
    COUNTED = "a reservation counts GPUs, or has room for jobs without a pin"
    ELSEWHERE = "Slurm may start a job sooner without its pin"
    GUESTS = "jobs want a seat, or guests run"
    PARTITIONS = "there are several partitions"
    REQUEUED = "jobs on several nodes were requeued"
    SHARES = "jobs ask for parts of GPUs"
    SPEED = "GPUs have scores, or jobs wait that may lie near or far"
    SPREADING = "Slurm may lay a job's GPUs on nodes in any way"
    WITHOUT_GPUS = "jobs without GPUs wait"


_SENT_AWAY = (fields.AGAIN, fields.DEGRADED)
"""Fields of a job that failed on a node, or could not have its share there, and is to start elsewhere."""


@dataclass(slots=True)
class LevelWait:
    """A job's wait for a level, as the user or the site asks it."""

    insists: Demand | None = None
    """The demand at the level that it insists on, until `until`."""
    until: float = 0.0
    shape: Shape | None = None
    """Its shape until then."""


@dataclass(slots=True)
class SharePart:
    """The part of a packed job: its pin, and its wait for GPUs where all jobs keep their speed."""

    packed: bool = False
    """True if its pin asks only for a part of its GPUs."""
    picky: Share | None = None
    """Its share, until `until`, by which it refuses others."""
    until: float = 0.0
    number: int = 0
    """Replaces the last element of its shape until then."""


@dataclass(slots=True)
class GuestPart:
    """The part of a waiting job that is or may become a guest."""

    parked: float | None = None
    """The user's begin time, for a guest without a seat: the begin time in Slurm's record was set by Berth."""
    only: bool = False
    """True if it wants a seat and no GPU of its own, or has a seat on which it will start."""
    seated: bool = False
    """True if it has a seat on which it will start, in Slurm's record or not yet there."""
    unfit: str = ""
    """The reason why a guest waits though seats are free: none of them suits it, or not yet."""
    may_ride_from: float = FAR
    """Time from which on it may take a seat while it waits; for an opportunistic job, from its submission on."""


@dataclass(slots=True)
class SpreadState:
    """The part of a waiting job whose GPUs Slurm may lay on nodes in any way (policy/request/spread.py)."""

    gpus: int = 0
    """All its GPUs; 0 for a job that must have one place."""
    shape: tuple[int, int] = (0, 0)
    """Equal for such jobs that have room at the same times, apart from their time limits."""


@dataclass(slots=True)
class LastPlan:
    """The result of the last pass for a job."""

    start: float | None = None
    """Time at which its place comes free: 0 for now, None for not in sight."""
    place: tuple[int, ...] = ()
    """The nodes of its claim."""
    mask: int = 0
    """The GPUs of its claim."""
    promise: Promise | None = None
    """The start that it was promised; None where plain Slurm plans none."""
    lets: Held | None = None
    """The decision that it lets other jobs go first though it could start."""
    waits_for_fewer: bool = False
    """True if it does not take GPUs that are free on more nodes than its place has, until `refuses_until`."""
    refuses_until: float = 0.0
    """Time until which it does not take slow GPUs that are free, as it is expected to end sooner on others."""
    given: dict[int, tuple[Claim, ...]] = field(default_factory=dict)
    """Places that tasks of an array were given since Slurm's record was read; Slurm does not show them yet."""
    claimed: Repeat | None = field(default=None, compare=False, repr=False)
    """Its claim in the last whole walk, if it is plain and waits for its place."""
    keeps_start: bool = field(default=False, compare=False, repr=False)
    """True if this claim starts when an earlier one did, not when its place comes free."""


@dataclass(slots=True)
class Waiting:
    """One waiting job, or the tasks of an array that have not split off."""

    job: JobFacts
    demand: Demand
    shape: Shape
    """Equal for jobs that fit on the same places, apart from their time limits."""
    partitions: UsablePartitions
    """The partitions that may start it."""
    nodes: tuple[int, ...] = ()
    """The nodes that it is pinned to; empty if it is not pinned, or its nodes are gone."""
    mask: int = 0
    level: LevelWait = field(default_factory=LevelWait)
    share: SharePart = field(default_factory=SharePart)
    guest: GuestPart = field(default_factory=GuestPart)
    spread: SpreadState = field(default_factory=SpreadState)
    last: LastPlan = field(default_factory=LastPlan)
    order: tuple[int, int, int, int, float] = field(init=False)
    """Sort key of Slurm's order; the rest of an array comes after its tasks that have split off."""
    plain: bool = field(init=False)
    """True if time alone changes nothing about it, and it can only wait for its place or start on free GPUs."""
    collects: bool = field(init=False)
    """True if it needs GPUs of several nodes, which are free together only if they are kept free for it."""
    matters: frozenset[Matter] = field(init=False)
    """Its matters; mostly none."""
    least_free: float = field(init=False)
    """GPUs that must be free on one node for it to start now; a share may also go where none is."""

    def __post_init__(self) -> None:
        job = self.job
        task = math.inf if job.task is None else job.task
        self.order = (-self.partitions.tier, -job.priority, job.submitted, job.array or job.id, task)
        splits = self.demand.every_split
        self.collects = job.wants_gpus and splits[0].n > 1
        least = 0 if self.demand.share is not None else min(one.k for one in splits)
        self.least_free = least if job.wants_gpus else FAR
        self.matters = frozenset(self._matters())
        self.plain = (
            bool(self.nodes and job.wants_gpus and job.may_start and not job.tasks and not job.het)
            and job.begin is None
            and self.guest.parked is None
            and not self.guest.only
            and self.demand.share is None
            and not self.demand.splits
            and not self.demand.may_go_elsewhere
            and self.level.insists is None
            and self.share.picky is None
            and self.guest.may_ride_from == FAR
            and self.demand.tier.name == EXCLUSIVE
            and not self.partitions.apart
            and not impossible(job)
        )

    def _matters(self) -> Iterator[Matter]:
        if self.job.het:
            yield Matter.COMPONENTS
        if self.demand.elsewhere:
            yield Matter.ELSEWHERE
        if self.wants_seat:
            yield Matter.GUESTS
        # A requeued job has a new submission time; the first one may be a moment after the answer.
        if len(self.nodes) > 1 and self.job.known.get(fields.AT, math.inf) + 2 < self.job.submitted:
            yield Matter.REQUEUED
        if self.demand.share is not None:
            yield Matter.SHARES
        if self.collects or self.demand.splits:
            yield Matter.SPEED
        if self.demand.spread is not None:
            yield Matter.SPREADING
        if not self.job.wants_gpus:
            yield Matter.WITHOUT_GPUS

    @property
    def adopted(self) -> JobPlan:
        """Returns the needs that its plan does not hold; they are written with its first pin."""
        return unanswered(self.job)

    @property
    def wants_seat(self) -> bool:
        """Tells whether the job waits for a seat, or may take one while it waits for a GPU."""
        return self.guest.only or self.guest.may_ride_from < FAR

    @property
    def insisted_level(self) -> str:
        """Returns the level that it insists on, as its user or the site named it; empty if it insists on none."""
        found = insisted(self.job.known)
        return found.level if found else ""

    def gets_less(self, at: float) -> str:
        """Returns why it may now take less than the level that it insists on; empty if not, or if it took less before.

        On one node its present place may be nearer than that level.
        """
        if self.level.insists is None or at < self.level.until:
            return ""
        level, had, splits = self.insisted_level, self.job.known.get(fields.LEVEL, ""), bool(self.demand.splits)
        nearer = splits and had in LEVELS and LEVELS.index(had) < LEVELS.index(level)
        if had != level and not nearer:
            return ""
        if level == "nvlink":
            where = "one node" if self.demand.n == 1 else f"{self.demand.n} nodes"
            return f"its wait for NVLink between all pairs has ended, any GPUs of {where} will do"
        nodes = "nodes" if splits else f"{self.demand.n} nodes"
        return f"its wait for one {level} has ended, the nearest {nodes} will do"

    def lay_on(self, nodes: int) -> None:
        """Counts it as a job on so many nodes, of those that it may have."""
        self.demand = self.demand.on(nodes)
        if self.level.insists is not None:
            self.level.insists = self.level.insists.on(nodes)

    @property
    def must_leave(self) -> bool:
        """Tells whether it must be retried elsewhere: Slurm would start it where it is pinned as soon as it may."""
        job = self.job
        sent_away = job.known.has_any(_SENT_AWAY)
        return not self.nodes and bool(job.required) and job.gpus is not None and sent_away

    @property
    def has_left_seat(self) -> bool:
        """Tells whether it has no place, and Slurm's record pins it to the seat from which it was sent away."""
        parked_with_pin = self.job.guest and self.guest.parked is not None and bool(self.mask)
        return parked_with_pin and not (self.nodes or self.job.tasks)

    def may_start_at(self, at: float) -> bool:
        """Tells whether it waits only for room."""
        if self.guest.parked is not None and (self.job.reason.startswith("BeginTime") or self.job.may_start):
            return self.guest.parked <= at
        # Slurm starts it at its begin time with the pin that it has then. A pin to whole GPUs would give it all of a
        # free GPU, without MPS, though it asked for a part.
        at += PART_BEFORE if self.demand.share is not None else 0.0
        if self.partitions.apart and self.job.reason.startswith(OF_ONE_PARTITION):
            # Another partition would start it.
            return self.job.begin is None or self.job.begin <= at
        return self.job.may_start_at(at)

    def pinned_to(self, place: tuple[int, ...], mask: int) -> bool:
        """Tells whether its pin is exactly these GPUs."""
        return bool(self.nodes) and set(self.nodes) == set(place) and self.mask == mask

    def demand_at(self, at: float) -> tuple[Demand, Shape]:
        """Returns what it needs at this moment, and its shape."""
        found = (self.demand, self.shape)
        if self.level.insists is not None and at < self.level.until:
            found = self.level.insists, self.level.shape or self.shape
        if self.share.picky is not None and at < self.share.until:
            return replace(found[0], share=self.share.picky), (*found[1][:-1], self.share.number)
        return found


@dataclass(frozen=True, slots=True)
class Present:
    """The matters of a queue, and the jobs that have some of them."""

    matters: frozenset[Matter] = frozenset()
    het: Sequence[Waiting] = ()
    """Components of heterogeneous jobs."""
    guests: Sequence[Waiting] = ()
    """Jobs that wait for a seat, or may take one."""
    requeued: Sequence[Waiting] = ()
    """Jobs on several nodes that were requeued since they got their places."""

    @classmethod
    def of(cls, queue: Sequence[Waiting]) -> "Present":
        """Collects the matters of a queue; most jobs have none."""
        matters = frozenset[Matter]().union(*{entry.matters for entry in queue})
        het = [entry for entry in queue if entry.job.het] if Matter.COMPONENTS in matters else ()
        guests = [entry for entry in queue if entry.wants_seat] if Matter.GUESTS in matters else ()
        requeued = [entry for entry in queue if Matter.REQUEUED in entry.matters] if Matter.REQUEUED in matters else ()
        return cls(matters, het, guests, requeued)


def impossible(job: JobFacts) -> bool:
    """Tells whether Slurm has found that it can never start the job where it is pinned, and holds it for that.

    With several partitions Slurm gives this reason for each one, and does not hold the job because of one of them.
    """
    return job.reason.startswith("BadConstraints") and job.wants_gpus and not (job.priority and "," in job.partition)


def may_be_its_place(entry: Waiting) -> bool:
    """Tells whether the place may be why a job does not start on it though it looks free, by Slurm's reason.

    If the place is in the wrong one of several partitions, Slurm names no reason, or that of another partition.
    """
    return entry.job.reason.startswith(_BLAMES_PLACE + _BLAMES_PARTITION if entry.partitions.apart else _BLAMES_PLACE)


def unanswered(job: JobFacts) -> JobPlan:
    """Returns the needs of a job that came while berthd did not answer; nothing for other jobs, or if they are unclear.

    The plugin has then written what was asked, and no `id`, since it got no answer.
    """
    if fields.ID in job.known or job.required or job.gpus is not None or job.mem is None or job.state == "ARRAY":
        return NOTHING
    if job.reservation or conditions(job.features) is None:
        return NOTHING
    asked = dict(job.known.get(fields.ASKED, ()))
    by, value = asked.popitem() if asked else ("", "")
    match = _GPUS.fullmatch(value)
    if asked or match is None or by not in {"tres_per_job", "tres_per_node"}:
        return NOTHING
    count, n = int(match[1] or 1), max(1, job.count)
    if by == "tres_per_job" and count % n:
        return NOTHING
    k = count // n if by == "tres_per_job" else count
    return JobPlan.of(
        fields.N(n), fields.K(k), fields.CPUS(-(-job.cpus // n)), fields.MEM(job.mem), fields.WAS(fields.NOTHING_ELSE)
    )
