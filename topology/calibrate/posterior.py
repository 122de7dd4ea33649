# SPDX-License-Identifier: Apache-2.0
"""Computes posteriors of quantities that are mostly typical, sometimes outliers, with some disturbed runs.

Everything is in logarithms of time. The fleet is  time = node + GPU + (node in this run) + (GPU in this run).
Node and GPU are typical (normal, narrow) or an outlier (normal, wide, upwards). What a run adds is normal, or it was
*disturbed*: the node waited for something, or the GPU did. If the outliers and the disturbed runs are known,
all of it is linear and normal, so that the posterior is known in closed form. Of the 2^runs ways in which runs may be
disturbed those count in which the slowest are: disturbed runs are slower.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

_ROUNDS = 60
_CLOSE = 1e-4
"""Far below what any fleet's noise lets one know."""
_NEVER = -1e30
_LEAST_NODE_RUNS, _UNBELIEVED = 2, 1e-6
"""A node that was slow in its only run may have waited: nothing tells that from a slow one."""
_ASSUMED_ON = 100.0
"""Nodes, GPUs or runs on which the assumed shares count as seen."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """Share of outliers, and the distribution of their values, in logarithms."""

    share: float
    mean: float = 0.22
    sd: float = 0.15


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Share of disturbed runs, and the time that a disturbance adds, in logarithms."""

    share: float
    mean: float = 0.5
    sd: float = 0.35


@dataclass(frozen=True, slots=True)
class Variances:
    """Variances of logarithms of times."""

    node: float
    gpu: float
    node_run: float
    gpu_run: float


@dataclass(frozen=True, slots=True)
class Rarities:
    """Shares of outliers and disturbed runs; a fleet's own shares are learnt from these."""

    slow_gpus: Outlier = Outlier(0.02)
    slow_nodes: Outlier = Outlier(0.01)
    nodes_disturbed: Disturbance = Disturbance(0.015)
    gpus_disturbed: Disturbance = Disturbance(0.005)


@dataclass(frozen=True, slots=True)
class Located:
    """Posteriors of many quantities: a typical and an outlying part each."""

    odds: Floats
    """Probability that it is an outlier."""
    means: Floats
    """By part, then quantity."""
    variances: Floats
    disturbed: Floats
    """Probability that a run was disturbed, by quantity and run."""

    @property
    def mean(self) -> Floats:
        """Posterior mean."""
        found: Floats = (1.0 - self.odds) * self.means[0] + self.odds * self.means[1]
        return found


@dataclass(frozen=True, slots=True)
class Fitted:
    """Posteriors of a fleet's nodes and GPUs."""

    nodes: Located
    gpus: Located
    levels: Floats
    """Level of each node in each run, by node and run."""
    rarities: Rarities
    """As they were assumed."""

    def mean(self) -> Floats:
        """Returns logarithm of time over the fleet's centre, by node and GPU."""
        found: Floats = self.nodes.mean[:, None] + self.gpus.mean.reshape(self.nodes.mean.size, -1)
        return found

    def parts(self) -> tuple[Floats, Floats, Floats]:
        """Returns weights, means and variances of the four normal parts: typical or outlying node x GPU."""
        shape = (self.nodes.odds.size, -1)
        weights, means, variances = [], [], []
        for node in (0, 1):
            for gpu in (0, 1):
                of_node = self.nodes.odds if node else 1.0 - self.nodes.odds
                of_gpu = (self.gpus.odds if gpu else 1.0 - self.gpus.odds).reshape(shape)
                weights.append(of_node[:, None] * of_gpu)
                means.append(self.nodes.means[node][:, None] + self.gpus.means[gpu].reshape(shape))
                variances.append(self.nodes.variances[node][:, None] + self.gpus.variances[gpu].reshape(shape))
        return np.array(weights), np.array(means), np.array(variances)


def locate(
    values: Floats, variances: Floats, typical: float, outlier: Outlier, disturbance: Disturbance, least_runs: int = 0
) -> Located:
    """Returns posteriors by row; a run that is missing is not a number. `typical` is the variance of the typical part.

    With less than `least_runs` a row is hardly believed to be an outlier.
    """
    rows, runs = values.shape
    there = np.isfinite(values)
    share_odd = np.where(there.sum(axis=1) >= least_runs, outlier.share, _UNBELIEVED)[:, None]
    order = np.argsort(np.where(there, -values, np.inf), axis=1, kind="stable")
    there = np.take_along_axis(there, order, axis=1)
    ordered = np.where(there, np.take_along_axis(values, order, axis=1), 0.0)
    spread = np.where(there, np.take_along_axis(np.broadcast_to(variances, values.shape), order, axis=1), 1.0)

    wide = spread + disturbance.sd**2
    odd = _sums(ordered - disturbance.mean, wide, there, np.log(disturbance.share))
    even = _sums(ordered, spread, there, np.log1p(-disturbance.share))
    # With the k slowest disturbed: the first k of one kind, the rest of the other.
    start = np.zeros((4, rows, 1))
    before = np.concatenate([start, np.cumsum(odd, axis=2)], axis=2)
    after = np.cumsum(np.concatenate([even, start], axis=2)[:, :, ::-1], axis=2)[:, :, ::-1]
    precision, linear, square, logs = before + after
    possible = np.concatenate([np.ones((rows, 1), np.bool_), there], axis=1)

    evidence, means, parts = [], [], []
    for share, mean, variance in (
        (1.0 - share_odd, 0.0, typical),
        (share_odd, outlier.mean, typical + outlier.sd**2),
    ):
        total = precision + 1.0 / variance
        middle = (linear + mean / variance) / total
        rest = square + mean**2 / variance - total * middle**2
        found = np.log(share) + logs - 0.5 * (np.log(variance) + np.log(total) + rest)
        evidence.append(np.where(possible, found, _NEVER))
        means.append(middle)
        parts.append(1.0 / total)
    weights = np.array(evidence)
    weights = np.exp(weights - weights.max(axis=(0, 2), keepdims=True))
    weights /= weights.sum(axis=(0, 2), keepdims=True)
    by_part = np.maximum(weights.sum(axis=2), 1e-300)
    mean = (weights * means).sum(axis=2) / by_part
    variance = (weights * (np.array(parts) + np.square(means))).sum(axis=2) / by_part - mean**2
    # Run i of the ordered ones is disturbed where more than i are.
    least = np.cumsum(weights.sum(axis=0)[:, ::-1], axis=1)[:, ::-1][:, 1:]
    disturbed = np.zeros((rows, runs))
    np.put_along_axis(disturbed, order, np.where(there, least, 0.0), axis=1)
    return Located(by_part[1], mean, np.maximum(variance, 1e-12), disturbed)


