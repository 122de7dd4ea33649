# SPDX-License-Identifier: Apache-2.0
"""Finds nodes with GPUs so slow that a job does better to wait for others, and so do the jobs behind it.

All GPUs of a synchronous job run at the speed of its slowest. Let a job on m GPUs take j slow ones, `gap` times as slow
as the next faster ones. Their nodes are given up where two things hold:

* They cost the cluster more than they bring: m - j GPUs at full speed do more work than m at the slow speed, so
  gap > m / (m - j). Then it is better for all to leave the slow GPUs to other jobs, or idle.
* The job is expected to end sooner without them, though it has fewer nodes to wait for. If N busy nodes come free at
  random, each after the time T on average, the n-th is free after T (1/N + 1/(N-1) + ... + 1/(N-n+1)). With N' nodes
  left this takes longer. T is not known, and is taken to be the run time of the job itself: no job is
  known to differ. So gap - 1 > drain(N', n) - drain(N, n).

No constant says what is slow. Nodes whose speeds differ by small steps are never given up: more of them always do more
work than they cost. A job on one GPU takes any.
"""

from typing import NamedTuple

import numpy as np

from policy.formats.arrays import Bools, Floats


class Bound(NamedTuple):
    """A bound on speed: the nodes that meet it, and how much slower the fastest of the others is."""

    gap: float
    fast: Bools


def bounds(scores: Floats, nodes: int, gpus: int) -> list[Bound]:
    """Returns the bounds above which GPUs cost a job on `nodes` x `gpus` GPUs more than they bring, strictest first.

    A row of `scores` is a node; a place without a GPU is infinitely slow. The job takes the fastest GPUs of each node,
    and at worst it takes the nodes with most slow GPUs.

    >>> table = np.array([[1.0, 1.01], [1.0, 1.02], [1.01, 1.0], [2.8, 1.0]])
    >>> [(round(one.gap, 2), one.fast.tolist()) for one in bounds(table, 2, 2)]
    [(2.75, [True, True, True, False])]
    >>> bounds(table, 4, 1)
    []
    """
    job = nodes * gpus
    if job < 2 or gpus > scores.shape[1]:
        return []
    best = np.sort(scores, axis=1)[:, :gpus]
    slowest = best[:, -1]
    steps = np.unique(slowest[np.isfinite(slowest)])
    found = []
    # The least gap that can count is that of one slow GPU.
    for step in np.flatnonzero(steps[1:] > steps[:-1] * job / (job - 1)).tolist():
        bound, gap = float(steps[step]), float(steps[step + 1] / steps[step])
        slow = np.where(np.isfinite(slowest), (best > bound).sum(axis=1), 0)
        most = int(np.sort(slow)[-nodes:].sum())
        if most < job and gap > job / (job - most):
            found.append(Bound(gap, slowest <= bound))
    return found


def worthwhile(candidates: Bools, able: Bools, nodes: int, some: list[Bound]) -> Bools:
    """Returns the candidates that a job on so many nodes is expected to gain by waiting for; all if none are too slow.

    `able` marks the nodes that have enough GPUs for it.
    """
    room = int((candidates & able).sum())
    for bound in some:
        fast = candidates & bound.fast
        left = int(fast.sum())
        if left >= nodes and bound.gap - 1.0 > drain(left, nodes) - drain(room, nodes):
            return fast
    return candidates


def drain(busy: int, nodes: int) -> float:
    """Returns the expected time until so many of `busy` nodes have come free, over the mean time of one.

    >>> drain(4, 1), drain(2, 2)
    (0.25, 1.5)
    """
    return float((1.0 / np.arange(busy - nodes + 1, busy + 1)).sum())
