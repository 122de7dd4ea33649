"""Jobs on a piece of a node, kept together on few leaves, so that the others come free as a whole.

A job on several nodes waits for the last GPU of the last of its nodes. Where small jobs lie on all leaves, each leaf is
full of ends to wait for, and it does not help to keep new ones off: what stands idle until then is dear. It does help
that they never were there. So small jobs fill one leaf after the other, those with slow GPUs first, for a job on
several nodes runs as slowly as the slowest of all its GPUs.

How many leaves depends on how many GPUs small jobs hold and wait for. Beyond them a job goes

- at once if no job on several nodes that came before it waits for the nodes there, also where there is room among its
  like but the GPUs elsewhere are clearly better,
- else when it has waited for `MOST` seconds or half of its time limit (docs/placement.md).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from policy.placement.speed import ALIKE_IN_A_CROWD
from topology.fabric import NOBODY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policy.cluster import Bools, Cluster, Floats
    from policy.demand import Demand
    from policy.placement.base import Berth
    from policy.placement.tables import Ints
    from topology.fabric import Fabric

MOST = 600.0
"""Seconds, or half of its time limit if that is shorter, for which a job on a piece of a node waits at most for one of
the leaves of such jobs, so that jobs on several nodes which came before it get the others."""


def leaf_order(fabric: "Fabric", scores: "Mapping[str, Floats]") -> "Ints":
    """Each node's leaf as its place in the order in which pieces of nodes fill them."""
    _, own = np.unique(fabric.leaf, return_inverse=True)
    slowest = np.zeros(own.max(initial=-1) + 1)
    for table in scores.values():
        np.maximum.at(slowest, own, table.max(axis=1, initial=0.0))
    place = np.empty(slowest.size, np.int64)
    place[np.argsort(-slowest, kind="stable")] = np.arange(slowest.size)
    return place[own]


def is_piece(demand: "Demand") -> bool:
    """Whether a demand leaves the other GPUs of its node to others.

    Shares of GPUs have rules of their own, and who lists several partitions goes to the first one that has room.
    """
    return demand.n == 1 and demand.k > 0 and demand.cpus is not None and demand.share is None and not demand.pools


def patience(limit: float) -> float:
    """Seconds for which a job waits at most for the leaves of its like."""
    return min(MOST, limit / 2)


def together(demand: "Demand", picture: "Cluster") -> "Bools | None":
    """The nodes that a demand for a piece of one should be on; None where that does not matter.

    Nodes that it would take as a whole stay in. Where leaves are not known, fuller nodes first is all that can be done.
    """
    here = demand.candidates & picture.up
    if bool((picture.fleet.fabric.leaf[here] == NOBODY).any()):
        return None
    nodes = _first_leaves(demand, picture, here)
    if not bool((nodes & ~picture.gathered).any()):
        nodes = _first_leaves(demand, picture, here & ~picture.gathered)
    return None if bool((nodes == demand.candidates).all()) else nodes


def _first_leaves(demand: "Demand", picture: "Cluster", here: "Bools") -> "Bools":
    """Of some nodes those on the first leaves with room for all pieces that are held or waited for."""
    fleet = picture.fleet
    own, need = fleet.leaf_order, int(picture.pieces[here].sum()) + picture.pieces_wait + demand.k
    room = np.bincount(own, np.where(here, fleet.size, 0))
    open_leaves = np.cumsum(room) - room < need
    return here & (open_leaves[own] | (fleet.size <= demand.k))


def behind_gangs(demand: "Demand", picture: "Cluster", nodes: "Bools | None") -> "Demand":
    """A demand that should be on some nodes, without all others that jobs on several nodes wait for.

    What is promised to them but stands idle until long after a job has ended is left to it.
    """
    if nodes is None or not picture.wanted.any():
        return demand
    idle = picture.gathered & (picture.hole_until >= picture.at + demand.limit)
    left = demand.within(nodes | idle | ~picture.wanted)
    return left if bool((left.candidates & picture.up).any()) else demand


class Found:
    """What was found for some candidates, which jobs of a kind have in common; until the picture changes."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], tuple[Demand, Bools | None]] = {}
        self._left: dict[tuple[int, int, int], tuple[Demand, Demand]] = {}
        """By the number of an array of candidates, with a demand that holds the array so that the number stays its."""

    def forget(self) -> None:
        """The picture has changed."""
        self._nodes.clear()
        self._left.clear()

    def nodes(self, demand: "Demand", picture: "Cluster") -> "Bools | None":
        """As `together`; None for what is no piece."""
        if not is_piece(demand):
            return None
        key = id(demand.candidates), demand.k
        if key not in self._nodes:
            self._nodes[key] = demand, together(demand, picture)
        return self._nodes[key][1]

    def behind_gangs(self, demand: "Demand", picture: "Cluster") -> "Demand":
        """As `behind_gangs`; the same demand where nothing is taken from it."""
        nodes = self.nodes(demand, picture)
        if nodes is None:
            return demand
        key = id(demand.candidates), demand.k, demand.limit
        if key not in self._left:
            left = behind_gangs(demand, picture, nodes)
            self._left[key] = demand, left
            self._nodes[id(left.candidates), demand.k] = left, nodes
        first, left = self._left[key]
        return demand if left is first else replace(demand, candidates=left.candidates)


def clearly_better(there: "Berth", here: "Berth", *, crowded: bool) -> bool:
    """Whether a place apart from its like is worth it to a job that could be among them.

    Better links always are. Faster GPUs are not where most are taken: they would be another's just as well.
    """
    if there.min_gbps > here.min_gbps:
        return True
    return not crowded and there.cost < here.cost * (1 - ALIKE_IN_A_CROWD)
