# SPDX-License-Identifier: Apache-2.0
"""The reason why a job waits: one of a few kinds, and a sentence (after Philly's study of what jobs wait for).

Slurm's own reason says which rule holds a job back. This reason says what would have to change for it to start.
"""

from collections.abc import Iterable
from itertools import takewhile

import numpy as np

from policy.cluster import segments
from policy.cluster.fleet import Fleet
from policy.cluster.reserved import places
from policy.formats.arrays import Bools
from policy.formats.errors import NotNow
from policy.formats.plan_fields import preflight_of
from policy.placement.base import Berth, Policy
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.book import Book
from policy.plan.ledger.places import free_now
from policy.plan.opinions.all import WITH_REASONS
from policy.plan.opinions.opinion import Reason
from policy.request.demand import Demand
from policy.request.share import EVERYBODY, Share

ROOM = frozenset({513, 515, 516})
"""Reasons of jobs that wait for whole GPUs and nothing else."""

KINDS = ("fair_share", "fragmentation", "locality", "capacity", "dependency", "reservation", "node", "held")


_SLURMS = (
    ("DependencyNever", Reason("dependency", "its dependency cannot be met any more: it never starts, cancel it", 502)),
    ("Dependency", Reason("dependency", "another job has to end first", 502)),
    ("BeginTime", Reason("dependency", "its begin time has not come", 503)),
    ("JobHeld", Reason("held", "it is held", 504)),
    ("Reservation", Reason("reservation", "its reservation has not begun, or holds too little", 505)),
    ("Licenses", Reason("capacity", "its licences are in use", 506)),
    ("NvidiaImexChannels", Reason("capacity", "all IMEX channels are in use", 518)),
)


def why(entry: Waiting, planned: Book, running: Book, policy: Policy, queue: Iterable[Waiting] = ()) -> Reason | None:
    """Returns what keeps a job from starting; None if nothing does.

    `planned` also holds the claims of waiting jobs, `running` holds only running jobs. `queue` are the waiting jobs in
    line.
    """
    at = planned.cluster.at
    for_a_seat = entry.guest.only and entry.may_start_at(at)
    if not for_a_seat and (slurms := _slurms(entry, at)):
        return slurms
    if entry.last.start == 0.0:
        return None
    found = next(filter(None, (one.reason(entry, planned, running, policy) for one in WITH_REASONS)), None)
    if found or for_a_seat:
        return found
    demand, _ = entry.demand_at(at)
    if not bool((demand.candidates & running.cluster.up).any()):
        closed = "all nodes that could hold it are down, drained or reserved"
        return Reason("node", closed + _reserved_by(demand, running), 509)
    if few := segments.too_few(demand, running.fleet, running.cluster.up, "up"):
        return Reason("node", few, 509)
    if entry.level.insists is not None and at < entry.level.until and _free(running, entry, policy, insisting=False):
        left = max(0, round(entry.level.until - at))
        return Reason("locality", f"it waits {left} s more for GPUs that share one {entry.insisted_level} level", 512)
    if kept := _free(running, entry, policy, insisting=True):
        whom = _kept_for(entry, kept, queue)
        return Reason("fair_share", f"GPUs that fit are free, and kept for {whom} before it in Slurm's order", 513)
    if demand.share is not None:
        return Reason("capacity", _no_part(demand, demand.share), 514)
    here = demand.candidates & running.cluster.up
    free = int(np.bitwise_count(np.where(here, running.cluster.gpus_now, 0)).sum())
    if free < demand.gpus:
        few = f"{free} GPUs are free where it could run, it needs {demand.gpus}"
        return Reason("capacity", few + _reserved_by(demand, running), 515)
    no_nodes = _no_nodes(demand, running.fleet, here & (np.bitwise_count(running.cluster.gpus_now) >= demand.k))
    return Reason("fragmentation", f"{free} GPUs are free, but {no_nodes}{_reserved_by(demand, running)}", 516)


def _slurms(entry: Waiting, at: float) -> Reason | None:
    """Returns the reason of Slurm's own rules."""
    job = entry.job
    for start, reason in _SLURMS:
        # The begin time of a parked guest is berthd's doing, and Slurm still names one that has passed.
        begun = start == "BeginTime" and (entry.guest.parked is not None or entry.may_start_at(at))
        if job.reason.startswith(start) and not begun:
            first = preflight_of(job.plan) if start == "Dependency" else None
            waits = f"it waits for its pre-flight, job {first}"
            return reason if first is None else Reason("dependency", waits, 507)
    if not (job.may_start or entry.may_start_at(at)):
        return Reason("fair_share", f"a limit of its account, QOS or partition: {job.reason}", 508)
    return None


def _no_nodes(demand: Demand, fleet: Fleet, free: Bools) -> str:
    if demand.splits:
        ways = " or ".join(f"{one.n} x {one.k}" for one in demand.every_split)
        return f"no nodes near enough have {ways}, the same ones on each"
    if demand.n == 1:
        return f"no node has {demand.k} with the cores and memory"
    if few := segments.too_few(demand, fleet, free, "free"):
        return few
    return f"no {demand.n} nodes have the same {demand.k}, and Slurm holds no others on each"


def _reserved_by(demand: Demand, running: Book) -> str:
    """Returns words about the reservations that a job would meet on its nodes if it started now."""
    cluster = running.cluster
    begun = (one for one in cluster.reservations if one.start < cluster.at + demand.limit)
    names = [one.name for one in begun if demand.candidates[places(one, cluster.fleet)].any()]
    return f"; reservation {' and '.join(names)} takes GPUs or nodes that it needs" if names else ""


def _no_part(demand: Demand, share: Share) -> str:
    gpus = "no GPU" if demand.k == 1 else f"no {demand.k} GPUs"
    memory = "" if share.gpu_mem is None else f" and {share.gpu_mem} MiB"
    beside = "" if share.party == EVERYBODY else ", on its own or beside jobs of its user"
    return f"{gpus} where it could run {'has' if demand.k == 1 else 'have'} {share.percent} %{memory} free{beside}"


def _free(book: Book, entry: Waiting, policy: Policy, *, insisting: bool) -> Berth | None:
    demand = entry.demand_at(book.cluster.at)[0] if insisting else entry.demand
    try:
        return free_now(demand, lambda one: book.now(one, policy))
    except NotNow:
        return None


def _kept_for(entry: Waiting, free: Berth, queue: Iterable[Waiting]) -> str:
    """Names the first job before this one whose planned place has some of these GPUs, by its size alone."""
    nodes = set(free.nodes)
    for other in takewhile(lambda one: one is not entry, queue):
        if other.last.mask & free.mask and not nodes.isdisjoint(other.last.place):
            return f"a job of {other.demand.gpus} GPU{'s' if other.demand.gpus != 1 else ''}"
    return "jobs"
