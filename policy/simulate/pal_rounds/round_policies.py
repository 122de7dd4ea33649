"""The part of placement policies in PAL's rounds: what they place first and together, and what they may move.

A placement policy only chooses a place for one job. A policy of another package may say the rest itself, by the names
that `RoundPolicy` has: `sticky`, `steady`, `order` and `place_together`. What it does not say is as in `RoundPolicy`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy, take_off
from policy.placement.berth import BerthPolicy
from policy.placement.published.packed import PackedPolicy
from policy.placement.published.pal import PalPolicy
from policy.placement.published.pm_first import PmFirstPolicy
from policy.placement.published.random import PinnedRandomPolicy
from policy.request.demand import ANY_SPREAD
from policy.simulate.pal_rounds.joint.together import place_together
from topology.fabric import NOBODY

if TYPE_CHECKING:
    from policy.cluster.view import View
    from policy.formats.arrays import Bools
    from policy.request.demand import Demand

_MOVING = (BerthPolicy, PmFirstPolicy)
"""Policies that may place running jobs anew, unless they are made sticky; PAL is a PM-First too."""

_STEADY = (BerthPolicy, PackedPolicy, PinnedRandomPolicy, PmFirstPolicy)

_MOST_TOGETHER = 4_096
"""Most free GPUs at which Berth places jobs together.

With more, it places them one after another. For a spread job, only the roomiest leaves and nodes with about so many
GPUs are searched.
"""

CLASSES = ("compute", "mixed", "memory")
"""From the class that loses most on a slow GPU to the one that loses least; others follow by name."""


def in_rounds(policy: Policy, *, sticky: bool | None = None, move_s: float = 0.0) -> "RoundPolicy":
    """Returns a policy as rounds use it; without `sticky` it is as published. `move_s` is Berth's cost of a move."""
    if hasattr(policy, "order") or hasattr(policy, "place_together"):
        return RoundPolicy(policy, sticky=sticky)
    if isinstance(policy, BerthPolicy):
        return BerthInRounds(policy, sticky=sticky, move_s=move_s)
    return (SensitiveFirst if isinstance(policy, PmFirstPolicy) else RoundPolicy)(policy, sticky=sticky)


class RoundPolicy:
    """Places the jobs of a round one after another, in the queue's order."""

    sticky: bool
    """Tells that a running job keeps its berth; a policy that is not sticky may place movable jobs anew."""

    steady: bool
    """Tells that a repeated call brings nothing new, so that a simulator can skip it.

    The calls must be about the same jobs, these must hold what the policy gave them, and nothing else may have changed.
    """

    def __init__(self, policy: Policy, *, sticky: bool | None = None) -> None:
        self.policy = policy
        self.name = policy.name
        self.sticky = getattr(policy, "sticky", not isinstance(policy, _MOVING)) if sticky is None else sticky
        self.steady = getattr(policy, "steady", isinstance(policy, _STEADY))

    def order(self, demands: "Sequence[Demand]") -> Sequence[int]:
        """Returns the order in which the jobs of one round are placed; the demands come in the queue's order."""
        own = getattr(self.policy, "order", None)
        found: Sequence[int] = own(demands) if own else range(len(demands))
        return found

    def place(self, demand: "Demand", view: "View") -> Berth:
        """Chooses nodes and GPUs for one job, or raises `NotNow` or `Never`."""
        return self.policy.place(demand, view)

    def place_together(
        self, demands: "Sequence[Demand]", view: "View", held: "Sequence[Berth | None]" = ()
    ) -> "list[Berth | None]":
        """Places jobs that can start in one round; None for one that has to wait.

        `held` are the berths of running jobs that may be moved; in `view` their GPUs count as free.
        """
        own = getattr(self.policy, "place_together", None)
        found: list[Berth | None] = own(demands, view, held) if own else self.one_by_one(demands, view)
        return found

    def one_by_one(self, demands: "Sequence[Demand]", view: "View") -> "list[Berth | None]":
        """Places one job after another."""
        # All jobs share one copy of the view, from which each berth is taken off.
        left = replace(view, free=view.free.copy(), cpus=view.cpus.copy(), mem=view.mem.copy())
        berths: list[Berth | None] = [None] * len(demands)
        for job in self.order(demands):
            with suppress(NotNow):
                berth = berths[job] = self.place(demands[job], left)
                take_off(left, demands[job], berth)
        return berths


class SensitiveFirst(RoundPolicy):
    """PM-First and PAL: jobs are placed in the order of their classes, the most sensitive first."""

    def order(self, demands: "Sequence[Demand]") -> Sequence[int]:
        """Returns the most sensitive class first."""
        return sorted(range(len(demands)), key=lambda job: class_rank(demands[job].app_class))


def class_rank(app_class: str) -> tuple[int, str]:
    """Returns the sort key of a class, the most sensitive first."""
    return (CLASSES.index(app_class) if app_class in CLASSES else len(CLASSES), app_class)


class BerthInRounds(RoundPolicy):
    """Berth: jobs that may take any GPUs are placed together, and a running job moves only where it gains by it."""

    def __init__(self, policy: BerthPolicy, *, sticky: bool | None = None, move_s: float = 0.0) -> None:
        """Sets the cost of a move in seconds; a running job moves only if it gains more in its remaining run time."""
        super().__init__(policy, sticky=sticky)
        self.move_s = move_s
        self._published = SensitiveFirst(PalPolicy())

    def place(self, demand: "Demand", view: "View") -> Berth:
        """Returns the best free set; for a job that may be spread, one node if no spread beyond it is faster."""
        return self._anywhere(demand, view) if demand.n == ANY_SPREAD else self.policy.place(demand, view)

    def place_together(
        self, demands: "Sequence[Demand]", view: "View", held: "Sequence[Berth | None]" = ()
    ) -> "list[Berth | None]":
        """Places all jobs of a round at once, if each may take any GPUs; else one after another."""
        alike = any(demand.n > 1 for demand in demands)
        if alike or len(demands) == 0 or int(np.bitwise_count(view.free).sum()) > _MOST_TOGETHER:
            return self.one_by_one(demands, view)
        berths = self._jointly(demands, view, held or [None] * len(demands))
        # The search ignores cores and memory, which seldom run out before the GPUs.
        return berths if _room_for_all(demands, berths, view) else self.one_by_one(demands, view)

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
                alone = self.policy.place(replace(demand, n=1), view)
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
