"""The places of a policy that Slurm can pin and start."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from policy.cluster.snapshot import Cluster
from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.speed import ALIKE
from policy.request.demand import Demand


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
