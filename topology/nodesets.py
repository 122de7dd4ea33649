"""Node sets: the groups of nodes at each level of the fabric that could hold a job now.

A question costs a few passes over arrays with one place a node; names and host lists are made when they are read.

>>> from topology.model import Gpu, Machine
>>> two = [Machine(n, "x", (Gpu(0, 0, n + "-0"), Gpu(1, 1, n + "-1"))) for n in ("n1", "n2")]
>>> sets = NodeSets.of(two)
>>> found = sets.candidates(gpus=2, free=[0b11, 0b01])
>>> [(level, [one.names for one in at_level]) for level, at_level in found.items()]
[('nvlink', []), ('node', [('n1',)]), ('leaf', []), ('pod', []), ('any', [('n1', 'n2')])]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, overload

import numpy as np

from topology.errors import QuestionError
from topology.fabric import LEVELS, Fabric, FabricLevel
from topology.groups import LevelGroups
from topology.hostlist import fold
from topology.islands import islands
from topology.model import Machine, MachineShape

if TYPE_CHECKING:
    import numpy.typing as npt

    from topology.fabric import Ints

    Masks: TypeAlias = npt.NDArray[np.uint64]

__all__ = ["Candidates", "NodeSet", "NodeSets"]

#: Wider machines have too many masks for a table; their islands are looked at one by one.
_WIDEST_TABLE = 16


@dataclass(frozen=True, slots=True)
class NodeSet:
    """Nodes that share a level and together could hold the job now."""

    level: FabricLevel
    name: str
    """The domain's, leaf's or pod's name, a node's where the set is one node, empty at level `any`."""
    free: int
    """Free GPUs of the nodes below."""
    needed: int
    """The fewest nodes that suffice."""
    nodes: Ints
    """Nodes that could take a part of the job, ascending."""
    names: tuple[str, ...]

    @property
    def hostlist(self) -> str:
        """The nodes' names folded, `n[1-4]`."""
        return fold(self.names)


class Candidates(Sequence[NodeSet]):
    """The node sets of one level, fewest free GPUs left over first; each is made when it is taken out."""

    def __init__(self, level: _Level, fabric: Fabric, found: tuple[Ints, Ints, Ints], usable: npt.NDArray[np.bool]):
        self.groups, self.free, self.needed = found
        """Group numbers, free GPUs and fewest nodes of each set."""
        self._level, self._fabric, self._usable = level, fabric, usable

    @property
    def level(self) -> FabricLevel:
        """The level of all of them."""
        return self._level.level

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, place: int) -> NodeSet: ...
    @overload
    def __getitem__(self, place: slice) -> list[NodeSet]: ...
    def __getitem__(self, place: int | slice) -> NodeSet | list[NodeSet]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        group = int(self.groups[place])
        members = self._level.groups.members(group)
        nodes = members[self._usable[members]]
        return NodeSet(
            level=self.level,
            name=self._level.name(group, self._fabric),
            free=int(self.free[place]),
            needed=int(self.needed[place]),
            nodes=nodes,
            names=tuple(self._fabric.names[i] for i in nodes.tolist()),
        )


class _Level:
    """The groups of one level; `spans` tells groups of several nodes from single ones."""

    def __init__(self, level: FabricLevel, groups: LevelGroups, spans: npt.NDArray[np.bool]) -> None:
        self.level, self.groups, self.spans = level, groups, spans

    def name(self, group: int, fabric: Fabric) -> str:
        """Returns the group's name for people."""
        if self.level == "any":
            return ""
        return self.groups.names[group] if self.spans[group] else fabric.names[self.groups.members(group)[0]]


