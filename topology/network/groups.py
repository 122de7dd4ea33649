# SPDX-License-Identifier: Apache-2.0
"""The groups of nodes that share a level of the fabric: what node sets and plans ask about leaves, pods and domains."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

NOBODY = -1
"""In a group array: the node's group is unknown, so it shares none with any other node."""


class LevelGroups:
    """Group membership at one level; made once for a fabric.

    >>> leaves = LevelGroups(np.array([0, 0, 1, NOBODY]), ("a", "b"))
    >>> leaves.sums(np.array([3, 4, 5, 6])).tolist(), leaves.members(0).tolist()
    ([7, 5], [0, 1])
    >>> leaves.most(np.array([0, 1, 2, 3]))
    2
    """

    def __init__(self, groups: Ints, names: Sequence[str] = ()) -> None:
        """Takes the group number of each node."""
        self.of = groups
        self.names = names
        self.count = max(len(names), int(groups.max(initial=NOBODY)) + 1)
        self.known = groups != NOBODY
        """Nodes that are in a group."""
        self.any = bool(self.known.any())
        self._all = bool(self.known.all())
        self.parts = self.any and not (self._all and self.count == 1)
        """Tells whether there are nodes that do not share a group."""
        self._order: Ints | None = None
        self._starts: Ints | None = None

    def members(self, group: int) -> Ints:
        """Returns the nodes of a group, ascending."""
        if self._order is None or self._starts is None:
            self._order = np.argsort(self.of, kind="stable")
            self._starts = np.searchsorted(self.of[self._order], np.arange(self.count + 1))
        return self._order[self._starts[group] : self._starts[group + 1]]

    def sums(self, values: Ints | Bools) -> Ints:
        """Returns sums over the nodes of each group; sums of whole numbers of this size are exact in floats."""
        if self._all:
            return np.bincount(self.of, values, self.count).astype(np.int64)
        return np.bincount(self.of[self.known], values[self.known], self.count).astype(np.int64)

    def most(self, nodes: Ints) -> int:
        """Returns the largest number of these nodes that are in one group."""
        here = self.of[nodes]
        return int(np.bincount(here[here != NOBODY]).max(initial=0))

    def share(self, n: int, nodes: Ints, has: Bools) -> Bools:
        """Tells for each column of `has` whether n of these nodes that have it are in one group."""
        here = self.of[nodes]
        order = np.argsort(here, kind="stable")
        order = order[here[order] != NOBODY]
        if not order.size:
            return np.zeros(has.shape[1], np.bool_)
        starts = np.flatnonzero(np.diff(here[order], prepend=NOBODY))
        counts = np.add.reduceat(has[order], starts, axis=0, dtype=np.int64)
        return np.asarray((counts >= n).any(axis=0))

    def nth(self, n: int, nodes: Ints, values: Floats) -> float:
        """Returns the least value that n of these nodes in one group have at most, in one column; else infinity."""
        here = self.of[nodes]
        here, values = here[here != NOBODY], values[here != NOBODY]
        order = np.lexsort((values, np.broadcast_to(here[:, None], values.shape)), axis=0)
        counts = np.bincount(here)
        last = (np.cumsum(counts) - counts + n - 1)[counts >= n]
        return float(np.take_along_axis(values, order, 0)[last].min(initial=np.inf))

    def split(self, nodes: Ints) -> list[Ints]:
        """Returns these nodes by group; all together where none of them is in a group."""
        here = self.of[nodes]
        inside = np.unique(here[here != NOBODY]).tolist()
        return [nodes[here == group] for group in inside] if inside else [nodes]
