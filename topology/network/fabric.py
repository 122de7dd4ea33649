# SPDX-License-Identifier: Apache-2.0
"""Models the network of a cluster: NVLink domains, leaves and pods, as arrays over the nodes.

>>> fabric = Fabric.flat(("n1", "n2"))
>>> fabric.level([0]), fabric.level([0, 1])
('node', 'any')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from topology.model import Machine
from topology.network.blocks import IN_NO_BLOCK, Blocks
from topology.network.groups import NOBODY, Ints, LevelGroups
from topology.providers.slurm_fabric import Leaf, SlurmFabric

__all__ = ["LEVELS", "NOBODY", "Fabric", "FabricLevel"]

FabricLevel: TypeAlias = Literal["nvlink", "node", "leaf", "pod", "any"]

LEVELS: tuple[FabricLevel, ...] = ("nvlink", "node", "leaf", "pod", "any")
"""From the nearest to the farthest."""


_OF_SEVERAL: tuple[FabricLevel, ...] = ("nvlink", "leaf", "pod")
"""Levels at which a group has several nodes, and there may be several groups."""


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """Group numbers of each node, in node order; a leaf lies within one pod."""

    names: tuple[str, ...]
    domain: Ints
    """NVLink domain that spans nodes."""
    leaf: Ints
    pod: Ints
    domains: tuple[str, ...] = ()
    """Names of the groups, by number."""
    leaves: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Contradictions between the machines and Slurm's file, one sentence each, for people."""
    topology: str = field(default="", kw_only=True)
    """As topology.yaml calls it; empty for a file that has one only."""
    blocks: Blocks | None = field(default=None, kw_only=True)
    """Node combinations of topology/block; None if Slurm takes any nodes."""
    _levels: dict[FabricLevel, LevelGroups] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def flat(cls, names: Sequence[str]) -> Fabric:
        """Returns a fabric of which nothing is known."""
        unknown = np.full(len(names), NOBODY, np.int64)
        return cls(tuple(names), unknown, unknown, unknown)

    @classmethod
    def of(cls, machines: Iterable[Machine], slurm: SlurmFabric | None = None) -> Fabric:
        """Returns NVLink domains from the machines, leaves and pods from Slurm's file.

        Machines are believed about NVLink: topology/block is used for racks with NVLink between nodes and for
        racks without. So a block is an NVLink domain only where some of its nodes report one, all the same one;
        then it is the domain of its other nodes too, save those that were discovered without one.
        """
        machines = tuple(machines)
        names = tuple(machine.node for machine in machines)
        at = {name: i for i, name in enumerate(names)}
        leaves = [leaf for leaf in slurm.leaves if any(node in at for node in leaf.nodes)] if slurm else []
        conflicts: list[str] = []
        domain_of = [machine.domain for machine in machines]
        if slurm and slurm.kind == "block":
            for block in leaves:
                conflicts += _fill_block(block, [at[node] for node in block.nodes if node in at], machines, domain_of)
        leaf_of, pod_of = [""] * len(names), [""] * len(names)
        for leaf in leaves:
            for node in leaf.nodes:
                if node in at:
                    leaf_of[at[node]], pod_of[at[node]] = leaf.name, leaf.pod
        (domain, domains), (leaf_, leaf_names), (pod, pods) = map(_number, (domain_of, leaf_of, pod_of))
        if slurm and leaves:
            conflicts += _missing(names, leaf_, slurm.source)
            conflicts += _torn(domain, domains, leaf_, leaf_names, "leaf")
            conflicts += _torn(domain, domains, pod, pods, "pod")
        elif slurm and slurm.kind != "flat":
            conflicts.append(f"{slurm.source} names none of the {len(names)} nodes that have a topology file")
        topology = slurm.name if slurm else ""
        blocks = _blocks(slurm, at) if slurm and slurm.kind == "block" else None
        return cls(
            names, domain, leaf_, pod, domains, leaf_names, pods, tuple(conflicts), topology=topology, blocks=blocks
        )

    def over(self, names: Sequence[str]) -> Fabric:
        """Returns the same groups for these nodes in this order; of nodes that are not in it nothing is known."""
        at = {name: i for i, name in enumerate(self.names)}
        # NOBODY is the last place, and there stands NOBODY.
        place = np.array([at.get(name, NOBODY) for name in names], np.int64)
        domain, leaf, pod = (np.append(groups, NOBODY)[place] for groups in (self.domain, self.leaf, self.pod))
        blocks = self.blocks.over(place) if self.blocks else None
        return replace(self, names=tuple(names), domain=domain, leaf=leaf, pod=pod, blocks=blocks)

    def groups(self, level: FabricLevel) -> Ints:
        """Returns group number of each node at this level; at `nvlink` of domains that span nodes."""
        if level == "node":
            return np.arange(len(self.names))
        if level == "any":
            return np.zeros(len(self.names), np.int64)
        return {"nvlink": self.domain, "leaf": self.leaf, "pod": self.pod}[level]

    def at(self, level: FabricLevel) -> LevelGroups:
        """Returns the groups of nodes at this level, made once: node sets and plans ask the same object."""
        found = self._levels.get(level)
        if found is None:
            names = {"nvlink": self.domains, "leaf": self.leaves, "pod": self.pods}.get(level, ())
            found = self._levels[level] = LevelGroups(self.groups(level), names)
        return found

    def within(self, level: str) -> LevelGroups | None:
        """Returns the groups one of which has to hold several nodes at this level; None where any nodes will do."""
        groups = next((self.at(one) for one in _OF_SEVERAL if one == level), None)
        return groups if groups is not None and groups.any else None

    def level(self, nodes: Sequence[int]) -> FabricLevel:
        """Returns the nearest level that holds all GPUs of these nodes; `nvlink` here means a domain that spans nodes.

        Islands within a node are the node's own matter (topology.sets.subsets).
        """
        if len(set(nodes)) <= 1:
            return "nvlink" if len(nodes) and self.domain[nodes[0]] != NOBODY else "node"
        here = np.asarray(nodes)
        for level in _OF_SEVERAL:
            groups = self.groups(level)[here]
            if groups[0] != NOBODY and bool((groups == groups[0]).all()):
                return level
        return "any"


