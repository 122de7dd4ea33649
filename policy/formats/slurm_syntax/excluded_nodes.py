# SPDX-License-Identifier: Apache-2.0
"""Excluded nodes: a pinned job's request excludes all other nodes, so that Slurm does not test them.

Slurm tests each waiting job on every node that its request leaves open, in each main pass and each backfill pass. It
does so even if the request names a node. One type per GPU makes that test slow: on a thousand nodes it takes slurmctld
up to 0.1 s per job, and all else waits meanwhile (docs/results/tables/passes.csv).
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from policy.formats import hostlist
from policy.formats.errors import FormatError
from policy.formats.job_plan import NOTHING, JobPlan
from policy.formats.plan_fields import NODES, OTHERS, holds_place

MOST_BYTES = 1_024
"""Most bytes of the list. A longer one, from names that do not fold well, is not written into the job's record."""

OF_NO_LIST = "00000000"
"""The mark of a job that kept its place by a list that is its user's now: no list has it."""

_COUNTED = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)


class _Run(NamedTuple):
    """A run of consecutive numbers; `digits` is the number of digits of the first."""

    digits: int
    first: int
    last: int

    def has(self, digits: str) -> bool:
        """Tells whether a number, with its leading zeros, is in the run."""
        number = int(digits)
        return self.first <= number <= self.last and digits == self._written(number)

    def _written(self, number: int) -> str:
        return str(number).zfill(self.digits)

    def without(self, numbers: Iterable[int]) -> list[str]:
        """Returns the rest of the run without some numbers, in host list syntax."""
        ends = [self.first - 1, *sorted(numbers), self.last + 1]
        return [self._part(low + 1, high - 1) for low, high in pairwise(ends) if high - low > 1]

    def _part(self, first: int, last: int) -> str:
        return self._written(first) + (f"-{self._written(last)}" if last > first else "")


class _Known(NamedTuple):
    """A cluster's node names: runs of numbered names by prefix, and the text of each part of the host list.

    The key of a part is its name or prefix, and whether it is numbered.
    """

    runs: dict[str, list[_Run]]
    texts: dict[tuple[str, bool], str]


class Others:
    """All nodes of a cluster; writes their host list without some of them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._known: _Known | None = None
        self._parts: dict[tuple[str, ...], Others] = {}

    def outside(self, partitions: tuple[str, ...], members: Callable[[], Container[str]]) -> "Others":
        """Returns the nodes that are in none of some partitions; cached, since the same partitions come again."""
        if not partitions:
            return self
        if partitions not in self._parts:
            left_open = members()
            self._parts[partitions] = Others([name for name in self._names if name not in left_open])
        return self._parts[partitions]

    def but(self, nodes: Iterable[str]) -> str:
        """Returns the host list of all nodes but these; empty if no nodes are left, or if it would be too long."""
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
        # The order does not depend on the nodes that are left out.
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
    """Returns the mark by which a list is recognised again: a CRC-32 in hexadecimal."""
    return f"{crc32(text.encode('utf-8', 'surrogateescape')):08x}"


def is_ours(excluded: str, plan: JobPlan | None) -> bool:
    """Tells whether Berth wrote a job's list of excluded nodes: the user may have replaced it."""
    mark = (plan or NOTHING).get(OTHERS)
    if not mark or not excluded:
        return False
    # The names are looked at only where that does not tell: a list has thousands of them, and each job has one.
    return mark == mark_of(excluded) or mark == _mark_of_names(excluded)


def of_the_user(excluded: str, plan: JobPlan | None) -> tuple[str, ...]:
    """Returns the nodes that the job's user excludes, by the list in its record and its plan."""
    return () if is_ours(excluded, plan) else hostlist.expand(excluded)


def closes(required: str, excluded: str, plan: JobPlan | None) -> str | None:
    """Returns the mark of the list that alone keeps a job on its place, as of a job that closes its partition.

    Empty if its user has put another list, or none, in its place; None if the job requires nodes, or has no place.
    """
    if required or plan is None or not holds_place(plan) or OTHERS not in plan or NODES not in plan:
        return None
    return plan[OTHERS] if is_ours(excluded, plan) else ""


def required_by(required: str, plan: JobPlan | None) -> tuple[str, ...]:
    """Returns the nodes that a job requires, or is to require again: those of its place if it closes its partition."""
    alone = closes(required, "", plan) is not None
    return plan[NODES] if plan is not None and alone else hostlist.expand(required)


@lru_cache(maxsize=8_192)
def _mark_of_names(text: str) -> str:
    """Returns the mark of a list however it is folded, since Slurm folds it anew at submission; empty if unreadable."""
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
