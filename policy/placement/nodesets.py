# SPDX-License-Identifier: Apache-2.0
"""Node sets: the nodes, near each other, that could hold a job now, in the order in which berthd would take them.

Placement finds them: the policy is asked for a place, then again without the group of nodes of its last answer, until
it has none. The policy compares GPUs by tables, which are compiled from the networkx graph of each kind of machine.

>>> from topology.machines import machine
>>> pairs = [machine("a6000-pairs", name) for name in ("n1", "n2")]
>>> sets = NodeSets(pairs, Fabric.of(pairs), free=[0b0110, 0b1100])
>>> [(one.names, one.gpus) for one in sets.at("node", gpus=2)]
[(('n2',), (2, 3)), (('n1',), (1, 2))]
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from policy.cluster.fleet import Fleet, build_fleet
from policy.cluster.view import View
from policy.formats.arrays import Bools
from policy.formats.errors import NotNow
from policy.formats.slurm_facts import Memory, NodeFacts
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.request.demand import A_YEAR, Demand
from topology.errors import QuestionError
from topology.hostlist import fold
from topology.model import Machine
from topology.network.fabric import NOBODY, Fabric, FabricLevel
from topology.sets.tables import Ints
from topology.sets.wiring import positions


@dataclass(frozen=True, slots=True)
class NodeSet:
    """Nodes that share a level and together could hold the job now."""

    name: str
    """The domain's, leaf's or pod's name, a node's where the set is one node, empty at level `any`."""
    nodes: "Ints"
    """Nodes that could take a part of the job, ascending."""
    free: int
    """Free GPUs of these nodes."""
    needed: int
    """The fewest nodes that suffice."""
    mask: int
    """The best GPUs, the same on each node; 0 if a job may have another number of GPUs on each node."""
    fabric: Fabric = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the nodes."""
        return tuple(self.fabric.names[node] for node in self.nodes.tolist())

    @property
    def hostlist(self) -> str:
        """Returns the names of the nodes folded, `n[1-4]`."""
        return fold(self.names)

    @property
    def gpus(self) -> tuple[int, ...]:
        """Returns the positions of the best GPUs."""
        return positions(self.mask)