def _blocks(slurm: SlurmFabric, at: Mapping[str, int]) -> Blocks:
    block = np.full(len(at), IN_NO_BLOCK, np.int64)
    for number, leaf in enumerate(slurm.leaves):
        block[[at[node] for node in leaf.nodes if node in at]] = number
    return Blocks(slurm.block_sizes, block)


def _fill_block(
    block: Leaf, members: Sequence[int], machines: Sequence[Machine], domain_of: list[str]
) -> Iterable[str]:
    """Give a block's one NVLink domain to its nodes of which none is known; yield what speaks against it."""
    reported = {domain_of[i] for i in members} - {""}
    if len(reported) > 1:
        where = f"block {block.name} ({block.where})"
        yield f"{where}: its nodes are in {len(reported)} NVLink domains; write a block for each"
    if len(reported) != 1:
        return
    (domain,) = reported
    without = [i for i in members if not domain_of[i]]
    outside = [machines[i].node for i in without if machines[i].discovered]
    for i in without:
        if machines[i].discovered is None:
            domain_of[i] = domain
    if outside:
        yield (
            f"block {block.name} ({block.where}): {_some(outside)} reported no NVLink domain, its other nodes {domain}"
        )


def _number(names: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Returns numbers in the order of first appearance; the empty name is NOBODY."""
    numbers: dict[str, int] = {"": NOBODY}
    for name in names:
        numbers.setdefault(name, len(numbers) - 1)
    return np.array([numbers[name] for name in names], np.int64), tuple(numbers)[1:]


def _missing(names: Sequence[str], leaf: Ints, source: str) -> Iterable[str]:
    missing = [names[i] for i in np.flatnonzero(leaf == NOBODY).tolist()]
    if missing:
        yield f"{source} does not name {_some(missing)}; nothing is known about their leaf"


def _torn(domain: Ints, domains: Sequence[str], group: Ints, groups: Sequence[str], kind: str) -> Iterable[str]:
    """Yields domains that share only some nodes with a leaf or pod: one of the two is wrong, or cables cross."""
    both = (domain != NOBODY) & (group != NOBODY)
    pairs, shared = np.unique(np.stack([domain[both], group[both]]), axis=1, return_counts=True)
    in_domain = np.bincount(domain[both], minlength=len(domains))
    in_group = np.bincount(group[group != NOBODY], minlength=len(groups))
    torn = pairs[:, (shared < in_domain[pairs[0]]) & (shared < in_group[pairs[1]])]
    if torn.size:
        one, other = torn[:, 0].tolist()
        count = len(np.unique(torn[0]))
        yield (
            f"{count} NVLink {'domain lies' if count == 1 else 'domains lie'} across the border of a {kind},"
            f" the first is {domains[one]} and {kind} {groups[other]}"
        )


def _some(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else "")
