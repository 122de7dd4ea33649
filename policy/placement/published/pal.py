# SPDX-License-Identifier: Apache-2.0
"""The policy `pal`: score and locality combined, as in PAL (SC'24)."""

import numpy as np

from policy.cluster.view import View
from policy.placement.base import Berth
from policy.placement.published.bins import Bins
from policy.placement.published.common import gpus, lowest, usable
from policy.placement.published.pm_first import PmFirstPolicy
from policy.request.demand import ANY_SPREAD, Demand
from topology.sets.tables import Ints


class PalPolicy(PmFirstPolicy):
    """PAL: takes the first cell that fits of the matrix bin x (within a node, across nodes), by score x locality.

    The published walk through the matrix is for jobs of 2 GPUs up to a node; smaller and larger jobs go by PM-First.
    Where a demand fixes its number of nodes, only the bin is left to choose.

    If several nodes serve a cell, the artifact takes the one with the most GPUs that are fast enough, which breaks up
    empty nodes; the paper does not say so. Of equal nodes it takes the first where its sort is stable, as here. With
    AVX-512 numpy's sort is not stable, and the artifact's average job completion times differ from these by up to
    0.03 %.
    """

    name = "pal"

    def place(self, demand: Demand, view: View) -> Berth:
        """Returns the first cell that fits."""
        if demand.n == ANY_SPREAD and 1 < demand.k <= int(view.fleet.size.max()):
            return self._walk(demand, view, usable(demand, view), self.bins(demand, view))
        return super().place(demand, view)

    def cells(self, view: View, bins: Bins) -> list[tuple[int, bool]]:
        """Returns the cells, as bin and whether within a node, the least score x locality first."""
        across = view.fleet.costs.locality("", "", "any", 2)
        both = [(place, within) for place in range(len(bins.values)) for within in (True, False)]
        return sorted(both, key=lambda cell: bins.values[cell[0]] * (1.0 if cell[1] else across))

    def preference(self, counts: Ints, k: int) -> Ints:  # noqa: ARG002 - as PM-First has it
        """Returns the sort key of nodes that serve a cell; the least comes first."""
        return -counts

    def _walk(self, demand: Demand, view: View, free: Ints, bins: Bins) -> Berth:
        for place, within in self.cells(view, bins):
            here = free & bins.upto[place]
            counts = np.bitwise_count(here).astype(np.int64)
            if not within:
                if counts.sum() >= demand.k:
                    return self.fastest(demand, view, here, bins)
            elif counts.max() >= demand.k:
                match = np.where(counts >= demand.k, self.preference(counts, demand.k), np.iinfo(np.int64).max)
                node = int(match.argmin())
                why = f"within a node, score up to {bins.values[place]:.3f}: {gpus(int(counts[node]))} to choose from"
                return self.spread(demand, view, [node], [lowest(int(here[node]), demand.k)], why)
        # Too few GPUs are free; PM-First raises the error.
        return self.fastest(demand, view, free, bins)
