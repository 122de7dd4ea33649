# SPDX-License-Identifier: Apache-2.0
"""The places of a policy that Slurm can pin and start, and those that were found before in the same book.

A place stands until the book changes. Many jobs take nothing from the book when they are submitted: they are held,
begin later, or wait for other jobs. After such a job the next one that asks for as many GPUs and CPUs gets the same
place, whatever memory and time limit it asks for, if the same nodes have them free.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from policy.cluster.snapshot import Cluster
from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.speed import ALIKE
from policy.plan.ledger.claims import BookRows
from policy.request.demand import Demand
from policy.request.tiers import ALONE

MOST = 16
"""Most places that are kept."""

Kind = tuple[object, ...]


def in_first_part(demand: Demand, place: Callable[[Demand], Berth]) -> Berth:
    """Returns the place in the first partition that has one; else raises the `NotNow` of the first partition."""
    first, *others = demand.parts()
    try:
        return place(first)
    except NotNow:
        for part in others:
            with suppress(NotNow):
                return place(part)
        raise


def pinnable(policy: Policy, demand: Demand, view: View) -> Berth:
    """Returns a policy's place if Slurm can pin it: a typed request must be the same on each node."""
    if not view.fleet.names:
        # All nodes of a cloud may be gone for a while; policies need not handle that.
        raise NotNow("the cluster has no nodes now", 302)
    berth = policy.place(demand, view)
    if any(mask != berth.mask for mask in berth.masks):
        raise NotNow(f"policy {policy.name} chose other GPUs on each node, which Slurm cannot pin", 303)
    blocks = view.fleet.fabric.blocks
    if blocks is not None and not blocks.allow(berth.nodes):
        raise NotNow(
            f"policy {policy.name} chose nodes of several blocks, which Slurm's topology/block does not start", 303
        )
    return berth


def free_now(demand: Demand, place: Callable[[Demand], Berth]) -> Berth:
    """Returns the cheapest of the places on all splits; among almost equal ones, that on the fewest nodes."""
    if not demand.splits:
        return place(demand)
    best: Berth | None = None
    nothing: NotNow | None = None
    for one in demand.every_split:
        try:
            berth = place(one)
        except NotNow as none_there:
            nothing = nothing or none_there
            continue
        if best is None or berth.cost < best.cost * (1 - ALIKE):
            best = berth
    if best is None:
        raise nothing or NotNow("no node could hold it", 300)
    return best


def berth_of(cluster: Cluster, demand: Demand, nodes: Sequence[int], mask: int, why: str = "") -> Berth:
    """Returns the place of a job that has these GPUs on each of these nodes."""
    return Policy.spread(demand, cluster.now(demand.limit), nodes, [mask] * len(nodes), why)


@dataclass(slots=True)
class _Found:
    """A place, the demand that it was found for, and the amounts for which others see the same free resources."""

    berth: Berth
    demand: Demand
    mem: tuple[int, int] | None = None
    """Above the first and up to the second; None: not asked for yet, as for the time limits."""
    limits: tuple[float, float] | None = None

    def holds_for(self, demand: Demand, cluster: Cluster) -> bool:
        """Tells whether a demand that is alike but for memory and time limit has the same place."""
        if demand.mem != self.demand.mem:
            if demand.mem is None or self.demand.mem is None:
                return False
            if self.mem is None:
                self.mem = cluster.memory_like(self.demand.mem)
            if not self.mem[0] < demand.mem <= self.mem[1]:
                return False
        if demand.limit == self.demand.limit:
            return True
        if self.limits is None:
            self.limits = cluster.limits_like(self.demand.limit)
        return self.limits[0] < demand.limit <= self.limits[1]


class FreePlaces:
    """The free places that were found in a book since it last changed. Nothing but claims may change the book."""

    def __init__(self) -> None:
        self._state = 0
        self._found: dict[Kind, _Found] = {}

    def __len__(self) -> int:
        """Returns how many places are kept."""
        return len(self._found)

    def best(self, book: BookRows, demand: Demand, policy: Policy, search: Callable[[], Berth]) -> Berth:
        """Returns the best free place of a demand, or raises `NotNow`; `search` finds one that is not kept."""
        if demand.share is not None or demand.tier is not ALONE or demand.pools:
            return search()
        if book.state != self._state:
            self._state = book.state
            self._found.clear()
        needs = demand.n, demand.k, demand.cpus, demand.level, demand.app_class, demand.model
        kind = policy, id(demand.candidates), needs
        found = self._found.get(kind)
        if found is not None and found.holds_for(demand, book.cluster):
            return found.berth
        berth = search()
        if len(self._found) >= MOST:
            del self._found[next(iter(self._found))]
        # The demand that is kept has the same candidates, so that no other array gets their id.
        self._found[kind] = _Found(berth, demand)
        return berth