class NodeSets:
    """Node sets of one cluster; make it once, ask it often."""

    def __init__(self, shapes: Sequence[MachineShape], shape_of: Ints, fabric: Fabric) -> None:
        """Takes `shape_of`, the place in `shapes` of each node, in the fabric's order."""
        if len(shape_of) != len(fabric.names):
            raise QuestionError(f"there are {len(shape_of)} machines and {len(fabric.names)} nodes in the fabric")
        self.fabric = fabric
        sizes = np.array([shape.size for shape in shapes] or [0], np.uint64)[shape_of]
        self.everything: Masks = np.where(
            sizes < 64, (np.uint64(1) << (sizes & np.uint64(63))) - np.uint64(1), ~np.uint64(0)
        )
        """The masks of an idle cluster."""
        self._most = int(sizes.max(initial=0))
        narrow = [shape.size <= _WIDEST_TABLE for shape in shapes]
        tables = [_linked(shape) if one else np.zeros(1, np.uint8) for shape, one in zip(shapes, narrow, strict=True)]
        self._linked = np.concatenate([*tables, np.zeros(1, np.uint8)])
        starts = np.cumsum([0, *map(len, tables)])[: len(shapes)]
        self._start = (starts if len(shapes) else np.zeros(1, np.int64))[shape_of]
        self._wide = [(shapes[i], np.flatnonzero(shape_of == i)) for i, one in enumerate(narrow) if not one]
        self._levels = {level: self._make(level) for level in LEVELS}

    @classmethod
    def of(cls, machines: Iterable[Machine], fabric: Fabric | None = None) -> NodeSets:
        """Makes node sets of machines in the fabric's order; without a fabric, of the machines' own data."""
        machines = tuple(machines)
        fabric = fabric or Fabric.of(machines)
        places: dict[MachineShape, int] = {}
        shape_of = [places.setdefault(machine.shape, len(places)) for machine in machines]
        return cls(tuple(places), np.array(shape_of, np.int64), fabric)

    def _make(self, level: FabricLevel) -> _Level:
        fabric = self.fabric
        groups = fabric.at(level)
        if level != "nvlink":
            return _Level(level, groups, np.full(groups.count, level != "node"))
        # A node outside every domain is a group of its own: its islands are its own.
        alone = np.flatnonzero(~groups.known)
        of = groups.of.copy()
        of[alone] = groups.count + np.arange(alone.size)
        spans = np.arange(groups.count + alone.size) < groups.count
        return _Level(level, LevelGroups(of, groups.names), spans)

    def linked(self, free: npt.ArrayLike) -> Ints:
        """Returns the most free GPUs of each node of which every pair is joined by NVLink inside the node."""
        masks = np.asarray(free, np.uint64) & self.everything
        narrow = np.where(self.everything < np.uint64(1 << _WIDEST_TABLE), masks, np.uint64(0))
        best: Ints = self._linked[self._start + narrow.astype(np.int64)].astype(np.int64)
        for shape, nodes in self._wide:
            best[nodes] = np.minimum(np.bitwise_count(masks[nodes]), 1)
            for island in islands(shape):
                best[nodes] = np.maximum(best[nodes], np.bitwise_count(masks[nodes] & np.uint64(island)))
        return best

    def candidates(
        self, gpus: int, free: npt.ArrayLike, per_node: int | None = None, levels: Sequence[FabricLevel] = LEVELS
    ) -> dict[FabricLevel, Candidates]:
        """Returns for each level the groups whose free GPUs could hold the job now, fewest left over first.

        `free` is a mask of GPU positions for each node, 0 for a node that may not be used. With `per_node` the job
        takes exactly so many on each of its nodes. What is found at a near level lies within sets of the farther ones.
        """
        if gpus < 1 or (per_node is not None and (per_node < 1 or gpus % per_node)):
            raise QuestionError(
                f"{gpus} GPUs, {per_node or 'any number'} a node, are no demand; give whole nodes' worth"
            )
        masks = np.asarray(free, np.uint64) & self.everything
        count = np.bitwise_count(masks).astype(np.int64)
        usable = count >= (per_node or 1)
        count = np.where(usable, count, 0)
        whole = count if per_node is None else usable * per_node
        linked = self.linked(masks) if "nvlink" in levels else count
        return {level: self._at(self._levels[level], gpus, per_node, count, whole, linked) for level in levels}

    def _at(self, level: _Level, gpus: int, per_node: int | None, count: Ints, whole: Ints, linked: Ints) -> Candidates:
        if level.level == "node":
            fits = whole >= gpus
            found = np.flatnonzero(fits)
            free, needed = count[found], np.ones(len(found), np.int64)
        else:
            total, holds = level.groups.sums(count), level.groups.sums(whole)
            if level.level == "nvlink":
                inside = level.groups.sums(np.where(whole >= gpus, linked, 0))
                holds = np.where(level.spans, holds, inside)
            found = np.flatnonzero(holds >= gpus)
            free = total[found]
            needed = self._needed(level, found, gpus, per_node, count)
        best = np.argsort(free, kind="stable")
        return Candidates(level, self.fabric, (found[best], free[best], needed[best]), count > 0)

    def _needed(self, level: _Level, found: Ints, gpus: int, per_node: int | None, count: Ints) -> Ints:
        """Returns the fewest nodes of each group: the freest ones first."""
        needed = np.ones(len(found), np.int64)
        spans = np.flatnonzero(level.spans[found])
        if per_node is not None:
            needed[spans] = gpus // per_node
        elif len(spans):
            # Number of nodes of each group with so many free GPUs, for groups of several nodes only.
            place = np.full(level.groups.count + 1, -1)
            place[found[spans]] = np.arange(len(spans))
            row = place[level.groups.of]
            mine = row >= 0
            width = self._most + 1
            nodes = np.bincount(row[mine] * width + count[mine], minlength=len(spans) * width).reshape(-1, width)
            left, taken = np.full(len(spans), gpus), np.zeros(len(spans), np.int64)
            for each in range(self._most, 0, -1):
                take = np.minimum(nodes[:, each], -(-np.maximum(left, 0) // each))
                left, taken = left - take * each, taken + take
            needed[spans] = taken
        return needed


def _linked(shape: MachineShape) -> npt.NDArray[np.uint8]:
    """Returns for each mask of free GPUs, the most of them of which every pair is joined by NVLink."""
    masks = np.arange(1 << shape.size, dtype=np.uint64)
    best = np.minimum(masks, 1).astype(np.uint8)
    for island in islands(shape):
        best = np.maximum(best, np.bitwise_count(masks & np.uint64(island)))
    return best
