# SPDX-License-Identifier: Apache-2.0
"""Builds a simulated cluster: a fleet of nodes with leaves, pods, scores and costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policy.cluster import fit
from policy.cluster.allowed import SizedRoom
from policy.cluster.cost import CostModel
from policy.cluster.fleet import Fleet, build_fleet
from policy.cluster.view import View
from policy.formats.arrays import Floats
from policy.formats.slurm_facts import Memory, NodeFacts, PartitionFacts
from policy.request.demand import A_YEAR, ANY_SPREAD, Demand, Size
from policy.simulate.jobs import TraceJob
from topology.model import Gpu, Link, Machine
from topology.network.fabric import NOBODY, Fabric
from topology.sets.tables import Ints

PARTITION = "gpu"

_LINK_GBPS = 100.0
_CPUS_PER_GPU, _MB_PER_GPU = 8, 65_536


@dataclass(frozen=True, slots=True)
class Layout:
    """The size of the cluster, and its wiring."""

    nodes: int
    gpus_per_node: int
    nodes_per_leaf: int = 0
    """0: there are no leaves, so two nodes meet at level `any`."""
    leaves_per_pod: int = 0
    """0: with leaves, all of them are one pod."""


def all_to_all(node: str, gpus: int) -> Machine:
    """Returns a machine whose GPUs are all joined through a switch."""
    return Machine(
        node,
        "gpu",
        tuple(Gpu(position, position, f"GPU-{node}-{position}") for position in range(gpus)),
        tuple(Link(a, b, 1, _LINK_GBPS, "switch") for a in range(gpus) for b in range(a + 1, gpus)),
    )


def build(
    layout: Layout,
    scores: Mapping[str, Floats] | None = None,
    costs: CostModel | None = None,
    machine: Machine | None = None,
) -> Fleet:
    """Builds a fleet of equal nodes.

    `scores` are tables of nodes x GPUs by class; `machine` is the one that all nodes are copies of.
    """
    pattern = machine or all_to_all("n0", layout.gpus_per_node)
    names = [f"n{number}" for number in range(layout.nodes)]
    # One machine object serves all nodes, because placement uses its shape only.
    return build_of(dict.fromkeys(names, pattern), fabric_of(layout, names), scores, costs)


def build_of(
    machines: Mapping[str, Machine],
    fabric: Fabric,
    scores: Mapping[str, Floats] | None = None,
    costs: CostModel | None = None,
) -> Fleet:
    """Builds a fleet of these nodes, which may be of several kinds; rows of `scores` have the width of the widest."""
    facts = [
        NodeFacts(
            name=name,
            cpus=_CPUS_PER_GPU * machine.size,
            cpus_used=0,
            mem=_MB_PER_GPU * machine.size,
            mem_used=0,
            threads=1,
            up=True,
            completing=False,
            gpus=machine.size,
            loose=0,
            seats=machine.size,
            gpus_used=0,
            seats_used=0,
            partitions=frozenset({PARTITION}),
        )
        for name, machine in machines.items()
    ]
    partition = PartitionFacts(PARTITION, default=True)
    fleet = build_fleet(facts, [partition], machines, Memory(), memory_counts=False, fabric=fabric, costs=costs)
    return replace(fleet, scores=dict(scores or {}))


def fabric_of(layout: Layout, names: Sequence[str]) -> Fabric:
    """Returns leaves and pods of so many nodes each, in the nodes' order."""
    place = np.arange(layout.nodes, dtype=np.int64)
    unknown = np.full(layout.nodes, NOBODY, np.int64)
    if not layout.nodes_per_leaf:
        return Fabric(tuple(names), unknown, unknown, unknown)
    leaf = place // layout.nodes_per_leaf
    pod = leaf // layout.leaves_per_pod if layout.leaves_per_pod else np.zeros(layout.nodes, np.int64)
    return Fabric(
        tuple(names),
        unknown,
        leaf,
        pod,
        leaves=tuple(f"leaf{number}" for number in range(int(leaf[-1]) + 1)),
        pods=tuple(f"pod{number}" for number in range(int(pod[-1]) + 1)),
    )


def view(fleet: Fleet, free: Ints, up: "np.ndarray[tuple[int], np.dtype[np.bool_]] | None" = None) -> View:
    """Returns a view with these free GPUs; CPUs and memory never run out in the simulation."""
    everywhere = np.ones(len(fleet.names), np.bool_)
    return View(fleet, free, fleet.cpus, fleet.mem, everywhere if up is None else up, everywhere)


def demand_of(job: TraceJob, fleet: Fleet) -> Demand:
    """Returns the demand of a job; without a number of nodes its GPUs may lie anywhere."""
    nodes = job.nodes or (ANY_SPREAD if job.gpus > 1 else 1)
    size = Size(nodes, job.gpus // (job.nodes or 1), 0, 0)
    limit = A_YEAR if job.limit is None else int(job.limit)
    found = fit.demand([SizedRoom(size, fleet.ready)], limit, app_class=job.app_class)
    return replace(found, level="any", model=job.model, remaining=job.work)
