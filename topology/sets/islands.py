# SPDX-License-Identifier: Apache-2.0
"""NVLink islands: the largest sets of GPUs of a node in which every pair is joined by NVLink."""

from __future__ import annotations

import functools

from topology.model import MachineShape
from topology.sets.wiring import positions


@functools.lru_cache(maxsize=1024)
def islands(shape: MachineShape) -> tuple[int, ...]:
    """Returns the islands as bit masks of positions, the widest first.

    An island is a maximal clique of at least two GPUs, so islands can overlap, as in a cube mesh.
    """
    from networkx import Graph, find_cliques  # noqa: PLC0415  heavy, and compute nodes have none

    graph = Graph((a, b) for a in range(shape.size) for b in range(a) if shape.gbps[a][b])
    masks = (sum(1 << position for position in clique) for clique in find_cliques(graph))
    return tuple(sorted(masks, key=lambda mask: (-mask.bit_count(), positions(mask))))
