# SPDX-License-Identifier: Apache-2.0
"""Derives the tree of a node's CPUs, GPUs and NICs from the PCIe word of each pair.

PIX and PXB mean a PCIe switch in common, PHB a host bridge, NODE a NUMA node, SYS none of these
(the words as `nvidia-smi topo -m` explains them). They tell no more: a switch that serves one device is not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from topology.model import NEAR, Machine

BranchKind: TypeAlias = Literal["numa", "bridge", "switches", "switch"]

#: What two devices of each nearness have in common. `switches` is several PCIe switches above one another.
_KINDS: dict[int, BranchKind] = {
    NEAR["NODE"]: "numa",
    NEAR["PHB"]: "bridge",
    NEAR["PXB"]: "switches",
    NEAR["PIX"]: "switch",
}


@dataclass(frozen=True, slots=True)
class Branch:
    """A NUMA node, host bridge or PCIe switch with everything below it."""

    kind: BranchKind
    gpus: tuple[int, ...]
    """Positions of all GPUs below."""
    nics: tuple[int, ...]
    """All NICs below, as indices of `Machine.nics`."""
    parts: tuple[Branch, ...] = ()
    """The branches directly below; what is in none of them hangs here itself."""
    numa: int = -1
    """For a NUMA node: its number, -1 if not known."""

    @property
    def own_gpus(self) -> tuple[int, ...]:
        """GPUs that hang here and in no part."""
        return tuple(gpu for gpu in self.gpus if all(gpu not in part.gpus for part in self.parts))

    @property
    def own_nics(self) -> tuple[int, ...]:
        """NICs that hang here and in no part."""
        return tuple(nic for nic in self.nics if all(nic not in part.nics for part in self.parts))


def tree(machine: Machine) -> tuple[Branch, ...]:
    """Returns one branch of kind `numa` for each NUMA node, in the order of their GPUs.

    NICs that are far from every GPU and tell no NUMA node come last, in one branch. GPUs of which nothing is
    known share a branch too.
    """
    size = machine.size
    near = _nearness(machine)
    numas = [gpu.numa for gpu in machine.gpus] + [nic.numa for nic in machine.nics]
    everything = range(len(numas))

    def together(a: int, b: int) -> bool:
        return near(a, b) >= NEAR["NODE"] or numas[a] == numas[b] >= 0

    nodes, lost_gpus, lost_nics = [], [], []
    for group in _components(everything, together):
        placed = any(numas[device] >= 0 for device in group)
        if not placed and group[0] >= size:
            lost_nics += group
        elif not placed and all(near(group[0], other) == 0 for other in everything if other != group[0]):
            lost_gpus += group
        else:
            nodes.append(group)
    nodes += [lost for lost in (sorted(lost_gpus), sorted(lost_nics)) if lost]
    branches = []
    for group in nodes:
        known = Counter(numas[device] for device in group if numas[device] >= 0)
        numa = known.most_common(1)[0][0] if known else -1
        branches.append(replace(_branch(group, NEAR["NODE"], near, size), numa=numa))
    return tuple(sorted(branches, key=lambda branch: (not branch.gpus, branch.gpus or branch.nics)))


def _nearness(machine: Machine) -> Callable[[int, int], int]:
    """Returns nearness of two devices, GPUs first and NICs after them; how near two NICs are is not known."""
    size = machine.size

    def near(a: int, b: int) -> int:
        a, b = min(a, b), max(a, b)
        if b < size:
            return machine.near[a][b]
        if a < size and machine.nic_paths:
            return NEAR[machine.nic_paths[a][b - size]]
        return NEAR["?"]

    return near


def _branch(devices: Sequence[int], level: int, near: Callable[[int, int], int], size: int) -> Branch:
    parts: tuple[Branch, ...] = ()
    if level < NEAR["PIX"]:
        groups = _components(devices, lambda a, b: near(a, b) > level)
        parts = tuple(_branch(group, level + 1, near, size) for group in groups if len(group) > 1)
    gpus = tuple(device for device in devices if device < size)
    nics = tuple(device - size for device in devices if device >= size)
    if level > NEAR["NODE"] and len(parts) == 1 and (parts[0].gpus, parts[0].nics) == (gpus, nics):
        return parts[0]  # the nearer branch says all that this one would
    return Branch(_KINDS[level], gpus, nics, parts)


def _components(devices: Iterable[int], joined: Callable[[int, int], bool]) -> list[list[int]]:
    """Returns the devices in groups that are joined in themselves, each group and the list ascending."""
    groups: list[list[int]] = []
    for device in devices:
        mine = [group for group in groups if any(joined(device, other) for other in group)]
        groups = [group for group in groups if group not in mine]
        groups.append(sorted([device, *(other for group in mine for other in group)]))
    return sorted(groups)


def rails(machine: Machine) -> tuple[tuple[str, ...], ...]:
    """Returns for each GPU the names of its nearest NICs; empty if it is not known how near they are."""
    nearest = []
    for row in machine.nic_paths or ((),) * machine.size:
        best = max((NEAR[word] for word in row), default=0)
        nearest.append(tuple(nic.name for nic, word in zip(machine.nics, row, strict=False) if NEAR[word] == best > 0))
    return tuple(nearest)
