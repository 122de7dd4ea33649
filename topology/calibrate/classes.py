"""Application classes from profiles: how much a job suffers from a slow GPU, derived from the units that it keeps busy.

A slow chip has a low clock at its power limit. Work that keeps the arithmetic units busy feels that in full, work that
waits for memory or for the host hardly. A profile is what a profiler or the guard's samples show of a job alone on a
GPU: the share of time in which the tensor or FMA pipes were active, and the share in which DRAM was.

>>> by_rule(ClassProfile("resnet50", compute=0.62, memory=0.35))
'compute'
>>> class_of("PointNet"), class_of("unheard-of")
('D', 'compute')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from topology.calibrate.posterior import Floats

__all__ = ["MODELS", "ClassProfile", "by_rule", "class_of", "cluster", "silhouette"]

MODELS: Mapping[str, str] = {
    "resnet50": "compute",
    "bert": "mixed",
    "dcgan": "mixed",
    "gpt2": "mixed",
    "vgg19": "memory",
    "pointnet": "D",
}
"""Classes of PAL's six models, as in its artifact; D is its class of jobs that a slow GPU does not slow down."""

_MOST_CLASSES = 10
_STARTS = 16
_IDLE = 0.10
_COMPUTE_FROM, _MEMORY_TO = 0.60, 0.40


@dataclass(frozen=True, slots=True)
class ClassProfile:
    """Shares of time, 0 to 1."""

    name: str
    compute: float
    """Tensor or FMA pipes active."""
    memory: float
    """DRAM active."""


def class_of(model: str) -> str:
    """Returns the class of a model by name; an unknown one is `compute`, which suffers most, to be on the safe side."""
    return MODELS.get(model.lower(), "compute")


def by_rule(profile: ClassProfile) -> str:
    """Returns the class of one profile when there are too few for clusters: by what it keeps busy."""
    busy = profile.compute + profile.memory
    if profile.compute < _IDLE or profile.compute < _MEMORY_TO * busy:
        # It waits for memory or for the host: a lower clock of the GPU costs it little.
        return "memory"
    return "compute" if profile.compute >= _COMPUTE_FROM * busy else "mixed"


def cluster(profiles: Sequence[ClassProfile], count: int = 0) -> dict[str, str]:
    """Returns classes by name, from clusters of profiles; by default the number with the greatest silhouette (PAL).

    The cluster with the busiest arithmetic units is `compute`, the next `mixed`, then `memory`, and PAL's letters from
    D on. Fewer than four profiles make no clusters: each is classed by rule.
    """
    points = np.array([(one.compute, one.memory) for one in profiles], np.float64).reshape(-1, 2)
    kinds = len(np.unique(points, axis=0))
    if kinds < 4:
        return {one.name: by_rule(one) for one in profiles}
    counts = [min(count, kinds)] if count else range(2, min(_MOST_CLASSES, kinds - 1) + 1)
    tried = [_clusters(points, some) for some in counts]
    labels = max(tried, key=lambda some: silhouette(points, some))
    found = np.unique(labels)
    busiest = sorted(found, key=lambda label: -float(points[labels == label, 0].mean()))
    names = ["compute", "mixed", "memory", *"DEFGHIJ"]
    if len(found) == 2:
        names = ["compute", "memory"]
    named = dict(zip(busiest, names, strict=False))
    return {one.name: named[label] for one, label in zip(profiles, labels, strict=True)}


def silhouette(points: Floats, labels: np.ndarray) -> float:
    """Returns the mean silhouette: how much nearer each point is to its own cluster than to the next; alone: 0."""
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    found = []
    for place, label in enumerate(labels):
        own = labels == label
        if own.sum() < 2:
            found.append(0.0)
            continue
        near = apart[place, own].sum() / (own.sum() - 1)
        next_ = min(apart[place, labels == other].mean() for other in np.unique(labels) if other != label)
        found.append((next_ - near) / max(next_, near, 1e-12))
    return float(np.mean(found))


def _clusters(points: Floats, count: int) -> np.ndarray:
    """Returns the best of several k-means runs, each started from points far from each other."""
    random = np.random.default_rng(0)
    best, least = np.zeros(len(points), np.int64), np.inf
    for start in range(_STARTS):
        centres = points[[start % len(points)]]
        while len(centres) < count:
            square = ((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1)
            centres = np.vstack([centres, points[random.choice(len(points), p=square / square.sum())]])
        for _ in range(100):
            labels = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
            moved = np.array(
                [points[labels == k].mean(axis=0) if (labels == k).any() else centres[k] for k in range(count)]
            )
            if np.allclose(moved, centres):
                break
            centres = moved
        lost = float(((points - centres[labels]) ** 2).sum())
        if lost < least:
            best, least = labels, lost
    return best
