"""The jobs that wait, as the plan sees them: what each needs, where it is pinned, and until when it insists."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from policy import hostlist
from policy.cluster import Bools, Fleet
from policy.demand import A_YEAR, Demand, allowed_nodes, candidates
from policy.errors import FormatError
from policy.facts import JobFacts
from policy.locality import binding, insisted
from policy.segment import LATER, PINNED_STATES

Shape = tuple[int, int, int | None, int | None, str, int]

_ASKED = re.compile(r"tres_per_(job|node):gres/gpu(?:[:=]([1-9][0-9]{0,3}))?")
_FEATURES = re.compile(r"[A-Za-z0-9_.\-&]+")


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
    given: dict[int, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    """Of an array, the places that tasks were given since Slurm's record was read: they are on their way."""
    adopted: Mapping[str, str] = field(default_factory=dict)
    """What its segment does not say of what it needs; it is written down with its first pin."""

    @property
    def order(self) -> tuple[int, int, int]:
        """Slurm's own order."""
        return (-self.job.priority, self.job.submitted, self.job.id)

    def pinned_to(self, place: tuple[int, ...], mask: int) -> bool:
        """Whether its pin is just these GPUs."""
        return bool(self.nodes) and set(self.nodes) == set(place) and self.mask == mask

    def demand_at(self, at: float) -> tuple[Demand, Shape]:
        """What it needs at this moment."""
        if self.insists is not None and at < self.until:
            return self.insists, self.insists_shape
        return self.demand, self.shape


def ours(job: JobFacts) -> bool:
    """Whether a job waits with a pin that is still as Berth wrote it, or for its first one."""
    segment = job.segment
    if job.state not in {"PENDING", "ARRAY"} or segment is None:
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
    return job.state in {"PENDING", "ARRAY"} and not job.wants_gpus


class Reader:
    """Turns facts of jobs into `Waiting`, and remembers what has not changed."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[int, tuple[JobFacts, Waiting | FormatError]] = {}
        self._candidates: dict[tuple[object, ...], tuple[int, Bools]] = {}
        self._eligible: dict[int, float] = {}

    def read(self, job: JobFacts, at: float) -> Waiting:
        """One waiting job; a FormatError where its segment cannot be read."""
        known = self._known.get(job.id)
        if known is None or known[0] is not job:
            known = self._known[job.id] = (job, self._make(job, at))
        if isinstance(known[1], FormatError):
            raise known[1]
        return known[1]

    def reread(self, job_id: int) -> None:
        """Believe Slurm's record of a job again, not what was planned for it."""
        self._known.pop(job_id, None)

    def forget(self, present: set[int]) -> None:
        """Drop jobs that wait no more."""
        if len(self._known) > 2 * len(present) + 64:
            self._known = {job_id: known for job_id, known in self._known.items() if job_id in present}
            self._eligible = {job_id: since for job_id, since in self._eligible.items() if job_id in present}

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
        pinned = () if job.gpus is None else job.required
        number, fitting = self._fitting(job, asked_nodes(segment), k, cpus, mem)
        limit = A_YEAR if job.limit is None else job.limit
        wide = binding("any", n)
        demand = Demand(n, k, cpus, mem, wide, limit, fitting, app_class=segment.get("f.app-class", "compute"))
        found = insisted(segment)
        narrow = binding(found.level, n) if found else wide
        nodes = tuple(fleet.index[name] for name in pinned if name in fleet.index)
        return Waiting(
            job=job,
            demand=demand,
            insists=demand.at_level(narrow) if narrow != wide else None,
            until=self._may_start_since(job, at) + (found.wait if found else 0),
            nodes=nodes if len(nodes) == n and bool(np.all(fitting[list(nodes)])) else (),
            mask=job.gpus or 0,
            shape=(n, k, cpus, mem, wide, number),
            insists_shape=(n, k, cpus, mem, narrow, number),
            adopted=adopted,
            collects=n > 1,
        )

    def _without_gpus(self, job: JobFacts) -> Waiting:
        n = max(1, job.count)
        cpus, mem = -(-job.cpus // n), job.mem or 0
        number, fitting = self._fitting(job, job.required, 0, cpus, mem)
        limit = A_YEAR if job.limit is None else job.limit
        shape = (n, 0, cpus, mem, "any", number)
        return Waiting(job, Demand(n, 0, cpus, mem, "any", limit, fitting), None, 0.0, (), 0, shape, shape)

    def _fitting(
        self, job: JobFacts, only: tuple[str, ...], k: int, cpus: int | None, mem: int | None
    ) -> tuple[int, Bools]:
        """The nodes that could ever hold a job, and a number that is the same for the same nodes."""
        key = (job.partition, job.features, only, job.excluded, k, cpus, mem)
        if key not in self._candidates:
            features = job.features.split("&") if _FEATURES.fullmatch(job.features) else ()
            allowed = allowed_nodes(self._fleet, job.partition, features, only, job.excluded)
            self._candidates[key] = len(self._candidates), candidates(self._fleet, allowed, k, cpus, mem)
        return self._candidates[key]

    def _may_start_since(self, job: JobFacts, at: float) -> float:
        """When the wait of a job began to count: at its submission, or when it had to wait for nothing else."""
        if not job.may_start_at(at):
            self._eligible[job.id] = -1.0
        elif self._eligible.get(job.id) == -1.0:
            self._eligible[job.id] = at
        return max(float(job.submitted), float(job.begin or 0), self._eligible.get(job.id, 0.0))


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
