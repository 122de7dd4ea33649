"""The worth of relocations: finds running jobs to move, to let a waiting job start or to leave slow GPUs.

Only jobs with `--movable` are considered. A job that is moved needs a place that is free now, and as close together and
as fast as its own. The gain, in GPU-seconds, must exceed the cost of the move by a margin.

    gain of a start   seconds that it starts earlier than planned  x  its GPUs
    gain of speed     what is left of the run  x  (1 - new over old run time)  x  GPUs
    cost of a move    (the job's COST + work since its last checkpoint + restart)  x  its GPUs
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import claim_on
from policy.plan.relocation.remaining import slowest
from policy.request.settings import RelocationRules

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.cluster.view import View
    from policy.formats.arrays import Bools
    from policy.request.demand import Demand
    from topology.tables import Ints

MARGIN = 2.0
"""Factor by which the gain of a move must exceed its cost."""

MOST_TRIES = 16
"""Sets of jobs that are tried for one waiting job: each try asks the policy for a place."""

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
    gang: int = 0
    """The waiting job that can start by it; 0 if the moved job itself gains."""
    berth: Berth | None = None
    """The place that becomes free for the waiting job."""


def price(mover: Mover, rules: RelocationRules) -> float:
    """Returns the cost of moving a job, in GPU-seconds.

    >>> from unittest.mock import Mock
    >>> price(Mover(1, Mock(gpus=2), (0,), 3, cost=120.0, lost=0.0, left=9_000.0), RelocationRules(restart=60))
    360.0
    """
    return mover.demand.gpus * (mover.cost + mover.lost + rules.restart)


def open_for(
    gang: WaitingGang, book: Book, movers: Sequence[Mover], policy: Policy, rules: RelocationRules
) -> Proposal | None:
    """Returns the cheapest moves found that let a waiting job start now; None if no moves are worth it.

    The book holds all claims but that of the waiting job; it is not changed.
    """
    at = book.cluster.at
    saved = gang.expected - at - rules.grace - rules.restart
    gain = saved * gang.demand.gpus
    affordable = [mover for mover in movers if mover.id != gang.id and price(mover, rules) * MARGIN < gain]
    if gain <= 0 or not affordable or _starts_anyway(gang, book, policy):
        return None
    view = book.cluster.now(gang.demand.limit)
    for tried, (chosen, inside) in enumerate(_sets(gang.demand, view, affordable, rules)):
        if tried == MOST_TRIES:
            break
        berth = _place_without(chosen, gang.demand, inside, view, policy)
        if berth is None:
            continue
        needed = [mover for mover in chosen if _in_the_way(mover, berth)]
        cost = sum(price(mover, rules) for mover in needed)
        if not needed or len(needed) > rules.at_once or cost * MARGIN >= gain:
            continue
        if not _room_without(needed, gang.demand, berth, view):
            continue
        moves = _elsewhere(needed, gang, berth, book, policy)
        if moves:
            return Proposal(moves, gain, cost, _why_open(gang, moves, saved, gain, cost), gang.id, berth)
    return None


def off_slow(book: Book, movers: Sequence[Mover], policy: Policy, rules: RelocationRules) -> Proposal | None:
    """Returns the move from slow GPUs to better free ones that gains most; None if no move gains enough."""
    best: Proposal | None = None
    for mover, score in _on_slow_gpus(book.fleet, movers):
        here = _here(mover, book)
        try:
            berth = book.now(_as_near(mover, here), policy)
        except NotNow:
            continue
        if berth.cost >= here.cost:
            continue
        faster = 1 - berth.cost / here.cost
        gain, cost = mover.left * faster * mover.demand.gpus, price(mover, rules)
        if gain > cost * MARGIN and (best is None or gain - cost > best.gain - best.cost):
            reason = (
                f"its slowest GPU takes {score:.2f} of the usual time; on {','.join(berth.names)} it is "
                f"{faster * 100:.0f} % faster for the {mover.left:.0f} s that it is expected to run yet: "
                f"{gain:.0f} GPU s for {cost:.0f}"
            )
            best = Proposal((Moved(mover, berth),), gain, cost, reason)
    return best


def _starts_anyway(gang: WaitingGang, book: Book, policy: Policy) -> bool:
    try:
        book.now(gang.demand, policy)
    except NotNow:
        return False
    return True


# Search for sets of jobs that could make room.


class _Opened(NamedTuple):
    """A node, and its cheapest jobs without which it has enough GPUs."""

    node: int
    movers: tuple[Mover, ...]
    price: float


def _sets(
    demand: "Demand", view: "View", movers: Sequence[Mover], rules: RelocationRules
) -> Iterator[tuple[list[Mover], "Ints"]]:
    """Yields sets of jobs that may make room, with the nodes to search for a place; cheapest sets first."""
    fits = demand.candidates & view.open
    opened = [one for node, some in _by_node(movers).items() if fits[node] for one in _ways(demand, view, node, some)]
    opened = [one for one in opened if len(one.movers) <= rules.at_once]
    if demand.n == 1:
        # If the job asks for linked GPUs, more jobs may have to leave than the number of GPUs tells.
        for one in sorted(opened, key=lambda one: (one.price, len(one.movers))):
            yield list(one.movers), np.array([one.node])
        return
    ready = fits & (np.bitwise_count(view.free) >= demand.k) & _has_room(demand, view)
    first: dict[int, _Opened] = {}
    for one in opened:
        first.setdefault(one.node, one)
    found: list[tuple[float, list[Mover], Ints]] = []
    for group in _groups(demand, view.fleet):
        missing = max(1, demand.n - int(ready[group].sum()))
        inside = sorted((first[node] for node in group.tolist() if node in first), key=lambda one: one.price)
        for more in (0, 2):
            if len(inside) < missing + more:
                break
            chosen = list({mover.id: mover for one in inside[: missing + more] for mover in one.movers}.values())
            found.append((sum(mover.demand.gpus * mover.cost for mover in chosen), chosen, group))
    for _, chosen, group in sorted(found, key=lambda one: one[0]):
        yield chosen, group


def _by_node(movers: Iterable[Mover]) -> dict[int, list[Mover]]:
    found: dict[int, list[Mover]] = {}
    for mover in movers:
        for node in mover.nodes:
            found.setdefault(node, []).append(mover)
    return found


def _ways(demand: "Demand", view: "View", node: int, movers: Sequence[Mover]) -> Iterator[_Opened]:
    """Yields growing sets of a node's jobs, cheapest jobs first, once their GPUs and the free ones are enough."""
    free, total = int(view.free[node]), 0.0
    chosen: list[Mover] = []
    for mover in sorted(movers, key=lambda one: (one.demand.gpus * (one.cost + one.lost), one.id)):
        chosen.append(mover)
        free |= mover.mask
        total += mover.demand.gpus * (mover.cost + mover.lost)
        if free.bit_count() >= demand.k:
            yield _Opened(node, tuple(chosen), total)


