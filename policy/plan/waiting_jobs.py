"""The jobs that wait, as the plan sees them: what each needs, where it is pinned, and until when it insists."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from policy.cluster.fit import able_to_share, allowed_nodes, candidates, in_pools
from policy.cluster.fleet import Fleet
from policy.cluster.partitions import Choice, choose, placed_in, pools
from policy.formats import hostlist
from policy.formats.arrays import FAR, Bools
from policy.formats.errors import FormatError
from policy.formats.flags import Tier
from policy.formats.segment import LATER, PINNED_STATES
from policy.formats.slurm_facts import JobFacts
from policy.request.demand import A_YEAR, Demand
from policy.request.locality import binding, insisted
from policy.request.share import Share, foes_of, party
from policy.request.tiers import EXCLUSIVE, OPPORTUNISTIC
from policy.sharing.classes import Classes

Shape = tuple[int, int, int | None, int | None, str, int]

_ASKED = re.compile(r"tres_per_(job|node):gres/gpu(?:[:=]([1-9][0-9]{0,3}))?")
_FEATURES = re.compile(r"[A-Za-z0-9_.\-&]+")
PART_BEFORE = 3.0
"""Seconds before its begin time in which a packed job asks for its part of a GPU: berthd looks each second or so."""

OF_ONE_PARTITION = ("Partition", "InvalidAccount", "InvalidQOS")
"""Slurm's reasons that another partition of a job's list would not have."""


@dataclass(slots=True)
class Waiting:
    """One job, or the tasks of an array that have not split off."""

    job: JobFacts
    demand: Demand
    insists: Demand | None
    """The demand at the level that it insists on, until `until`."""
    until: float
    nodes: tuple[int, ...]
    """Where it is pinned; empty where it is not, or its nodes are gone."""
    mask: int
    shape: Shape
    """Equal for jobs that a place fits or does not fit alike, apart from their time limits."""
    insists_shape: Shape
    collects: bool = False
    """Whether it needs several nodes, which only come together if someone gathers them."""
    start: float | None = None
    """When its place comes free, as last planned: 0 for now, None for not in sight."""
    place: tuple[int, ...] = ()
    """The nodes of its claim, as last planned."""
    mask_planned: int = 0
    """The GPUs of its claim."""
    refuses_until: float = 0.0
    """Until when it leaves slow GPUs that are free, since it is expected to end sooner on others."""
    packed: bool = False
    """Whether its pin asks for a part of its GPUs only."""
    given: dict[int, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    """Of an array, the places that tasks were given since Slurm's record was read: they are on their way."""
    holds_until: float = FAR
    """When it is to be read again: a node that it avoids may serve it then."""
    adopted: Mapping[str, str] = field(default_factory=dict)
    """What its segment does not say of what it needs; it is written down with its first pin."""
    parked: float | None = None
    """Of a guest without a seat, when its user lets it begin: the begin time that Slurm has is Berth's."""
    only_guest: bool = False
    """Whether it wants a seat and no GPU of its own, or has a seat that it will start on."""
    seated: bool = False
    """Whether it has a seat that it will start on, in Slurm's record or not yet."""
    unfit: str = ""
    """Of a guest that waits though seats are free, why none of them is for it, or not yet."""
    picky: Share | None = None
    """Of a packed job, its share as long as it waits for good company, until `picky_until`."""
    picky_until: float = 0.0
    picky_number: int = 0
    """Takes its shape's last place for as long."""
    guest_from: float = FAR
    """When it may take a seat while it waits; a guest by nature from its submission on."""
    tier: int = 1
    """The highest PriorityTier of its partitions."""
    apart: bool = False
    """Whether it lists several partitions, and the place may be in the wrong one of them."""

    @property
    def order(self) -> tuple[int, int, int, int, float]:
        """Slurm's own order; what is left of an array comes after its tasks that have split off."""
        job = self.job
        task = math.inf if job.task is None else job.task
        return (-self.tier, -job.priority, job.submitted, job.array or job.id, task)

    @property
    def must_leave(self) -> bool:
        """Whether it is to be tried again but not where it is pinned: Slurm would start it there the moment it may."""
        job = self.job
        return not self.nodes and bool(job.required) and job.gpus is not None and "again" in (job.segment or {})

    def may_start_at(self, at: float) -> bool:
        """Whether only room keeps it waiting."""
        if self.parked is not None and (self.job.reason.startswith("BeginTime") or self.job.may_start):
            return self.parked <= at
        # Slurm starts it at its begin time by the pin that it has then: on a GPU that is wholly free it would get all
        # of it, and run without MPS, though it asked for a part.
        at += PART_BEFORE if self.demand.share is not None else 0.0
        if self.apart and self.job.reason.startswith(OF_ONE_PARTITION):
            # Another would start it.
            return self.job.begin is None or self.job.begin <= at
        return self.job.may_start_at(at)

    def pinned_to(self, place: tuple[int, ...], mask: int) -> bool:
        """Whether its pin is just these GPUs."""
        return bool(self.nodes) and set(self.nodes) == set(place) and self.mask == mask

    def demand_at(self, at: float) -> tuple[Demand, Shape]:
        """What it needs at this moment."""
        found = (self.demand, self.shape)
        if self.insists is not None and at < self.until:
            found = self.insists, self.insists_shape
        if self.picky is not None and at < self.picky_until:
            return replace(found[0], share=self.picky), (*found[1][:-1], self.picky_number)
        return found


