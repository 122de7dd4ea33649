# SPDX-License-Identifier: Apache-2.0
"""The policy `pm_first`: the fastest free GPUs by binned score, on any nodes."""

from collections.abc import Iterator

import numpy as np

from policy.cluster.view import View
from policy.formats.arrays import Floats
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.published.bins import Bins, bins_of
from policy.placement.published.common import fill, gpus, lowest, same_on_each, sets_of, spread, usable
from policy.request.demand import ANY_SPREAD, Demand
from topology.sets.tables import Ints


class PmFirstPolicy(Policy):
    """PM-First of PAL: takes GPUs by bin, whole groups before parts, nodes that match best first.

    As published, jobs run in the order of their classes, the most sensitive first, and running jobs are placed anew
    each round. If not all GPUs of the last bin are needed, the nodes are sorted. Those come first whose number of such
    GPUs is nearest to the size of the whole job, even if the job still lacks fewer GPUs. The artifact does the same.
    """

    name = "pm-first"

    def __init__(self) -> None:
        self._bins: dict[str, tuple[Floats | None, Ints, Bins]] = {}

    def place(self, demand: Demand, view: View) -> Berth:
        """Returns the fastest GPUs."""
        bins, free = self.bins(demand, view), usable(demand, view)
        if demand.gpus == 1 or demand.n == ANY_SPREAD:
            return self.fastest(demand, view, free, bins)
        return self.fastest_alike(demand, view, free, bins)

    def bins(self, demand: Demand, view: View) -> Bins:
        """Returns the bins of the demand's class; they are kept until the scores change."""
        table = view.fleet.scores.get(demand.app_class)
        known = self._bins.get(demand.app_class)
        # The same array means the same scores, because tables are replaced and never changed.
        if known is None or known[0] is not table or known[1] is not view.fleet.size:
            known = (table, view.fleet.size, bins_of(view.fleet, table))
            self._bins[demand.app_class] = known
        return known[2]

    def fastest(self, demand: Demand, view: View, free: Ints, bins: Bins) -> Berth:
        """Returns the fastest GPUs by bin, on any nodes."""
        groups = free & bins.exactly
        counts = np.bitwise_count(groups)
        filled = counts.sum(axis=1).cumsum()
        last = int(filled.searchsorted(demand.gpus))
        if last == filled.size:
            raise NotNow(f"fewer than {gpus(demand.gpus)} are free", 300)
        taken, left = {}, demand.gpus
        if last:
            before = free & bins.upto[last - 1]
            nodes = before.nonzero()[0]
            taken = dict(zip(nodes.tolist(), before[nodes].tolist(), strict=True))
            left -= int(filled[last - 1])
        able = groups[last].nonzero()[0]
        away = np.abs(counts[last][able].astype(np.int64) - demand.gpus)
        for node, mask in fill(groups[last], able[away.argsort(kind="stable")], left).items():
            taken[node] = taken.get(node, 0) | mask
        return spread(demand, view, taken, f"the fastest free GPUs, scores up to {bins.values[last]:.3f}")

    def fastest_alike(self, demand: Demand, view: View, free: Ints, bins: Bins) -> Berth:
        """Returns the same GPUs on each of n nodes, chosen by the slowest of them."""
        for score, here, counts in allowing(free, bins):
            match = self.preference(counts, demand.k)
            if demand.n == 1:
                node = int(np.where(counts >= demand.k, match, np.iinfo(np.int64).max).argmin())
                found = ([node], lowest(int(here[node]), demand.k)) if counts[node] >= demand.k else None
            else:
                size = int(view.fleet.size.max())
                found = same_on_each(demand.n, demand.k, here, match, sets_of(size, demand.k))
            if found:
                nodes, mask = found
                return self.spread(demand, view, nodes, [mask] * demand.n, f"no free GPUs beat score {score:.3f}")
        where = "no node has" if demand.n == 1 else f"no {demand.n} nodes have the same"
        raise NotNow(f"{where} {gpus(demand.k)} free", 300)

    def preference(self, counts: Ints, k: int) -> Ints:
        """Returns the sort key of nodes that can all serve; the least comes first."""
        return np.abs(counts - k)


def allowing(free: Ints, bins: Bins) -> Iterator[tuple[float, Ints, Ints]]:
    """Yields for each bin its score, the free GPUs that are no slower, and their number on each node."""
    for score, group in zip(bins.values, bins.upto, strict=True):
        here = free & group
        yield score, here, np.bitwise_count(here).astype(np.int64)
