# SPDX-License-Identifier: Apache-2.0
"""Places that are not free yet: what they cost a job and the jobs that wait behind it."""

from typing import NamedTuple

import numpy as np

from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.speed import ALIKE_IN_A_CROWD, node_scores
from policy.plan.ledger.book import Book
from policy.request.demand import Demand

USUAL_PART = 0.5
"""Part of its time limit that a job is assumed to use, where places with different starts or speeds are compared."""

FOR_OTHERS = 600.0
"""Seconds by which a job may end later than it could, so that jobs behind it get its GPUs sooner.

Half of its time limit if that is shorter."""


def worth_moving(limit: float) -> float:
    """Returns the seconds that a job must gain to move to a place that is not free yet either.

    >>> worth_moving(60), worth_moving(600), worth_moving(86_400)
    (4.0, 30.0, 60.0)
    """
    return min(60.0, max(4.0, limit / 20))


class LaterPlace(NamedTuple):
    """A place, and the time at which it comes free: 0 for now."""

    berth: Berth
    start: float


def expected_end(demand: Demand, start: float, cost: float, at: float) -> float:
    """Returns the expected end of a job that starts at `start` on a place of this cost."""
    return max(start, at) + cost * USUAL_PART * demand.limit


def ends_sooner(demand: Demand, berth: Berth, start: float, cost: float, at: float) -> bool:
    """Tells whether a job is expected to end clearly sooner if it starts now, `at`, than at `start` at this cost."""
    gain = expected_end(demand, start, cost, at) - expected_end(demand, 0.0, berth.cost, at)
    return gain > worth_moving(demand.limit)


def latest_end(demand: Demand, soonest: float) -> float:
    """Returns the latest acceptable end of a job, where a later end gives its GPUs to jobs behind it sooner."""
    return soonest + min(FOR_OTHERS, demand.limit / 2)


def weight(book: Book, demand: Demand, start: float, cost: float, crowd: int) -> float:
    """Returns a job's expected end plus what its place costs the jobs that wait; lower is better.

    The cost: waiting jobs, times the seconds that the job runs there, times its part of all GPUs of the cluster.
    """
    others = crowd * demand.n * demand.k / max(1, int(book.fleet.size.sum()))
    return expected_end(demand, start, cost, book.cluster.at) + cost * USUAL_PART * demand.limit * others


def first_place(book: Book, demand: Demand, policy: Policy) -> LaterPlace:
    """Returns the place of a new job: a free one, unless it is expected to end sooner on faster GPUs later.

    If none is free, returns the later place that is best for it and for the jobs that wait.
    """
    found, at = ways(book, demand, policy), book.cluster.at
    ends = [expected_end(demand, one.start, one.berth.cost, at) for one in found]
    if found[0].start == 0.0:
        return found[ends.index(min(ends))]
    fair = [one for one, end in zip(found, ends, strict=True) if end <= latest_end(demand, min(ends))]
    return min(fair, key=lambda one: weight(book, demand, one.start, one.berth.cost, book.cluster.waiting))


def ways(book: Book, demand: Demand, policy: Policy) -> list[LaterPlace]:
    """Returns the place that is free first; for a job on several nodes also later places with ever faster GPUs."""
    place = LaterPlace(*book.soonest(demand, policy))
    found = [place]
    while (faster := faster_than(place.berth, book, demand, policy)) is not None:
        place = faster
        found.append(place)
    return found


def faster_than(berth: Berth, book: Book, demand: Demand, policy: Policy) -> LaterPlace | None:
    """Returns the first place whose slowest GPU is clearly faster than the slowest of `berth`; else None.

    For a job on one node such a place is never far, so it only avoids nodes that cost all jobs more than they bring.
    """
    fleet = book.fleet
    if not policy.weighs_scores or fleet.scores.get(demand.app_class) is None:
        return None
    if demand.n == 1:
        worth = policy.worthwhile(demand, fleet)
        if bool(worth[list(berth.nodes)].all()):
            return None
        faster = demand.within(worth)
    else:
        slowest = node_scores(fleet, demand.app_class, np.arange(len(fleet.names)), berth.mask)
        there = float(slowest[list(berth.nodes)].max())
        faster = demand.within(slowest < there * (1 - ALIKE_IN_A_CROWD))
    if not faster.could_be_held:
        return None
    try:
        place = LaterPlace(*book.soonest(faster, policy))
    except NotNow:
        return None
    return place if place.berth.cost < berth.cost else None


def on_busy_nodes(book: Book, demand: Demand, policy: Policy) -> LaterPlace | None:
    """Returns the first place that is not free yet, on nodes without free GPUs if there are enough of them.

    Slurm keeps later jobs off the nodes of a waiting pinned job, which costs least where nothing is free.
    """
    free = np.bitwise_count(book.cluster.gpus_now)
    for busy in (free == 0, free < demand.k):
        here = demand.within(busy)
        if not here.could_be_held:
            continue
        try:
            place = LaterPlace(*book.soonest(here, policy))
        except NotNow:
            continue
        if place.start > book.cluster.at:
            return place
    return None
