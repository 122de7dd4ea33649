# SPDX-License-Identifier: Apache-2.0
"""Keeps jobs on a part of a node together on few leaves, so that the other leaves become free as a whole.

A job on several nodes waits for the last GPU of the last of its nodes. If small jobs lie on all leaves, it waits for
many of them to end. It does not help to keep new small jobs away later, because the GPUs that idle until then are
expensive. So small jobs are packed from the start: they fill one leaf after the other.

Leaves with slow GPUs are filled first, because a job on several nodes runs at the speed of its slowest GPU. The number
of open leaves follows from the GPUs that small jobs hold and wait for. This is a preference and delays no job: without
room on those leaves a job goes elsewhere (docs/research/placement.md).
"""

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.snapshot import Cluster
from policy.formats.arrays import Bools, Floats
from policy.placement.base import Berth
from policy.placement.speed import ALIKE_IN_A_CROWD
from policy.request.demand import Demand
from topology.network.fabric import NOBODY
from topology.sets.tables import Ints


class Leaves:
    """The nodes for jobs on a part of a node, for each array of candidates that such jobs share."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], _OpenLeaves] = {}
        """By the id of an array of candidates, and the GPUs that are requested."""
        self._least: dict[tuple[str, int], tuple[Floats, float]] = {}
        """The least score of so many GPUs of one node, by class, with the table that it is from."""

    def forget(self) -> None:
        """Drops everything, because nodes may have come or gone."""
        self._of.clear()

    def nodes(self, demand: Demand, cluster: Cluster) -> Bools | None:
        """Returns the nodes where a demand should go; None where it may go anywhere."""
        if not demand.is_piece:
            return None
        key = id(demand.candidates), demand.k
        if key not in self._of:
            self._of[key] = _OpenLeaves(demand, cluster)
        return self._of[key].nodes(cluster)

    def may_be_better(self, demand: Demand, here: Berth, cluster: Cluster) -> bool:
        """Tells whether any place could be `clearly_better` for a job that leaves a node in part to others.

        Where no GPUs of the fleet, free or not, are so much better, a search for them is spared.
        """
        fleet = cluster.fleet
        if fleet.tables.widest(demand.k) > here.cut:
            return True
        if cluster.crowded:
            return False
        # No factor of a cost is below 1.
        return self._least_score(demand, fleet) < here.cost * (1 - ALIKE_IN_A_CROWD)

    def _least_score(self, demand: Demand, fleet: Fleet) -> float:
        table = fleet.scores.get(demand.app_class)
        if table is None:
            return 1.0
        key = demand.app_class, demand.k
        known = self._least.get(key)
        # The same array means the same scores, because tables are replaced and never changed.
        if known is None or known[0] is not table:
            exists = np.arange(table.shape[1]) < fleet.size[:, None]
            slowest = np.sort(np.where(exists, table, np.inf), axis=1)[:, demand.k - 1]
            known = self._least[key] = table, float(slowest.min(initial=np.inf))
        return known[1]


class _OpenLeaves:
    """The first leaves with room for all pieces that run or wait, and the nodes that the job would take as a whole.

    Most jobs that start or end leave the same leaves open, so the nodes are computed again only if the number changes.
    """

    def __init__(self, demand: Demand, cluster: Cluster) -> None:
        self._demand = demand
        """Keeps the array of candidates alive, so that no other array gets its id."""
        fleet = cluster.fleet
        self._here = demand.candidates & cluster.up
        self._before: Ints | None = None
        """For each leaf the GPUs of those before it; None where leaves are unknown and nothing is kept together."""
        if not bool((fleet.fabric.leaf[self._here] == NOBODY).any()):
            room = np.bincount(fleet.leaf_order, np.where(self._here, fleet.size, 0))
            self._before = np.cumsum(room) - room
        self._open = 0
        self._nodes: Bools | None = None

    def nodes(self, cluster: Cluster) -> Bools | None:
        """Returns the open nodes; None for all candidates."""
        if self._before is None:
            return None
        need = int(cluster.pieces[self._here].sum()) + cluster.pieces_wait + self._demand.k
        count = int(np.searchsorted(self._before, need))
        if count != self._open:
            fleet, self._open = cluster.fleet, count
            nodes = self._here & ((fleet.leaf_order < count) | (fleet.size <= self._demand.k))
            self._nodes = None if bool((nodes == self._demand.candidates).all()) else nodes
        return self._nodes


def clearly_better(there: Berth, here: Berth, *, crowded: bool) -> bool:
    """Tells whether a place away from the other small jobs is worth it to a job that could be among them.

    Better links always are. Faster GPUs are not worth it in a crowded fleet, where another job could use them as well.
    """
    if there.cut > here.cut:
        return True
    return not crowded and there.cost < here.cost * (1 - ALIKE_IN_A_CROWD)
