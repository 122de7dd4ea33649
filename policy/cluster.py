"""The cluster as the core sees it: a `Fleet` of what does not change, and a `Cluster`, the picture of one moment.

Both are immutable. A picture holds, for each node, a short *timeline*: what is free from each moment on and stays
free, as far as time limits and planned starts tell. Its columns only ever gain, so "when does this fit" is the
first column that fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from policy.cost import CostModel
from policy.others import Others
from policy.pieces import leaf_order
from policy.placement.tables import MOST_GPUS, Ints, SetTables
from policy.settings import Sharing
from policy.sharing.shelves import Shelves
from topology.blocks import IN_NO_BLOCK
from topology.fabric import Fabric

if TYPE_CHECKING:
    from policy.facts import Memory, NodeFacts, PartitionFacts
    from policy.sharing.fragmentation import Shape
    from policy.sharing.neighbours import Neighbours
    from policy.sharing.sharers import Sharers
    from policy.sharing.tenants import Mate, Tenants
    from topology.model import Machine

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

COLUMNS = 16
"""Moments kept for each node; further ones are merged into the next, which only makes estimates later."""

FAR = float("inf")

CUT = -1
"""In place of a GPU's memory: MIG has cut it, and packed jobs cannot use it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What stays the same between two readings; arrays are in node order."""

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
    others: Others = field(init=False)
    """The nodes that pinned jobs exclude, to be told without some."""
    leaf_order: Ints = field(init=False)
    """Each node's leaf as its place in the order in which pieces of nodes fill them."""
    not_ready: Mapping[str, str]
    """Why each other GPU node cannot be placed on."""
    gpu_counts: Ints
    """GPUs that Slurm knows, also on nodes that cannot be placed on."""
    seats: Bools
    features: Mapping[str, Bools]
    members: Mapping[str, Bools]
    partitions: "Mapping[str, PartitionFacts]"
    default_partition: str | None
    in_all_partitions: bool
    """Whether a job for several partitions must be able to run in each of them."""
    memory: "Memory"
    memory_counts: bool
    tables: SetTables
    fabric: Fabric
    """Which NVLink domain, leaf and pod each node is in."""
    costs: CostModel = field(default_factory=CostModel)
    scores: "Mapping[str, Floats]" = field(default_factory=dict)
    """For an application class, the score of each GPU: rows are nodes, columns positions. Without a row all are 1."""
    shares: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Nodes whose GPUs Slurm counts in percent."""
    gpu_mem: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """MiB of each node's smallest GPU; 0 where nobody knows, CUT where MIG has cut one of them."""
    sharing: Sharing = field(default_factory=Sharing)
    """The site's rules for packed jobs."""
    skipped: frozenset[str] = frozenset()
    """Partitions that Berth does not touch."""
    weights: Ints | None = None
    """Slurm's Weight of each node, which is taken first where it is less; None where all are alike or none counts."""
    cpus_kept: Ints | None = None
    """CPUs of each node that its jobs get for each of their GPUs and no others do; None where no node keeps any."""
    cpus_by_gpu: bool = False
    """Whether jobs get CPUs for each of their GPUs without asking (DefCpuPerGPU)."""
    one_task_per_core: bool = False
    counted: frozenset[str] = frozenset()
    """GPU models that the site counts for limits and bills, as features of nodes."""
    unnamed: frozenset[str] = frozenset()
    """Nodes that no job excludes by name, for Slurm may soon know them no more."""

    def scores_of(self, app_class: str) -> "Floats | None":
        """The scores that count for a class; None where all GPUs count as equal."""
        return self.scores.get(app_class)

    def gpu_mem_for_shares(self, node: int) -> int:
        """MiB of each GPU of a node that packed jobs may be granted; 0 where nobody knows."""
        return max(0, int(self.gpu_mem[node]) - self.sharing.gpu_mem_reserve)

    def __post_init__(self) -> None:
        full = np.where(self.ready, (np.int64(1) << self.size) - 1, 0)
        full.flags.writeable = False
        object.__setattr__(self, "full", full)
        object.__setattr__(self, "leaf_order", leaf_order(self.fabric, self.scores))
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
    by_weight: bool = True,
) -> Fleet:
    """Join what Slurm says about the nodes with their topology; the fabric may be one of other nodes too."""
    names = tuple(node.name for node in nodes)
    known = fabric.over(names) if fabric else Fabric.flat(names)
    not_ready = {node.name: reason for node in nodes if (reason := _not_ready(node, machines.get(node.name)))}
    if known.blocks is not None:
        for place in np.flatnonzero(known.blocks.block == IN_NO_BLOCK).tolist():
            if nodes[place].gpus:
                why = f"{names[place]} is in no block, and Slurm's topology/block starts nothing there"
                not_ready.setdefault(names[place], why)
    usable = [machines[node.name] if node.gpus and node.name not in not_ready else None for node in nodes]
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
        shares=np.array([node.shards >= node.gpus > 0 for node in nodes], np.bool_),
        gpu_mem=np.array([_gpu_mem(machine) for machine in usable], np.int64),
        sharing=sharing or Sharing(),
        weights=_weights(nodes) if by_weight else None,
        cpus_kept=np.array([node.cpus_kept for node in nodes], np.int64)
        if any(node.cpus_kept for node in nodes)
        else None,
    )


