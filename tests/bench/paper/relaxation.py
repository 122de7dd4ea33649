# SPDX-License-Identifier: Apache-2.0
"""A bound on what any choice of GPUs can reach: every job gets the GPUs that suit it best, all at the same time.

Jobs share GPUs here without harming each other, so no policy that obeys the same order can place a job better. How
much of the way from another policy to this bound is covered says how much is left to gain.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from policy.formats.errors import Never
from policy.placement.base import Berth, Policy
from policy.request.demand import ANY_SPREAD

if TYPE_CHECKING:
    from policy.cluster.view import View
    from policy.formats.arrays import Floats
    from policy.request.demand import Demand
    from topology.network.fabric import FabricLevel
    from topology.sets.tables import Ints

_LEVELS: "Sequence[FabricLevel]" = ("node", "leaf", "pod", "any")


class Relaxation(Policy):
    """The cheapest GPUs of the whole cluster for each job, whoever has them."""

    name = "relaxation"
    sticky = False
    steady = True

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, str, str, int], Berth] = {}
        self._fleet: object = None

    def place(self, demand: "Demand", view: "View") -> Berth:
        """The best berth in an empty cluster."""
        if demand.n > 1:
            raise Never("the relaxation bounds only jobs without a number of nodes of their own; leave that out")
        if self._fleet is not view.fleet:
            self._known.clear()
            self._fleet = view.fleet
        key = (demand.n, demand.k, demand.app_class, demand.model, id(demand.candidates))
        if key not in self._known:
            self._known[key] = self._cheapest(demand, view)
        return self._known[key]

    def place_together(
        self,
        demands: "Sequence[Demand]",
        view: "View",
        held: "Sequence[Berth | None]" = (),  # noqa: ARG002 - nobody moves: the best berth stays the best
    ) -> "list[Berth | None]":
        """Each job as if it were alone."""
        return [self.place(demand, view) for demand in demands]

    def _cheapest(self, demand: "Demand", view: "View") -> Berth:
        table = view.fleet.scores.get(demand.app_class)
        scores = np.ones((len(view.fleet.names), int(view.fleet.size.max()))) if table is None else table
        exists = np.arange(scores.shape[1]) < view.fleet.size[:, None]
        scores = np.where(exists & demand.candidates[:, None], scores, np.inf)
        found = []
        for level in _LEVELS if demand.n == ANY_SPREAD else ("node",):
            groups = view.fleet.fabric.groups(level)
            best = _fastest_group(scores, groups, demand.k)
            if best is not None:
                found.append(Policy.spread(demand, view, *best, "the best GPUs of the cluster, whoever has them"))
        if not found:
            raise Never(f"the cluster has fewer than {demand.k} GPUs for this job")
        return min(found, key=lambda berth: berth.cost)


def _fastest_group(scores: "Floats", groups: "Ints", gpus: int) -> tuple[list[int], list[int]] | None:
    """Nodes and masks of the fastest GPUs within one group, of that group whose slowest of these is fastest."""
    best, chosen = np.inf, None
    for group in np.unique(groups[groups >= 0]).tolist():
        rows = np.flatnonzero(groups == group)
        flat = scores[rows].ravel()
        if flat.size < gpus:
            continue
        order = np.argsort(flat, kind="stable")[:gpus]
        if flat[order[-1]] < best:
            best, chosen = flat[order[-1]], (rows, order)
    if chosen is None:
        return None
    rows, order = chosen
    masks: dict[int, int] = {}
    for slot in order.tolist():
        node = int(rows[slot // scores.shape[1]])
        masks[node] = masks.get(node, 0) | 1 << slot % scores.shape[1]
    nodes = sorted(masks)
    return nodes, [masks[node] for node in nodes]
