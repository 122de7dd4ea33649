# SPDX-License-Identifier: Apache-2.0
"""The fleet: data that stays the same between two readings, that is nodes, machines, partitions and site rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from policy.cluster.cost import CostModel
from policy.formats.arrays import CUT, Bools, Floats
from policy.formats.slurm_facts import Memory, NodeFacts, PartitionFacts
from policy.formats.slurm_syntax.excluded_nodes import Others
from policy.request.counted import PREFIX
from policy.request.settings import Sharing
from topology.model import Machine
from topology.network.blocks import IN_NO_BLOCK
from topology.network.fabric import NOBODY, Fabric
from topology.scores import Score
from topology.sets.tables import MOST_GPUS, Ints, SetTables


@dataclass(frozen=True, slots=True)
class Fleet:
    """Data that stays the same between two readings; arrays are in node order."""

    names: tuple[str, ...]
    index: Mapping[str, int]
    machines: "tuple[Machine | None, ...]"
    cpus: Ints
    mem: Ints
    threads: Ints
    size: Ints
    offset: Ints
    ready: Bools
    """Nodes whose GPUs can be pinned."""
    full: Ints = field(init=False)
    """Each node's mask with all GPUs free."""
    kind: Ints = field(init=False)
    """Number of each node's kind: nodes of one kind have the same machine model, GPUs and CPUs."""
    others: Others = field(init=False)
    """The nodes that pinned jobs exclude; writes their host list without given nodes."""
    leaf_order: Ints = field(init=False)
    """Rank of each node's leaf in the order in which jobs on pieces of nodes fill the leaves."""
    has_leaves: bool = field(init=False)
    """True if the leaf of any node is known."""
    not_ready: Mapping[int, str]
    """Reason why a GPU node cannot be placed on, for each node that is not ready."""
    gpu_counts: Ints
    """Number of GPUs that Slurm knows, also on nodes that cannot be placed on."""
    seats: Bools
    features: Mapping[str, Bools]
    members: Mapping[str, Bools]
    partitions: "Mapping[str, PartitionFacts]"
    default_partition: str | None
    in_all_partitions: bool
    """True if a job for several partitions must be able to run in each of them."""
    memory: "Memory"
    memory_counts: bool
    tables: SetTables
    fabric: Fabric
    """NVLink domain, leaf and pod of each node."""
    costs: CostModel = field(default_factory=CostModel)
    scores: "Mapping[str, Floats]" = field(default_factory=dict)
    """Score of each GPU by application class: rows are nodes, columns positions. All 1 for a class without a table."""
    shares: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Nodes whose GPUs Slurm counts in percent."""
    gpu_mem: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """MiB of each node's smallest GPU; 0 if not known, CUT if MIG has cut one of its GPUs."""
    sharing: Sharing = field(default_factory=Sharing)
    """The site's rules for packed jobs."""
    skipped: frozenset[str] = frozenset()
    """Partitions that Berth does not touch."""
    weights: Ints | None = None
    """Slurm's Weight of each node; lower weights are taken first. None if all are equal or weights do not count."""
    cpus_kept: Ints | None = None
    """CPUs per GPU of each node that only jobs with GPUs get; None if no node keeps any."""
    cpus_by_gpu: bool = False
    """True if jobs get CPUs for each of their GPUs without asking (DefCpuPerGPU)."""
    one_task_per_core: bool = False
    splits_limited: bool = False
    """True if a limit in slurmdbd may refuse a job on more nodes than it needs."""
    counted: frozenset[str] = frozenset()
    """GPU models that the site counts for limits and bills, as features of nodes."""
    plain: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Nodes whose GPUs have no GRES types of their own: Slurm alone places jobs there."""
    models: tuple[frozenset[str], ...] = ()
    """GRES types of each node's GPUs, where they are those of models: limits and bills count by them."""
    nodes_alone: bool = False
    """True if a pin names nodes alone, and Slurm chooses the GPUs there (`layout = "plain"`)."""
    unnamed: frozenset[str] = frozenset()
    """Nodes that no job excludes by name, as Slurm may soon forget them."""

    def gpu_mem_for_shares(self, node: int) -> int:
        """Returns the MiB of each GPU of a node that packed jobs may be granted; 0 if not known."""
        return max(0, int(self.gpu_mem[node]) - self.sharing.gpu_mem_reserve)

    def having(self, condition: str) -> "Bools":
        """Returns the nodes with a feature, or with one of several that `|` joins."""
        found = np.zeros(len(self.names), np.bool_)
        for name in condition.split("|"):
            if name in self.features:
                found |= self.features[name]
        return found

    def licences(self, nodes: Sequence[str], on_each: int) -> dict[str, int]:
        """Returns the licences, by model, for `on_each` GPUs on each of these nodes; those that left count for none."""
        places = [self.index[name] for name in nodes if name in self.index]
        found = {model: int(self.features[model][places].sum()) for model in self.counted if model in self.features}
        return {f"{PREFIX}{model}": count * on_each for model, count in found.items() if count}

    def models_at(self, node: int) -> frozenset[str]:
        """Returns the GPU models of a node: by Slurm's GRES types of its GPUs, else by its topology file."""
        machine = self.machines[node]
        named = self.models[node] if self.models else frozenset()
        return named or (frozenset() if machine is None else frozenset({machine.model}))

    def counted_model(self, nodes: Bools) -> str | None:
        """Returns the counted model of all GPUs of these nodes, empty if they have none; None if they have several."""
        with_gpus = nodes & (self.gpu_counts > 0)
        if not with_gpus.any():
            return ""
        found = {model: self.features[model][with_gpus] for model in self.counted if model in self.features}
        present = [model for model, having in found.items() if having.any()]
        if not present:
            return ""
        return present[0] if len(present) == 1 and found[present[0]].all() else None

    def __post_init__(self) -> None:
        full = np.where(self.ready, (np.int64(1) << self.size) - 1, 0)
        full.flags.writeable = False
        object.__setattr__(self, "full", full)
        object.__setattr__(self, "kind", _kinds(self.machines, self.cpus))
        object.__setattr__(self, "leaf_order", leaf_order(self.fabric, self.scores))
        object.__setattr__(self, "has_leaves", bool((self.fabric.leaf != NOBODY).any()))
        object.__setattr__(self, "others", Others([name for name in self.names if name not in self.unnamed]))


