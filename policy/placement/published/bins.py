# SPDX-License-Identifier: Apache-2.0
"""Groups scores into a few bins, as PAL does, so that small differences do not decide.

GPUs above mean + 3 standard deviations are outliers. The number of bins is that of the outliers plus K1. In PAL's paper
K1 is the number of clusters, 2 to 10, with the greatest silhouette over the other GPUs. PAL's artifact leaves the
search after the first step, so that K1 is always 2, as here. A bin's score is its centroid over the median of the
centroids.

Clusters of one-dimensional scores are found exactly, by dynamic programming, where the artifact runs a seeded k-means.
On the published scores the two agree.
"""

from dataclasses import dataclass

import numpy as np

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Floats
from topology.sets.tables import Ints

_K1 = 2
_OUTLIER_STDS = 3.0


@dataclass(frozen=True, slots=True)
class Bins:
    """The GPUs of a fleet by bin, the fastest first; masks are by bin and node."""

    values: tuple[float, ...]
    """Score of each bin, ascending."""
    exactly: Ints
    """GPUs in the bin."""
    upto: Ints
    """GPUs in the bin or a faster one."""


def bins_of(fleet: Fleet, table: Floats | None) -> Bins:
    """Returns the bins of one application class on a fleet; without a table all GPUs are equal."""
    if table is None:
        full = fleet.full[None, :]
        return Bins((1.0,), full, full)
    positions = np.arange(table.shape[1])
    exists = positions < fleet.size[:, None]
    scores = binned(table[exists])
    values, ranks = np.unique(scores, return_inverse=True)
    rank = np.full(table.shape, -1, np.int64)
    rank[exists] = ranks
    bits = np.int64(1) << positions
    exactly = np.array([np.where(rank == one, bits, 0).sum(axis=1) for one in range(values.size)])
    return Bins(tuple(values.tolist()), exactly, np.bitwise_or.accumulate(exactly, axis=0))


def binned(scores: Floats) -> Floats:
    """Returns for each score that of its bin."""
    deviation = float(scores.std(ddof=1)) if scores.size > 1 else 0.0
    outliers = scores > scores.mean() + _OUTLIER_STDS * deviation
    labels, centroids = clusters(scores, _K1 + int(outliers.sum()))
    result: Floats = (centroids / np.median(centroids))[labels]
    return result


def clusters(scores: Floats, k: int) -> tuple[Ints, Floats]:
    """Returns each score's label and the centroids, for the least sum of squared distances to the centroids.

    In one dimension clusters are stretches of the sorted scores, so the optimum is found by dynamic programming. Fewer
    distinct scores than k give fewer clusters.
    """
    values, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    k = min(k, values.size)
    # Scores are centred, so that the differences of squares below lose no digits.
    centred = values - values.mean()
    weight, total, squares = (
        np.concatenate(([0.0], np.cumsum(part))) for part in (count, count * centred, count * centred**2)
    )

    def cost(first: Ints, end: int) -> Floats:
        sums = total[end] - total[first]
        inside: Floats = squares[end] - squares[first] - sums**2 / (weight[end] - weight[first])
        return inside

    size = values.size
    best = np.concatenate(([0.0], np.full(size, np.inf)))
    starts = np.zeros((k, size + 1), np.int64)
    for made in range(k):
        former, best = best, np.full(size + 1, np.inf)
        lowest = made
        for end in range(made + 1, size + 1):
            first = np.arange(lowest, end)
            costs = former[first] + cost(first, end)
            found = int(costs.argmin())
            # The best start never moves down as the end moves up.
            lowest += found
            best[end], starts[made, end] = costs[found], lowest
    labels, centroids, end = np.zeros(size, np.int64), np.zeros(k), size
    for made in range(k - 1, -1, -1):
        first_of = int(starts[made, end])
        labels[first_of:end] = made
        centroids[made] = np.average(values[first_of:end], weights=count[first_of:end])
        end = first_of
    return labels[place], centroids
