# SPDX-License-Identifier: Apache-2.0
"""Tries what would let a waiting job start now: a shorter time limit, fewer GPUs, another partition.

Each is tried in the plan, beside all jobs that are planned, so that it is not said of GPUs that are kept for others.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from policy.cluster.allowed import AllowedNodes, Where
from policy.cluster.partitions import Submitter, admits, names_in
from policy.formats.errors import NotNow
from policy.formats.job_plan import Pairs
from policy.placement.base import Policy
from policy.plan.jobs.waiting import Waiting
from policy.plan.jobs.waiting_jobs import asked_nodes
from policy.plan.ledger.book import Book
from policy.plan.ledger.places import free_now
from policy.request.constraint import conditions
from policy.request.demand import ANY_SPREAD, Demand, Size, binding

LIMITS = tuple(60 * minutes for minutes in (2880, 1440, 720, 480, 360, 240, 180, 120, 60, 30, 20, 10, 5))
"""Time limits that are tried: round ones, so that a plan which moves by minutes seldom changes what is said."""

MOST_TRIES = 3
"""Tries of each kind."""


def what_helps(entry: Waiting, planned: Book, policy: Policy) -> Pairs:
    """Returns the changes of its request by which a job would fit now: those of least loss of each kind."""
    demand, _ = entry.demand_at(planned.cluster.at)
    if demand.share is not None or entry.guest.only or entry.job.het or demand.n == ANY_SPREAD:
        return ()
    tries = (_shorter(demand, planned), _smaller(demand), _elsewhere(entry, demand, planned))
    found = (next((one for one in kind if _fits(planned, one[2], policy)), None) for kind in tries)
    return tuple((name, value) for name, value, _ in filter(None, found))


def _fits(planned: Book, demand: Demand, policy: Policy) -> bool:
    try:
        free_now(demand, lambda one: planned.now(one, policy))
    except NotNow:
        return False
    return True


def _shorter(demand: Demand, planned: Book) -> Iterator[tuple[str, str, Demand]]:
    cluster = planned.cluster
    holes = (np.minimum(cluster.hole_until, cluster.reserved_from) - cluster.at)[demand.candidates & cluster.up]
    longest = min(float(holes.max(initial=0.0)), demand.limit - 1)
    for limit in [one for one in LIMITS if one <= longest][:MOST_TRIES]:
        yield "limit", str(limit), demand.lasting(limit)


def _smaller(demand: Demand) -> Iterator[tuple[str, str, Demand]]:
    n, k = demand.n, demand.k
    for _ in range(MOST_TRIES):
        n, k = (n // 2, k) if n > 1 else (1, k // 2)
        if k:
            level = demand.level if n == demand.n else binding("any", n)
            yield "gpus", str(n * k), replace(demand, n=n, k=k, level=level, splits=(), spread=None)


def _elsewhere(entry: Waiting, demand: Demand, planned: Book) -> Iterator[tuple[str, str, Demand]]:
    job, fleet = entry.job, planned.fleet
    features = conditions(job.features)
    if fleet.in_all_partitions or asked_nodes(job.known) or features is None:
        return
    who = Submitter(job.account)
    others = fleet.partitions.keys() - set(names_in(job.partition)) - fleet.skipped
    welcome = (fleet.partitions[name] for name in sorted(others))
    sure = [one for one in welcome if one.up and one.admits(job.limit, demand.n) and admits(one, who)]
    known = AllowedNodes(fleet)
    for one in [one for one in sure if not (one.whole_nodes or one.apart)][:MOST_TRIES]:
        where = Where(known, one.name, job.limit, features, (), job.excluded)
        room = where.room(Size(demand.n, demand.k, demand.cpus, demand.mem))
        yield "partition", one.name, replace(demand, candidates=room.nodes, pools=(), splits=(), spread=None)
