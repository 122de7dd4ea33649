# SPDX-License-Identifier: Apache-2.0
"""The best k GPUs of one node, exactly.

Compares every set of k GPUs. What does not depend on which GPUs are free (bandwidth, distance) is worked out once
for each kind of machine and each k; a question then costs one pass over an array of masks.

>>> from topology.machines import machine
>>> SubsetTable(machine("dgx-1v", "n1")).best(free_mask=0b11011110, k=4)
SubsetChoice(mask=204, gpus=(2, 3, 6, 7), cut_gbps=51.562, min_gbps=10.0, sum_gbps=174.686, broken=2)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from topology.errors import QuestionError, TooManySetsError
from topology.model import NEAR, Machine
from topology.sets.cuts import EXACT, Numbers, joined_by_nvlink, narrowest, whole_kbps
from topology.sets.islands import islands
from topology.sets.wiring import Wiring, positions, wiring

Masks: TypeAlias = npt.NDArray[np.uint64]
Level: TypeAlias = Literal["nvlink", "node"]

#: 16 GPUs have 12,870 sets of 8, 20 GPUs 184,756 of 10. Beyond, a table would take seconds and much memory.
_MOST_SETS = 200_000
_MOST_ANSWERS = 1 << 16

_MOST_LEFT = 16
"""On nodes of more GPUs what is left is not compared: a table of all that may be left would be too large."""

_MOST_AT_PEAK = 8

_SIZES_LEFT = (2, 4)
"""Sizes of the jobs for which the best set that is left counts: most jobs on several GPUs of a node have these."""


@dataclass(frozen=True, slots=True)
class SubsetChoice:
    """A set of GPUs and the values by which it is compared."""

    mask: int
    gpus: tuple[int, ...]
    cut_gbps: float
    """GB/s across the narrowest cut of the set; 0 for one GPU."""
    min_gbps: float
    """GB/s over the widest path of the weakest pair, NVLink or PCIe; 0 for one GPU."""
    sum_gbps: float
    """GB/s over the widest paths of all pairs together."""
    broken: int
    """Islands with two or more free GPUs that this set cuts into."""


@dataclass(frozen=True, slots=True)
class _Ranking:
    """All sets of k GPUs, best first by everything but what is left, which depends on what is free."""

    masks: Masks
    links: Numbers
    """For each set the number of the sets' values of bandwidth that are better."""
    quality: Numbers
    """The same of bandwidth and PCIe nearness: sets of one quality differ in nothing that their own job feels."""
    linked: npt.NDArray[np.bool]
    """True if every pair of the set is joined by NVLink."""
    kbps: tuple[Numbers, ...]
    """Narrowest cut, weakest pair, all pairs."""
    nic_near: Numbers
    """The sum of its GPUs' nearness to NICs; less is nearer."""


