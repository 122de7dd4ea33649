"""How much of a node's GPUs the usual jobs cannot use: the measure by which a share is placed.

After "Beware of Fragmentation" (USENIX ATC 2023): for a distribution of requests, a node's expected fragmentation is
the room on it that a request drawn from the distribution could not use. A share goes where it adds least to that, and
here the room counts, too, that many such requests, one after the other, could not use.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from policy.formats.arrays import Floats
    from policy.formats.slurm_facts import JobFacts
    from topology.tables import Ints

MOST_SHAPES = 32
"""Requests of a distribution: rarer ones would only cost time."""

_LIKE_SEEN = 20
"""So many jobs seen weigh as much as the default does."""


class Shape(NamedTuple):
    """What a usual job needs on each of its nodes, and how usual it is; `percent` is 100 for whole GPUs."""

    gpus: int
    percent: int
    cpus: int
    weight: float


DEFAULT = (
    Shape(1, 100, 4, 0.35),
    Shape(2, 100, 8, 0.1),
    Shape(4, 100, 16, 0.1),
    Shape(8, 100, 32, 0.15),
    Shape(1, 50, 2, 0.15),
    Shape(1, 30, 2, 0.15),
)
"""Before any job was seen: as in production clusters most jobs want one GPU, and most GPUs are in big ones."""


def learned(jobs: "Iterable[JobFacts]") -> tuple[Shape, ...]:
    """The shapes of the GPU jobs that Slurm knows now, mixed with the default so that no few jobs rule."""
    asked = (
        (gpus, job.share or 100, max(1, job.cpus // max(1, job.count)))
        for job in jobs
        if job.wants_gpus and (gpus := (job.gpus or 0).bit_count())
    )
    return usual(asked, DEFAULT)


def usual(asked: Iterable[tuple[int, int, int]], before: Sequence[Shape] = ()) -> tuple[Shape, ...]:
    """The commonest of some requests (GPUs, percent of each, CPUs) and how common they are.

    What was thought before weighs as much as a few jobs. Nothing is rounded: a node with 85 % left takes a job of 81 %.
    """
    weights: dict[tuple[int, int, int], float] = {**Counter(asked)}
    for gpus, percent, cpus, weight in before:
        kind = gpus, percent, cpus
        weights[kind] = weights.get(kind, 0.0) + weight * _LIKE_SEEN
    found = sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:MOST_SHAPES]
    whole = sum(weight for _, weight in found)
    return tuple(Shape(*kind, weight / whole) for kind, weight in found)


def stranded(free: "Ints", parts: "Ints", cpus: "Ints", shapes: Sequence[Shape]) -> "Floats":
    """Percent of a GPU that usual jobs cannot use, expected, for each row: one node in one state.

    The mean of two answers: what the next usual job could not use, which is the published measure, and what as many
    jobs like it as fit could not use. The second sees that a node's CPUs end before its GPUs do.
    `free` counts its free GPUs, `parts` are the percent left of its shared ones, `cpus` its free CPUs.

    >>> one = (Shape(1, 100, 1, 0.5), Shape(1, 50, 1, 0.5))
    >>> stranded(np.array([1, 1]), np.array([[70], [40]]), np.array([8, 8]), one).tolist()
    [40.0, 40.0]
    """
    # One row for each GPU: sums over a short last axis are slow.
    parts = np.ascontiguousarray(parts.T, np.int32)
    total = 100 * free + parts.sum(axis=0)
    used = np.zeros(free.size)
    for gpus, percent, needed, weight in shapes:
        count, room, slots = free, 100 * free, free
        if percent < 100:
            fitting = parts >= percent
            count, room = free + fitting.sum(axis=0), room + (parts * fitting).sum(axis=0)
            slots = free * (100 // percent) + (parts // percent).sum(axis=0)
        first = room * ((count >= gpus) & (cpus >= needed))
        many = np.minimum(slots // gpus, np.maximum(cpus, 0) // max(1, needed)) * (gpus * percent)
        used += weight * (first + many) / 2
    return np.asarray(total - used)
