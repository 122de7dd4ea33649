# SPDX-License-Identifier: Apache-2.0
"""The worth of relocations: finds running jobs to move, to let a waiting job start or to leave slow GPUs.

Only jobs with `--movable` are considered. A job that is moved needs a place that is free now, and as close together and
as fast as its own. The gain, in GPU-seconds, must exceed the cost of the move by a margin.

    gain of a start   seconds that it starts earlier than planned  x  its GPUs
    gain of speed     what is left of the run  x  (1 - new over old run time)  x  GPUs
    cost of a move    (the job's COST + work since its last checkpoint + restart)  x  its GPUs
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.speed import node_scores
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import claim_on
from policy.request.settings import RelocationRules

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.cluster.view import View
    from policy.request.demand import Demand
    from topology.sets.tables import Ints

MARGIN = 2.0
"""Factor by which the gain of a move must exceed its cost."""
MOST_FOR_ONE = 4
"""The most jobs that are moved for one waiting job."""

MOST_TRIES = 16
"""Sets of jobs that are tried for one waiting job: each try asks the policy for a place."""

MOST_MORE = 3
"""Steps by which a set may be larger than the number of GPUs tells."""

MOST_SLOW = 8
"""Jobs on slow GPUs, the slowest first, for which a faster place is searched."""

WORTH_LOOKING = 1.05
"""Score of a job's slowest GPU from which on a faster place is searched."""


@dataclass(frozen=True, slots=True)
class Mover:
    """A running job that may be moved."""

    id: int
    demand: "Demand"
    nodes: tuple[int, ...]
    mask: int
    cost: float
    """Seconds that a move costs it, as its user says."""
    lost: float
    """Seconds of work that a move would lose in addition."""
    left: float
    """Seconds that it is expected to run from now on where it is; 0 where no GPU of its is slow."""


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """A waiting job that needs GPUs which other jobs hold."""

    id: int
    demand: "Demand"
    """The demand at the level that it insists on now."""
    expected: float
    """Expected start if no job is moved, by the plan."""


class Moved(NamedTuple):
    """A job, and its new place."""

    mover: Mover
    berth: Berth


@dataclass(frozen=True, slots=True)
class Proposal:
    """Jobs to be moved together."""

    moves: tuple[Moved, ...]
    gain: float
    """GPU-seconds that the moves gain."""
    cost: float
    """GPU-seconds that the moves cost."""
    reason: str
    berth: Berth | None = None
    """The place that becomes free for the waiting job; None if the moved job itself gains."""


def price(mover: Mover, rules: RelocationRules) -> float:
    """Returns the cost of moving a job, in GPU-seconds."""
    return mover.demand.gpus * (mover.cost + mover.lost + rules.restart)


def slowest(fleet: "Fleet", demand: "Demand", nodes: Sequence[int], mask: int) -> float:
    """Returns the score of the slowest of some GPUs for a job; 1 if nothing was measured."""
    return float(node_scores(fleet, demand.app_class, np.array(nodes), mask).max())


def open_for(
    gang: WaitingGang, book: Book, movers: Sequence[Mover], policy: Policy, rules: RelocationRules
) -> Proposal | None:
    """Returns the cheapest moves found that let a waiting job start now; None if no moves are worth it.

    The book holds all claims but that of the waiting job; it is not changed.
    """
    saved = gang.expected - book.cluster.at - rules.grace - rules.restart
    gain = saved * gang.demand.gpus
    affordable = [mover for mover in movers if mover.id != gang.id and price(mover, rules) * MARGIN < gain]
    if gain <= 0 or not affordable or _now(gang.demand, book, policy) is not None:
        return None
    view = book.cluster.now(gang.demand.limit)
    for chosen, inside in islice(_sets(gang.demand, view, affordable, rules), MOST_TRIES):
        berth = _place_without(chosen, gang.demand, inside, view, policy)
        if berth is None:
            continue
        needed = [one for one in chosen if one.mask & berth.mask and not set(one.nodes).isdisjoint(berth.nodes)]
        cost = sum(price(mover, rules) for mover in needed)
        if not 0 < len(needed) <= MOST_FOR_ONE or cost * MARGIN >= gain:
            continue
        moves = _elsewhere(needed, gang, berth, view, book, policy)
        if moves:
            # The movers' users read this, and may not see the job for which room is made.
            what = f"moving {'a job' if len(moves) == 1 else f'{len(moves)} jobs'} lets another have its"
            reason = f"{what} {gang.demand.gpus} GPUs {saved:.0f} s sooner: {gain:.0f} GPU s for {cost:.0f}"
            return Proposal(moves, gain, cost, reason, berth)
    return None


def off_slow(book: Book, movers: Sequence[Mover], policy: Policy, rules: RelocationRules) -> Proposal | None:
    """Returns the move from slow GPUs to better free ones that gains most; None if no move gains enough."""
    best: Proposal | None = None
    scores = [(slowest(book.fleet, one.demand, one.nodes, one.mask), one) for one in movers]
    slow = sorted((one for one in scores if one[0] >= WORTH_LOOKING), key=lambda one: -one[0])[:MOST_SLOW]
    for score, mover in slow:
        cost_here, berth = _another_place(mover, book, policy)
        if berth is None or berth.cost >= cost_here:
            continue
        faster = 1 - berth.cost / cost_here
        gain, cost = mover.left * faster * mover.demand.gpus, price(mover, rules)
        if gain > cost * MARGIN and (best is None or gain - cost > best.gain - best.cost):
            reason = (
                f"its slowest GPU takes {score:.2f} of the usual time; on {','.join(berth.names)} it is "
                f"{faster * 100:.0f} % faster for the {mover.left:.0f} s that it is expected to run yet: "
                f"{gain:.0f} GPU s for {cost:.0f}"
            )
            best = Proposal((Moved(mover, berth),), gain, cost, reason)
    return best


