"""A claim: GPUs, CPUs and memory of some nodes that one job has or will get, with its start and end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from policy.cluster.fleet import Fleet
from policy.cluster.timeline import State
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
    """The part that it takes of each GPU; None: all of it."""
    tier: str = EXCLUSIVE
    """For whole GPUs: tells if a guest there may stay, or if the claim is only for a seat."""
    others: "tuple[Claim, ...]" = ()
    """Claims of the same job on other nodes, of other GPUs there."""

    def lasting(self, limit: float) -> "Claim":
        """Returns the same claim for a job with another time limit."""
        others = tuple(one.lasting(limit) for one in self.others)
        return replace(self, end=self.start + limit, others=others)


class Repeat(NamedTuple):
    """A claim on whole GPUs that come free later, with the timelines of its nodes before and after it."""

    nodes: tuple[int, ...]
    start: float
    before: tuple[list[State], ...]
    after: tuple[list[State], ...]


def claim_on(fleet: Fleet, demand: Demand, nodes: Sequence[int], mask: int, start: float) -> Claim:
    """Returns the claim of a demand on a place from `start` on."""
    if demand.cpus is None:
        for node in nodes:
            mask |= (1 << int(fleet.size[node])) - 1
    end = start + demand.limit
    # On whole nodes Slurm gives all seats to the job.
    tier = EXCLUSIVE if demand.cpus is None else demand.tier.name
    return Claim(tuple(nodes), mask, demand.cpus, demand.mem, start, end, demand.share, tier)


def seat_on(demand: Demand, node: int, mask: int, start: float) -> Claim:
    """Returns the claim of a guest on a seat."""
    end = start + demand.limit
    return Claim((node,), mask, demand.cpus or 0, demand.mem or 0, start, end, None, OPPORTUNISTIC)


def renumbered(claims: Iterable[Claim], old: Fleet, new: Fleet) -> tuple[Claim, ...]:
    """Returns the claims with the node numbers of the new fleet, without nodes that it lacks."""
    if old.names == new.names:
        return tuple(claims)
    return tuple(
        replace(
            claim,
            nodes=tuple(new.index[name] for node in claim.nodes if (name := old.names[node]) in new.index),
            others=renumbered(claim.others, old, new),
        )
        for claim in claims
    )
