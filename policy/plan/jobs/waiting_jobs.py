# SPDX-License-Identifier: Apache-2.0
"""The waiting jobs, as the plan uses them: their needs, their pins, and how long they insist on a locality level."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from policy.cluster import fit
from policy.cluster.allowed import AllowedNodes, SizedRoom, Where
from policy.cluster.fleet import Fleet
from policy.cluster.partitions import placed_in
from policy.formats import hostlist
from policy.formats import plan_fields as fields
from policy.formats.arrays import FAR
from policy.formats.errors import FormatError
from policy.formats.flags import Tier
from policy.formats.job_plan import JobPlan, PlanEntry
from policy.formats.slurm_facts import JobFacts
from policy.plan.jobs.waiting import GuestPart, LevelWait, Shape, SharePart, SpreadState, Waiting, unanswered
from policy.request import counted, node_range
from policy.request.constraint import conditions
from policy.request.demand import A_YEAR, Demand, Size
from policy.request.locality import insisted
from policy.request.share import Share, foes_of, party
from policy.request.spread import SPREAD, SpreadNeeds
from policy.request.tiers import ALONE, EXCLUSIVE, OPPORTUNISTIC
from policy.sharing.classes import Classes

WAITS = frozenset({"PENDING", "ARRAY"})
"""States of jobs that the plan reads."""

PARKED_FOR = 86_400
"""Seconds after which a parked guest starts as any job if it is not parked again, in case Berth is gone for good."""

_PARKED_WITHIN = 600.0
"""Seconds within which the update that parks a guest is surely written."""


def ours(job: JobFacts) -> bool:
    """Tells whether a job waits with a pin that is still as Berth wrote it, or for its first pin."""
    plan = job.plan
    if job.state not in WAITS or plan is None:
        return False
    state = plan.get(fields.STATE)
    if state == fields.LATER:
        return job.gpus is None and job.required == asked_nodes(plan)
    if state == fields.PASSED:
        return bool(unanswered(job))
    pinned = state in fields.PINNED_STATES and job.gpus is not None
    return pinned and sorted(job.required) == sorted(plan.get(fields.NODES, ()))


def pinned_by_layout_before(job: JobFacts, fleet: Fleet) -> bool:
    """Tells whether a job waits with a pin to nodes alone where pins name GPUs by now: no pass would look after it."""
    return not fleet.nodes_alone and fields.pins_nodes_alone(job.plan) and fields.holds_place(job.plan)


def takes_room(job: JobFacts) -> bool:
    """Tells whether a job waits whose nodes Slurm chooses: it needs no GPU, or Slurm has planned its start."""
    return job.state in WAITS and (not job.wants_gpus or bool(job.planned and job.start and not ours(job)))


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
        self._allowed = AllowedNodes(fleet)
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
        return fields.pins_nodes_alone(job.plan) == self._fleet.nodes_alone

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
        used = {number for one in entries for number in (one.shape[-1], one.share.number, one.spread.shape[1])}
        self._numbers = {shape: number for shape, number in self._numbers.items() if number in used}

    def _make(self, job: JobFacts, at: float) -> _Read:
        try:
            if takes_room(job):
                return _Read(job, self._left_to_slurm(job), FAR)
            avoided = nodes_avoided(job.known, at)
            entry = self._pinned(job, at, tuple(avoided))
            is_guest = entry.guest.only or entry.guest.may_ride_from < FAR
            if avoided and not is_guest and not any(one.could_be_held for one in entry.demand.every_split):
                # Slurm would keep it waiting for the GPUs of its old pin, though others of the node may be free.
                entry = self._pinned(job, at, ())
            # A node that it avoids may be used from then on.
            return _Read(job, entry, min(avoided.values(), default=FAR))
        except (FormatError, ValueError) as problem:
            return _Read(job, FormatError(str(problem)), FAR)

    def _pinned(self, job: JobFacts, at: float, avoided: tuple[str, ...]) -> Waiting:
        plan, fleet = job.known | unanswered(job), self._fleet
        size, *others = _sizes(job, plan)
        share = self._share(job, plan)
        where = self._where(job, asked_nodes(plan), avoided, share, plan.get(fields.SHUT, ()))
        choice = where.partitions(size.n)
        rooms = [where.room(size, choice.names), *map(where.room, others)]
        number = self._number_of(job, where, rooms[0], share)
        if others:
            numbers = (number, *(self._number_of(job, where, room) for room in rooms[1:]))
            number = self._number((("splits", *sorted(numbers)), None))
        needs, spread_number = self._spread(job, plan, where, size) if SPREAD in plan else (None, 0)
        tiered = fields.TIER in plan or fields.UPGRADE in plan
        demand = fit.demand(
            rooms,
            A_YEAR if job.limit is None else job.limit,
            app_class=self._classes.of(job),
            model=job.account if job.account in fleet.costs.accounts else "",
            share=share,
            tier=_tier(plan) if tiered else ALONE,
            gpu_mem=plan.get(fields.GPU_MEM) if tiered else None,
            user=job.user if tiered else 0,
            needs=needs,
        )
        if node_range.of(plan.get(fields.WAS, ())):
            demand = replace(demand, elsewhere=True)
        # A guest that was evicted may wait for GPUs of its own: its old seat is not a pin for these.
        left_seat = job.guest and fields.PARKED in plan and fields.UPGRADE in plan
        pinned = () if job.gpus is None or left_seat else job.required
        nodes = tuple(fleet.index[name] for name in pinned if name in fleet.index)
        upgrade = plan.get(fields.UPGRADE)
        found = insisted(plan) if fields.INSISTS in plan else None
        narrow = demand.at(found.level) if found else demand
        since = self._may_start_since(job, at)
        if found and (until := plan.get(fields.UNTIL)) is not None:
            # An earlier berthd wrote it (policy.daemon.passes.explainer), so that a restart does not lose the wait.
            since = max(since, until - found.wait)
        picky = self._picky(share)
        return Waiting(
            job=job,
            demand=demand,
            shape=_shape(demand, "any", number),
            nodes=nodes if len(nodes) == size.n and _in_one_partition(demand, nodes) else (),
            mask=job.gpus or 0,
            partitions=choice,
            level=LevelWait(
                insists=narrow if _levels_of(narrow) != _levels_of(demand) else None,
                until=since + (found.wait if found else 0),
                shape=_shape(narrow, found.level if found else "any", number),
            ),
            share=SharePart(
                picky=picky,
                until=since + fleet.sharing.company_wait,
                number=number if picky is None else self._number_of(job, where, rooms[0], picky),
                packed=job.share > 0,
            ),
            guest=GuestPart(
                parked=parked_until(job),
                only=demand.tier.name == OPPORTUNISTIC or (job.guest and fields.PARKED not in plan),
                seated=job.guest and fields.PARKED not in plan,
                may_ride_from=FAR if upgrade is None else float(job.submitted + upgrade),
            ),
            spread=SpreadState(demand.gpus if spread_number else 0, (demand.gpus, spread_number)),
        )

    def _where(
        self,
        job: JobFacts,
        only: tuple[str, ...],
        avoided: tuple[str, ...],
        share: Share | None,
        shut: tuple[str, ...],
    ) -> Where:
        """Returns the nodes that a job may use."""
        listed = placed_in(self._fleet, job.partition) if job.wants_gpus else job.partition
        features = (conditions(job.features) or ()) if job.features else ()
        return Where(self._allowed, listed, job.limit, features, only, job.excluded + avoided, share, shut=shut)

    def _spread(self, job: JobFacts, plan: JobPlan, where: Where, size: Size) -> tuple[SpreadNeeds | None, int]:
        """Returns a job's needs on each node, and a number for these; None and 0 if it must have one place."""
        needs = plan[SPREAD]
        if job.het or self._fleet.nodes_alone:
            return None, 0
        room = where.room(Size(needs.nodes or 2, 1, needs.cpus, needs.mem))
        if self._fleet.counted:
            # Slurm might give it GPUs of other counted models than its licences say.
            model = self._fleet.counted_model(where.allowed(room.partitions).nodes)
            if model is None or counted.change(job.licenses, counted.of(model, size.gpus)) is not None:
                return None, 0
        number = self._number((("spread", self._number_of(job, where, room), needs), None))
        return needs.on(room.nodes, room.pools), number

    def _number_of(self, job: JobFacts, where: Where, room: SizedRoom, share: Share | None = None) -> int:
        """Returns a number that is equal for equal nodes and shares."""
        # For a share only its memory counts here: most packed jobs have a name of their own.
        n, *each = room.size
        mem = share and (share.gpu_mem,)
        return self._number(((room.partitions, n > 1, job.features, where.only, where.excluded, *each, mem), share))

    def _number(self, shape: tuple[tuple[object, ...], Share | None]) -> int:
        """Returns a shape's number. None is used twice: a forgotten shape must not be taken for another one."""
        if shape not in self._numbers:
            self._last_number += 1
            self._numbers[shape] = self._last_number
        return self._numbers[shape]

    def _share(self, job: JobFacts, plan: JobPlan) -> Share | None:
        if fields.SHARE not in plan:
            return None
        gpu_mem = plan.read(fields.GPU_MEM)
        sharing = self._fleet.sharing
        mate = job.user, job.name
        way = plan.get(fields.WAY, sharing.way)
        percent = plan[fields.ASKED_SHARE if fields.ASKED_SHARE in plan else fields.SHARE]
        return Share(percent, gpu_mem, party(job.user, sharing), way, mate, foes_of(mate, sharing))

    def _picky(self, share: Share | None) -> Share | None:
        """Returns the share of a packed job that waits for GPUs where all keep their speed; None if switched off."""
        sharing = self._fleet.sharing
        if share is None or not (sharing.profiles and sharing.least_speed and sharing.company_wait):
            return None
        return replace(share, picky=True)

    def _left_to_slurm(self, job: JobFacts) -> Waiting:
        n = max(1, job.count)
        where = self._where(job, job.required, (), None, ())
        choice = where.partitions(n)
        # Backfill plans whole nodes, and Berth pins no job that Slurm places.
        size = Size(n, 0, None, None) if job.planned else Size(n, 0, -(-job.cpus // n), job.mem or 0)
        room = where.room(size, choice.names)
        demand = fit.demand([room], A_YEAR if job.limit is None else job.limit)
        shape = _shape(demand, "any", self._number_of(job, where, room))
        # A list of Berth's that is left from its place closes no partition.
        return Waiting(replace(job, wants_gpus=False, closes=None) if job.wants_gpus else job, demand, shape, choice)

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

    >>> failed = fields.Avoided("n1", 2_000.0), fields.Avoided("n2", 900.0)
    >>> nodes_avoided(JobPlan.of(fields.AVOIDS(failed)), 1_000.0)
    {'n1': 2000.0}
    """
    return {one.node: one.until for one in plan.read(fields.AVOIDS, ()) if one.until > at}


def parked_until(job: JobFacts) -> int | None:
    """Returns the time from which on a parked guest may have a seat; None for other jobs.

    It is the user's begin time, or that which an administrator has written over Berth's since.
    """
    parked, at, begin = job.known.get(fields.PARKED), job.known.get(fields.AT), job.begin
    if parked is None or at is None or begin is None or job.known.get(fields.STATE) != fields.LATER:
        return parked
    return parked if abs(begin - at - PARKED_FOR) < _PARKED_WITHIN else begin


def avoiding(plan: JobPlan, at: float, more: Mapping[str, float]) -> PlanEntry:
    """Returns the entry by which a job avoids some more nodes, each until a time."""
    avoided = {**nodes_avoided(plan, at), **more}
    return fields.AVOIDS(tuple(fields.Avoided(node, until) for node, until in avoided.items()) or None)


def _sizes(job: JobFacts, plan: JobPlan) -> list[Size]:
    """Returns the sizes that a job may have by its plan; the first is the one that it was given last."""
    k, cpus, mem = plan.read(fields.K, (job.gpus or 0).bit_count()), plan.read(fields.CPUS), plan.read(fields.MEM)
    first = Size(plan.read(fields.N, len(job.required)), k, cpus, mem)
    others = (Size(one.nodes, first.gpus // one.nodes, cpus, one.mem) for one in plan.read(fields.SPLITS, ()))
    return [first, *(one for one in others if one.n != first.n and one.gpus == first.gpus)]


def _tier(plan: JobPlan) -> Tier:
    """Returns the tier of a waiting job: a guest to be upgraded waits for GPUs of its own."""
    name = plan.get(fields.TIER, EXCLUSIVE)
    if fields.UPGRADE in plan and name == OPPORTUNISTIC:
        name = EXCLUSIVE
    return Tier(name, fields.UPGRADE in plan, fields.MPS in plan)


def asked_nodes(plan: JobPlan) -> tuple[str, ...]:
    """Returns the nodes that the user named with --nodelist."""
    return next((hostlist.expand(value) for key, value in plan.get(fields.ASKED, ()) if key == "req_nodes"), ())
