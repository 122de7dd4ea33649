# SPDX-License-Identifier: Apache-2.0
"""The policy `packed`: as few nodes as possible, without regard to scores; the baseline of PAL's evaluation."""

import numpy as np

from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.published.common import fill, gpus, lowest, same_on_each, sets_of, spread, usable
from policy.request.demand import ANY_SPREAD, Demand


class PackedPolicy(Policy):
    """Takes the node with the fewest free GPUs that hold the job, the first of equal ones, and its lowest positions.

    Where no node holds the job and its GPUs may be spread, the emptiest nodes are filled one after the other, as in
    PAL's artifact. It is published as Packed-Sticky and Packed-Non-Sticky.
    """

    name = "packed"

    def place(self, demand: Demand, view: View) -> Berth:
        """Returns the tightest fit."""
        free = usable(demand, view)
        counts = np.bitwise_count(free).astype(np.int64)
        if demand.n > 1:
            size = int(view.fleet.size.max())
            common = same_on_each(demand.n, demand.k, free, counts, sets_of(size, demand.k))
            if common is None:
                raise NotNow(f"no {demand.n} nodes have the same {gpus(demand.k)} free", 300)
            nodes, mask = common
            return self.spread(demand, view, nodes, [mask] * demand.n, "the fullest nodes with the same GPUs free")
        node = int(np.where(counts >= demand.k, counts, MANY).argmin())
        if counts[node] >= demand.k:
            why = f"the tightest fit: {gpus(int(counts[node]))} free"
            return self.spread(demand, view, [node], [lowest(int(free[node]), demand.k)], why)
        if demand.n != ANY_SPREAD or counts.sum() < demand.k:
            raise NotNow(
                f"no node has {gpus(demand.k)} free" if demand.n else f"fewer than {gpus(demand.k)} are free", 300
            )
        masks = fill(free, np.argsort(-counts, kind="stable"), demand.k)
        return spread(demand, view, masks, f"no node has {gpus(demand.k)} free: the emptiest nodes")


MANY = 1 << 16
"""A number above the GPUs of any node."""
