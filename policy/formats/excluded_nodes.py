"""The nodes that a pinned job cannot run on. Its request excludes them, so that Slurm looks at none of them.

Slurm tests each waiting job on every node that its request leaves open, in each main pass and each backfill pass, also
where it requires one of them by name. GPUs with a type each make that test dear: on a thousand nodes it takes
slurmctld up to a tenth of a second a job, and all others wait meanwhile (docs/measurements.md, `make bench-passes`).
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from policy.formats import hostlist
from policy.formats.errors import FormatError

KEY = "others"
"""What stands in the segment of a job whose excluded nodes Berth wrote: the mark of their list."""

MOST_BYTES = 1_024
"""Where the list would be longer, since names count up in too many places, none is written into the job's record."""

_COUNTED = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)


class _Run(NamedTuple):
    """Numbers that count up; the first has so many digits."""

    digits: int
    first: int
    last: int

    def has(self, digits: str) -> bool:
        """Whether a number written so is one of them."""
        number = int(digits)
        return self.first <= number <= self.last and digits == self._written(number)

    def _written(self, number: int) -> str:
        return str(number).zfill(self.digits)

    def without(self, numbers: Iterable[int]) -> list[str]:
        """What is left of it, as host lists write it."""
        ends = [self.first - 1, *sorted(numbers), self.last + 1]
        return [self._part(low + 1, high - 1) for low, high in pairwise(ends) if high - low > 1]

    def _part(self, first: int, last: int) -> str:
        return self._written(first) + (f"-{self._written(last)}" if last > first else "")


class _Known(NamedTuple):
    """A cluster's names: those that count, by what stands before the number, and each part of the list as it is told.

    A part is known by its name, and by whether that counts.
    """

    runs: dict[str, list[_Run]]
    texts: dict[tuple[str, bool], str]


class Others:
    """All nodes of a cluster, to be told without some of them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._known: _Known | None = None
        self._parts: dict[tuple[str, ...], Others] = {}

    def outside(self, partitions: tuple[str, ...], members: Callable[[], Container[str]]) -> "Others":
        """Those of them that are in none of some partitions; remembered, for the same are asked for again."""
        if not partitions:
            return self
        if partitions not in self._parts:
            left_open = members()
            self._parts[partitions] = Others([name for name in self._names if name not in left_open])
        return self._parts[partitions]

    def but(self, nodes: Iterable[str]) -> str:
        """The host list of all nodes but these; empty where there are none, or it would be too long."""
        self._known = known = self._known or _known(self._names)
        cut: dict[str, dict[_Run, list[int]]] = {}
        changed: dict[tuple[str, bool], str] = {}
        for node in nodes:
            prefix, digits = _parts(node)
            run = next((run for run in known.runs.get(prefix, ()) if run.has(digits)), None) if digits else None
            if run is not None:
                cut.setdefault(prefix, {}).setdefault(run, []).append(int(digits))
            elif not digits:
                changed[node, False] = ""
        for prefix, numbers in cut.items():
            changed[prefix, True] = _group(prefix, known.runs[prefix], numbers)
        # In one order, whichever nodes are left out.
        text = ",".join(filter(None, [changed.get(part, text) for part, text in known.texts.items()]))
        return text if len(text) <= MOST_BYTES else ""


def _known(names: Iterable[str]) -> _Known:
    numbers: dict[str, list[str]] = {}
    texts: dict[tuple[str, bool], str] = {}
    for name in names:
        prefix, digits = _parts(name)
        if digits:
            numbers.setdefault(prefix, []).append(digits)
        else:
            texts[name, False] = name
    runs = {prefix: _runs(digits) for prefix, digits in numbers.items()}
    texts |= {(prefix, True): _group(prefix, found, {}) for prefix, found in runs.items()}
    return _Known(runs, dict(sorted(texts.items())))


def mark_of(text: str) -> str:
    """What is written down of a list, to know it again."""
    return f"{crc32(text.encode('utf-8', 'surrogateescape')):08x}"


def is_ours(excluded: str, values: Mapping[str, str] | None) -> bool:
    """Whether Berth wrote a job's list of excluded nodes: its user may have put another in its place."""
    mark = (values or {}).get(KEY)
    return bool(mark and excluded) and mark in {mark_of(excluded), _mark_of_names(excluded)}


def of_the_user(excluded: str, values: Mapping[str, str] | None) -> tuple[str, ...]:
    """The nodes that the job's user excludes, by the list in its record and its segment."""
    return () if is_ours(excluded, values) else hostlist.expand(excluded)


@lru_cache(maxsize=8_192)
def _mark_of_names(text: str) -> str:
    """The same however the list is folded: Slurm writes it anew at submission."""
    try:
        return mark_of(Others(hostlist.expand(text)).but(()))
    except FormatError:
        return ""


def _parts(name: str) -> tuple[str, str]:
    match = _COUNTED.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def _runs(digits: Iterable[str]) -> list[_Run]:
    runs: list[_Run] = []
    for number, width in sorted({(int(one), len(one)) for one in digits}):
        last = runs[-1] if runs else None
        if last and number == last.last + 1 and width == max(last.digits, len(str(number))):
            runs[-1] = last._replace(last=number)
        else:
            runs.append(_Run(width, number, number))
    return runs


def _group(prefix: str, runs: Iterable[_Run], cut: Mapping[_Run, Iterable[int]]) -> str:
    parts = [part for run in runs for part in run.without(cut.get(run, ()))]
    one = len(parts) == 1 and "-" not in parts[0]
    return prefix + (parts[0] if one else f"[{','.join(parts)}]") if parts else ""
