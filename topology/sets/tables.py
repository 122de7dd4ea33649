# SPDX-License-Identifier: Apache-2.0
"""The best GPU set for every mask of free GPUs, as arrays, so that a thousand nodes are compared in one numpy step.

A *code* orders sets: narrowest cut first, then the weakest pair, then the mean over pairs, both over the widest path,
then fewest broken islands. Its low byte is zero: placement uses it for what concerns the node rather than the set.
"""

from collections.abc import Iterable
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topology.model import Machine
from topology.sets.cuts import EXACT, narrowest
from topology.sets.subsets import SubsetTable
from topology.sets.wiring import Wiring, kind_of, positions, remember, wiring

Ints = NDArray[np.int64]

MOST_GPUS = 16
"""More GPUs in one node would need a table of more than 65,536 rows for each request size."""

WARM_GPUS = 8
"""Up to here all masks of free GPUs are worked out beforehand, 2,048 for each machine shape; beyond, on demand."""

_MOST_JOINED = 1 << 16
NOTHING = -1
_UNKNOWN = -2
NODE_BITS, BROKEN_BITS, _GBPS_BITS = 8, 6, 16
LINKS = NODE_BITS + BROKEN_BITS
"""Bits of a code below its links: the node's byte, and those of broken islands."""

CUT = LINKS + 2 * _GBPS_BITS
"""Bits of a code below its narrowest cut."""

MOST_TENTHS = (1 << _GBPS_BITS) - 1
_TENTHS = 10


class CodeRow(NamedTuple):
    """Codes and sets for one (k, level), all shapes in one array; node n of mask m reads entry offset[n] + m."""

    codes: Ints
    picks: Ints


class Joined(NamedTuple):
    """GB/s of NVLink in the weakest pair and in all pairs together, and across the narrowest cut."""

    min_gbps: float
    sum_gbps: float
    cut: float


NO_LINKS = Joined(0.0, 0.0, 0.0)


