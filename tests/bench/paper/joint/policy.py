# SPDX-License-Identifier: Apache-2.0
"""Berth in PAL's rounds, as a policy of another package would take part in them.

Berth itself places one job at a time and leaves it where it is. In PAL's model every job may move every six minutes, so
the jobs of a round are placed together here, and a running job moves only where it gains by it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy, take_off
from policy.placement.berth import BerthPolicy
from policy.placement.published.pal import PalPolicy
from policy.request.demand import ANY_SPREAD
from policy.simulate.pal_rounds.round_policies import RoundPolicy, in_rounds
from tests.bench.paper.joint.search import place_together
from topology.network.fabric import NOBODY

if TYPE_CHECKING:
    from policy.cluster.view import View
    from policy.formats.arrays import Bools
    from policy.request.demand import Demand

_MOST_TOGETHER = 4_096
"""Most free GPUs at which jobs are placed together.

With more, they are placed one after another. For a spread job, only the roomiest leaves and nodes with about so many
GPUs are searched.
"""


class JointBerth(Policy):
    """Berth, where jobs that may take any GPUs are placed together, and move where they gain by it."""

    name = "berth"
    sticky = False
    steady = True

    def __init__(self, move_s: float = 0.0) -> None:
        """Sets the cost of a move in seconds; a running job moves only if it gains more in its remaining run time."""
        self.move_s = move_s
        self._alone = BerthPolicy()
        self._published = in_rounds(PalPolicy())

    def place(self, demand: "Demand", view: "View") -> Berth:
        """Returns the best free set; for a job that may be spread, one node if no spread beyond it is faster."""
        return self._anywhere(demand, view) if demand.n == ANY_SPREAD else self._alone.place(demand, view)

    def place_together(
        self, demands: "Sequence[Demand]", view: "View", held: "Sequence[Berth | None]" = ()
    ) -> "list[Berth | None]":
        """Places all jobs of a round at once, if each may take any GPUs; else one after another."""
        alike = any(demand.n > 1 for demand in demands)
        if alike or len(demands) == 0 or int(np.bitwise_count(view.free).sum()) > _MOST_TOGETHER:
            return self._one_by_one(demands, view)
        berths = self._jointly(demands, view, held or [None] * len(demands))
        # The search ignores cores and memory, which seldom run out before the GPUs.
        return berths if _room_for_all(demands, berths, view) else self._one_by_one(demands, view)

    def _one_by_one(self, demands: "Sequence[Demand]", view: "View") -> "list[Berth | None]":
        return RoundPolicy(self).one_by_one(demands, view)

    def _jointly(
        self, demands: "Sequence[Demand]", view: "View", held: "Sequence[Berth | None]"
    ) -> "list[Berth | None]":
        # The result must beat PAL's placement, so it never costs more than that by the formula that both use.
        at_worst = self._published.place_together(demands, view)
        found = place_together(demands, view, held, self.move_s, at_worst)
        why = f"placed together with {len(demands) - 1} others" if len(demands) > 1 else "the best of all free GPUs"
        return [
            None if masks is None else Policy.spread(demand, view, list(masks), list(masks.values()), why)
            for demand, masks in zip(demands, found, strict=True)
        ]

    def _anywhere(self, demand: "Demand", view: "View") -> Berth:
        """Chooses one node if it is no slower than any spread over two nodes; else the best GPUs anywhere."""
        fits = Policy.fitting(demand, view)
        alone: Berth | None = None
        if demand.k <= int(view.fleet.size[fits].max(initial=0)):
            with suppress(NotNow):
                alone = self._alone.place(replace(demand, n=1), view)
        if alone is not None and (demand.k == 1 or alone.cost <= _least_beyond_a_node(demand, view)):
            return alone
        spread = self._jointly([demand], _in_reach(demand, view, fits), [None])[0]
        if alone is not None and (spread is None or alone.cost <= spread.cost):
            return alone
        if spread is None:
            raise NotNow(f"fewer than {demand.k} GPUs are free", 300)
        return spread


def _room_for_all(demands: "Sequence[Demand]", berths: "Sequence[Berth | None]", view: "View") -> bool:
    """Tells whether the nodes have the CPUs and the memory for all of these berths together."""
    left = replace(view, free=view.free.copy(), cpus=view.cpus.copy(), mem=view.mem.copy())
    for demand, berth in zip(demands, berths, strict=True):
        if berth is not None:
            take_off(left, demand, berth)
    return bool((left.cpus >= 0).all() and (left.mem >= 0).all())


def _least_beyond_a_node(demand: "Demand", view: "View") -> float:
    costs = view.fleet.costs
    levels = ("nvlink", "leaf", "pod", "any")
    return min(costs.locality(demand.model, demand.app_class, level, demand.gpus) for level in levels)


def _in_reach(demand: "Demand", view: "View", fits: "Bools") -> "View":
    """Returns a view with about `_MOST_TOGETHER` free GPUs at most: the leaves and nodes with most free."""
    free = np.where(fits, view.free, 0)
    counts = np.bitwise_count(free).astype(np.int64)
    if counts.sum() <= _MOST_TOGETHER:
        return view.with_free(free)
    leaf = view.fleet.fabric.leaf
    known = leaf != NOBODY
    of_leaf = np.where(known, np.bincount(leaf[known], counts[known], int(leaf.max(initial=0)) + 1)[leaf], counts)
    order = np.lexsort((-counts, leaf, -of_leaf))
    enough = int(np.searchsorted(np.cumsum(counts[order]), max(demand.k, _MOST_TOGETHER))) + 1
    near = np.zeros_like(free)
    near[order[:enough]] = free[order[:enough]]
    return view.with_free(near)
