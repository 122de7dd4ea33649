# SPDX-License-Identifier: Apache-2.0
"""The nodes that Slurm's topology/tree and topology/block choose, as eval_nodes_tree.c and select/cons_tres do."""

import numpy as np

from topology.network.blocks import IN_NO_BLOCK
from topology.network.fabric import NOBODY, Fabric
from topology.sets.tables import Ints

_NEAR, _FAR = 2, 4
"""Hops between two leaves of one pod, and of two pods."""


class Switches:
    """Leaves, pods and blocks of a cluster.

    >>> leaves = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    >>> tree = Switches(Fabric(tuple("abcdefghi"), leaves - 99, leaves, leaves * 0))
    >>> [tree.choose(np.arange(9), wanted).tolist() for wanted in (1, 3, 6)]
    [[3], [0, 1, 2], [3, 4, 5, 6, 7, 8]]
    """

    def __init__(self, fabric: Fabric) -> None:
        nobody = np.zeros(len(fabric.names), np.int64)
        # Without a fabric all nodes count as one leaf, as under the plugin topology/flat.
        self._leaf: Ints = nobody if (fabric.leaf == NOBODY).any() else fabric.leaf
        pod: Ints = nobody if (fabric.pod == NOBODY).any() else fabric.pod
        self._pod_of = np.zeros(int(self._leaf.max(initial=0)) + 1, np.int64)
        self._pod_of[self._leaf] = pod
        self._blocks = fabric.blocks

    def on_one_leaf(self, nodes: Ints) -> bool:
        """Tells whether the nodes meet `--switches=1`."""
        return np.unique(self._leaf[nodes]).size == 1

    def choose(self, able: Ints, wanted: int) -> Ints | None:
        """Returns so many of the nodes that are able: of the leaf with the fewest that suffice, or of few leaves."""
        if self._blocks is not None:
            able = _of_one_block(able, self._blocks.groups(wanted, able), wanted)
        if able.size < wanted:
            return None
        leaf = self._leaf[able]
        counts = np.bincount(leaf, minlength=self._pod_of.size)
        enough = counts >= wanted
        if enough.any():
            best = int(np.where(enough, counts, able.size + 1).argmin())
            of_best: Ints = able[leaf == best][:wanted]
            return of_best
        return self._of_several(able, leaf, counts, wanted)

    def _of_several(self, able: Ints, leaf: Ints, counts: Ints, wanted: int) -> Ints:
        """Takes one leaf after another whole, and of the last one what is still missing."""
        taken, hops = np.zeros(able.size, np.bool_), np.zeros(counts.size, np.int64)
        while wanted:
            best = self._next_leaf(counts, hops, wanted)
            here = np.flatnonzero(leaf == best)[:wanted]
            taken[here] = True
            wanted -= here.size
            counts[best] = 0
            hops += np.where(self._pod_of == self._pod_of[best], _NEAR, _FAR)
        return able[taken]

    def _next_leaf(self, counts: Ints, hops: Ints, wanted: int) -> int:
        """Returns the leaf that Slurm takes next: a nearer one that suffices, else of those as near the better fit."""
        in_pods = np.bincount(self._pod_of, counts).astype(np.int64)
        best, *others = np.flatnonzero(counts).tolist()
        for leaf in others:
            fits, is_better = self._compare(leaf, best, counts, in_pods, wanted)
            if (hops[leaf] < hops[best] and fits) or (hops[leaf] == hops[best] and is_better):
                best = leaf
        return int(best)

    def _compare(self, one: int, other: int, counts: Ints, in_pods: Ints, wanted: int) -> tuple[bool, bool]:
        """Tells whether a leaf, or else its pod, suffices, and whether it is a better fit than another."""
        here, there = int(counts[one]), int(counts[other])
        if max(here, there) < wanted and self._pod_of[one] != self._pod_of[other]:
            here, there = int(in_pods[self._pod_of[one]]), int(in_pods[self._pod_of[other]])
        if here >= wanted and there >= wanted:
            return True, here < there
        return here >= wanted, here > there


def _of_one_block(able: Ints, groups: Ints, wanted: int) -> Ints:
    """Returns the nodes of the block or aggregated block with the fewest that suffice, the last such one; else none."""
    held = np.bincount(groups[groups != IN_NO_BLOCK], minlength=1)
    if held.max() < wanted:
        return able[:0]
    best = held.size - 1 - int(np.where(held >= wanted, held, able.size + 1)[::-1].argmin())
    of_best: Ints = able[groups == best]
    return of_best
