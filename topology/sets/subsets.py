"""The best k GPUs of one node, exactly.

Compares every set of k GPUs. What does not depend on which GPUs are free (bandwidth, distance) is worked out once
for each kind of machine and each k; a question then costs one pass over an array of masks.

>>> from topology.machines import machine
>>> SubsetTable(machine("a6000-pairs", "n1")).best(free_mask=0b11111110, k=2)
SubsetChoice(mask=192, gpus=(6, 7), min_gbps=56.248, sum_gbps=56.248, nic_steps=5, broken=0, near_min=2, near_sum=2)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal, TypeAlias

from topology.errors import QuestionError, TooManySetsError
from topology.model import Machine
from topology.sets.islands import islands
from topology.sets.wiring import Wiring, positions, wiring

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Masks: TypeAlias = npt.NDArray[np.uint64]
    Numbers: TypeAlias = npt.NDArray[np.int64]

Level: TypeAlias = Literal["nvlink", "node"]

#: 16 GPUs have 12,870 sets of 8, 20 GPUs 184,756 of 10. Beyond, a table would take seconds and much memory.
_MOST_SETS = 200_000
#: Bandwidths are compared as whole kB/s: sums of floats depend on their order, and exact ties matter here.
_EXACT = 1_000_000
_MOST_ANSWERS = 1 << 16


@dataclass(frozen=True, slots=True)
class SubsetChoice:
    """A set of GPUs and the values by which it is compared."""

    mask: int
    gpus: tuple[int, ...]
    min_gbps: float
    """GB/s over the widest path of the weakest pair, NVLink or PCIe; 0 for one GPU."""
    sum_gbps: float
    """GB/s over the widest paths of all pairs together."""
    nic_steps: int
    """Edges from each GPU to its nearest NIC, all together."""
    broken: int
    """Islands with two or more free GPUs that this set cuts into."""
    near_min: int
    near_sum: int

    @property
    def key(self) -> tuple[float, float, int, int, int, int, tuple[int, ...]]:
        """Greater is better."""
        lowest = tuple(-position for position in self.gpus)
        nics = 0 if len(self.gpus) == 1 else -self.nic_steps
        return (self.min_gbps, self.sum_gbps, nics, -self.broken, self.near_min, self.near_sum, lowest)


@dataclass(frozen=True, slots=True)
class _Ranking:
    """All sets of k GPUs, best first by everything but the islands, which depend on what is free."""

    masks: Masks
    group_end: Numbers
    """For each set, the end of the run of sets that differ in nothing that is compared before islands."""
    linked: npt.NDArray[np.bool]
    """True if every pair of the set is joined by NVLink."""
    min_gbps: Numbers
    sum_gbps: Numbers
    nic_steps: Numbers
    near_min: Numbers
    near_sum: Numbers


class SubsetTable:
    """Answers for one kind of machine; `SubsetTable.of` shares the table among machines of equal wiring."""

    _shared: dict[Wiring, SubsetTable] = {}  # noqa: RUF012  a cache

    def __init__(self, machine: Machine) -> None:
        self.wiring: Wiring = wiring(machine)
        self.islands: tuple[int, ...] = islands(machine.shape)
        """Masks of the NVLink islands, the widest first."""
        self._everything = (1 << machine.size) - 1
        self._rankings: dict[int, _Ranking] = {}
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

        Greatest bandwidth of the weakest pair, then of all pairs, both over the widest path there is; then the
        nearest NICs (not for one GPU), then the fewest islands cut into, then the closest over PCIe (weakest
        pair, then sum), then the lowest positions. At level `nvlink` only sets qualify in which every pair is
        joined by NVLink; one GPU always does.
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
        """Returns all sets of k GPUs as masks, best first as `best` would take them on an idle node."""
        if not 1 <= k <= self.wiring.size:
            return ()
        import numpy as np  # noqa: PLC0415

        ranking = self._ranking(k)
        broken = self._broken(ranking.masks, self._everything)
        order = np.lexsort((broken, ranking.group_end))
        return tuple(ranking.masks[order].tolist())

    def _find(self, free: int, k: int, level: Level) -> SubsetChoice | None:
        if level not in ("nvlink", "node"):
            raise QuestionError(f'inside a node the levels are nvlink and node, not "{level}"')
        if not 1 <= k <= free.bit_count():
            return None
        import numpy as np  # noqa: PLC0415

        ranking = self._ranking(k)
        fits = (ranking.masks & np.uint64(self._everything & ~free)) == 0
        if level == "nvlink":
            fits &= ranking.linked
        first = int(fits.argmax())
        if not fits[first]:
            return None
        rivals = np.flatnonzero(fits[first : ranking.group_end[first]]) + first
        broken = self._broken(ranking.masks[rivals], free)
        # The first of equals wins: rivals stand in the order of all that is left to compare.
        winner = int(broken.argmin())
        index = int(rivals[winner])
        mask = int(ranking.masks[index])
        return SubsetChoice(
            mask=mask,
            gpus=positions(mask),
            min_gbps=int(ranking.min_gbps[index]) / _EXACT,
            sum_gbps=int(ranking.sum_gbps[index]) / _EXACT,
            nic_steps=int(ranking.nic_steps[index]),
            broken=int(broken[winner]),
            near_min=int(ranking.near_min[index]),
            near_sum=int(ranking.near_sum[index]),
        )

    def _broken(self, masks: Masks, free: int) -> Numbers:
        """Returns for each set, how many islands with at least two free GPUs it takes only in part."""
        import numpy as np  # noqa: PLC0415

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
    import numpy as np  # noqa: PLC0415

    count = math.comb(of.size, k)
    if count > _MOST_SETS:
        raise TooManySetsError(
            f"{of.size} GPUs have {count} sets of {k}; Berth compares at most {_MOST_SETS} on a node"
        )
    # Lexicographic order, which is "lowest positions first"; the sort below is stable and keeps it.
    sets = np.array(list(combinations(range(of.size), k)), dtype=np.int64)
    masks = (np.uint64(1) << sets.astype(np.uint64)).sum(axis=1, dtype=np.uint64)
    gbps = np.rint(np.array(of.gbps) * _EXACT).astype(np.int64)
    min_gbps, sum_gbps = _over_pairs(gbps, sets)
    nic_steps: Numbers = np.array(of.nic_steps, np.int64)[sets].sum(axis=1)
    near_min, near_sum = _over_pairs(np.array(of.shape.near, dtype=np.int64), sets)
    joined = (np.array(of.shape.gbps) > 0).astype(np.int64)
    linked = _over_pairs(joined, sets)[0] > 0 if k > 1 else np.ones(count, np.bool_)
    before = [-min_gbps, -sum_gbps, nic_steps] if k > 1 else []
    after = [-near_min, -near_sum] if k > 1 else [nic_steps]
    order = np.lexsort([*reversed(after), *reversed(before)])
    changes = [np.diff(column[order]) != 0 for column in before]
    starts = np.flatnonzero(np.logical_or.reduce(changes)) + 1 if changes else np.zeros(0, np.int64)
    ends = np.append(starts, count)
    return _Ranking(
        masks=masks[order],
        group_end=ends[np.searchsorted(ends, np.arange(count), side="right")],
        linked=linked[order],
        min_gbps=min_gbps[order],
        sum_gbps=sum_gbps[order],
        nic_steps=nic_steps[order],
        near_min=near_min[order],
        near_sum=near_sum[order],
    )


def _over_pairs(matrix: Numbers, sets: Numbers) -> tuple[Numbers, Numbers]:
    """Returns least and sum of a symmetric matrix over the pairs in each set; 0 where a set has no pair."""
    import numpy as np  # noqa: PLC0415

    least: Numbers = np.zeros(len(sets), dtype=np.int64)
    total = np.zeros(len(sets), dtype=np.int64)
    for i, (a, b) in enumerate(combinations(range(sets.shape[1]), 2)):
        values = matrix[sets[:, a], sets[:, b]]
        least = np.minimum(least, values) if i else values
        total += values
    return least, total