class SetTables:
    """Tables of all kinds of machines of a cluster, by their wiring."""

    def __init__(self, machines: Iterable["Machine"]) -> None:
        self._shapes: dict[Wiring, Machine] = {}
        self._kinds: dict[Any, Wiring] = {}
        for machine in machines:
            made = self._kinds[kind_of(machine)] = wiring(machine)
            if machine.size <= MOST_GPUS:
                self._shapes.setdefault(made, machine)
        # Entry 0 serves nodes without a topology: nothing is ever free there.
        self._start: dict[Wiring, int] = {}
        length = 1
        for shape, machine in self._shapes.items():
            self._start[shape] = length
            length += 1 << machine.size
        self._length = length
        self._rows: dict[tuple[int, str], CodeRow] = {}
        self._choosers: dict[Wiring, SubsetTable] = {}
        self._islands_from = {start: tuple(self._chooser(shape).islands) for shape, start in self._start.items()}
        self._ranked: dict[tuple[Wiring, int], Ints] = {}
        self._widest: dict[int, float] = {}
        self._peaks: Ints | None = None
        self._cuts: dict[int, list[int]] = {}
        self._joined: dict[tuple[int, int], Joined] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the choosers of small machines, which are warm; making one again would cost a request 100 ms."""
        big = {shape: chooser for shape, chooser in self._choosers.items() if self._shapes[shape].size > WARM_GPUS}
        return {**self.__dict__, "_choosers": big}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the tables of another process, so that this one compiles no graph."""
        self.__dict__.update(state)
        remember(self._kinds)

    def offset(self, machine: "Machine | None") -> int:
        """Returns the start of a node's entries; 0 is the entry of nodes that cannot be placed on."""
        return 0 if machine is None else self._start.get(wiring(machine), 0)

    def row(self, k: int, level: str) -> CodeRow:
        """Returns the table for k GPUs at a level; entries may still be unknown, `look_up` fills them."""
        key = (k, "nvlink" if level == "nvlink" else "node")
        row = self._rows.get(key)
        if row is None:
            row = CodeRow(np.full(self._length, _UNKNOWN, np.int64), np.zeros(self._length, np.int64))
            row.codes[0] = NOTHING
            for shape, start in self._start.items():
                counts = np.bitwise_count(np.arange(1 << shape.size))
                row.codes[start : start + counts.size][counts < k] = NOTHING
            self._rows[key] = row
        return row

    def look_up(self, k: int, level: str, entries: Ints) -> Ints:
        """Returns the codes at some entries, computing those that were not asked for before."""
        row = self.row(k, level)
        codes = row.codes[entries]
        if codes.min(initial=0) == _UNKNOWN:
            self._fill(row, k, level, np.unique(entries[codes == _UNKNOWN]))
            codes = row.codes[entries]
        return codes

    def warm(self) -> None:
        """Compute what requests will need, so that none has to wait for it: all of it for machines of usual size."""
        for shape, machine in self._shapes.items():
            for k in range(1, machine.size + 1):
                self.ranked(machine, k)
                self.cuts(k)
            self.peaks(np.zeros(0, np.int64))
            if machine.size > WARM_GPUS:
                continue
            entries = self._start[shape] + np.arange(1 << machine.size, dtype=np.int64)
            for k in range(1, machine.size + 1):
                for level in ("node", "nvlink"):
                    self.look_up(k, level, entries)

    def peaks(self, entries: Ints) -> Ints:
        """Returns tenths of GB/s across the narrowest cut of the best linked of some free GPUs, by their entries."""
        if self._peaks is None:
            kbps = [self._chooser(shape).peaks() for shape in self._shapes]
            self._peaks = np.rint(np.concatenate([np.zeros(1), *kbps]) * (_TENTHS / EXACT)).astype(np.int64)
        return self._peaks[entries]

    def cuts(self, k: int) -> list[int]:
        """Returns the narrowest cuts of all sets of k GPUs of all kinds of machines, best first, as codes have them."""
        if k not in self._cuts:
            found = [self._chooser(shape).cuts(k) for shape in self._shapes if shape.size >= k]
            self._cuts[k] = sorted({_tenths(kbps / EXACT) for one in found for kbps in one}, reverse=True)
        return self._cuts[k]

    def ranked(self, machine: "Machine", k: int) -> Ints:
        """Returns all sets of k GPUs of a machine as masks, the best first, whatever is free."""
        key = (wiring(machine), k)
        if key not in self._ranked:
            self._ranked[key] = np.array(self._chooser(key[0]).ranked(k), dtype=np.int64)
        return self._ranked[key]

    def at_best(self, machine: "Machine", k: int) -> Joined:
        """Returns the bandwidths of the best k GPUs of a machine, whatever is free."""
        masks = self.ranked(machine, k)
        return self.joined(machine, self.offset(machine), int(masks[0])) if masks.size else NO_LINKS

    def widest(self, k: int) -> float:
        """Returns GB/s across the narrowest cut of the best k GPUs of any kind of machine, whatever is free."""
        if k not in self._widest:
            self._widest[k] = max((self.at_best(machine, k).cut for machine in self._shapes.values()), default=0.0)
        return self._widest[k]

    def joined(self, machine: "Machine", offset: int, mask: int) -> "Joined":
        """Returns the bandwidths of a mask's GPUs, on a node whose entries start at `offset`."""
        known = self._joined.get((offset, mask))
        if known is None:
            # 0 is for nodes of no known kind, which are not alike.
            if not offset:
                return joined(wiring(machine), positions(mask))
            best = int(self.look_up(mask.bit_count(), "node", np.array([offset + mask]))[0])
            known = Joined(*_nvlink(wiring(machine), positions(mask)), cut_gbps(max(0, best) >> CUT))
            if len(self._joined) < _MOST_JOINED:
                self._joined[offset, mask] = known
        return known

    def islands_kept(self, offset: int, free: int, taken: int) -> int:
        """Counts the islands that can still serve two GPUs and that the set leaves untouched.

        The node is one whose entries start at `offset`.
        """
        return sum(1 for island in self._islands_from[offset] if (island & free).bit_count() > 1 and not island & taken)

    def _fill(self, row: CodeRow, k: int, level: str, entries: Ints) -> None:
        starts = list(self._start.items())
        for entry in entries.tolist():
            shape, start = next((shape, start) for shape, start in reversed(starts) if start <= entry)
            choice = self._chooser(shape).best(entry - start, k, "nvlink" if level == "nvlink" else "node")
            if choice is None:
                row.codes[entry] = NOTHING
                continue
            row.picks[entry] = choice.mask
            mean = choice.sum_gbps / max(1, comb(k, 2))
            row.codes[entry] = code(choice.cut_gbps, choice.min_gbps, mean, choice.broken)

    def _chooser(self, shape: Wiring) -> SubsetTable:
        if shape not in self._choosers:
            self._choosers[shape] = SubsetTable.of(self._shapes[shape])
        return self._choosers[shape]


def code(cut: float, weakest: float, mean: float, broken: int) -> int:
    """Returns one number that orders sets of one size; greater is better. Bandwidths are in GB/s."""
    value, most_broken = 0, (1 << BROKEN_BITS) - 1
    for gbps in (cut, weakest, mean):
        value = value << _GBPS_BITS | _tenths(gbps)
    return (value << BROKEN_BITS | most_broken - min(broken, most_broken)) << NODE_BITS


def _tenths(gbps: float) -> int:
    return min(round(gbps * _TENTHS), MOST_TENTHS)


def cut_gbps(of_code: int) -> float:
    """Returns GB/s across the narrowest cut, from the upper bits of a code."""
    return of_code / _TENTHS


def joined(wired: Wiring, gpus: tuple[int, ...]) -> Joined:
    """Returns the bandwidths of some GPUs of a machine."""
    return Joined(*_nvlink(wired, gpus), int(narrowest(wired, np.array([gpus]))[0]) / EXACT)


def _nvlink(wired: Wiring, gpus: tuple[int, ...]) -> tuple[float, float]:
    pairs = [wired.shape.gbps[a][b] for a, b in combinations(gpus, 2)] or [0.0]
    return min(pairs), sum(pairs)
