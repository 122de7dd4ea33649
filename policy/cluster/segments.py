# SPDX-License-Identifier: Apache-2.0
"""Segments of Slurm's topology/block, by which each group of a job's GPUs lies in one NVLink domain.

Without a segment Slurm gives a job nodes of one block, or of as few blocks as can hold it, and lets it wait until these
are free. With segments it needs room for one segment after the other. Slurm takes no list of nodes beside several
segments (24.11), so it chooses the nodes of such a job.

>>> segment_of(16, 4), segment_of(4, 4), segment_of(6, 4), segment_of(2, 4)
(4, 1, 3, 1)
"""

from collections.abc import Iterable
from math import lcm

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.snapshot import Cluster
from policy.formats.arrays import Bools
from policy.formats.errors import InSegments, LeftToSlurm
from policy.request.demand import Demand
from policy.request.submission import Request
from topology.network.blocks import IN_NO_BLOCK, Blocks
from topology.network.groups import NOBODY, Ints

ROOM = 4
"""The times over that the free nodes must hold a job in long segments: others wait for the same nodes."""


def segment_of(group: int, k: int) -> int:
    """Returns the fewest nodes of k GPUs that hold whole groups alone: the more segments, the sooner they are free."""
    return lcm(group, k) // k


def check(request: Request, fleet: Fleet, partitions: Iterable[str], allowed: Bools, n: int, k: int) -> None:
    """Raises for a job on several nodes that Slurm's topologies or blocks leave to Slurm, with the reason."""
    _check_topology(partitions, fleet)
    if request.group:
        _check_groups(request, fleet, allowed, n, k)


def _check_topology(partitions: Iterable[str], fleet: Fleet) -> None:
    """Raises for a job on several nodes of a partition for which Slurm has another topology than Berth plans by."""
    for name in partitions:
        own = fleet.partitions[name].topology
        if own and own != fleet.fabric.topology:
            raise LeftToSlurm(
                f"partition {name} has topology {own}, and nodes are planned by {fleet.fabric.topology}", 228
            )


def _check_groups(request: Request, fleet: Fleet, allowed: Bools, n: int, k: int) -> None:
    """Raises where Slurm's blocks are to hold the groups of a job on n nodes with k GPUs each.

    A job of one group is placed as without `--group`, and so is each job where Slurm has no topology/block.
    """
    blocks, group = fleet.fabric.blocks, request.group or 0
    near = request.locality is not None and request.locality.level == "nvlink"
    if blocks is None or group >= n * k or near or request.share:
        return
    size, named = segment_of(group, k), f"--group={group}"
    if request.nodes is None or request.only:
        raise LeftToSlurm(f"{named}: segments need the number of nodes alone, as -N says it", 227)
    if n % size:
        raise LeftToSlurm(f"{named}: {n} nodes with {k} GPUs are no whole number of such groups", 227)
    if _mixed(blocks.block, fleet.fabric.domain):
        raise LeftToSlurm(f"{named}: a block of Slurm's has nodes of several NVLink domains", 227)
    if size > blocks.sizes[0]:
        raise LeftToSlurm(f"{named}: it needs {size} nodes of one NVLink domain, which has {blocks.sizes[0]}", 227)
    room = _room(blocks, allowed, size)
    if room * size < n:
        raise LeftToSlurm(
            f"{named}: NVLink domains have room for {room} of its {n // size} segments of {size} nodes", 227
        )
    raise InSegments(group, n, size, allowed)


def _room(blocks: Blocks, nodes: Bools, size: int) -> int:
    """Returns how many segments of so many nodes these nodes hold."""
    return int((np.bincount(blocks.block[nodes & (blocks.block != IN_NO_BLOCK)]) // size).sum())


def fitted(asked: InSegments, cluster: Cluster, limit: float) -> InSegments:
    """Returns the answer with the longest segments for which the nodes that are wholly free have `ROOM`.

    A job in few long segments leaves whole domains when it ends. One that has to wait gets the shortest: they are free
    soonest. Where too many nodes are down even for these, the answer says so.
    """
    blocks = cluster.fleet.fabric.blocks
    if blocks is None:
        return asked
    view = cluster.now(limit)
    whole = asked.allowed & view.open & (view.free == cluster.fleet.full)
    for size in range(blocks.sizes[0] // asked.nodes * asked.nodes, asked.nodes, -asked.nodes):
        if asked.count % size == 0 and _room(blocks, whole, size) * size >= ROOM * asked.count:
            return InSegments(asked.group, asked.count, size, asked.allowed)
    room = _room(blocks, asked.allowed & cluster.up, asked.nodes)
    if room * asked.nodes >= asked.count:
        return asked
    few = f"; nodes that are up have room for {room} of its {asked.count // asked.nodes}"
    return InSegments(asked.group, asked.count, asked.nodes, asked.allowed, few)


def _mixed(block: Ints, domain: Ints) -> bool:
    """Tells whether a segment, which lies in one block, may lie in several domains."""
    known = (block != IN_NO_BLOCK) & (domain != NOBODY)
    pairs = np.unique(np.stack([block, domain])[:, known], axis=1)
    return bool(np.unique(pairs[0]).size < pairs.shape[1])


def too_few(demand: Demand, fleet: Fleet, nodes: Bools, are: str) -> str:
    """Returns why a job waits, where no domain or block has enough of some nodes, which `are` up or free."""
    fabric, n = fleet.fabric, demand.n
    in_domain = demand.level == "nvlink" and fabric.at("nvlink").any
    if n < 2 or not (in_domain or fabric.blocks):
        return ""

    def most(some: Bools) -> int:
        here = np.flatnonzero(some)
        groups = fabric.domain[here] if in_domain or fabric.blocks is None else fabric.blocks.groups(n, here)
        return int(np.bincount(groups[groups != NOBODY], minlength=1).max())

    here = most(demand.candidates & nodes)
    if here >= n or most(demand.candidates) < n:
        return ""
    joins = "NVLink joins" if in_domain else "Slurm's blocks join"
    return f"{joins} at most {here} nodes for one job that are {are}, it needs {n}"
