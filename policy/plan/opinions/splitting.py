# SPDX-License-Identifier: Apache-2.0
"""Chooses on how many nodes a job lies that may be split (policy/request/spread.py).

Only GPUs that are free now are reason enough to split a job further than it has to be: its later place is planned on
the fewest nodes. The cost of distance is that of `policy/cluster/cost.py`. So a job is split if it is expected to end
sooner that way, and waits on no split longer than the distance would cost it.
"""

from collections.abc import Callable
from dataclasses import replace

from policy.formats.errors import NotNow, OutOfTime
from policy.placement.base import Berth, Policy
from policy.plan.ledger.book import Book
from policy.plan.ledger.later_places import LaterPlace, ends_sooner
from policy.plan.ledger.places import free_now
from policy.request.demand import Demand
from policy.request.spread import on_nodes


def first_of_splits(
    book: Book, demand: Demand, policy: Policy, first: Callable[[Book, Demand, Policy], LaterPlace]
) -> LaterPlace:
    """Returns the first place on the fewest nodes, or one on more nodes that is free now and lets the job end sooner.

    `first` finds the first place of a demand on its own number of nodes.
    """
    fewest, *others = demand.every_split
    if not others:
        return first(book, demand, policy)
    place: LaterPlace | None = None
    nothing: NotNow | None = None
    try:
        place = first(book, fewest, policy)
    except OutOfTime:
        raise
    except NotNow as none_in_sight:
        nothing = none_in_sight
    more = replace(others[0], splits=tuple(others[1:]))
    try:
        berth = free_now(more, lambda one: book.now(one, policy))
    except NotNow:
        if place is None:
            raise nothing or NotNow("no node could hold it", 300) from None
        return place
    if place is not None and not ends_sooner(demand, berth, place.start, place.berth.cost, book.cluster.at):
        return place
    return LaterPlace(replace(berth, why=f"{berth.why}; {reason(fewest, berth, place)}"), 0.0)


def reason(fewest: Demand, berth: Berth, place: LaterPlace | None) -> str:
    """Returns why a job is split over more nodes than it needs."""
    where = on_nodes(len(berth.nodes))
    if place is None:
        return f"on {where}, since {on_nodes(fewest.n)} could not hold it in sight"
    cheaper = f"{(berth.cost / place.berth.cost - 1) * 100:.0f} %"
    if not place.start:
        return f"on {where}, since the GPUs of {on_nodes(fewest.n)} are slower"
    return f"on {where}, since it ends sooner than on {on_nodes(fewest.n)} later, though {cheaper} slower"
