"""Slow GPUs, seen from one job: which of the free GPUs it should be offered.

The slowest GPU sets the pace of a synchronous job, so what counts is a bottleneck: the least threshold at which some
node still has enough GPUs that are no slower. What is nearly as fast stays in: links decide among those, and then
the GPU that others miss least.
"""

from typing import TYPE_CHECKING

import numpy as np

from topology.tables import Ints

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.cluster.view import View
    from policy.formats.arrays import Bools, Floats
    from policy.request.demand import Demand

ALIKE = 0.02
"""Scores within two percent are alike: so much the median of a few runs is off (std 0.009 to 0.036 a run)."""

ALIKE_IN_A_CROWD = 0.1
"""The same where most GPUs are taken: the slow one that a job avoids is another's then, and what counts for all of them
is that nodes and leaves stay whole."""


def alike(view: "View") -> float:
    """By what part of them scores may differ and count as equal."""
    return ALIKE_IN_A_CROWD if view.crowded else ALIKE


def fast_enough(demand: "Demand", view: "View", fits: "Bools") -> tuple[Ints, float] | None:
    """The free GPUs that a job on one node should be offered, as masks, and the best score it can have.

    None where the fleet has no scores for its class, so that all GPUs are alike.
    """
    fleet = view.fleet
    table = fleet.scores_of(demand.app_class)
    if table is None:
        return None
    scores = _free_scores(view, table, fits)
    if demand.k > scores.shape[1]:
        return view.free, 1.0
    least = float(np.partition(scores, demand.k - 1, axis=1)[:, demand.k - 1].min(initial=np.inf))
    if not np.isfinite(least):
        return view.free, 1.0
    chosen = min(
        (threshold * fleet.costs.locality(demand.model, demand.app_class, level, demand.gpus), place, threshold)
        for place, level in enumerate(_levels(demand))
        if (threshold := _threshold(demand, view, scores, least, level)) is not None
    )[2]
    return view.free & _as_masks(scores <= chosen * (1 + alike(view))), chosen


def _levels(demand: "Demand") -> tuple[str, ...]:
    return ("nvlink",) if demand.level == "nvlink" or demand.k == 1 else ("nvlink", "node")


def _threshold(demand: "Demand", view: "View", scores: "Floats", least: float, level: str) -> float | None:
    """The least score at which some node has a set at this level; at least what any k free GPUs of a node need."""
    tables, offset = view.fleet.tables, view.fleet.offset

    def has_set(threshold: float) -> bool:
        masks = view.free & _as_masks(scores <= threshold)
        return bool((tables.look_up(demand.k, level, offset + masks) >= 0).any())

    if has_set(least):
        return least
    steps = np.unique(scores[np.isfinite(scores) & (scores > least)])
    if not steps.size or not has_set(float(steps[-1])):
        return None
    low, high = 0, steps.size - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if has_set(float(steps[middle])) else (middle + 1, high)
    return float(steps[low])


def _free_scores(view: "View", table: "Floats", fits: "Bools") -> "Floats":
    """Scores of what is free on nodes that fit; infinite elsewhere."""
    free = (view.free[:, None] >> np.arange(table.shape[1])) & 1
    return np.where(free.astype(np.bool_) & fits[:, None], table, np.inf)


def _as_masks(which: "Bools") -> Ints:
    masks: Ints = which @ (np.int64(1) << np.arange(which.shape[1], dtype=np.int64))
    return masks


def node_scores(fleet: "Fleet", app_class: str, nodes: Ints, mask: int) -> "Floats":
    """The slowest of the same GPUs on each of some nodes."""
    table = fleet.scores_of(app_class)
    if table is None:
        return np.ones(nodes.size)
    positions = [place for place in range(table.shape[1]) if mask >> place & 1]
    slowest: Floats = table[nodes][:, positions].max(axis=1)
    return slowest
