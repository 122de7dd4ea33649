"""Groups scores into a few bins, as PAL does, so that small differences do not decide.

GPUs above mean + 3 standard deviations are outliers. The number of bins is that of the outliers plus K1. In PAL's paper
K1 is the number of clusters, 2 to 10, with the greatest silhouette over the other GPUs. PAL's artifact leaves the
search after the first step, so that K1 is always 2. A bin's score is its centroid over the median of the centroids.

Clusters of one-dimensional scores are found exactly, by dynamic programming, where the artifact runs a seeded k-means.
On the published scores the two agree.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from policy.formats.errors import UsageError, nearest

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.formats.arrays import Floats
    from topology.tables import Ints

Binning = Literal["artifact", "silhouette", "exact"]
"""`artifact`: K1 = 2. `silhouette`: K1 as in PAL's paper. `exact`: each score is a bin of its own."""

BINNINGS: tuple[Binning, ...] = ("artifact", "silhouette", "exact")

_ARTIFACT_K1 = 2
_MOST_K1 = 10
_OUTLIER_STDS = 3.0


@dataclass(frozen=True, slots=True)
class Bins:
    """The GPUs of a fleet by bin, the fastest first; masks are by bin and node."""

    values: tuple[float, ...]
    """Score of each bin, ascending."""
    exactly: "Ints"
    """GPUs in the bin."""
    upto: "Ints"
    """GPUs in the bin or a faster one."""


def bins_of(fleet: "Fleet", table: "Floats | None", binning: Binning) -> Bins:
    """Returns the bins of one application class on a fleet; without a table all GPUs are equal."""
    if table is None:
        full = fleet.full[None, :]
        return Bins((1.0,), full, full)
    positions = np.arange(table.shape[1])
    exists = positions < fleet.size[:, None]
    scores = binned(table[exists], binning)
    values, ranks = np.unique(scores, return_inverse=True)
    rank = np.full(table.shape, -1, np.int64)
    rank[exists] = ranks
    bits = np.int64(1) << positions
    exactly = np.array([np.where(rank == one, bits, 0).sum(axis=1) for one in range(values.size)])
    return Bins(tuple(values.tolist()), exactly, np.bitwise_or.accumulate(exactly, axis=0))


def binned(scores: "Floats", binning: Binning) -> "Floats":
    """Returns for each score that of its bin."""
    if binning not in BINNINGS:
        raise UsageError(f"there is no binning {binning}{nearest(binning, BINNINGS)}; known are {', '.join(BINNINGS)}")
    if binning == "exact":
        return scores
    deviation = float(scores.std(ddof=1)) if scores.size > 1 else 0.0
    outliers = scores > scores.mean() + _OUTLIER_STDS * deviation
    k1 = _ARTIFACT_K1 if binning == "artifact" else _best_k1(scores[~outliers])
    labels, centroids = clusters(scores, k1 + int(outliers.sum()))
    result: Floats = (centroids / np.median(centroids))[labels]
    return result


def clusters(scores: "Floats", k: int) -> "tuple[Ints, Floats]":
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

    def cost(first: "Ints", end: int) -> "Floats":
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


def _best_k1(scores: "Floats") -> int:
    most = min(_MOST_K1, np.unique(scores).size - 1, scores.size - 1)
    found = {k: silhouette(scores, clusters(scores, k)[0]) for k in range(_ARTIFACT_K1, most + 1)}
    return max(found, key=found.__getitem__, default=_ARTIFACT_K1)


def silhouette(scores: "Floats", labels: "Ints") -> float:
    """Returns the mean silhouette of the scores: how much nearer each is to its own cluster than to the next one.

    A score that is alone in its cluster counts 0.
    """
    members = [np.sort(scores[labels == label]) for label in range(int(labels.max()) + 1)]
    apart = np.array([_distances(scores, some) for some in members])
    size = np.array([some.size for some in members])
    place = np.arange(scores.size)
    near = apart[labels, place] / np.maximum(size[labels] - 1, 1)
    others = apart / size[:, None]
    others[labels, place] = np.inf
    next_ = others.min(axis=0)
    gain: Floats = (next_ - near) / np.maximum(np.maximum(next_, near), 1e-300)
    return float(np.where(size[labels] > 1, gain, 0.0).mean())


def _distances(scores: "Floats", to: "Floats") -> "Floats":
    """Returns for each score the sum of its distances to the sorted scores `to`, in memory linear in their number."""
    sums = np.concatenate(([0.0], np.cumsum(to)))
    below = np.searchsorted(to, scores)
    found: Floats = scores * below - sums[below] + (sums[-1] - sums[below]) - scores * (to.size - below)
    return found