def _sums(values: Floats, variances: Floats, there: NDArray[np.bool_], log_share: float) -> Floats:
    """Returns precision, linear and square term, and logarithms of what else the likelihood has, of each run."""
    parts = (1.0 / variances, values / variances, values**2 / variances, log_share - 0.5 * np.log(variances))
    return np.array([np.where(there, part, 0.0) for part in parts])


def fit(
    times: Floats,
    variances: Variances,
    aged: Floats | float = 0.0,
    rarities: Rarities = Rarities(),
) -> Fitted:
    """Computes a fleet's posteriors from logarithms of times over its centre, by node, GPU and run (NaN: missing).

    `aged` is what to add to the variance of each run for its age. Nodes and GPUs are found in turns, each given the
    other: a fixed point that is the exact posterior mean where nothing is an outlier.
    """
    nodes, gpus, runs = times.shape
    there = np.isfinite(times)
    aged = np.broadcast_to(np.asarray(aged, np.float64), times.shape)
    noise = variances.gpu_run + aged
    # A few slow GPUs do not move the lower quartile, so they are not taken for a slow node.
    level = _lower_quartile(times)
    of_gpu = np.zeros((nodes, gpus))
    for _ in range(_ROUNDS):
        found = locate(
            (times - level[:, None, :]).reshape(nodes * gpus, runs),
            noise.reshape(nodes * gpus, runs),
            variances.gpu,
            rarities.slow_gpus,
            rarities.gpus_disturbed,
        )
        moved = np.abs(found.mean.reshape(nodes, gpus) - of_gpu).max(initial=0.0)
        of_gpu = found.mean.reshape(nodes, gpus)
        trust = np.where(there, (1.0 - found.disturbed.reshape(times.shape)) / noise, 0.0)
        weight = trust.sum(axis=1)
        known = weight > 0
        safe = np.where(known, weight, 1.0)
        seen = np.where(known, np.where(there, trust * (times - of_gpu[:, :, None]), 0.0).sum(axis=1) / safe, np.nan)
        located = locate(
            seen,
            variances.node_run + 1.0 / safe,
            variances.node,
            rarities.slow_nodes,
            rarities.nodes_disturbed,
            _LEAST_NODE_RUNS,
        )
        level = _levels(seen, weight, located, variances, rarities.nodes_disturbed)
        if moved < _CLOSE:
            break
    return Fitted(located, found, level, rarities)


def learnt(fitted: Fitted, there: NDArray[np.bool_]) -> Rarities:
    """Returns the shares that this fleet shows, drawn to those assumed at first as if these had been seen on some."""
    first = Rarities()
    gpus, visits, nodes = np.any(there, axis=2), np.any(there, axis=1), np.any(there, axis=(1, 2))

    def share(odds: Floats, among: object, assumed: float) -> float:
        some = np.asarray(among, np.bool_)
        return float((odds[some].sum() + assumed * _ASSUMED_ON) / (some.sum() + _ASSUMED_ON))

    return Rarities(
        replace(first.slow_gpus, share=share(fitted.gpus.odds.reshape(there.shape[:2]), gpus, first.slow_gpus.share)),
        replace(first.slow_nodes, share=share(fitted.nodes.odds, nodes, first.slow_nodes.share)),
        replace(first.nodes_disturbed, share=share(fitted.nodes.disturbed, visits, first.nodes_disturbed.share)),
        replace(
            first.gpus_disturbed,
            share=share(fitted.gpus.disturbed.reshape(there.shape), there, first.gpus_disturbed.share),
        ),
    )


def _levels(seen: Floats, weight: Floats, nodes: Located, variances: Variances, disturbance: Disturbance) -> Floats:
    """Returns each node's level in each run: between its GPUs' times and the level expected of the node."""
    wide = variances.node_run + disturbance.sd**2
    calm, odd = (1.0 - nodes.disturbed) / variances.node_run, nodes.disturbed / wide
    expected = nodes.mean[:, None] * (calm + odd) + disturbance.mean * odd
    level: Floats = (np.nan_to_num(seen) * weight + expected) / (weight + calm + odd)
    return level


def _lower_quartile(times: Floats) -> Floats:
    """Returns the lower quartile by node and run, over the GPUs that are there."""
    ordered = np.sort(times, axis=1)  # Not-a-number comes last.
    count = np.isfinite(times).sum(axis=1)
    place = np.maximum(count - 1, 0) // 4
    found: Floats = np.nan_to_num(np.take_along_axis(ordered, place[:, None, :], axis=1)[:, 0, :])
    return found