def _groups(demand: "Demand", fleet: "Fleet") -> "list[Ints]":
    """Returns the sets of nodes, one of which has to hold the whole demand."""
    return [group for part in demand.parts() for group in _groups_of_part(part, fleet)]


def _groups_of_part(demand: "Demand", fleet: "Fleet") -> "list[Ints]":
    nodes = np.flatnonzero(demand.candidates)
    groups = fleet.fabric.within(demand.level)
    return [nodes] if groups is None else groups.split(nodes)


def _has_room(demand: "Demand", view: "View") -> "Bools":
    cpus = view.fleet.cpus if demand.cpus is None else demand.cpus
    mem = view.fleet.mem if demand.mem is None else demand.mem
    room: Bools = (view.cpus >= cpus) & (view.mem >= mem)
    return room


# Search for the place that their leaving opens.


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


def _in_the_way(mover: Mover, berth: Berth) -> bool:
    return bool(mover.mask & berth.mask) and not set(mover.nodes).isdisjoint(berth.nodes)


def _room_without(movers: Sequence[Mover], demand: "Demand", berth: Berth, view: "View") -> bool:
    """Tells whether the place is free once only these jobs have left: the place was found without other jobs too."""
    left, here = _without(movers, view), list(berth.nodes)
    if demand.cpus is None and not bool((left.free[here] == left.fleet.full[here]).all()):
        return False
    return bool(((left.free[here] & berth.mask) == berth.mask).all()) and bool(_has_room(demand, left)[here].all())


# Search for the new places of the jobs that leave.


def _elsewhere(
    movers: Sequence[Mover], gang: WaitingGang, berth: Berth, book: Book, policy: Policy
) -> tuple[Moved, ...] | None:
    """Returns places for all of the jobs, free now and as good as their own; None if one job has none."""
    after = Book(book.cluster)
    after.claim(claim_on(book.fleet, gang.demand, berth.nodes, berth.mask, book.cluster.at))
    moves = []
    for mover in sorted(movers, key=lambda one: -one.demand.gpus):
        here = _here(mover, book)
        try:
            there = after.now(_as_near(mover, here), policy)
        except NotNow:
            return None
        if there.cost > here.cost * 1.01:
            return None
        after.claim(claim_on(book.fleet, mover.demand, there.nodes, there.mask, book.cluster.at))
        moves.append(Moved(mover, there))
    return tuple(moves)


def _here(mover: Mover, book: Book) -> Berth:
    view = book.cluster.now(0)
    return Policy.spread(mover.demand, view, mover.nodes, [mover.mask] * len(mover.nodes), "where it runs")


def _as_near(mover: Mover, here: Berth) -> "Demand":
    """Returns the job's demand for another place: one of the level that it has now."""
    if mover.demand.gpus == 1:
        return mover.demand
    return mover.demand.at_level(here.level)


def _on_slow_gpus(fleet: "Fleet", movers: Iterable[Mover]) -> list[tuple[Mover, float]]:
    found = []
    for mover in movers:
        score = slowest(fleet, mover.demand.app_class, mover.nodes, mover.mask)
        if score >= WORTH_LOOKING:
            found.append((mover, score))
    return sorted(found, key=lambda one: -one[1])[:MOST_SLOW]


def _why_open(gang: WaitingGang, moves: Sequence[Moved], saved: float, gain: float, cost: float) -> str:
    who = "a job" if len(moves) == 1 else f"{len(moves)} jobs"
    what = f"{gang.demand.gpus} GPUs" if gang.demand.gpus > 1 else "1 GPU"
    return f"moving {who} lets JobId={gang.id} have its {what} {saved:.0f} s sooner: {gain:.0f} GPU s for {cost:.0f}"