class SubsetTable:
    """Answers for one kind of machine; `SubsetTable.of` shares the table among machines of equal wiring."""

    _shared: dict[Wiring, SubsetTable] = {}  # noqa: RUF012  a cache

    def __init__(self, machine: Machine) -> None:
        self.wiring: Wiring = wiring(machine)
        self.islands: tuple[int, ...] = islands(machine.shape)
        """Masks of the NVLink islands, the widest first."""
        self._everything = (1 << machine.size) - 1
        self._rankings: dict[int, _Ranking] = {}
        self._left: dict[int, Numbers] = {}
        self._answers: dict[tuple[int, int, Level], SubsetChoice | None] = {}

    @classmethod
    def of(cls, machine: Machine) -> SubsetTable:
        """Returns the table that all machines of this wiring share."""
        made = wiring(machine)
        table = cls._shared.get(made)
        if table is None:
            table = cls._shared[made] = cls(machine)
        return table

    def best(self, free_mask: int, k: int, level: Level = "node") -> SubsetChoice | None:
        """Returns the best k of the free GPUs, or None where there are too few.

        Greatest bandwidth across the narrowest cut, then of the weakest pair, then of all pairs; then the closest over
        PCIe, of sets that NVLink does not hold together. Of equal sets the one that leaves most: the best pair and the
        best four that remain, then the fewest islands cut into. Then most pairs of one socket, the GPUs far from NICs,
        which gangs need, and the lowest positions. At level `nvlink` only sets qualify in which every pair is joined by
        NVLink; one GPU always does.
        """
        free_mask &= self._everything
        question = (free_mask, k, level)
        try:
            return self._answers[question]
        except KeyError:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            answer = self._answers[question] = self._find(free_mask, k, level)
            return answer

    def ranked(self, k: int) -> tuple[int, ...]:
        """Returns all sets of k GPUs as masks, the best first for a job on several idle nodes.

        Its links and its way to the NICs count more than nearness over PCIe.
        """
        if not 1 <= k <= self.wiring.size:
            return ()
        ranking = self._ranking(k)
        broken = self._broken(ranking.masks, self._everything)
        order = np.lexsort((broken, ranking.quality, -ranking.nic_near, ranking.links))
        return tuple(ranking.masks[order].tolist())

    def _find(self, free: int, k: int, level: Level) -> SubsetChoice | None:
        if level not in ("nvlink", "node"):
            raise QuestionError(f'inside a node the levels are nvlink and node, not "{level}"')
        if not 1 <= k <= free.bit_count():
            return None
        ranking = self._ranking(k)
        fits = (ranking.masks & np.uint64(self._everything & ~free)) == 0
        if level == "nvlink":
            fits &= ranking.linked
        first = int(fits.argmax())
        if not fits[first]:
            return None
        end = int(np.searchsorted(ranking.quality, ranking.quality[first], side="right"))
        rivals = np.flatnonzero(fits[first:end]) + first
        # The first of equals wins: rivals stand in the order of all that is left to compare.
        index = int(rivals[self._spoilt(ranking.masks[rivals], free).argmin()])
        mask = int(ranking.masks[index])
        cut, weakest, together = (int(kbps[index]) / EXACT for kbps in ranking.kbps)
        broken = int(self._broken(ranking.masks[index : index + 1], free)[0])
        return SubsetChoice(mask, positions(mask), cut, weakest, together, broken)

    def _spoilt(self, masks: Masks, free: int) -> Numbers:
        """Returns for each set a number that is the greater the worse what it leaves of the free GPUs is."""
        spoilt = np.zeros(len(masks), np.int64)
        if len(masks) > 1:
            left = (np.uint64(free) & ~masks).astype(np.int64)
            for size in _SIZES_LEFT:
                if size <= self.wiring.size <= _MOST_LEFT:
                    table = self._best_left(size)
                    spoilt = spoilt * len(table) + table[left]
            spoilt = spoilt * (len(self.islands) + 1) + self._broken(masks, free)
        return spoilt

    def _best_left(self, size: int) -> Numbers:
        """Returns for each mask of free GPUs the quality of its best set of this size; greater is worse."""
        if size not in self._left:
            ranking = self._ranking(size)
            worst = int(ranking.quality[-1]) + 1
            merit = np.zeros(1 << self.wiring.size, np.int64)
            merit[ranking.masks.astype(np.int64)] = worst - ranking.quality
            self._left[size] = worst - _best_within(merit)
        return self._left[size]

    def cuts(self, k: int) -> list[int]:
        """Returns the kB/s across the narrowest cuts that sets of k GPUs have, each once."""
        found: list[int] = np.unique(self._ranking(k).kbps[0]).tolist()
        return found

    def peaks(self) -> Numbers:
        """Returns for each mask of free GPUs the kB/s across the narrowest cut of those of them that are linked best.

        Sets of up to eight GPUs count.
        """
        cuts = np.zeros(1 << self.wiring.size, np.int64)
        for size in range(2, min(self.wiring.size, _MOST_AT_PEAK) + 1):
            ranking = self._ranking(size)
            cuts[ranking.masks.astype(np.int64)] = ranking.kbps[0]
        return _best_within(cuts)

    def _broken(self, masks: Masks, free: int) -> Numbers:
        """Returns for each set, how many islands with at least two free GPUs it takes only in part."""
        broken = np.zeros(len(masks), dtype=np.int64)
        for island in self.islands:
            alive = island & free
            if alive.bit_count() >= 2:
                taken = masks & np.uint64(alive)
                broken += (taken != 0) & (taken != alive)
        return broken

    def _ranking(self, k: int) -> _Ranking:
        if k not in self._rankings:
            self._rankings[k] = _rank(self.wiring, k)
        return self._rankings[k]


def _rank(of: Wiring, k: int) -> _Ranking:
    count = math.comb(of.size, k)
    if count > _MOST_SETS:
        raise TooManySetsError(
            f"{of.size} GPUs have {count} sets of {k}; Berth compares at most {_MOST_SETS} on a node"
        )
    # Lexicographic order, which is "lowest positions first"; the sort below is stable and keeps it.
    sets = np.array(list(combinations(range(of.size), k)), dtype=np.int64)
    masks = (np.uint64(1) << sets.astype(np.uint64)).sum(axis=1, dtype=np.uint64)
    kbps = (narrowest(of, sets), *_over_pairs(whole_kbps(of.gbps), sets))
    near = np.array(of.shape.near, dtype=np.int64)
    joined = np.array(of.shape.gbps) > 0
    nic_near: Numbers = np.array(of.nic_near, np.int64)[sets].sum(axis=1)
    over_pcie = ~joined_by_nvlink(of, sets)
    own = [-values for values in (*kbps, *(values * over_pcie for values in _over_pairs(near, sets)))]
    others = [-_over_pairs((near >= NEAR["NODE"]).astype(np.int64), sets)[1], nic_near]
    order = np.lexsort([*reversed(others), *reversed(own)])
    changes = np.array([np.diff(values[order], prepend=values[order[0]]) != 0 for values in own])
    return _Ranking(
        masks=masks[order],
        links=changes[: len(kbps)].any(axis=0).cumsum(),
        quality=changes.any(axis=0).cumsum(),
        linked=_over_pairs(joined.astype(np.int64), sets)[0][order] > 0 if k > 1 else np.ones(count, np.bool_),
        kbps=tuple(values[order] for values in kbps),
        nic_near=nic_near[order],
    )


def _best_within(of_masks: Numbers) -> Numbers:
    """Returns for each mask the greatest value of all masks within it."""
    best = of_masks.copy()
    for bit in range(best.size.bit_length() - 1):
        without, having = np.moveaxis(best.reshape(-1, 2, 1 << bit), 1, 0)
        np.maximum(having, without, out=having)
    return best


def _over_pairs(matrix: Numbers, sets: Numbers) -> tuple[Numbers, Numbers]:
    """Returns least and sum of a symmetric matrix over the pairs in each set; 0 where a set has no pair."""
    least: Numbers = np.zeros(len(sets), dtype=np.int64)
    total = np.zeros(len(sets), dtype=np.int64)
    for i, (a, b) in enumerate(combinations(range(sets.shape[1]), 2)):
        values = matrix[sets[:, a], sets[:, b]]
        least = np.minimum(least, values) if i else values
        total += values
    return least, total
