# SPDX-License-Identifier: Apache-2.0
"""Helpers for the published policies: sets of GPUs as masks, one for each node."""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from policy.cluster.view import View
from policy.placement.base import Berth, Policy
from policy.request.demand import Demand
from topology.sets.tables import Ints

_MASKS_AT_ONCE = 64
"""Sets tried in one numpy step."""


def usable(demand: Demand, view: View) -> Ints:
    """Returns the free GPUs of each node that a demand may use."""
    return np.where(Policy.fitting(demand, view), view.free, 0)


def lowest(mask: int, k: int) -> int:
    """Returns the k lowest GPUs of a mask.

    >>> bin(lowest(0b11010, 2))
    '0b1010'
    """
    rest = mask
    for _ in range(k):
        rest &= rest - 1
    return mask ^ rest


def fill(free: Ints, nodes: Ints, k: int) -> dict[int, int]:
    """Returns the mask on each node for k GPUs, from nodes in the order given, each emptied before the next."""
    filled = np.bitwise_count(free[nodes]).cumsum()
    whole = int(filled.searchsorted(k, side="right"))
    emptied = nodes[:whole]
    taken: dict[int, int] = dict(zip(emptied.tolist(), free[emptied].tolist(), strict=True))
    rest = k - (int(filled[whole - 1]) if whole else 0)
    if rest:
        last = int(nodes[whole])
        taken[last] = lowest(int(free[last]), rest)
    return taken


@lru_cache(maxsize=256)
def sets_of(size: int, k: int) -> Ints:
    """Returns all sets of k out of `size` GPUs, as masks, those with low positions first."""
    masks = np.arange(1 << size, dtype=np.int64)
    found: Ints = masks[np.bitwise_count(masks) == k]
    return found


def same_on_each(
    n: int, k: int, free: Ints, preference: Ints | np.ndarray[tuple[int], np.dtype[np.float64]], sets: Ints
) -> tuple[list[int], int] | None:
    """Returns the first of `sets` that n nodes have free, and the n nodes of them with the least `preference`."""
    nodes = np.flatnonzero(np.bitwise_count(free) >= k)
    if nodes.size < n:
        return None
    for some in _parts(sets):
        has = (free[nodes, None] & some) == some
        enough = has.sum(axis=0) >= n
        if enough.any():
            first = int(enough.argmax())
            having = nodes[has[:, first]]
            chosen = having[np.argsort(preference[having], kind="stable")[:n]]
            return sorted(chosen.tolist()), int(some[first])
    return None


def _parts(sets: Ints) -> Iterable[Ints]:
    return (sets[start : start + _MASKS_AT_ONCE] for start in range(0, sets.size, _MASKS_AT_ONCE))


def spread(demand: Demand, view: View, masks: dict[int, int], why: str) -> Berth:
    """Returns the berth of these GPUs, nodes in the fleet's order."""
    nodes = sorted(masks)
    return Policy.spread(demand, view, nodes, [masks[node] for node in nodes], why)


def gpus(count: int) -> str:
    """Returns the text `1 GPU` or `2 GPUs`."""
    return f"{count} GPU{'' if count == 1 else 's'}"