def _now(demand: "Demand", book: Book, policy: Policy) -> Berth | None:
    try:
        return book.now(demand, policy)
    except NotNow:
        return None


def _sets(
    demand: "Demand", view: "View", movers: Sequence[Mover], rules: RelocationRules
) -> Iterator[tuple[list[Mover], "Ints"]]:
    """Yields sets of jobs that may make room, with the nodes to search for a place; cheapest sets first.

    A set opens as many nodes of a group as the job lacks. Sets with more jobs are tried too: the job may need linked
    GPUs, or GPUs that several nodes have in common, and the number of GPUs does not tell.
    """
    fits = demand.candidates & view.open
    ready = Policy.fitting(demand, view) & (np.bitwise_count(view.free) >= demand.k)
    by_node: dict[int, list[Mover]] = {}
    for mover in sorted(movers, key=lambda one: (price(one, rules), one.id)):
        for node in mover.nodes:
            if fits[node]:
                by_node.setdefault(node, []).append(mover)
    found = []
    for group in _groups(demand, view.fleet, by_node):
        ways = [_ways(demand.k, int(view.free[node]), by_node[node]) for node in group.tolist() if node in by_node]
        if demand.n == 1:
            steps, missing = ways[0], 1
        else:
            steps = sorted((way[0] for way in ways if way), key=lambda step: sum(price(one, rules) for one in step))
            missing = max(1, demand.n - int(ready[group].sum()))
        for count in range(missing, min(missing + MOST_MORE, len(steps)) + 1):
            chosen = list({mover.id: mover for step in steps[:count] for mover in step}.values())
            found.append((sum(price(mover, rules) for mover in chosen), chosen, group))
    yield from ((chosen, group) for _, chosen, group in sorted(found, key=lambda one: (one[0], len(one[1]))))


def _ways(k: int, free: int, movers: Sequence[Mover]) -> list[list[Mover]]:
    """Returns the first of a node's jobs without which it has k free GPUs, then the other jobs one by one."""
    for count, mover in enumerate(movers, 1):
        free |= mover.mask
        if free.bit_count() >= k:
            return [list(movers[:count]), *([one] for one in movers[count:])]
    return []


def _groups(demand: "Demand", fleet: "Fleet", opened: Iterable[int]) -> "list[Ints]":
    """Returns the sets of nodes, one of which has to hold the whole demand."""
    if demand.n == 1:
        return [np.array([node]) for node in opened]
    groups = fleet.fabric.within(demand.level)
    parts = [np.flatnonzero(part.candidates) for part in demand.parts()]
    return parts if groups is None else [group for nodes in parts for group in groups.split(nodes)]


def _without(movers: Iterable[Mover], view: "View") -> "View":
    """Returns the view as if some jobs had left."""
    left = replace(view, free=view.free.copy(), cpus=view.cpus.copy(), mem=view.mem.copy())
    fleet = view.fleet
    for mover in movers:
        here = list(mover.nodes)
        left.free[here] |= mover.mask
        cpus = fleet.cpus[here] if mover.demand.cpus is None else mover.demand.cpus
        mem = fleet.mem[here] if mover.demand.mem is None else mover.demand.mem
        left.cpus[here] = np.minimum(fleet.cpus[here], left.cpus[here] + cpus)
        left.mem[here] = np.minimum(fleet.mem[here], left.mem[here] + mem)
    return left


def _place_without(
    movers: Sequence[Mover], demand: "Demand", inside: "Ints", view: "View", policy: Policy
) -> Berth | None:
    only = np.zeros_like(demand.candidates)
    only[inside] = True
    try:
        berth = policy.place(replace(demand, candidates=demand.candidates & only), _without(movers, view))
    except NotNow:
        return None
    return berth if all(mask == berth.mask for mask in berth.masks) else None


def _elsewhere(
    movers: Sequence[Mover], gang: WaitingGang, berth: Berth, view: "View", book: Book, policy: Policy
) -> tuple[Moved, ...]:
    """Returns places for all of the jobs, free now and as good as their own; nothing if one job has none.

    Nor are there any if the waiting job's place is not free once only these jobs have left.
    """
    left, there = _without(movers, view), list(berth.nodes)
    if not bool((Policy.fitting(gang.demand, left)[there] & (left.free[there] & berth.mask == berth.mask)).all()):
        return ()
    after = Book(book.cluster)
    after.claim(claim_on(book.fleet, gang.demand, berth.nodes, berth.mask, book.cluster.at))
    moves = []
    for mover in sorted(movers, key=lambda one: -one.demand.gpus):
        cost_here, place = _another_place(mover, after, policy)
        if place is None or place.cost > cost_here * 1.01:
            return ()
        after.claim(claim_on(book.fleet, mover.demand, place.nodes, place.mask, book.cluster.at))
        moves.append(Moved(mover, place))
    return tuple(moves)


def _another_place(mover: Mover, book: Book, policy: Policy) -> tuple[float, Berth | None]:
    """Returns the cost of a job's place, and the best free place of the level that it has now."""
    masks = [mover.mask] * len(mover.nodes)
    here = Policy.spread(mover.demand, book.cluster.now(0), mover.nodes, masks, "where it runs")
    demand = mover.demand if mover.demand.gpus == 1 else mover.demand.at_level(here.level)
    return here.cost, _now(demand, book, policy)