def build_fleet(
    nodes: "Sequence[NodeFacts]",
    partitions: "Sequence[PartitionFacts]",
    machines: "Mapping[str, Machine]",
    memory: "Memory",
    *,
    memory_counts: bool,
    in_all_partitions: bool = False,
    fabric: Fabric | None = None,
    costs: CostModel | None = None,
    sharing: Sharing | None = None,
) -> Fleet:
    """Joins Slurm's facts about the nodes with their topology; the fabric may also have other nodes."""
    names = tuple(node.name for node in nodes)
    known = fabric.over(names) if fabric else Fabric.flat(names)
    found = ((place, _not_ready(node, machines.get(node.name))) for place, node in enumerate(nodes))
    not_ready = {place: reason for place, reason in found if reason}
    if known.blocks is not None:
        for place in np.flatnonzero(known.blocks.block == IN_NO_BLOCK).tolist():
            if nodes[place].gpus:
                why = f"{names[place]} is in no block, and Slurm's topology/block starts nothing there"
                not_ready.setdefault(place, why)
    usable = [machines[node.name] if node.gpus and place not in not_ready else None for place, node in enumerate(nodes)]
    tables = SetTables(machine for machine in usable if machine is not None)
    every_feature = {feature for node in nodes for feature in node.features}
    return Fleet(
        names=names,
        index={name: place for place, name in enumerate(names)},
        machines=tuple(usable),
        cpus=np.array([node.cpus for node in nodes], np.int64),
        mem=np.array([node.mem for node in nodes], np.int64),
        threads=np.array([max(1, node.threads) for node in nodes], np.int64),
        size=np.array([machine.size if machine else 0 for machine in usable], np.int64),
        offset=np.array([tables.offset(machine) for machine in usable], np.int64),
        ready=np.array([machine is not None for machine in usable], np.bool_),
        not_ready=not_ready,
        gpu_counts=np.array([node.gpus + node.loose for node in nodes], np.int64),
        seats=np.array([node.seats >= node.gpus > 0 for node in nodes], np.bool_),
        features={name: np.array([name in node.features for node in nodes], np.bool_) for name in every_feature},
        members={one.name: np.array([one.name in node.partitions for node in nodes], np.bool_) for one in partitions},
        partitions={one.name: one for one in partitions},
        default_partition=next((one.name for one in partitions if one.default), None),
        in_all_partitions=in_all_partitions,
        memory=memory,
        memory_counts=memory_counts,
        tables=tables,
        fabric=known,
        costs=costs or CostModel(),
        plain=np.array([node.loose > 0 and not node.gpus for node in nodes], np.bool_),
        models=tuple(node.models for node in nodes),
        shares=np.array([node.shards >= node.gpus > 0 for node in nodes], np.bool_),
        gpu_mem=np.array([_gpu_mem(machine) for machine in usable], np.int64),
        sharing=sharing or Sharing(),
        weights=_weights(nodes),
        cpus_kept=np.array([node.cpus_kept for node in nodes], np.int64)
        if any(node.cpus_kept for node in nodes)
        else None,
    )