class NodeSets:
    """Answers for one cluster and the GPUs that are free on it."""

    def __init__(self, machines: "Sequence[Machine]", fabric: Fabric, free: Sequence[int]) -> None:
        """Takes machines and free GPUs in the fabric's order; a node that may not be used has none free."""
        self._fabric = fabric
        fleet = _fleet_of(machines, fabric)
        masks = np.array([mask & full for mask, full in zip(free, fleet.full.tolist(), strict=True)], np.int64)
        everywhere = np.ones(len(machines), np.bool_)
        self._view = View(fleet, masks, fleet.cpus, fleet.mem, everywhere, everywhere)

    def at(self, level: FabricLevel, gpus: int, per_node: int | None = None) -> Iterator[NodeSet]:
        """Yields the sets of nodes that share a level and could hold the job, the best first.

        With `per_node` the job takes so many GPUs on each of its nodes, the same ones on each.
        """
        if gpus < 1 or (per_node is not None and (per_node < 1 or gpus % per_node)):
            raise QuestionError(
                f"{gpus} GPUs, {per_node or 'any number'} a node, are no demand; give whole nodes' worth"
            )
        if per_node in (None, gpus):
            alone = self._alone(level)
            for berth, node in self._places(self._view, 1, gpus, "nvlink" if level == "nvlink" else "any", alone):
                yield self._set(berth.names[0], alone[node : node + 1], 1, berth.mask)
            if level != "node":
                yield from self._any_nodes(level, gpus, per_node or 1)
        elif level != "node":
            yield from self._gangs(level, gpus // (per_node or 1), per_node or 1)

    def count(self, level: FabricLevel, gpus: int, per_node: int | None = None) -> int:
        """Returns the number of these sets."""
        if per_node not in (None, gpus):
            return sum(1 for _ in self.at(level, gpus, per_node))
        fleet, view = self._view.fleet, self._view
        alone = (fleet.tables.look_up(gpus, level, fleet.offset + view.free) >= 0) & (self._alone(level) != NOBODY)
        groups = [] if level == "node" else list(self._any_nodes(level, gpus, per_node or 1))
        return int(np.count_nonzero(alone)) + len(groups)

    def _alone(self, level: FabricLevel) -> "Ints":
        """Returns the number of each node that is a set of its own at this level; NOBODY for all others."""
        each = np.arange(len(self._fabric.names))
        if level == "nvlink":
            return np.where(self._fabric.domain == NOBODY, each, NOBODY)
        return each if level == "node" else np.full(each.size, NOBODY)

    def _gangs(self, level: FabricLevel, n: int, k: int) -> Iterator[NodeSet]:
        """Yields the groups of which n nodes have the same k GPUs free."""
        groups, free, view = self._fabric.groups(level), self._view.free, self._view
        if level in {"leaf", "pod"}:
            # An NVLink domain across the border of a leaf is nearer than the leaf, and in none.
            fabric = replace(self._fabric, domain=np.full(free.size, NOBODY))
            view = replace(view, fleet=replace(view.fleet, fabric=fabric))
        for berth, group in self._places(view, n, k, level, groups):
            nodes = np.flatnonzero((groups == group) & (free & berth.mask == berth.mask))
            yield self._set(self._name(level, group), nodes, n, berth.mask)

    @staticmethod
    def _places(view: View, n: int, k: int, level: str, groups: "Ints") -> Iterator[tuple[Berth, int]]:
        """Yields the policy's places, each in another group of nodes than those before it."""
        candidates: Bools = groups != NOBODY
        policy = BerthPolicy()
        demand = Demand(n, k, cpus=0, mem=0, level=level, limit=A_YEAR, candidates=candidates)
        try:
            while candidates.any():
                berth = policy.place(replace(demand, candidates=candidates), view)
                group = int(groups[berth.nodes[0]])
                yield berth, group
                candidates = candidates & (groups != group)
        except NotNow:
            return

    def _any_nodes(self, level: FabricLevel, gpus: int, least: int) -> Iterator[NodeSet]:
        """Yields the groups for a job that may have `least` or more GPUs on each node, fewest left over first."""
        groups, counts = self._fabric.at(level), np.bitwise_count(self._view.free).astype(np.int64)
        counts = np.where(counts >= least, counts, 0)
        total = groups.sums(counts)
        able = np.flatnonzero(total >= gpus)
        for group in able[np.argsort(total[able], kind="stable")].tolist():
            nodes = groups.members(group)
            nodes = nodes[counts[nodes] > 0]
            most_first = np.cumsum(np.sort(counts[nodes])[::-1])
            yield self._set(self._name(level, group), nodes, int(np.searchsorted(most_first, gpus)) + 1, 0)

    def _name(self, level: FabricLevel, group: int) -> str:
        return "" if level == "any" else self._fabric.at(level).names[group]

    def _set(self, name: str, nodes: "Ints", needed: int, mask: int) -> NodeSet:
        return NodeSet(name, nodes, int(np.bitwise_count(self._view.free[nodes]).sum()), needed, mask, self._fabric)


def _fleet_of(machines: "Sequence[Machine]", fabric: Fabric) -> Fleet:
    """Returns a fleet of machines about which only their GPUs are asked."""
    facts = [
        NodeFacts(
            name,
            1,
            0,
            1,
            0,
            1,
            up=True,
            completing=False,
            gpus=machine.size,
            loose=0,
            seats=0,
            gpus_used=0,
            seats_used=0,
        )
        for name, machine in zip(fabric.names, machines, strict=True)
    ]
    by_name = dict(zip(fabric.names, machines, strict=True))
    return build_fleet(facts, [], by_name, Memory(), memory_counts=False, fabric=fabric)
