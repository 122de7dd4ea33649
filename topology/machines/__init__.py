# SPDX-License-Identifier: Apache-2.0
"""Machines by name, to plan a cluster before it is bought.

>>> node = machine("dgx-a100", "n1")
>>> node.size, node.gbps[0][7], node.nic_paths[0][0]
(8, 309.372, 'PXB')
>>> trays = rack("gb200-nvl72", [f"tray{i}" for i in range(18)])
>>> sum(tray.size for tray in trays), len({tray.domain for tray in trays})
(72, 1)
"""

import dataclasses
import difflib
import uuid
from collections.abc import Iterable, Sequence

from topology.errors import ProviderError
from topology.machines.catalog import KINDS, RACKS
from topology.model import Machine

_NAMESPACE = uuid.UUID("6f2f0c0e-5a0c-5d0e-9a53-c6e9a0a3be7a")


def names() -> tuple[str, ...]:
    """Returns names that `machine` knows."""
    return tuple(KINDS)


def rack_names() -> tuple[str, ...]:
    """Returns names that `rack` knows."""
    return tuple(RACKS)


def places(name: str) -> int:
    """Returns the number of nodes that this rack has room for."""
    return _rack(name)[1]


def machine(name: str, node: str) -> Machine:
    """Makes a node of this kind. Its GPUs' UUIDs are derived from the node's name: constant, and of no other node."""
    kind = KINDS.get(name)
    if kind is None:
        raise ProviderError(_unknown("machine", name, KINDS))
    return kind.build(node, [f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{i}')}" for i in range(len(kind.gpus))], name)


def rack(name: str, nodes: Sequence[str]) -> list[Machine]:
    """Makes the nodes of a rack, joined to one NVLink domain; places without a name stay empty."""
    kind, most = _rack(name)
    if not 1 <= len(nodes) <= most or len(set(nodes)) != len(nodes):
        raise ProviderError(f"{name} has places for {most} nodes of different names; {len(nodes)} names were given")
    domain = f"{uuid.uuid5(_NAMESPACE, f'{name}/{nodes[0]}')}.1"
    return [dataclasses.replace(machine(kind, node), domain=domain) for node in nodes]


def _rack(name: str) -> tuple[str, int]:
    if name not in RACKS:
        raise ProviderError(_unknown("rack", name, RACKS))
    return RACKS[name]


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return f'there is no {what} "{name}"; did you mean "{nearest[0]}"? Known are {", ".join(known)}'
