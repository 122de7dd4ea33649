# SPDX-License-Identifier: Apache-2.0
"""Models Slurm's topology/block: the node combinations that Slurm gives to one job; it refuses all others.

A job gets nodes of one block; one that is bigger than a block gets as few blocks as can hold it, within one aggregated
block. Blocks are counted in the order of Slurm's file, and those of an aggregated block stand together in it.

>>> blocks = Blocks((2, 4), np.array([0, 0, 1, 1, 2, 2]))
>>> blocks.groups(2, np.array([0, 2, 3, 5])).tolist()
[0, 1, 1, 2]
>>> blocks.groups(3, np.array([0, 2, 3, 5])).tolist()
[0, 0, 0, 1]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topology.network.groups import Ints

IN_NO_BLOCK = -1
"""Same value as NOBODY of topology.network.fabric, so that callers compare group numbers in one way."""


class _Reach(NamedTuple):
    """The range of blocks that Slurm uses for a job of some size."""

    blocks: int
    """Number of adjacent blocks that contain all nodes of the job; 0: all blocks."""
    part: int
    """Number of blocks in one part of these."""
    parts: int
    """Number of parts over which the job's nodes may be spread."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The block of each node, by its place in Slurm's file, and the sizes that Slurm goes by."""

    sizes: tuple[int, ...]
    """Nodes of a block, then of each kind of aggregated block."""
    block: Ints
    """IN_NO_BLOCK for nodes that the file does not name: Slurm starts nothing there."""

    def over(self, places: Ints) -> "Blocks":
        """Returns the same for the nodes that have these places here; -1 for one that is not here."""
        return Blocks(self.sizes, np.append(self.block, IN_NO_BLOCK)[places])

    def joined(self, count: int) -> Ints:
        """Returns each node's group: all nodes of a job of `count` nodes are of one group.

        Where only some parts of a group may serve a job, `groups` says which.
        """
        reach = self._reach(count).blocks
        return np.where(self.block != IN_NO_BLOCK, self.block // reach if reach else 0, IN_NO_BLOCK)

    def groups(self, count: int, nodes: Ints) -> Ints:
        """Returns each node's group for a job of `count` nodes, which may have any `count` nodes of one group.

        IN_NO_BLOCK for nodes that it cannot have: where only some parts of an aggregated block may serve it, the
        fullest do.
        """
        reach, block = self._reach(count), self.block[nodes]
        known, group = block != IN_NO_BLOCK, self.joined(count)[nodes]
        if reach.blocks == reach.part * reach.parts:
            return group
        parts, which, counts = np.unique(block[known] // reach.part, return_inverse=True, return_counts=True)
        over = parts * reach.part // reach.blocks if reach.blocks else np.zeros_like(parts)
        order = np.lexsort((parts, -counts, over))
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size) - np.searchsorted(over[order], over[order])
        group[known] = np.where(rank[which] < reach.parts, group[known], IN_NO_BLOCK)
        return group

    def allow(self, nodes: Sequence[int]) -> bool:
        """Returns True if Slurm can start a job on exactly these nodes."""
        here = np.asarray(nodes, np.int64)
        groups = self.groups(here.size, here)
        return bool((groups == groups[0]).all() and groups[0] != IN_NO_BLOCK)

    def _reach(self, count: int) -> _Reach:
        base = self.sizes[0]
        levels = [(size // base).bit_length() - 1 for size in self.sizes]
        least = (-(-count // base) - 1).bit_length()
        part = 1 << max((level for level in levels if level < least), default=0)
        together = min((level for level in levels if level >= least), default=None)
        return _Reach(0 if together is None else 1 << together, part, -(-count // (base * part)))
