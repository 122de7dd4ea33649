"""Slurm's host lists, `a,n[01-03,7]`, opened up; small and fast, because every reading of the queue needs it."""

import re
from functools import lru_cache

from policy.errors import FormatError

_MOST = 65_536
_PIECE = re.compile(r"([^\[\],]*)\[([0-9,\-]+)\]|([^\[\],]+)")


@lru_cache(maxsize=8_192)
def expand(text: str) -> tuple[str, ...]:
    """The names in a host list, in its order.

    >>> expand("a,n[01-03,7]")
    ('a', 'n01', 'n02', 'n03', 'n7')
    """
    if "[" not in text:
        return tuple(name for name in text.split(",") if name)
    names: list[str] = []
    for word in _words(text):
        names.extend(_expand_word(word, text))
        if len(names) > _MOST:
            raise FormatError(f"the host list {text[:40]!r} names more than {_MOST} hosts")
    return tuple(names)


def _words(text: str) -> list[str]:
    words, start, depth = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            words.append(text[start:place])
            start = place + 1
    words.append(text[start:])
    return [word for word in words if word]


def _expand_word(word: str, text: str) -> list[str]:
    names, at = [""], 0
    while at < len(word):
        match = _PIECE.match(word, at)
        if match is None:
            raise FormatError(f"{text[:80]!r} is not a host list")
        at = match.end()
        if match.group(3) is not None:
            names = [name + match.group(3) for name in names]
            continue
        numbers = _numbers(match.group(2), text)
        if len(names) * len(numbers) > _MOST:
            raise FormatError(f"the host list {text[:40]!r} names more than {_MOST} hosts")
        names = [name + match.group(1) + number for name in names for number in numbers]
    return names


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for one in ranges.split(","):
        first, dash, last = one.partition("-")
        last = last if dash else first
        if not (first.isdigit() and last.isdigit()) or int(last) - int(first) not in range(_MOST):
            raise FormatError(f"{text[:80]!r} is not a host list")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def fold(numbers: tuple[int, ...]) -> str:
    """Ascending numbers with runs of three or more folded: `0-3,5,6`."""
    pieces: list[str] = []
    start = 0
    for place in range(1, len(numbers) + 1):
        if place < len(numbers) and numbers[place] == numbers[place - 1] + 1:
            continue
        run = numbers[start:place]
        pieces += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
        start = place
    return ",".join(pieces)
