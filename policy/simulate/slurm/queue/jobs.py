# SPDX-License-Identifier: Apache-2.0
"""Converts a job of a trace to the state that the simulator of Slurm's scheduling keeps while it waits and runs."""

from dataclasses import dataclass, replace
from math import ceil, inf

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Bools
from policy.formats.errors import UsageError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts
from policy.history.runtime import KnownAtSubmission
from policy.placement.base import Berth, Policy
from policy.request.demand import A_YEAR, Demand
from policy.request.spread import more_nodes
from policy.simulate.jobs import TraceJob
from policy.simulate.slurm.nodes.cores import Cores
from policy.simulate.slurm.queue.waits import WaitKind
from policy.simulate.slurm.settings import LocalityRule, SlurmSettings
from policy.simulate.world import demand_of
from topology.network.fabric import LEVELS, FabricLevel


@dataclass(slots=True, eq=False)
class Task:
    """A job while it is simulated."""

    index: int
    """Place in the trace; breaks ties."""
    job: TraceJob
    limit: float
    steps: tuple[Demand, ...]
    """Its demand at each level that it goes through while it waits; the last is the weakest that it accepts."""
    locality: LocalityRule
    expected: float
    """Duration that the plan assumes."""
    median: float
    """Duration that orders use."""
    left: float
    """Seconds of ideal run time that are left."""
    quota: str = ""
    """Its account, if that has a quota."""
    step: int = 0
    serial: int = 0
    """Grows with each start, stop and step, so that events planned before are recognised as stale."""
    waits: int = 0
    """Grows each time it begins to wait."""
    waiting: bool = False
    key: tuple[float, float, int] = (0.0, 0.0, 0)
    debt: float = 0.0
    """Seconds that it loses at its next start."""
    served: float = 0.0
    """GPU-seconds that it has had."""
    berth: Berth | None = None
    gpus: tuple[int, ...] = ()
    started: float = 0.0
    since: float = 0.0
    """The time at which `left` and `debt` were last updated."""
    cost: float = 1.0
    kinds: tuple[WaitKind, ...] = ()
    counted: tuple[tuple[int, int], ...] = ()
    """The shapes by which the queue counts it."""
    switch_wait: float = 0.0
    """Seconds for which it waits for its level from Slurm's first try on; 0 if its steps have that wait."""
    known: bool = False
    """True if its end is known beforehand."""
    free: bool = False
    """True if its pin decides its number of nodes."""
    state: str = "PENDING"
    reason: str = "None"
    """Slurm's reason for its wait."""
    entered: float | None = None
    """The time at which it entered the queue."""
    tried: float | None = None
    """The time at which Slurm first searched nodes for it."""
    pin: tuple[int, ...] = ()
    """The nodes that it is pinned to; empty if Slurm chooses."""
    pin_mask: int = 0
    plan: JobPlan | None = None
    cpus: int = 0
    """Cores that it takes on each of its nodes."""
    cores: Cores | tuple[()] = ()
    """Cores that it holds on each of its nodes, by socket."""
    begun: float = 0.0
    """The time at which it began to run, after its launch."""
    ended: float = 0.0
    """The time at which it ends, as far as is known now."""
    epilogs: int = 0
    """The number of its nodes that still run its epilog."""
    begin: float | None = None
    """The earliest time of its next start, if Slurm holds it after a requeue."""
    facts: JobFacts | None = None
    """The facts that a gateway reads of it; None after a change."""

    @property
    def id(self) -> int:
        """Returns its number in Slurm."""
        return self.index + 1

    @property
    def nonce(self) -> str:
        """Returns the name by which berthd recognises it before it has a number."""
        return f"{self.id:016x}"

    @property
    def ends_by(self) -> float:
        """Returns the time by which Slurm expects its end: by its limit, or its real end if that is known."""
        return self.ended if self.known else self.started + self.demand.limit

    def pin_to(self, nodes: tuple[int, ...], mask: int) -> None:
        """Pins it to GPUs of these nodes, of which it then has as many."""
        self.pin, self.pin_mask, self.facts = nodes, mask, None
        if self.free and nodes:
            self.steps = (replace(self.demand, n=len(nodes), k=mask.bit_count()),)

    @property
    def demand(self) -> Demand:
        """Returns its demand at its present level."""
        return self.steps[self.step]

    @property
    def known_at_submission(self) -> KnownAtSubmission:
        """Returns the facts from which run times are predicted."""
        job = self.job
        return KnownAtSubmission(job.user, job.name, job.account, job.gpus, self.limit)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Nodes, and GPUs on each, of each of its splits."""
        demand = self.steps[self.step]
        return ((demand.n, demand.k), *self.kinds[self.step].splits)

    @property
    def kind(self) -> WaitKind:
        """The kind that determines the reason of its wait."""
        return self.kinds[self.step]


class Tasks:
    """Makes tasks, and shares what they have in common: a node mask for each of 100,000 jobs would fill the memory."""

    def __init__(self, fleet: Fleet, settings: SlurmSettings, policy: Policy | None = None) -> None:
        self._fleet = fleet
        self._policy = policy
        self._settings = settings
        self._width = int(fleet.size.max(initial=0))
        # One array for all: it is a key by its identity.
        self._candidates = fleet.ready & fleet.members[fleet.default_partition or ""]
        self._worth: dict[tuple[int, str, int, int], Bools] = {}
        self._levels = _levels_known(fleet)

    def of(self, index: int, job: TraceJob) -> Task:
        """Returns the task of a job; a job that could never start raises an error."""
        settings = self._settings
        shaped = replace(job, nodes=_whole_nodes(job, self._width))
        limit = self._limit(job)
        demand = demand_of(shaped, self._fleet)
        cpus = (job.cpus or max(1, demand.k)) if settings.counts_cores else 0
        told = job.work if settings.counts_cores and settings.durations == "true" else limit
        planned = max(1, ceil(min(told, A_YEAR))) if settings.counts_cores else int(min(limit, A_YEAR))
        demand = replace(demand, cpus=cpus, limit=planned, candidates=self._candidates)
        self._check(job, demand)
        locality = settings.localities.get(job.id, settings.locality)
        free = locality.splits and not job.nodes
        steps: tuple[Demand, ...] = (demand,)
        if not settings.counts_cores:
            others = [self._split(demand, n, k) for n, k in more_nodes(demand.gpus, demand.n)] if free else []
            whole = replace(demand, candidates=self._worthwhile(demand)).with_splits(others)
            steps = tuple(_steps(whole, self._levels, locality))
        waits_in_slurm = settings.counts_cores and locality.level != "any" and job.gpus > 1
        quota = job.account if job.account in settings.quotas.gpus else ""
        return Task(
            index=index,
            job=job,
            limit=limit,
            steps=steps,
            locality=locality,
            expected=limit,
            median=limit,
            left=job.work,
            quota=quota,
            kinds=tuple(WaitKind(quota, step.n, step.k, step.level, _others(step)) for step in steps),
            switch_wait=locality.wait_s if waits_in_slurm else 0.0,
            free=settings.berthd and free and waits_in_slurm,
            known=settings.durations == "true",
            cpus=cpus,
        )

    def _limit(self, job: TraceJob) -> float:
        """Returns the seconds that a job may run; with delays Slurm counts whole minutes, as it really does."""
        limit = inf if job.limit is None else job.limit
        return limit if self._settings.delays is None else min(A_YEAR, 60 * ceil(min(limit, A_YEAR) / 60))

    def _split(self, demand: Demand, n: int, k: int) -> Demand:
        split = replace(demand, n=n, k=k)
        return replace(split, candidates=self._worthwhile(split))

    def _worthwhile(self, demand: Demand) -> Bools:
        """Returns the nodes that the policy would give to a demand, which it plans with too."""
        if self._policy is None:
            return demand.candidates
        key = (id(demand.candidates), demand.app_class, demand.n, demand.k)
        if key not in self._worth:
            self._worth[key] = self._policy.worthwhile(demand, self._fleet)
        return self._worth[key]

    def _check(self, job: TraceJob, demand: Demand) -> None:
        fleet, which = self._fleet, demand.candidates & (self._fleet.cpus >= (demand.cpus or 0))
        sizes = fleet.size[which]
        nodes = int((sizes >= demand.k).sum())
        able = nodes * demand.k
        quotas = self._settings.quotas
        quota = quotas.gpus.get(job.account)
        if demand.gpus > able or nodes < demand.n:
            cores = f" and {demand.cpus} cores on each node" if demand.cpus else ""
            raise UsageError(
                f"job {job.id} asks for {job.gpus} GPUs{cores} and could never start: "
                f"its partition has {able} for such a job; leave it out or simulate a larger cluster"
            )
        too_long = demand.limit > quotas.borrow_s and (not quotas.borrow_s or self._settings.durations == "limit")
        if quota is not None and demand.gpus > quota and too_long:
            raise UsageError(
                f"job {job.id} asks for {job.gpus} GPUs and could never start: "
                f"its account may hold {quota}; leave it out or raise the quota"
            )


def _others(demand: Demand) -> tuple[tuple[int, int], ...]:
    """Returns the nodes, and the GPUs on each, of the other splits of a demand."""
    return tuple((one.n, one.k) for one in demand.splits)


def _levels_known(fleet: Fleet) -> frozenset[str]:
    """Returns the levels of the fabric that this cluster has."""
    levels: tuple[FabricLevel, ...] = ("leaf", "pod")
    return frozenset({"any", *(level for level in levels if fleet.fabric.at(level).any)})


def _whole_nodes(job: TraceJob, width: int) -> int:
    """Returns one node if one can hold the job, else the fewest that have the same number of GPUs each."""
    if job.nodes:
        if job.gpus % job.nodes:
            raise UsageError(f"job {job.id}: {job.gpus} GPUs cannot be the same on each of {job.nodes} nodes")
        return job.nodes
    return next((n for n in range(1, job.gpus + 1) if job.gpus % n == 0 and job.gpus // n <= max(1, width)), 1)


def _steps(demand: Demand, known: frozenset[str], locality: LocalityRule) -> list[Demand]:
    """Returns the demand at its first level, then at each farther one that this cluster has."""
    if demand.gpus == 1:
        return [demand.at_level("node")]
    asked = LEVELS[LEVELS.index(locality.level) :]
    if demand.splits:
        inside = {"nvlink", "node"} if demand.n == 1 else set()
        return [demand.at(level) for level in asked if level in inside | known]
    if demand.n == 1:
        return [demand.at_level(level) for level in asked if level == "nvlink"] + [demand.at_level("node")]
    return [demand.at_level(level) for level in asked if level in known]
