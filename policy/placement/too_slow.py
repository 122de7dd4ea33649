"""Finds GPUs that are so slow that a job does better to wait for others, and so do the jobs behind it.

All GPUs of a synchronous job run at the speed of its slowest. Let a job on m GPUs of n nodes take j slow ones, `gap`
times as slow as the next faster ones. The slow ones are given up where two things hold:

* It costs the cluster more than it brings: m - j GPUs at full speed do more work than m at the slow speed, so
  gap > m / (m - j). Then it is better for all to leave the slow GPUs to other jobs, even to nobody.
* The job is expected to end sooner without them, though it has fewer nodes to wait for. If N busy nodes come free at
  random, each after the time T on average, the n-th is free after T (1/N + 1/(N-1) + ... + 1/(N-n+1)). With N' nodes
  left this takes longer. T is not known, and is taken to be the run time of the job itself: jobs are alike as far as
  anybody knows. So gap - 1 > drain(N', n) - drain(N, n).

Nothing here says what is slow. GPUs whose scores differ by small steps are never given up, because j more of them
always do more work than they cost. A job on one GPU takes any.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from policy.formats.arrays import Floats

NO_BOUND = float("inf")


def slowest_worth(scores: "Floats", nodes: int, gpus: int) -> float:
    """Returns the slowest score that is worth it to a job on `nodes` x `gpus` GPUs; infinity where all are.

    Rows of `scores` are the nodes that it may use; a place without a GPU is NaN.

    >>> table = np.array([[1.0, 1.01], [1.0, 1.02], [1.01, 1.0], [2.8, 1.0]])
    >>> slowest_worth(table, 2, 2), slowest_worth(table, 1, 1), slowest_worth(table, 4, 2)
    (1.02, inf, inf)
    """
    job = nodes * gpus
    ordered = np.sort(scores[np.isfinite(scores)])[::-1]
    if job < 2 or ordered.size < 2:
        return NO_BOUND
    j = np.arange(1, min(job, ordered.size))
    gap = ordered[j - 1] / ordered[j]
    room = _room(scores, NO_BOUND, gpus)
    for last in np.flatnonzero(gap > job / (job - j))[::-1].tolist():
        bound = float(ordered[last + 1])
        left = _room(scores, bound, gpus)
        if left >= nodes and gap[last] - 1.0 > drain(left, nodes) - drain(room, nodes):
            return bound
    return NO_BOUND


def drain(busy: int, nodes: int) -> float:
    """Returns the expected time until so many of `busy` nodes have come free, over the mean time of one.

    >>> drain(4, 1), drain(2, 2)
    (0.25, 1.5)
    """
    return float((1.0 / np.arange(busy - nodes + 1, busy + 1)).sum())


def _room(scores: "Floats", bound: float, gpus: int) -> int:
    """Returns the number of nodes with so many GPUs that are no slower."""
    return int(((scores <= bound).sum(axis=1) >= gpus).sum())