WAITS = frozenset({"PENDING", "ARRAY"})
"""States of jobs that the plan reads."""


def ours(job: JobFacts) -> bool:
    """Whether a job waits with a pin that is still as Berth wrote it, or for its first one."""
    segment = job.segment
    if job.state not in WAITS or segment is None:
        return False
    if segment.get("state") == LATER:
        return job.gpus is None and job.required == asked_nodes(segment)
    if segment.get("state") == "passed":
        return bool(_unanswered(job))
    return (
        segment.get("state") in PINNED_STATES
        and job.gpus is not None
        and sorted(job.required) == sorted(filter(None, segment.get("nodes", "").split(",")))
    )


def without_gpus(job: JobFacts) -> bool:
    """Whether a job waits that needs no GPU; Slurm chooses for it, but it takes room."""
    return job.state in WAITS and not job.wants_gpus


class Reader:
    """Turns facts of jobs into `Waiting`, and remembers what has not changed."""

    def __init__(self, fleet: Fleet, classes: Classes | None = None, eligible: dict[int, float] | None = None) -> None:
        """`eligible` is an earlier reader's: since when a job waits does not depend on the fleet."""
        self._fleet = fleet
        self._classes = classes or Classes()
        self._known: dict[int, tuple[JobFacts, Waiting | FormatError]] = {}
        self._candidates: dict[tuple[object, ...], tuple[Bools, tuple[Bools, ...]]] = {}
        self._numbers: dict[tuple[tuple[object, ...], Share | None], int] = {}
        # Never the same again: what is forgotten must not pass for another's.
        self._next_number = itertools.count(1)
        self.eligible: dict[int, float] = {} if eligible is None else eligible
        """Since when only room keeps a job waiting; -1 while something else does."""

    def read(self, job: JobFacts, at: float) -> Waiting:
        """One waiting job; a FormatError where its segment cannot be read."""
        known = self._known.get(job.id)
        if known is None or known[0] is not job or (isinstance(known[1], Waiting) and known[1].holds_until <= at):
            known = self._known[job.id] = (job, self._make(job, at))
        if isinstance(known[1], FormatError):
            raise known[1]
        return known[1]

    def reread(self, job_id: int) -> None:
        """Believe Slurm's record of a job again, not what was planned for it."""
        self._known.pop(job_id, None)

    def forget(self, present: set[int]) -> None:
        """Drop jobs that wait no more, and what was made for them."""
        if len(self._known) > 2 * len(present) + 64:
            self._known = {job_id: known for job_id, known in self._known.items() if job_id in present}
            self.eligible = {job_id: since for job_id, since in self.eligible.items() if job_id in present}
        # A job has two numbers at most.
        if len(self._numbers) > 4 * len(self._known) + 64:
            self._forget_shapes()

    def _forget_shapes(self) -> None:
        entries = [entry for _, entry in self._known.values() if isinstance(entry, Waiting)]
        used = {number for entry in entries for number in (entry.shape[-1], entry.picky_number)}
        self._numbers = {shape: number for shape, number in self._numbers.items() if number in used}
        places = {place for place, _ in self._numbers}
        self._candidates = {place: found for place, found in self._candidates.items() if place in places}

    def _make(self, job: JobFacts, at: float) -> Waiting | FormatError:
        try:
            return self._pinned(job, at) if job.wants_gpus else self._without_gpus(job)
        except (FormatError, ValueError) as problem:
            return FormatError(str(problem))

    def _pinned(self, job: JobFacts, at: float) -> Waiting:
        adopted = _unanswered(job)
        segment, fleet = {**(job.segment or {}), **adopted}, self._fleet
        k = int(segment["k"]) if "k" in segment else (job.gpus or 0).bit_count()
        cpus = int(segment["cpus"]) if "cpus" in segment else None
        mem = int(segment["mem"]) if "mem" in segment else None
        n = int(segment.get("n", len(job.required)))
        share = self._share(job, segment)
        avoided = nodes_avoided(segment, at)
        # A seat that it was sent away from is no place for GPUs of its own.
        left_seat = job.guest and "parked" in segment and "upgrade" in segment
        pinned = () if job.gpus is None or left_seat else job.required
        shut = segment.get("shut", "").split(",")
        choice = choose(fleet, placed_in(fleet, job.partition), job.limit, n or None, shut=shut)
        only = asked_nodes(segment)
        number, fitting, inside = self._fitting(job, choice, only, n, k, cpus, mem, share, tuple(avoided))
        limit = A_YEAR if job.limit is None else job.limit
        wide = binding("any", n)
        app_class = self._classes.of(job)
        demand = Demand(n, k, cpus, mem, wide, limit, fitting, app_class=app_class, share=share, pools=inside)
        if "tier" in segment or "upgrade" in segment:
            demand = _with_tier(demand, job, segment)
        parked = segment.get("parked", "")
        upgrade = segment.get("upgrade", "")
        found = insisted(segment)
        narrow = binding(found.level, n) if found else wide
        nodes = tuple(fleet.index[name] for name in pinned if name in fleet.index)
        since = self._may_start_since(job, at)
        if found and (until := segment.get("until", "")).isdigit():
            # So an earlier berthd wrote it (policy.daemon.passes.explainer): a restart forgets no wait.
            since = max(since, float(until) - found.wait)
        picky = self._picky(share)
        return Waiting(
            job=job,
            demand=demand,
            insists=demand.at_level(narrow) if narrow != wide else None,
            until=since + (found.wait if found else 0),
            picky=picky,
            picky_until=since + fleet.sharing.company_wait,
            picky_number=number
            if picky is None
            else self._fitting(job, choice, only, n, k, cpus, mem, picky, tuple(avoided))[0],
            nodes=nodes if len(nodes) == n and _in_one_partition(demand, nodes) else (),
            mask=job.gpus or 0,
            packed=job.share > 0,
            shape=(n, k, cpus, mem, wide, number),
            insists_shape=(n, k, cpus, mem, narrow, number),
            adopted=adopted,
            collects=n > 1,
            holds_until=min(avoided.values(), default=FAR),
            only_guest=demand.tier.name == OPPORTUNISTIC or (job.guest and not parked),
            seated=job.guest and not parked,
            parked=float(parked) if parked.isdigit() else None,
            guest_from=float(job.submitted + int(upgrade)) if upgrade.isdigit() else FAR,
            tier=choice.tier,
            apart=choice.apart,
        )

    def _share(self, job: JobFacts, segment: Mapping[str, str]) -> Share | None:
        if "share" not in segment:
            return None
        gpu_mem = int(segment["gpu_mem"]) if "gpu_mem" in segment else None
        sharing = self._fleet.sharing
        mate = job.user, job.name
        way = segment.get("way", sharing.way)
        return Share(int(segment["share"]), gpu_mem, party(job.user, sharing), way, mate, foes_of(mate, sharing))

    def _picky(self, share: Share | None) -> Share | None:
        """A packed job as it waits for good company; None where nobody looks at that."""
        sharing = self._fleet.sharing
        if share is None or not (sharing.profiles and sharing.least_speed and sharing.company_wait):
            return None
        return replace(share, picky=True)

    def _without_gpus(self, job: JobFacts) -> Waiting:
        n = max(1, job.count)
        cpus, mem = -(-job.cpus // n), job.mem or 0
        choice = choose(self._fleet, job.partition, job.limit, n)
        number, fitting, inside = self._fitting(job, choice, job.required, n, 0, cpus, mem)
        limit = A_YEAR if job.limit is None else job.limit
        shape = (n, 0, cpus, mem, "any", number)
        demand = Demand(n, 0, cpus, mem, "any", limit, fitting, pools=inside)
        return Waiting(job, demand, None, 0.0, (), 0, shape, shape, tier=choice.tier, apart=choice.apart)

    def _fitting(
        self,
        job: JobFacts,
        choice: Choice,
        only: tuple[str, ...],
        n: int,
        k: int,
        cpus: int | None,
        mem: int | None,
        share: Share | None = None,
        avoided: tuple[str, ...] = (),
    ) -> tuple[int, Bools, tuple[Bools, ...]]:
        """The nodes that could ever hold a job, and a number that is the same for the same nodes and shares.

        Of several partitions, their parts of these nodes too (`Demand.pools`).
        """
        excluded = job.excluded + avoided
        several = n > 1 and len(choice.names) > 1
        # Of a share its memory alone counts: most packed jobs have a name of their own.
        size = (k, cpus, mem, None if share is None else (share.gpu_mem,))
        place = (choice.names, several, job.features, only, excluded, *size)
        shape = (place, share)
        if shape not in self._numbers:
            self._numbers[shape] = next(self._next_number)
        if place not in self._candidates:
            features = job.features.split("&") if _FEATURES.fullmatch(job.features) else ()
            inside = pools(self._fleet, choice.names, n)
            allowed = allowed_nodes(self._fleet, inside, features, only, excluded)
            if share is not None:
                allowed &= able_to_share(self._fleet, share.gpu_mem)
            fitting = candidates(self._fleet, allowed, k, cpus, mem)
            self._candidates[place] = fitting, in_pools(fitting, inside)
        return self._numbers[shape], *self._candidates[place]

    def _may_start_since(self, job: JobFacts, at: float) -> float:
        """When the wait of a job began to count: at its submission, or when it had to wait for nothing else."""
        if not job.may_start_at(at):
            self.eligible[job.id] = -1.0
        elif self.eligible.get(job.id) == -1.0:
            self.eligible[job.id] = at
        return max(float(job.submitted), float(job.begin or 0), self.eligible.get(job.id, 0.0))


def _in_one_partition(demand: Demand, nodes: Sequence[int]) -> bool:
    """Whether nodes are candidates, and Slurm could start the job on all of them together."""
    return any(bool(np.all(part[list(nodes)])) for part in demand.pools or (demand.candidates,))


def nodes_avoided(segment: Mapping[str, str], at: float) -> dict[str, float]:
    """Nodes that failed a job before it could begin, and until when it keeps away from each.

    >>> nodes_avoided({"avoids": "n1@2000,n2@900"}, 1_000.0)
    {'n1': 2000.0}
    """
    found = (item.rpartition("@") for item in segment.get("avoids", "").split(",") if item)
    return {name: float(until) for name, _, until in found if float(until) > at}


def _with_tier(demand: Demand, job: JobFacts, segment: Mapping[str, str]) -> Demand:
    """What a job that waits is: who is to be upgraded waits for GPUs of its own."""
    name = segment.get("tier", EXCLUSIVE)
    if "upgrade" in segment and name == OPPORTUNISTIC:
        name = EXCLUSIVE
    gpu_mem = segment.get("gpu_mem", "")
    tier = Tier(name, "upgrade" in segment, "mps" in segment)
    return replace(demand, tier=tier, gpu_mem=int(gpu_mem) if gpu_mem.isdigit() else None, user=job.user)


def asked_nodes(segment: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes that the user named with --nodelist."""
    for item in segment.get("asked", "").split(";"):
        key, _, value = item.partition(":")
        if key == "req_nodes":
            return hostlist.expand(value)
    return ()


def _unanswered(job: JobFacts) -> dict[str, str]:
    """What a job needs that came while berthd did not answer; empty for any other, and for what is not plain to see.

    The plugin has written down what was asked, and no `id`, since nobody answered.
    """
    segment = job.segment or {}
    if "id" in segment or job.required or job.gpus is not None or job.mem is None or job.state == "ARRAY":
        return {}
    match = _ASKED.fullmatch(segment.get("asked", ""))
    if match is None:
        return {}
    count, n = int(match[2] or 1), max(1, job.count)
    if match[1] == "job" and count % n:
        return {}
    k = count // n if match[1] == "job" else count
    return {"n": str(n), "k": str(k), "cpus": str(-(-job.cpus // n)), "mem": str(job.mem)}
