# SPDX-License-Identifier: Apache-2.0
"""The first moments at which nodes have enough for a job, read off a snapshot's timelines."""

import numpy as np

from policy.cluster.snapshot import Cluster
from policy.formats.arrays import FAR, Bools, Floats
from policy.request.demand import Demand
from topology.network.fabric import NOBODY
from topology.sets.tables import Ints

MOST_COMPARED = 200_000
"""Most GPU sets, times moments, that are compared on all nodes at once to find those that several have in common."""


def enough_alone(cluster: Cluster, demand: Demand) -> tuple[Ints, Bools]:
    """Returns the nodes that are up, and for each column of their timelines whether a node has enough by itself."""
    fleet = cluster.fleet
    nodes = np.flatnonzero(demand.candidates & cluster.up)
    gpus, times = cluster.gpus[nodes], cluster.times[nodes]
    fits = fleet.tables.look_up(demand.k, demand.level, fleet.offset[nodes, None] + gpus) >= 0
    if demand.cpus is None:
        fits &= (gpus == fleet.full[nodes, None]) & (cluster.cpus[nodes] >= fleet.cpus[nodes, None])
    else:
        fits &= cluster.cpus[nodes] >= demand.cpus
    fits &= cluster.mem[nodes] >= (fleet.mem[nodes, None] if demand.mem is None else demand.mem)
    fits &= np.isfinite(times) & (times + demand.limit <= cluster.reserved_from[nodes, None])
    return nodes, fits


def first_times(times: Floats, fits: Bools) -> Floats:
    """Returns the first time of each node's timeline, its second axis, that fits; FAR where none does."""
    first: Floats = np.where(fits, times, FAR).min(axis=1, initial=FAR)
    return first


def first_moments(cluster: Cluster, demand: Demand) -> tuple[Floats, Bools]:
    """Returns the first moment at which each node has enough by itself, and if the job opens the node then.

    Nodes that never have enough are left out. To open a node is to take a part of it when it is wholly free.
    """
    fleet = cluster.fleet
    nodes, fits = enough_alone(cluster, demand)
    ever, place = fits.any(axis=1), (nodes, fits.argmax(axis=1))
    opens = (cluster.gpus[place] == fleet.full[nodes]) & (fleet.size[nodes] > demand.k)
    return np.compress(ever, cluster.times[place]), np.compress(ever, opens)


def first_in_common(cluster: Cluster, demand: Demand, nodes: Ints, fits: Bools) -> float:
    """Returns the moment before which no n nodes near each other have the same k GPUs; 0 for too many sets.

    Most searches end there, with the first place that they try.
    """
    fleet = cluster.fleet
    kinds = nodes[np.unique(fleet.offset[nodes], return_index=True)[1]].tolist()
    sets = [fleet.tables.ranked(machine, demand.k) for node in kinds if (machine := fleet.machines[node])]
    masks = np.unique(np.concatenate([*sets, np.zeros(0, np.int64)]))
    if fits.size * masks.size > MOST_COMPARED:
        return 0.0
    has = fits[:, :, None] & (cluster.gpus[nodes][:, :, None] & masks == masks)
    groups = fleet.fabric.within(demand.level) or fleet.fabric.at("any")
    return groups.nth(demand.n, nodes, first_times(cluster.times[nodes][:, :, None], has))


def apart_from_gangs(cluster: Cluster, demand: Demand) -> Demand | None:
    """Returns the demand of a job on one whole node, without nodes of one leaf that come free at the same moment.

    None for other jobs, and if there are no such nodes. One job runs on these nodes now. If the next job on several
    nodes gets them, it is as close together, and no other job has to be waited for.
    """
    fleet = cluster.fleet
    if demand.n > 1 or demand.share is not None or not demand.k:
        return None
    whole = demand.candidates & (fleet.fabric.leaf != NOBODY)
    if demand.cpus is not None:
        whole &= fleet.size == demand.k
    here = np.flatnonzero(whole & cluster.up)
    free = cluster.gpus[here] == fleet.full[here, None]
    moments = np.where(free, cluster.times[here], FAR).min(axis=1, initial=FAR)
    busy = (moments > cluster.at) & np.isfinite(moments)
    here, moments = here[busy], moments[busy]
    if not here.size:
        return None
    leaves = fleet.fabric.leaf[here]
    order = np.lexsort((moments, leaves))
    here, moments, leaves = here[order], moments[order], leaves[order]
    as_next = (moments[1:] == moments[:-1]) & (leaves[1:] == leaves[:-1])
    together = here[np.append(as_next, [False]) | np.append([False], as_next)]
    return demand.without(together) if together.size else None
