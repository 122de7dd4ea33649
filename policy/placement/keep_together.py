"""Jobs on a piece of a node, kept together on few leaves, so that the others come free as a whole.

A job on several nodes waits for the last GPU of the last of its nodes. Where small jobs lie on all leaves, each leaf is
full of ends to wait for, and it does not help to keep new ones off: what stands idle until then is dear. It does help
that they never were there. So small jobs fill one leaf after the other, those with slow GPUs first, for a job on
several nodes runs as slowly as the slowest of all its GPUs.

How many leaves are open depends on how many GPUs small jobs hold and wait for. It is a preference, and holds nobody up:
without room on those leaves a job goes elsewhere (docs/placement.md).
"""

from typing import TYPE_CHECKING

import numpy as np

from policy.placement.speed import ALIKE_IN_A_CROWD
from topology.fabric import NOBODY

if TYPE_CHECKING:
    from policy.cluster.snapshot import Cluster
    from policy.formats.arrays import Bools
    from policy.placement.base import Berth
    from policy.request.demand import Demand
    from topology.tables import Ints


def is_piece(demand: "Demand") -> bool:
    """Whether a demand leaves the other GPUs of its node to others.

    Shares of GPUs have rules of their own, and who lists several partitions goes to the first one that has room.
    """
    return demand.n == 1 and demand.k > 0 and demand.cpus is not None and demand.share is None and not demand.pools


class Leaves:
    """The nodes that jobs on a piece of one should be on, for each array of candidates that such jobs share."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], _OpenLeaves] = {}
        """By the number of an array of candidates, and the GPUs that are asked for."""

    def forget(self) -> None:
        """Nodes may have come or gone."""
        self._of.clear()

    def nodes(self, demand: "Demand", picture: "Cluster") -> "Bools | None":
        """Where a demand should be; None where that does not matter."""
        if not is_piece(demand):
            return None
        key = id(demand.candidates), demand.k
        if key not in self._of:
            self._of[key] = _OpenLeaves(demand, picture)
        return self._of[key].nodes(picture)


class _OpenLeaves:
    """The first leaves with room for all pieces that are held or waited for, and nodes that would be taken as a whole.

    Most jobs that start or end leave the same ones open, so the nodes are only told anew where they differ.
    """

    def __init__(self, demand: "Demand", picture: "Cluster") -> None:
        self._demand = demand
        """Holds the array of candidates, so that its number stays its own."""
        fleet = picture.fleet
        self._here = demand.candidates & picture.up
        self._before: Ints | None = None
        """For each leaf the GPUs of those before it; None where leaves are not known, and nothing is kept together."""
        if not bool((fleet.fabric.leaf[self._here] == NOBODY).any()):
            room = np.bincount(fleet.leaf_order, np.where(self._here, fleet.size, 0))
            self._before = np.cumsum(room) - room
        self._open = 0
        self._nodes: Bools | None = None

    def nodes(self, picture: "Cluster") -> "Bools | None":
        """What is open now; None for all candidates."""
        if self._before is None:
            return None
        need = int(picture.pieces[self._here].sum()) + picture.pieces_wait + self._demand.k
        count = int(np.searchsorted(self._before, need))
        if count != self._open:
            fleet, self._open = picture.fleet, count
            nodes = self._here & ((fleet.leaf_order < count) | (fleet.size <= self._demand.k))
            self._nodes = None if bool((nodes == self._demand.candidates).all()) else nodes
        return self._nodes


def clearly_better(there: "Berth", here: "Berth", *, crowded: bool) -> bool:
    """Whether a place apart from its like is worth it to a job that could be among them.

    Better links always are. Faster GPUs are not where most are taken: they would be another's just as well.
    """
    if there.paths[0] > here.paths[0]:
        return True
    return not crowded and there.cost < here.cost * (1 - ALIKE_IN_A_CROWD)
