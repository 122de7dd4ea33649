# SPDX-License-Identifier: Apache-2.0
"""Compiles a node's graph to arrays: widest path and direct NVLinks of each pair of GPUs, nearness to the NICs.

Placement compares sets of GPUs by these; the graph itself is asked once for each kind of machine.

>>> from topology.machines import machine
>>> node = wiring(machine("l40s", "n1"))
>>> node.gbps[0]                          # GPU 1 hangs off the same socket, 2 and 3 off the other
(0.0, 31.508, 16.0, 16.0)
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topology.model import NEAR, Machine, MachineShape

_KINDS = 1024
_MASKS = 1 << 16


@dataclass(frozen=True, slots=True)
class Wiring:
    """The data by which sets of GPUs are compared; machines of equal wiring share all results computed from it."""

    shape: MachineShape
    gbps: tuple[tuple[float, ...], ...]
    """GB/s of the widest path of each pair, one direction: NVLink, chip-to-chip, PCIe, between sockets. Symmetric."""
    direct: tuple[tuple[float, ...], ...]
    """GB/s of the NVLinks that join each pair without a switch; they add up across a cut."""
    nic_near: tuple[int, ...]
    """The nearness of each GPU to its nearest NIC, by the driver's word as in `NEAR`; 0 if it is not known."""

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self.gbps)


_found: dict[Any, Wiring] = {}
_same: dict[Wiring, Wiring] = {}


def wiring(machine: Machine) -> Wiring:
    """Returns the wiring of a machine; that of equal machines is one object."""
    key = kind_of(machine)
    known = _found.get(key)
    if known is None:
        if len(_found) >= _KINDS:
            _found.clear()
        made = _compile(machine)
        known = _found[key] = _same.setdefault(made, made)
    return known


def remember(kinds: Mapping[Any, Wiring]) -> None:
    """Take over what another process has compiled, so that this one needs no graph library."""
    _found.update({kind: _same.setdefault(made, made) for kind, made in kinds.items()})


def kind_of(machine: Machine) -> Any:
    """Returns all of a machine that decides its wiring."""
    gpus = machine.gpus
    return (
        machine.model,
        gpus[0].name if gpus else "",
        machine.shape,
        _vias(machine.links),
        tuple((gpu.numa, gpu.c2c_gbps) for gpu in gpus),
        tuple((nic.numa, nic.gbps) for nic in machine.nics),
        machine.nic_paths,
    )


@functools.lru_cache(maxsize=_KINDS)
def _vias(links: tuple[Any, ...]) -> frozenset[str]:
    return frozenset(link.via for link in links)


@functools.lru_cache(maxsize=_MASKS)
def positions(mask: int) -> tuple[int, ...]:
    """Returns the positions of the GPUs in a mask, ascending.

    >>> positions(0b1001)
    (0, 3)
    """
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)


def _compile(machine: Machine) -> Wiring:
    from topology.graph import direct_links, node_graph, widest_paths  # noqa: PLC0415  compute nodes have no networkx

    graph = node_graph(machine)
    nic_near = [max((NEAR[word] for word in row), default=0) for row in machine.nic_paths or ((),) * machine.size]
    return Wiring(machine.shape, widest_paths(graph, machine), direct_links(graph, machine), tuple(nic_near))
