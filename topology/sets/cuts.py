# SPDX-License-Identifier: Apache-2.0
"""The narrowest cut of a set of GPUs: the bandwidth that a collective on them can count on.

A set can be parted in two in many ways. What crosses one parting is the greater of two: all direct NVLinks between the
parts together, and the widest single path between them (PCIe, chip-to-chip, or through NVSwitches, where a path is as
wide as a GPU's uplink). The narrowest of all partings bounds every ring and every tree through the set, and orders sets
nearly as NCCL's own search does (docs/research/links.md).

>>> from topology.machines import machine
>>> from topology.sets.wiring import wiring
>>> node = wiring(machine("dgx-1v", "n1"))
>>> narrowest(node, np.array([[1, 2, 3, 6], [2, 3, 6, 7]])).tolist()     # in kB/s: GPU 6 hangs on one link of GPU 2
[25781000, 51562000]
"""

from __future__ import annotations

from itertools import combinations
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from topology.sets.wiring import Wiring

Numbers: TypeAlias = npt.NDArray[np.int64]

EXACT = 1_000_000
"""Bandwidths are compared as whole kB/s: sums of floats depend on their order, and exact ties matter here."""

_MOST_SUMMED = 20
"""Sets of more GPUs have too many partings, and no node has more GPUs with direct NVLinks: widest paths alone count."""

_PARTINGS, _AT_ONCE = 1 << 13, 1 << 21
"""Partings compared in one step, and pairs of a set and a parting."""


def narrowest(of: Wiring, sets: Numbers) -> Numbers:
    """Returns kB/s across the narrowest cut of each set, a row of positions; 0 for sets of one GPU.

    No cut is narrower than the weakest edge of the widest tree. A set of k GPUs has 2^(k-1) partings. They are compared
    only where some NVLink is no wider than that edge: else the edge parts the set without cutting an NVLink.
    """
    count, k = sets.shape
    paths = whole_kbps(of.gbps)
    if k < 2:
        return np.zeros(count, np.int64)
    pairs = list(combinations(range(k), 2))
    direct, wide = (_of_pairs(matrix, sets, pairs) for matrix in (whole_kbps(of.direct), paths))
    found = _weakest_of_widest_tree(paths, sets)
    summed = np.flatnonzero(((direct > 0) & (wide <= found[:, None])).any(axis=1))
    if k > _MOST_SUMMED or not summed.size:
        return found
    found[summed] = np.iinfo(np.int64).max
    partings = 1 << (k - 1)
    step = _AT_ONCE // min(partings, _PARTINGS)
    for first in range(1, partings, _PARTINGS):
        sides = (np.arange(first, min(first + _PARTINGS, partings))[:, None] >> np.arange(k)) & 1
        apart = np.stack([sides[:, a] != sides[:, b] for a, b in pairs]).astype(np.float64)
        for start in range(0, summed.size, step):
            rows = summed[start : start + step]
            across = _across(direct[rows], wide[rows], apart)
            found[rows] = np.minimum(found[rows], across.min(axis=1))
    return found


def joined_by_nvlink(of: Wiring, sets: Numbers) -> npt.NDArray[np.bool]:
    """Tells of each set whether NVLink alone holds its GPUs together, through one another or through switches."""
    return _weakest_of_widest_tree(whole_kbps(of.shape.gbps), sets) > 0


def whole_kbps(gbps: tuple[tuple[float, ...], ...]) -> Numbers:
    """Returns a matrix of GB/s in whole kB/s."""
    return np.rint(np.array(gbps, np.float64).reshape(len(gbps), -1) * EXACT).astype(np.int64)


def _of_pairs(matrix: Numbers, sets: Numbers, pairs: list[tuple[int, int]]) -> Numbers:
    """Returns a symmetric matrix at the pairs of each set."""
    return np.stack([matrix[sets[:, a], sets[:, b]] for a, b in pairs], axis=1)


def _weakest_of_widest_tree(paths: Numbers, sets: Numbers) -> Numbers:
    """Returns the narrowest cut where nothing adds up: the weakest edge of the widest spanning tree (Prim)."""
    every = np.arange(len(sets))
    reached = paths[sets[:, :1], sets]
    reached[:, 0] = -1
    weakest: Numbers = np.full(len(sets), np.iinfo(np.int64).max)
    for _ in range(sets.shape[1] - 1):
        nearest = reached.argmax(axis=1)
        weakest = np.minimum(weakest, reached[every, nearest])
        wider = paths[sets[every, nearest][:, None], sets]
        reached = np.where(reached < 0, -1, np.maximum(reached, wider))
        reached[every, nearest] = -1
    return weakest


def _across(direct: Numbers, paths: Numbers, apart: npt.NDArray[np.float64]) -> Numbers:
    """Returns what crosses each parting of each set; `apart` tells which pairs (rows) a parting (column) separates."""
    # Whole numbers below 2^53 are exact in floats, whose product of matrices is fast.
    across: Numbers = (direct.astype(np.float64) @ apart).astype(np.int64)
    for width in np.unique(paths).tolist():
        across = np.maximum(across, np.where((paths >= width).astype(np.float64) @ apart > 0, width, 0))
    return across
