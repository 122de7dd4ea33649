"""The waiting jobs, as the plan uses them: their needs, their pins, and how long they insist on a locality level."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from policy.cluster.allowed import allowed_nodes, candidates, elsewhere
from policy.cluster.fit import able_to_share, in_pools
from policy.cluster.fleet import Fleet
from policy.cluster.partitions import UsablePartitions, choose, placed_in, pools
from policy.formats import hostlist
from policy.formats.arrays import FAR, Bools
from policy.formats.errors import FormatError
from policy.formats.flags import Tier
from policy.formats.job_plan import NOTHING, JobPlan, PlanEntry
from policy.formats.plan_fields import (
    ASKED,
    ASKED_SHARE,
    AVOIDS,
    CPUS,
    GPU_MEM,
    ID,
    LATER,
    MEM,
    MPS,
    NODES,
    NOTHING_ELSE,
    PARKED,
    PASSED,
    PINNED_STATES,
    SHARE,
    SHUT,
    SPLITS,
    STATE,
    TIER,
    UNTIL,
    UPGRADE,
    WAS,
    WAY,
    Avoided,
    K,
    N,
    holds_place,
    pins_nodes_alone,
)
from policy.formats.slurm_facts import JobFacts
from policy.plan.jobs.waiting import CompanyWait, GuestPart, LevelWait, Shape, SpreadState, Waiting
from policy.request import counted, splits
from policy.request.demand import A_YEAR, Demand
from policy.request.locality import insisted
from policy.request.share import Share, foes_of, party
from policy.request.spread import SPREAD
from policy.request.tiers import EXCLUSIVE, OPPORTUNISTIC
from policy.sharing.classes import Classes

_GPUS = re.compile(r"gres/gpu(?:[:=]([1-9][0-9]{0,3}))?")
_FEATURES = re.compile(r"[A-Za-z0-9_.\-&]+")


def all_of(features: str) -> bool:
    """Tells whether Berth understands an expression of features: names that a node must have, all of them."""
    return not features or bool(_FEATURES.fullmatch(features))


WAITS = frozenset({"PENDING", "ARRAY"})
"""States of jobs that the plan reads."""


def ours(job: JobFacts) -> bool:
    """Tells whether a job waits with a pin that is still as Berth wrote it, or for its first pin."""
    plan = job.plan
    if job.state not in WAITS or plan is None:
        return False
    state = plan.get(STATE)
    if state == LATER:
        return job.gpus is None and job.required == asked_nodes(plan)
    if state == PASSED:
        return bool(_unanswered(job))
    pinned = state in PINNED_STATES and job.gpus is not None
    return pinned and sorted(job.required) == sorted(plan.get(NODES, ()))


def pinned_by_layout_before(job: JobFacts, fleet: Fleet) -> bool:
    """Tells whether a job waits with a pin to nodes alone where pins name GPUs by now: nobody would look after it."""
    return not fleet.nodes_alone and pins_nodes_alone(job.plan) and holds_place(job.plan)


def without_gpus(job: JobFacts) -> bool:
    """Tells whether a job waits that needs no GPU: Slurm chooses its nodes, but it takes room."""
    return job.state in WAITS and not job.wants_gpus


class _Read(NamedTuple):
    """A job that was read, as it was then, and until when that holds."""

    job: JobFacts
    entry: Waiting | FormatError
    until: float


class Reader:
    """Turns the facts of jobs into `Waiting` entries, and caches those of unchanged jobs."""

    def __init__(self, fleet: Fleet, classes: Classes | None = None, eligible: dict[int, float] | None = None) -> None:
        """`eligible` comes from an earlier reader: the time since which a job waits does not depend on the fleet."""
        self._fleet = fleet
        self._classes = classes or Classes()
        self._known: dict[int, _Read] = {}
        self._candidates: dict[tuple[object, ...], tuple[Bools, tuple[Bools, ...], bool]] = {}
        self._numbers: dict[tuple[tuple[object, ...], Share | None], int] = {}
        self._last_number = 0
        self.eligible: dict[int, float] = {} if eligible is None else eligible
        """Time since which a job has waited only for room; -1 while it waits for something else."""

    def known(self, job: JobFacts, at: float) -> Waiting | None:
        """Returns the entry of a job that was read before, and has not changed since; else None."""
        known = self._known.get(job.id)
        if known is None or known.job is not job or known.until <= at or isinstance(known.entry, FormatError):
            return None
        return known.entry

    def read(self, job: JobFacts, at: float) -> Waiting:
        """Reads one waiting job; raises FormatError if its plan cannot be read."""
        known = self._known.get(job.id)
        if known is None or known.job is not job or known.until <= at:
            known = self._known[job.id] = self._make(job, at)
        if isinstance(known.entry, FormatError):
            raise known.entry
        return known.entry

    def takes(self, job: JobFacts) -> bool:
        """Tells whether a job was planned for this layout: with GPUs, or with nodes alone."""
        return pins_nodes_alone(job.plan) == self._fleet.nodes_alone

    def reread(self, jobs: Iterable[int]) -> None:
        """Trusts Slurm's records of jobs again, not what was planned for them."""
        for job_id in jobs:
            self._known.pop(job_id, None)

    def forget(self, present: set[int]) -> None:
        """Drops jobs that wait no more, with the data cached for them."""
        if len(self._known) > len(present) + len(present) // 64 + 64:
            self._known = {job_id: known for job_id, known in self._known.items() if job_id in present}
            self.eligible = {job_id: since for job_id, since in self.eligible.items() if job_id in present}
        # A job has at most two shape numbers.
        if len(self._numbers) > 4 * len(self._known) + 64:
            self._forget_shapes()

    def _forget_shapes(self) -> None:
        entries = [one.entry for one in self._known.values() if isinstance(one.entry, Waiting)]
        used = {number for one in entries for number in (one.shape[-1], one.company.number, one.spread.shape[1])}
        self._numbers = {shape: number for shape, number in self._numbers.items() if number in used}
        places = {place for place, _ in self._numbers}
        self._candidates = {place: found for place, found in self._candidates.items() if place in places}

    def _make(self, job: JobFacts, at: float) -> _Read:
        try:
            if not job.wants_gpus:
                return _Read(job, self._without_gpus(job), FAR)
            # A node that it avoids may be used from then on.
            until = min(nodes_avoided(job.known, at).values(), default=FAR)
            return _Read(job, self._pinned(job, at), until)
        except (FormatError, ValueError) as problem:
            return _Read(job, FormatError(str(problem)), FAR)

    def _pinned(self, job: JobFacts, at: float) -> Waiting:
        adopted = _unanswered(job)
        plan, fleet = job.known | adopted, self._fleet
        k = plan.read(K, (job.gpus or 0).bit_count())
        cpus, mem = plan.read(CPUS), plan.read(MEM)
        n = plan.read(N, len(job.required))
        share = self._share(job, plan)
        avoided = nodes_avoided(plan, at)
        # A guest that was evicted may wait for GPUs of its own: its old seat is not a pin for these.
        left_seat = job.guest and PARKED in plan and UPGRADE in plan
        pinned = () if job.gpus is None or left_seat else job.required
        choice = choose(fleet, placed_in(fleet, job.partition), job.limit, n or None, shut=plan.get(SHUT, ()))
        only = asked_nodes(plan)
        number, fitting, inside, more = self._fitting(job, choice, only, n, k, cpus, mem, share, tuple(avoided))
        limit = A_YEAR if job.limit is None else job.limit
        app_class = self._classes.of(job)
        demand = Demand(
            n, k, cpus, mem, "any", limit, fitting, app_class=app_class, share=share, elsewhere=more, pools=inside
        )
        demand, number = self._with_splits(demand, number, job, plan, only, tuple(avoided))
        demand = splits.at(demand, "any")
        spread_number = 0
        if SPREAD in plan:
            demand, spread_number = self._with_spread(demand, job, plan, only, tuple(avoided))
        if TIER in plan or UPGRADE in plan:
            demand = _with_tier(demand, job, plan)
        parked, upgrade = plan.get(PARKED), plan.get(UPGRADE)
        found = insisted(plan)
        narrow = splits.at(demand, found.level) if found else demand
        nodes = tuple(fleet.index[name] for name in pinned if name in fleet.index)
        since = self._may_start_since(job, at)
        if found and (until := plan.get(UNTIL)) is not None:
            # An earlier berthd wrote it (policy.daemon.passes.explainer), so that a restart does not lose the wait.
            since = max(since, until - found.wait)
        picky = self._picky(share)
        return Waiting(
            job=job,
            demand=demand,
            shape=_shape(demand, "any", number),
            nodes=nodes if len(nodes) == n and _in_one_partition(demand, nodes) else (),
            mask=job.gpus or 0,
            packed=job.share > 0,
            adopted=adopted,
            level=LevelWait(
                insists=narrow if _levels_of(narrow) != _levels_of(demand) else None,
                until=since + (found.wait if found else 0),
                shape=_shape(narrow, found.level if found else "any", number),
            ),
            company=CompanyWait(
                share=picky,
                until=since + fleet.sharing.company_wait,
                number=number
                if picky is None
                else self._fitting(job, choice, only, n, k, cpus, mem, picky, tuple(avoided))[0],
            ),
            guest=GuestPart(
                parked=None if parked is None else float(parked),
                only=demand.tier.name == OPPORTUNISTIC or (job.guest and PARKED not in plan),
                seated=job.guest and PARKED not in plan,
                may_ride_from=FAR if upgrade is None else float(job.submitted + upgrade),
            ),
            spread=SpreadState(demand.gpus if spread_number else 0, (demand.gpus, spread_number)),
            tier=choice.tier,
            apart=choice.apart,
        )

    def _with_splits(
        self,
        demand: Demand,
        number: int,
        job: JobFacts,
        plan: JobPlan,
        only: tuple[str, ...],
        avoided: tuple[str, ...],
    ) -> tuple[Demand, int]:
        """Returns the demand with the job's other splits, and the number of its shape."""
        others, numbers = [], [number]
        for split in plan.read(SPLITS, ()):
            n, k = split.nodes, demand.gpus // split.nodes
            if n == demand.n or n * k != demand.gpus:
                continue
            choice = choose(self._fleet, placed_in(self._fleet, job.partition), job.limit, n, shut=plan.get(SHUT, ()))
            one, fitting, inside, _ = self._fitting(job, choice, only, n, k, demand.cpus, split.mem, None, avoided)
            numbers.append(one)
            others.append(replace(demand, n=n, k=k, mem=split.mem, candidates=fitting, pools=inside))
        if not others:
            return demand, number
        key = (("splits", *sorted(numbers)), None)
        return splits.joined(demand, others), self._number(key)

    def _with_spread(
        self,
        demand: Demand,
        job: JobFacts,
        plan: JobPlan,
        only: tuple[str, ...],
        avoided: tuple[str, ...],
    ) -> tuple[Demand, int]:
        """Returns the demand with its needs on each node, and a number for those; 0 if it must have one place."""
        if job.het or self._fleet.nodes_alone:
            return demand, 0
        needs, shut = plan[SPREAD], plan.get(SHUT, ())
        several = needs.nodes or 2
        choice = choose(self._fleet, placed_in(self._fleet, job.partition), job.limit, several, shut=shut)
        one, fitting, inside, _ = self._fitting(job, choice, only, several, 1, needs.cpus, needs.mem, None, avoided)
        if self._fleet.counted and self._counted_otherwise(job, demand.gpus, choice, only, avoided):
            return demand, 0
        key = (("spread", one, needs), None)
        return replace(demand, spread=needs.on(fitting, inside)), self._number(key)

    def _number(self, shape: tuple[tuple[object, ...], Share | None]) -> int:
        """Returns a shape's number. None is used twice: a forgotten shape must not be taken for another one."""
        if shape not in self._numbers:
            self._last_number += 1
            self._numbers[shape] = self._last_number
        return self._numbers[shape]

    def _counted_otherwise(
        self, job: JobFacts, gpus: int, choice: UsablePartitions, only: tuple[str, ...], avoided: tuple[str, ...]
    ) -> bool:
        """Tells whether Slurm might give a job GPUs of other counted models than its licences say."""
        features = job.features.split("&") if _FEATURES.fullmatch(job.features) else ()
        inside = pools(self._fleet, choice.names, 1)
        model = self._fleet.counted_model(allowed_nodes(self._fleet, inside, features, only, job.excluded + avoided))
        return model is None or counted.change(job.licenses, counted.of(model, gpus)) is not None

    def _share(self, job: JobFacts, plan: JobPlan) -> Share | None:
        if SHARE not in plan:
            return None
        gpu_mem = plan.read(GPU_MEM)
        sharing = self._fleet.sharing
        mate = job.user, job.name
        way = plan.get(WAY, sharing.way)
        percent = plan[ASKED_SHARE if ASKED_SHARE in plan else SHARE]
        return Share(percent, gpu_mem, party(job.user, sharing), way, mate, foes_of(mate, sharing))

    def _picky(self, share: Share | None) -> Share | None:
        """Returns the share of a packed job that waits for GPUs where all keep their speed; None if switched off."""
        sharing = self._fleet.sharing
        if share is None or not (sharing.profiles and sharing.least_speed and sharing.company_wait):
            return None
        return replace(share, picky=True)

    def _without_gpus(self, job: JobFacts) -> Waiting:
        n = max(1, job.count)
        cpus, mem = -(-job.cpus // n), job.mem or 0
        choice = choose(self._fleet, job.partition, job.limit, n)
        number, fitting, inside, _ = self._fitting(job, choice, job.required, n, 0, cpus, mem)
        limit = A_YEAR if job.limit is None else job.limit
        shape = (n, 0, cpus, mem, "any", number)
        demand = Demand(n, 0, cpus, mem, "any", limit, fitting, pools=inside)
        return Waiting(job, demand, shape, tier=choice.tier, apart=choice.apart)

    def _fitting(
        self,
        job: JobFacts,
        choice: UsablePartitions,
        only: tuple[str, ...],
        n: int,
        k: int,
        cpus: int | None,
        mem: int | None,
        share: Share | None = None,
        avoided: tuple[str, ...] = (),
    ) -> tuple[int, Bools, tuple[Bools, ...], bool]:
        """Returns a number that is equal for equal nodes and shares, and the nodes that could ever hold a job.

        With several partitions, also the part of these nodes in each one (`Demand.pools`), and `Demand.elsewhere`.
        """
        excluded = job.excluded + avoided
        # For a share only its memory counts here: most packed jobs have a name of their own.
        size = (k, cpus, mem, None if share is None else (share.gpu_mem,))
        place = (choice.names, n > 1, job.features, only, excluded, *size)
        number = self._number((place, share))
        if place not in self._candidates:
            features = job.features.split("&") if _FEATURES.fullmatch(job.features) else ()
            inside = pools(self._fleet, choice.names, n)
            allowed = allowed_nodes(self._fleet, inside, features, only, excluded)
            if share is not None:
                allowed &= able_to_share(self._fleet, share.gpu_mem)
            fitting = candidates(self._fleet, allowed, k, cpus, mem)
            self._candidates[place] = fitting, in_pools(fitting, inside), elsewhere(self._fleet, allowed, k, cpus, mem)
        return number, *self._candidates[place]

    def _may_start_since(self, job: JobFacts, at: float) -> float:
        """Returns when a job's wait began to count: at its submission, or when it began to wait only for room."""
        if not job.may_start_at(at):
            self.eligible[job.id] = -1.0
        elif self.eligible.get(job.id) == -1.0:
            self.eligible[job.id] = at
        return max(float(job.submitted), float(job.begin or 0), self.eligible.get(job.id, 0.0))


def _levels_of(demand: Demand) -> list[tuple[int, str]]:
    return [(one.n, one.level) for one in demand.every_split]


def _shape(demand: Demand, level: str, number: int) -> Shape:
    """Returns the shape of a job; on all its splits, if it has several."""
    if demand.splits or level == "any":
        fewest = demand.every_split[0]
        return (fewest.n, fewest.k, fewest.cpus, fewest.mem, level, number)
    return (demand.n, demand.k, demand.cpus, demand.mem, demand.level, number)


def _in_one_partition(demand: Demand, nodes: Sequence[int]) -> bool:
    """Tells whether nodes are candidates, and Slurm could start the job on all of them together."""
    return any(bool(np.all(part[list(nodes)])) for part in demand.pools or (demand.candidates,))


def nodes_avoided(plan: JobPlan, at: float) -> dict[str, float]:
    """Returns the nodes that failed a job before it could begin, and the time until which it avoids each.

    >>> nodes_avoided(JobPlan.of(AVOIDS((Avoided("n1", 2_000.0), Avoided("n2", 900.0)))), 1_000.0)
    {'n1': 2000.0}
    """
    return {one.node: one.until for one in plan.read(AVOIDS, ()) if one.until > at}


def avoiding(plan: JobPlan, at: float, more: Mapping[str, float]) -> PlanEntry:
    """Returns the entry by which a job avoids some more nodes, each until a time."""
    avoided = {**nodes_avoided(plan, at), **more}
    return AVOIDS(tuple(Avoided(node, until) for node, until in avoided.items()) or None)


def _with_tier(demand: Demand, job: JobFacts, plan: JobPlan) -> Demand:
    """Returns the demand with the tier of the waiting job: a guest to be upgraded waits for GPUs of its own."""
    name = plan.get(TIER, EXCLUSIVE)
    if UPGRADE in plan and name == OPPORTUNISTIC:
        name = EXCLUSIVE
    tier = Tier(name, UPGRADE in plan, MPS in plan)
    return replace(demand, tier=tier, gpu_mem=plan.get(GPU_MEM), user=job.user)


def asked_nodes(plan: JobPlan) -> tuple[str, ...]:
    """Returns the nodes that the user named with --nodelist."""
    return next((hostlist.expand(value) for key, value in plan.get(ASKED, ()) if key == "req_nodes"), ())


def _unanswered(job: JobFacts) -> JobPlan:
    """Returns the needs of a job that came while berthd did not answer; nothing for other jobs, or if they are unclear.

    The plugin has then written what was asked, and no `id`, since it got no answer.
    """
    if ID in job.known or job.required or job.gpus is not None or job.mem is None or job.state == "ARRAY":
        return NOTHING
    asked = dict(job.known.get(ASKED, ()))
    by, value = asked.popitem() if asked else ("", "")
    match = _GPUS.fullmatch(value)
    if asked or match is None or by not in {"tres_per_job", "tres_per_node"}:
        return NOTHING
    count, n = int(match[1] or 1), max(1, job.count)
    if by == "tres_per_job" and count % n:
        return NOTHING
    k = count // n if by == "tres_per_job" else count
    return JobPlan.of(N(n), K(k), CPUS(-(-job.cpus // n)), MEM(job.mem), WAS(NOTHING_ELSE))
