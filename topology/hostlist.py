# SPDX-License-Identifier: Apache-2.0
"""Slurm's host lists, `a,n[01-03,7]`: opened up and folded.

Small and fast, because every reading of the queue opens some; only folding needs ClusterShell.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

from topology.errors import HostlistError

_MOST_HOSTS = 65_536
_MOST_DIGITS = 9
#: A name with its brackets; a bracket that belongs to no pair stands alone.
_WORD = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+|[\[\]]")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


_SHORT = 256
"""Names up to which many lists are remembered; of longer ones few are, since thousands of them would fill memory."""


def expand(text: str) -> tuple[str, ...]:
    """Returns the names in a host list, in its order; a HostlistError where it is none.

    >>> expand("a,n[01-03,7]")
    ('a', 'n01', 'n02', 'n03', 'n7')
    """
    found = _expand_short(text)
    return _expand_long(text) if found is None else found


@lru_cache(maxsize=8_192)
def _expand_short(text: str) -> tuple[str, ...] | None:
    try:
        return expand_at_most(text, _SHORT)
    except HostlistError:
        return None


@lru_cache(maxsize=64)
def _expand_long(text: str) -> tuple[str, ...]:
    return expand_at_most(text, _MOST_HOSTS)


def expand_at_most(text: str, most: int) -> tuple[str, ...]:
    """Returns the same, not remembered, where it names no more hosts than that; else a HostlistError."""
    if "[" not in text and "]" not in text:
        plain = tuple(name for word in text.split(",") if (name := word.strip()))
        if len(plain) > most:
            raise _too_many(text, most)
        return plain
    names: list[str] = []
    for word in filter(None, map(str.strip, _WORD.findall(text))):
        names += _expand_word(word, text, most)
        if len(names) > most:
            raise _too_many(text, most)
    return tuple(names)


def _expand_word(word: str, text: str, most: int) -> list[str]:
    if word in {"[", "]"}:
        raise _wrong(text)
    names = [""]
    for at, piece in enumerate(_BRACKETS.split(word)):
        # Every second piece stood in brackets.
        inside = at % 2
        numbers = (number for part in piece.split(",") for number in _part(part, text, most))
        endings = list(islice(numbers, most + 1)) if inside else [piece]
        if len(names) * len(endings) > most:
            raise _too_many(text, most)
        names = [name + ending for name in names for ending in endings]
    return names


def _part(part: str, text: str, most: int) -> Iterable[str]:
    """Yields the numbers of a part; a long list has thousands of single ones."""
    if len(part) <= _MOST_DIGITS and part.isascii() and part.isdigit():
        return (part,)
    return _numbers(part, text, most)


def _numbers(part: str, text: str, most: int) -> Iterator[str]:
    match = _RANGE.fullmatch(part.strip())
    first, last = (match.group(1), match.group(2) or match.group(1)) if match else ("1", "0")
    if int(last) < int(first):
        raise _wrong(text)
    if int(last) - int(first) >= most:
        raise _too_many(text, most)
    return (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _wrong(text: str) -> HostlistError:
    return HostlistError(f'"{text[:80]}" is not a host list such as n[01-16,20]')


def _too_many(text: str, most: int) -> HostlistError:
    return HostlistError(f'"{text[:80]}" names more than {most} hosts')


def fold(names: Iterable[str]) -> str:
    """Returns a host list, `n[1-4],x7`; names joined by commas where ClusterShell is not installed."""
    names = list(names)
    try:
        from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415  only where nodes are folded
    except ImportError:
        return ",".join(names)
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
