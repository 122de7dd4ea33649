# SPDX-License-Identifier: Apache-2.0
"""Host lists and lists of GPUs in Slurm's syntax."""

import re
from collections.abc import Iterable

from policy.formats.errors import FormatError
from topology import hostlist
from topology.errors import HostlistError


def expand(text: str) -> tuple[str, ...]:
    """Returns the names in a host list, in order; raises FormatError if it is not one.

    >>> expand("a,n[01-03,7]")
    ('a', 'n01', 'n02', 'n03', 'n7')
    """
    try:
        return hostlist.expand(text)
    except HostlistError as problem:
        raise FormatError(str(problem)) from None


MOST_IN_A_REQUEST = 8_192
"""Most names in a node list of a request: to expand a few longer lists would take as long as the plugin waits."""


def expand_short(text: str) -> tuple[str, ...]:
    """Expands a host list that a user wrote; raises FormatError also if it names more hosts than clusters have."""
    try:
        return hostlist.expand_at_most(text, MOST_IN_A_REQUEST)
    except HostlistError as problem:
        raise FormatError(str(problem)) from None


def fold(names: Iterable[str]) -> str:
    """Returns a host list of names in order, with runs of numbers in brackets; the plugin does the same (hostlist.c).

    >>> fold(["a", "n08", "n09", "n10", "n7", "n5"])
    'a,n[08-10,7,5]'
    """
    groups: list[tuple[str, list[str]]] = []
    for name in names:
        match = _COUNTED.fullmatch(name)
        prefix, digits = (match[1], match[2]) if match else (name, "")
        if groups and digits and groups[-1][0] == prefix and groups[-1][1]:
            groups[-1][1].append(digits)
        else:
            groups.append((prefix, [digits] if digits else []))
    return ",".join(
        prefix + (f"[{_fold_digits(numbers)}]" if len(numbers) > 1 else "".join(numbers)) for prefix, numbers in groups
    )


_COUNTED = re.compile(r"(.*?)([0-9]{1,9})")


def _fold_digits(numbers: list[str]) -> str:
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def fold_numbers(numbers: tuple[int, ...]) -> str:
    """Writes ascending numbers with runs of three or more folded: `0-3,5,6`."""
    pieces: list[str] = []
    start = 0
    for place in range(1, len(numbers) + 1):
        if place < len(numbers) and numbers[place] == numbers[place - 1] + 1:
            continue
        run = numbers[start:place]
        pieces += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
        start = place
    return ",".join(pieces)
