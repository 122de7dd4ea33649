"""A claim: GPUs, CPUs and memory of some nodes that one job has or gets, from when to when."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from policy.cluster.fleet import Fleet
from policy.request.demand import Demand
from policy.request.share import Share
from policy.request.tiers import EXCLUSIVE, OPPORTUNISTIC


@dataclass(frozen=True, slots=True)
class Claim:
    """GPUs, CPUs and memory of some nodes, for a time. None for CPUs or memory means all of the node."""

    nodes: tuple[int, ...]
    mask: int
    cpus: int | None
    mem: int | None
    start: float
    end: float
    share: Share | None = None
    """What it takes of each GPU; None: all of it."""
    tier: str = EXCLUSIVE
    """Of whole GPUs: whether a guest there may stay, or it takes a seat alone."""

    def lasting(self, limit: float) -> "Claim":
        """The same claim of a job with another time limit."""
        return replace(self, end=self.start + limit)


def claim_on(fleet: Fleet, demand: Demand, nodes: Sequence[int], mask: int, start: float) -> Claim:
    """What a demand takes on a place from `start` on."""
    if demand.cpus is None:
        for node in nodes:
            mask |= (1 << int(fleet.size[node])) - 1
    end = start + demand.limit
    # Slurm gives all seats of whole nodes to the job.
    tier = EXCLUSIVE if demand.cpus is None else demand.tier.name
    return Claim(tuple(nodes), mask, demand.cpus, demand.mem, start, end, demand.share, tier)


def seat_on(demand: Demand, node: int, mask: int, start: float) -> Claim:
    """What a guest takes."""
    end = start + demand.limit
    return Claim((node,), mask, demand.cpus or 0, demand.mem or 0, start, end, None, OPPORTUNISTIC)