def scores_on(fleet: Fleet, scores: Iterable[Score]) -> dict[str, Floats]:
    """Returns the scores of each class, rows are nodes and columns positions; a GPU without one counts as typical.

    The UUID says which GPU is meant: one that was changed for another begins anew.
    """
    where = {
        gpu.uuid: (place, gpu.position)
        for place, machine in enumerate(fleet.machines)
        if machine is not None
        for gpu in machine.gpus
    }
    tables: dict[str, Floats] = {}
    width = int(fleet.size.max(initial=0))
    for score in scores:
        if score.uuid:
            found = where.get(score.uuid)
        else:
            found = (fleet.index[score.node], score.position) if score.node in fleet.index else None
        if found is not None and found[1] < width:
            table = tables.setdefault(score.app_class, np.ones((len(fleet.names), width)))
            table[found] = score.score
    return tables


def _kinds(machines: "Sequence[Machine | None]", cpus: Ints) -> Ints:
    seen: dict[tuple[str, int, int], int] = {}
    kinds = [
        seen.setdefault((machine.model, machine.size, count) if machine else ("", 0, 0), len(seen))
        for machine, count in zip(machines, cpus.tolist(), strict=True)
    ]
    return np.array(kinds, np.int64)


def _gpu_mem(machine: "Machine | None") -> int:
    if machine is None or not machine.gpus:
        return 0
    return CUT if any(gpu.mig for gpu in machine.gpus) else min(gpu.memory_mib for gpu in machine.gpus)


def _not_ready(node: "NodeFacts", machine: "Machine | None") -> str | None:
    if node.loose:
        return f"node {node.name} has GPUs without a GRES type of their own"
    if not node.gpus:
        return None
    if machine is None:
        return f"no topology file for {node.name}"
    if machine.size != node.gpus:
        return f"the topology file of {node.name} has {machine.size} GPUs where Slurm has {node.gpus}"
    if machine.size > MOST_GPUS:
        return f"node {node.name} has more than {MOST_GPUS} GPUs"
    return None


def leaf_order(fabric: "Fabric", scores: "Mapping[str, Floats]") -> "Ints":
    """Returns the rank of each node's leaf in the order in which jobs on pieces of nodes fill the leaves."""
    _, own = np.unique(fabric.leaf, return_inverse=True)
    slowest = np.zeros(own.max(initial=-1) + 1)
    for table in scores.values():
        np.maximum.at(slowest, own, table.max(axis=1, initial=0.0))
    place = np.empty(slowest.size, np.int64)
    place[np.argsort(-slowest, kind="stable")] = np.arange(slowest.size)
    return place[own]


def _weights(nodes: "Sequence[NodeFacts]") -> Ints | None:
    weights = np.array([node.weight for node in nodes], np.int64)
    return weights if np.unique(weights).size > 1 else None
