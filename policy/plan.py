"""The plan of the waiting jobs: where each stands in line, and which pins have to move.

Jobs are taken in Slurm's own order and each claims its place. A pin moves only where the job could start now elsewhere
and not where it is, where its place is gone, or where its wait for a level ended: everything else would only cost
updates.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from policy import flags as flag_table
from policy import hostlist
from policy.book import Book, claim_on
from policy.cluster import Fleet
from policy.demand import A_YEAR, Demand, allowed_nodes, candidates
from policy.errors import FormatError, NotNow
from policy.facts import JobFacts
from policy.placement.base import Berth, Policy
from policy.segment import PINNED_STATES

STUCK_AFTER = 120
"""Seconds for which a job may fail to start on a place that looks free, before its place is given up."""

WORTH_MOVING = 60
"""Seconds that a relaxed job must gain by moving to a place that is not free yet either."""

_MAY_START = ("None", "Resources", "Priority", "ReqNodeNotAvail", "BadConstraints", "Nodes_required", "Reservation")
_BLAMES_PLACE = ("Resources", "ReqNodeNotAvail", "Nodes_required", "Reservation")


@dataclass(frozen=True, slots=True)
class Move:
    """Pin a waiting job elsewhere."""

    job: JobFacts
    berth: Berth
    start: float
    """0 for at once."""
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Give a waiting job back to Slurm."""

    job: JobFacts
    reason: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What the site decides about places."""

    locality_wait: int = 600
    repin: bool = True
    most_moves: int = 50
    """Updates in one pass: each takes slurmctld's write locks."""


def ours(job: JobFacts) -> bool:
    """Whether a job waits with a pin that is still as Berth wrote it."""
    segment = job.segment
    return (
        job.state == "PENDING"
        and segment is not None
        and segment.get("state") in PINNED_STATES
        and job.gpus is not None
        and sorted(job.required) == sorted(filter(None, segment.get("nodes", "").split(",")))
    )


class Plan:
    """Keeps the waiting jobs' places right from pass to pass; all else it needs comes with each pass."""

    def __init__(self, policy: Policy, settings: Settings) -> None:
        self._policy = policy
        self._settings = settings
        self._free_since: dict[int, float] = {}
        """Since when a job's place has looked free to this plan."""

    def replan(self, book: Book, jobs: Iterable[JobFacts]) -> list[Move | Release]:
        """Claim the places of all waiting pinned jobs in the book; what has to change comes back."""
        waiting = sorted((job for job in jobs if ours(job)), key=lambda job: (-job.priority, job.submitted, job.id))
        changes: list[Move | Release] = []
        free_since: dict[int, float] = {}
        for job in waiting:
            may_change = self._settings.repin and len(changes) < self._settings.most_moves
            change = self._one(book, job, free_since, may_change=may_change)
            if change is not None and may_change:
                changes.append(change)
        self._free_since = free_since
        book.cluster = replace(book.cluster, waiting=len(waiting))
        return changes

    def _one(
        self, book: Book, job: JobFacts, free_since: dict[int, float], *, may_change: bool
    ) -> Move | Release | None:
        if job.reason.startswith("BadConstraints"):
            return Release(job, "Slurm found that the place can never start it")
        try:
            demand = demand_of(job, book.fleet, book.cluster.at, self._settings)
        except (FormatError, ValueError) as problem:
            return Release(job, f"its segment cannot be read: {problem}")
        if not job.reason.startswith(_MAY_START):
            return None
        at = book.cluster.at
        nodes = [book.fleet.index[name] for name in job.required if name in book.fleet.index]
        valid = len(nodes) == demand.n and bool(np.all((demand.candidates & book.cluster.up)[nodes]))
        start = book.start_of(demand, nodes, job.gpus or 0) if valid else None
        if start == 0.0:
            since = free_since[job.id] = self._free_since.get(job.id, at)
            if at - since <= STUCK_AFTER or not job.reason.startswith(_BLAMES_PLACE):
                book.claim(claim_on(book.fleet, demand, nodes, job.gpus or 0, at))
                return None
            demand.candidates[nodes] = False
        if may_change:
            move = self._better(book, job, demand, start)
            if move is not None:
                book.claim(claim_on(book.fleet, demand, move.berth.nodes, move.berth.mask, move.start or at))
                return move
        if start == 0.0:
            return Release(job, f"it did not start in {STUCK_AFTER} s on a place that looks free")
        if start is not None:
            book.claim(claim_on(book.fleet, demand, nodes, job.gpus or 0, start))
        return None

    def _better(self, book: Book, job: JobFacts, demand: Demand, start: float | None) -> Move | None:
        relaxed = _relaxed(job, demand)
        try:
            return Move(job, book.now(demand, self._policy), 0.0, relaxed or "it can start there now")
        except NotNow:
            if start is not None and not relaxed:
                return None
        try:
            berth, moment = book.soonest(demand, self._policy)
        except NotNow:
            return None
        if start is None:
            return Move(job, berth, moment, "its former place is gone")
        return Move(job, berth, moment, relaxed) if moment + WORTH_MOVING < start else None


def demand_of(job: JobFacts, fleet: Fleet, at: float, settings: Settings) -> Demand:
    """The demand of a waiting job, from its segment and from what Slurm says of it."""
    segment = job.segment or {}
    k = int(segment["k"]) if "k" in segment else (job.gpus or 0).bit_count()
    cpus = int(segment["cpus"]) if "cpus" in segment else None
    mem = int(segment["mem"]) if "mem" in segment else None
    features = job.features.split("&") if re.fullmatch(r"[A-Za-z0-9_.\-&]+", job.features) else ()
    allowed = allowed_nodes(fleet, job.partition, features, asked_nodes(segment), job.excluded)
    return Demand(
        n=int(segment.get("n", len(job.required))),
        k=k,
        cpus=cpus,
        mem=mem,
        level=level_now(segment, job.submitted, at, settings),
        limit=A_YEAR if job.limit is None else job.limit,
        candidates=candidates(fleet, allowed, k, cpus, mem),
    )


def asked_nodes(segment: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes that the user named with --nodelist."""
    for item in segment.get("asked", "").split(";"):
        key, _, value = item.partition(":")
        if key == "req_nodes":
            return hostlist.expand(value)
    return ()


def level_now(segment: Mapping[str, str], submitted: float, at: float, settings: Settings) -> str:
    """The level that a job still insists on: its own, until its wait ends."""
    if "f.locality" not in segment:
        return "node"
    asked = flag_table.parse_locality(segment["f.locality"])
    wait = settings.locality_wait if asked.wait is None else asked.wait
    return "nvlink" if asked.level == "nvlink" and at < submitted + wait else "node"


def _relaxed(job: JobFacts, demand: Demand) -> str:
    """Why a job may now take less than it asked for; empty where it may not, or already has."""
    segment = job.segment or {}
    waits_for_nvlink = segment.get("f.locality", "").startswith("nvlink") and segment.get("level") == "nvlink"
    if demand.level == "node" and waits_for_nvlink:
        where = "one node" if demand.n == 1 else f"{demand.n} nodes"
        return f"its wait for NVLink between all pairs has ended, any GPUs of {where} will do"
    return ""
