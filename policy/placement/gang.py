# SPDX-License-Identifier: Apache-2.0
"""Chooses the nodes of a gang: near each other, none of them slow, and the ones that other jobs need least."""

from typing import NamedTuple

import numpy as np

from policy.cluster.view import View
from policy.formats.arrays import Bools, Floats
from policy.placement.speed import alike, node_scores
from policy.request.demand import Demand
from topology.network.fabric import NOBODY, Fabric, FabricLevel
from topology.sets.tables import Ints

LEVELS_OF_NODES: tuple[FabricLevel, ...] = ("nvlink", "leaf", "pod", "any")
"""Levels at which several nodes meet, from near to far; `nvlink` is a domain that spans nodes."""


class Gang(NamedTuple):
    """Nodes for a gang, ascending, their level, and the predicted time over the ideal time there."""

    cost: float
    nodes: list[int]
    level: str


def choose(demand: Demand, view: View, able: Ints, mask: int) -> Gang | None:
    """Returns the best n of the nodes that have these GPUs free; None where no group of the required level has n.

    The answer is also None where Slurm chooses by blocks and would not start the job on any n of these nodes.

    At each level it takes the group that holds the gang at the lowest score threshold, and among equal groups the one
    that the gang fills best. A level farther away is taken only if its speed makes up for the distance.
    """
    fleet, fabric = view.fleet, view.fleet.fabric
    slowest = node_scores(fleet, demand.app_class, able, mask)
    allowed = fabric.blocks.groups(demand.n, able) if fabric.blocks else None
    best: Gang | None = None
    for reach in LEVELS_OF_NODES:
        here = None if reach == "any" else fabric.at(reach).of[able]
        if allowed is not None:
            here = allowed if here is None else _of_both(here, allowed)
        inside = np.arange(able.size) if here is None else _fullest_group(demand, view, slowest, here)
        if inside is None:
            if reach == demand.level:
                break
            continue
        chosen = inside[_least_missed(demand, view, able[inside], slowest[inside])]
        nodes = np.sort(able[chosen]).tolist()
        level = fleet.fabric.level(nodes)
        factor = fleet.costs.locality(demand.model, demand.app_class, level, demand.gpus)
        gang = Gang(float(slowest[chosen].max()) * factor, nodes, level)
        if best is None or gang.cost < best.cost * (1 - alike(view)):
            best = gang
        # Where one group holds all of them, the levels farther away offer the same nodes.
        if reach == demand.level or inside.size == able.size:
            break
    return best


def nearness(n: int, fabric: Fabric, nodes: Ints, has: Bools) -> Ints:
    """Returns for each set of GPUs the nearest level at which n of the nodes have it, as a place in LEVELS_OF_NODES.

    `has` tells for each node and each set whether the node has it free.
    """
    near = np.full(has.shape[1], len(LEVELS_OF_NODES) - 1)
    for place in range(len(LEVELS_OF_NODES) - 2, -1, -1):
        groups = fabric.within(LEVELS_OF_NODES[place])
        if groups is not None:
            near[groups.share(n, nodes, has)] = place
    return near


def _of_both(groups: Ints, others: Ints) -> Ints:
    """Returns groups of the nodes that are in the same group of both kinds."""
    in_one = (groups == NOBODY) | (others == NOBODY)
    pairs = groups * (int(others.max(initial=0)) + 1) + others
    return np.where(in_one, NOBODY, np.unique(pairs, return_inverse=True)[1])


def _fullest_group(demand: Demand, view: View, slowest: Floats, groups: Ints) -> Ints | None:
    """Returns the indices of the nodes in the best group for the gang, None where no group holds it.

    The best group has the lowest score threshold; among equal groups it is the smallest.
    """
    known = np.flatnonzero(groups != NOBODY)
    here = groups[known]
    counts = np.bincount(here)
    able_groups = np.flatnonzero(counts >= demand.n)
    if not able_groups.size:
        return None
    # The score of the n-th fastest node of each group, for all groups at once.
    order = np.lexsort((slowest[known], here))
    first = np.cumsum(counts) - counts
    threshold = slowest[known[order[first[able_groups] + demand.n - 1]]]
    as_fast = able_groups[threshold <= threshold.min() * (1 + alike(view))]
    chosen = as_fast[counts[as_fast].argmin()]
    group: Ints = known[here == chosen]
    return group


def _least_missed(demand: Demand, view: View, able: Ints, slowest: Floats) -> Ints:
    """Picks n of the nodes that do not slow the gang: on few leaves, then empty, the fullest, the slowest.

    A gang runs at the speed of the node where neighbours disturb it most (Philly, table 5), so empty nodes come first.
    The GPUs that it leaves free on them are for small jobs, which go to the nodes with most GPUs in use.
    """
    threshold = np.partition(slowest, demand.n - 1)[demand.n - 1]
    fine = np.flatnonzero(slowest <= threshold * (1 + alike(view)))
    leaf = view.fleet.fabric.leaf[able[fine]]
    # Without a known leaf each node is as far from the others.
    with_it = np.where(leaf == NOBODY, 0, np.bincount(leaf + 1)[leaf + 1])
    left = np.bitwise_count(view.free[able[fine]])
    taken = view.free[able[fine]] != view.fleet.full[able[fine]]
    order = np.lexsort((able[fine], -slowest[fine], left, taken, leaf, -with_it))
    chosen: Ints = fine[order[: demand.n]]
    return chosen
