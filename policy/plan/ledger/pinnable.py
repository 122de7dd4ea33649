"""The places of a policy that Slurm can pin and start."""

from collections.abc import Callable
from contextlib import suppress

from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
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
