# SPDX-License-Identifier: Apache-2.0
"""Computes the positions of all parts of a node in its picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from topology.model import Machine
from topology.pcie import Branch, tree

CARD_WIDTH, CARD_HEIGHT = 104, 62
#: A card of a node with too many GPUs for one row of wide ones.
NARROW_WIDTH = 52
CHIP_WIDTH, CHIP_HEIGHT = 62, 24
GAP, PAD, BETWEEN = 14, 16, 26
NIC_WIDTH, NIC_HEIGHT, NIC_GAP = 86, 32, 6
_COLUMN = 3
#: Room between the cards of a mesh, for its lines.
MESH_X, MESH_Y = 86, 70


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Its x in the middle."""
        return self.x + self.width / 2

    @property
    def centre(self) -> float:
        """Its y in the middle."""
        return self.y + self.height / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width


@dataclass(frozen=True, slots=True)
class Stem:
    """Devices joined to a NUMA node by one line: those behind a PCIe switch, a single GPU, or some NICs."""

    gpus: tuple[int, ...]
    nics: tuple[int, ...]
    switch: str = ""
    """Words for its PCIe switch; empty where there is none."""
    bridge: int = -1
    """Number of its host bridge within the NUMA node, where several devices share one."""

    def width(self, gpu_width: float) -> float:
        """Returns its width for this width of a GPU."""
        gpus = len(self.gpus) * (gpu_width + GAP) - GAP
        return max(gpus, NIC_WIDTH + 18 if self.nics else 0, 92 if self.switch else 0)


@dataclass(frozen=True, slots=True)
class Panel:
    """A NUMA node's part of the picture."""

    branch: Branch
    stems: tuple[Stem, ...]

    def width(self, gpu_width: float) -> float:
        """Returns the width of its stems beside each other."""
        return sum(stem.width(gpu_width) + GAP for stem in self.stems) - GAP


def panels_of(machine: Machine) -> tuple[Panel, ...]:
    """Returns the NUMA nodes with all that hangs on them."""
    return tuple(Panel(branch, tuple(_stems(branch))) for branch in tree(machine))


def _stems(branch: Branch) -> list[Stem]:
    """Returns the stems of a NUMA node in the order of their GPUs; those on one host bridge stand together."""
    groups: list[list[Stem]] = []
    for number, part in enumerate(branch.parts):
        if part.kind != "bridge":
            groups.append([_switch_stem(part)])
            continue
        # One bridge for everything carries no information.
        bridge = number if (part.gpus, part.nics) != (branch.gpus, branch.nics) else -1
        inner = [_switch_stem(switch) for switch in part.parts] + _loose_stems(part)
        groups.append([replace(stem, bridge=bridge) for stem in sorted(inner, key=_first_gpu)])
    groups += [[stem] for stem in _loose_stems(branch)]
    return [stem for group in sorted(groups, key=lambda group: _first_gpu(group[0])) for stem in group]


def _first_gpu(stem: Stem) -> float:
    return min(stem.gpus, default=math.inf)


def _switch_stem(branch: Branch) -> Stem:
    return Stem(branch.gpus, branch.nics, "PCIe switch" if branch.kind == "switch" else "PCIe switches")


def _loose_stems(branch: Branch) -> list[Stem]:
    """Returns GPUs and NICs without a switch; NICs stand in columns, not to be too tall."""
    nics = branch.own_nics
    columns = (nics[i : i + _COLUMN] for i in range(0, len(nics), _COLUMN))
    return [*(Stem((gpu,), ()) for gpu in branch.own_gpus), *(Stem((), column) for column in columns)]


def first_stem(panel: Panel, x: float, room: float, gpu_width: float) -> float:
    """Returns the x at which a panel's stems start so that they are centred."""
    return x + (room - panel.width(gpu_width)) / 2


def put_stems(panel: Panel, x: float, room: float, y: float, size: tuple[float, float]) -> dict[int, Box]:
    """Returns boxes of this size for the panel's GPUs, in a row in the middle of the panel."""
    boxes: dict[int, Box] = {}
    gpu_width, gpu_height = size
    x = first_stem(panel, x, room, gpu_width)
    for stem in panel.stems:
        row = len(stem.gpus) * (gpu_width + GAP) - GAP
        start = x + (stem.width(gpu_width) - row) / 2
        for i, gpu in enumerate(stem.gpus):
            boxes[gpu] = Box(start + i * (gpu_width + GAP), y, gpu_width, gpu_height)
        x += stem.width(gpu_width) + GAP
    return boxes


def is_mesh(machine: Machine, panels: Sequence[Panel]) -> bool:
    """Returns True if direct links of quads of GPUs are best drawn as squares, such as a cube mesh."""
    quads = [panel for panel in panels if panel.branch.gpus]
    direct = machine.links and all(link.via == "direct" for link in machine.links)
    return bool(
        direct
        and len(quads) in {1, 2}
        and all(len(panel.branch.gpus) == 4 for panel in quads)
        and len(machine.links) >= 5 * len(quads)
    )


_CORNERS = ((0, 0), (1, 0), (0, 1), (1, 1))


def put_mesh(machine: Machine, quads: Sequence[tuple[int, ...]]) -> dict[int, tuple[int, int]]:
    """Returns column and row of each GPU of one or two quads, so that links are short and few pass over a card."""
    first = dict(zip(quads[0], _CORNERS, strict=True))
    if len(quads) == 1:
        return first
    best: tuple[float, dict[int, tuple[int, int]]] = (math.inf, {})
    for order in permutations(quads[1]):
        placed = first | {gpu: (column + 2, row) for gpu, (column, row) in zip(order, _CORNERS, strict=True)}
        cost = 0.0
        for link in machine.links:
            (x1, y1), (x2, y2) = placed[link.a], placed[link.b]
            if {link.a, link.b} <= set(quads[0]) or {link.a, link.b} <= set(quads[1]):
                continue
            # The root makes one long and one short line better than two that cross.
            cost += math.sqrt(abs(x1 - x2)) + 2 * abs(y1 - y2)
        if cost < best[0] - 1e-9:
            best = (cost, placed)
    return best[1]


def tints(machine: Machine) -> dict[int, int]:
    """Returns for each GPU in an NVLink island the number of one: the widest first, none twice.

    Islands can overlap, but a card has one colour.
    """
    joined = [sum(1 << b for b, gbps in enumerate(row) if gbps) for row in machine.gbps]
    left = (1 << machine.size) - 1
    numbers: dict[int, int] = {}
    number = 0
    while (island := _widest(joined, left)).bit_count() > 1:
        numbers |= {gpu: number for gpu in range(machine.size) if island >> gpu & 1}
        left &= ~island
        number += 1
    return numbers


def _widest(joined: Sequence[int], candidates: int) -> int:
    """Returns the largest set of candidates that are all joined with each other, the lowest of equals."""
    best = 0

    def grow(island: int, left: int) -> None:
        nonlocal best
        if island.bit_count() + left.bit_count() <= best.bit_count():
            return
        if not left:
            best = island
            return
        gpu = left & -left
        grow(island | gpu, left & joined[gpu.bit_length() - 1])
        grow(island, left & ~gpu)

    grow(0, candidates)
    return best