def _weights(nodes: "Sequence[NodeFacts]") -> Ints | None:
    weights = np.array([node.weight for node in nodes], np.int64)
    return weights if np.unique(weights).size > 1 else None


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


@dataclass(frozen=True, slots=True)
class View:
    """What is free at one moment: all that a placement policy needs to know."""

    fleet: Fleet
    free: Ints
    cpus: Ints
    mem: Ints
    open: Bools
    """Nodes that take jobs at that moment, for as long as the job may run."""
    quiet: Bools
    """Nodes without a job in its epilog: those start a job at once."""
    crowded: bool = False
    """Whether most GPUs are taken: what one job leaves, another takes."""

    def with_free(self, free: Ints) -> "View":
        """The same moment with other GPUs free."""
        return replace(self, free=free)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The picture of one moment. Rows are nodes; columns of the timelines are moments, ascending."""

    fleet: Fleet
    at: float
    up: Bools
    quiet: Bools
    times: Floats
    gpus: Ints
    cpus: Ints
    mem: Ints
    gpus_now: Ints
    """Free at this moment, though perhaps planned for a job that waits."""
    cpus_now: Ints
    mem_now: Ints
    hole_until: Floats
    """When the first planned job starts on the node; before that a short job fits in."""
    reserved_from: Floats
    pieces: Ints
    """GPUs of each node that are held by jobs on a piece of it."""
    pieces_wait: int = 0
    """GPUs that jobs on a piece of a node wait for."""
    waiting: int = 0
    """Pinned jobs that wait."""
    crowded: bool = False
    """Whether most GPUs of the cluster are taken."""
    tenants: "dict[int, Tenants]" = field(default_factory=dict)
    """For nodes with shared GPUs, or some that are planned to be: who holds what part of them."""
    shapes: "tuple[Shape, ...]" = ()
    """What the usual jobs ask for, as far as seen."""
    sharers: "dict[int, Sharers]" = field(default_factory=dict)
    """For nodes with hosts or guests: who. All else in the picture is as if there were no guests."""
    tolerated: dict[int, int] = field(default_factory=dict)
    """For nodes with guests: GPUs that are claimed for now by jobs which may have one."""
    closed: dict[int, int] = field(default_factory=dict)
    """GPUs that take no new guest, as their guards say."""
    spare_sms: "Mapping[Mate, int]" = field(default_factory=dict)
    """Percent of the SMs that hosts, by user and name, leave to guests under MPS, as far as known; 0: none may come."""
    shelves: Shelves = field(default_factory=Shelves)
    """Of the tenants what is asked again and again; it looks by itself whether they have changed."""
    neighbours: "Neighbours | None" = None
    """What is known of packed jobs beside each other; None where the site keeps no profiles."""

    def now(self, limit: float) -> View:
        """What a job of this time limit can start on at once."""
        closes = self.at + limit
        fits_hole = self.hole_until >= closes
        if fits_hole.all():
            is_open = self.up & (self.reserved_from >= closes)
            return View(
                self.fleet, self.gpus_now, self.cpus_now, self.mem_now, is_open, self.quiet, crowded=self.crowded
            )
        return View(
            self.fleet,
            np.where(fits_hole, self.gpus_now, self.gpus[:, 0]),
            np.where(fits_hole, self.cpus_now, self.cpus[:, 0]),
            np.where(fits_hole, self.mem_now, self.mem[:, 0]),
            self.up & (self.reserved_from >= closes),
            self.quiet,
            crowded=self.crowded,
        )

    def limits_like(self, limit: float) -> tuple[float, float]:
        """Jobs of all time limits above the first of these and up to the second see what one of this limit sees now."""
        closing = np.concatenate([self.hole_until, self.reserved_from]) - self.at
        later = closing >= limit
        return float(closing[~later].max(initial=0.0)), float(closing[later].min(initial=FAR))

    def then(self, moment: float, limit: float) -> View:
        """What is expected to be free at a later moment."""
        column = np.maximum((self.times <= moment).sum(axis=1) - 1, 0)[:, None]
        return View(
            self.fleet,
            np.take_along_axis(self.gpus, column, 1)[:, 0],
            np.take_along_axis(self.cpus, column, 1)[:, 0],
            np.take_along_axis(self.mem, column, 1)[:, 0],
            self.up & (self.reserved_from >= moment + limit),
            np.ones_like(self.quiet),
            crowded=self.crowded,
        )

    @property
    def free_gpus(self) -> int:
        """GPUs that no job holds."""
        return int(np.bitwise_count(self.gpus_now).sum())

    @property
    def empty_nodes(self) -> int:
        """Nodes with GPUs that take jobs, and of whose GPUs none is held: room for gangs."""
        return int((self.up & (self.gpus_now == self.fleet.full) & (self.fleet.size > 0)).sum())
