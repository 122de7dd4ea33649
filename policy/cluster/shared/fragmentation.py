# SPDX-License-Identifier: Apache-2.0
"""Fragmentation: the part of a node's GPUs that usual jobs cannot use. Jobs are placed where it grows least.

After "Beware of Fragmentation" (USENIX ATC 2023): for a distribution of requests, a node's expected fragmentation is
the room on it that a request drawn from the distribution could not use. Shares are placed by this measure.

Whole GPUs are placed by the room for which the node has no CPUs: a job with many CPUs goes where they are left over.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from policy.formats.arrays import Floats
from policy.formats.slurm_facts import JobFacts
from topology.sets.tables import Ints

MOST_SHAPES = 32
"""Most requests in a distribution; rarer ones would only cost time."""

_LIKE_SEEN = 20
"""Number of seen jobs that together weigh as much as the default."""


class UsualJob(NamedTuple):
    """Needs of a usual job on each of its nodes, and its part of all jobs; `percent` is 100 for whole GPUs."""

    gpus: int
    percent: int
    cpus: int
    weight: float


DEFAULT = (
    UsualJob(1, 100, 4, 0.35),
    UsualJob(2, 100, 8, 0.1),
    UsualJob(4, 100, 16, 0.1),
    UsualJob(8, 100, 32, 0.15),
    UsualJob(1, 50, 2, 0.15),
    UsualJob(1, 30, 2, 0.15),
)
"""Distribution before any job was seen.

As in production clusters, most jobs want one GPU, and most GPUs are in big jobs."""


def learned(jobs: "Iterable[JobFacts]") -> tuple[UsualJob, ...]:
    """Returns the shapes of the GPU jobs that Slurm knows now, mixed with the default so that a few do not dominate."""
    asked = (
        (gpus, job.share or 100, max(1, job.cpus // max(1, job.count)))
        for job in jobs
        if job.wants_gpus and (gpus := (job.gpus or 0).bit_count())
    )
    return usual(asked, DEFAULT)


def usual(asked: Iterable[tuple[int, int, int]], before: Sequence[UsualJob] = ()) -> tuple[UsualJob, ...]:
    """Returns the most common requests (GPUs, percent of each, CPUs) with their weights.

    The shapes in `before` weigh as much as a few jobs. Nothing is rounded: a node with 85 % left takes a job of 81 %.
    """
    weights: dict[tuple[int, int, int], float] = {**Counter(asked)}
    for gpus, percent, cpus, weight in before:
        kind = gpus, percent, cpus
        weights[kind] = weights.get(kind, 0.0) + weight * _LIKE_SEEN
    found = sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:MOST_SHAPES]
    whole = sum(weight for _, weight in found)
    return tuple(UsualJob(*kind, weight / whole) for kind, weight in found)


def stranded(free: "Ints", parts: "Ints", cpus: "Ints", shapes: Sequence[UsualJob]) -> "Floats":
    """Returns the expected percent of a GPU that the next usual job cannot use, for each row: one node in one state.

    `free` counts the free GPUs, `parts` are the percent left of shared GPUs, `cpus` the free CPUs.

    >>> one = (UsualJob(1, 100, 1, 0.5), UsualJob(1, 50, 1, 0.5))
    >>> stranded(np.array([1, 1]), np.array([[70], [40]]), np.array([8, 8]), one).tolist()
    [35.0, 40.0]
    """
    # Transposed to one row per GPU, since sums over a short last axis are slow.
    parts = np.ascontiguousarray(parts.T, np.int32)
    total = 100 * free + parts.sum(axis=0)
    used = np.zeros(free.size)
    for gpus, percent, needed, weight in shapes:
        count, room = free, 100 * free
        if percent < 100:
            fitting = parts >= percent
            count, room = free + fitting.sum(axis=0), room + (parts * fitting).sum(axis=0)
        used += weight * room * ((count >= gpus) & (cpus >= needed))
    return np.asarray(total - used)


def cpus_per_gpu(shapes: Sequence[UsualJob]) -> float:
    """Returns the CPUs that usual jobs have for each GPU, all of them together; 0 if there are no usual jobs.

    >>> cpus_per_gpu((UsualJob(1, 50, 4, 0.5), UsualJob(2, 100, 6, 0.5)))
    4.0
    """
    gpus = sum(shape.weight * shape.gpus * shape.percent for shape in shapes) / 100
    return sum(shape.weight * shape.cpus for shape in shapes) / gpus if gpus else 0.0


def without_cpus(free: "Ints", parts: "Ints", cpus: "Ints", per_gpu: float) -> "Floats":
    """Returns the percent of a GPU that is free on each node, and for which the node has no CPUs.

    `free` counts the free GPUs, `parts` is the percent left of all shared GPUs of a node together, `cpus` the free
    CPUs, `per_gpu` the CPUs that usual jobs have for each GPU.

    >>> without_cpus(np.array([4, 4]), np.array([0, 50]), np.array([8, 32]), 4.0).tolist()
    [200.0, 0.0]
    """
    return np.asarray(np.maximum(0.0, 100 * free + parts - 100 * cpus / per_gpu))
