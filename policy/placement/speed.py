# SPDX-License-Identifier: Apache-2.0
"""Chooses the free GPUs that a job is offered, so that slow GPUs are avoided.

The slowest GPU sets the speed of a synchronous job. So the bottleneck counts: the lowest score threshold at which some
node still has enough GPUs that are no slower. GPUs that are nearly as fast are offered too. Among those links decide,
and then the needs of other jobs.
"""

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.view import View
from policy.formats.arrays import Bools, Floats
from policy.placement.base import links
from policy.request.demand import Demand
from topology.sets.tables import CUT, Ints, cut_gbps

ALIKE = 0.02
"""Scores within two percent count as equal, which is the error of a median of few runs (std 0.009 to 0.036 a run)."""

ALIKE_IN_A_CROWD = 0.1
"""The same bound where most GPUs are taken.

A slow GPU that one job avoids goes to another job then, so it matters more that nodes and leaves stay whole.
"""


def alike(view: View) -> float:
    """Returns the relative difference up to which scores count as equal."""
    return ALIKE_IN_A_CROWD if view.crowded else ALIKE


def fast_enough(demand: Demand, view: View, fits: Bools) -> tuple[Ints, float] | None:
    """Returns the free GPUs that a job on one node should be offered, as masks, and the best score it can have.

    The answer is None where the fleet has no scores for the job's class, so that all GPUs are equal, and where no node
    has such GPUs free.
    """
    fleet = view.fleet
    table = fleet.scores.get(demand.app_class)
    if table is None:
        return None
    scores = _free_scores(view, table, fits)
    if demand.k > scores.shape[1]:
        return None
    least = float(np.partition(scores, demand.k - 1, axis=1)[:, demand.k - 1].min(initial=np.inf))
    if not np.isfinite(least):
        return None
    best: tuple[float, float] | None = None
    for level in _levels(demand):
        factor = fleet.costs.locality(demand.model, demand.app_class, level, demand.gpus)
        for cut in fleet.tables.cuts(demand.k) if fleet.costs.communication else [0]:
            factor_here = factor * links(fleet, demand.k, cut_gbps(cut))
            if best is not None and factor_here * least >= best[0]:
                break
            threshold = _threshold(demand, view, scores, least, level, cut)
            if threshold is not None and (best is None or threshold * factor_here < best[0]):
                best = threshold * factor_here, threshold
    if best is None:
        return None
    return view.free & _as_masks(scores <= best[1] * (1 + alike(view))), best[1]


def _levels(demand: Demand) -> tuple[str, ...]:
    return ("nvlink",) if demand.level == "nvlink" or demand.k == 1 else ("nvlink", "node")


def _threshold(demand: Demand, view: View, scores: Floats, least: float, level: str, cut: int) -> float | None:
    """Returns the lowest score threshold at which some node has a set at this level with such a cut or a better one.

    It is at least `least`, the threshold at which some node has k free GPUs at all.
    """
    tables, offset = view.fleet.tables, view.fleet.offset

    def has_set(threshold: float) -> bool:
        masks = view.free & _as_masks(scores <= threshold)
        return bool((tables.look_up(demand.k, level, offset + masks) >> CUT >= cut).any())

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


def _free_scores(view: View, table: Floats, fits: Bools) -> Floats:
    """Returns the scores of free GPUs on nodes that fit; infinite elsewhere."""
    free = (view.free[:, None] >> np.arange(table.shape[1])) & 1
    return np.where(free.astype(np.bool_) & fits[:, None], table, np.inf)


def _as_masks(which: Bools) -> Ints:
    masks: Ints = which @ (np.int64(1) << np.arange(which.shape[1], dtype=np.int64))
    return masks


def node_scores(fleet: Fleet, app_class: str, nodes: Ints, mask: int) -> Floats:
    """Returns for each node the slowest score of the GPUs in `mask`."""
    table = fleet.scores.get(app_class)
    if table is None:
        return np.ones(nodes.size)
    positions = [place for place in range(table.shape[1]) if mask >> place & 1]
    slowest: Floats = table[nodes][:, positions].max(axis=1)
    return slowest


def least_score(demand: Demand, view: View, nodes: Ints) -> float:
    """Returns the score that the slowest GPU of a gang on k free GPUs of n of these nodes has at least."""
    table = view.fleet.scores.get(demand.app_class)
    if table is None:
        return 1.0
    free = (view.free[nodes, None] >> np.arange(table.shape[1])) & 1
    slowest = np.partition(np.where(free > 0, table[nodes], np.inf), demand.k - 1, axis=1)[:, demand.k - 1]
    return float(np.partition(slowest, demand.n - 1)[demand.n - 1])
