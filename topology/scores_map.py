"""Score tables as heat maps of the machine room for a terminal, nodes x GPUs. Standard library only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from topology.scores import Score


@dataclass(frozen=True, slots=True)
class _Band:
    below: float
    words: str
    letter: str
    terminal: int
    """One of the 256 colours of terminals."""


# Blue is fast, orange to dark red slow; darker is farther from typical.
_BANDS = (
    _Band(0.95, "faster by 5 % or more", "=", 25),
    _Band(0.98, "faster by 2 to 5 %", "-", 110),
    _Band(1.02, "typical", ".", 253),
    _Band(1.05, "slower by 2 to 5 %", "+", 223),
    _Band(1.10, "by 5 to 10 %", "o", 209),
    _Band(1.15, "by 10 to 15 %", "x", 160),
    _Band(math.inf, "by 15 % or more", "#", 88),
)


def text_map(scores: Sequence[Score], app_class: str, width: int = 100, *, colour: bool = False) -> str:
    """Returns the map of one class, a letter for each GPU and as many nodes side by side as fit."""
    nodes = _nodes(scores, app_class)
    widest = max((max(gpus) + 1 for gpus in nodes.values()), default=1)
    name = max(map(len, nodes), default=1)
    columns = max(1, (width + 3) // (name + 1 + widest + 3))
    rows = math.ceil(len(nodes) / columns)
    cells = [f"{node:<{name}} {_letters(gpus, widest, colour=colour)}" for node, gpus in nodes.items()]
    lines = ["   ".join(cells[row::rows]).rstrip() for row in range(rows)]
    legend = "  ".join(f"{_paint(band, colour=colour)} {band.words}" for band in _BANDS)
    return "\n".join([f"{app_class}: {_summary(nodes)}", *lines, "", legend]) + "\n"


def _nodes(scores: Sequence[Score], app_class: str) -> dict[str, dict[int, Score]]:
    found: dict[str, dict[int, Score]] = {}
    for one in sorted(scores, key=lambda score: (_natural(score.node), score.position)):
        if one.app_class == app_class:
            found.setdefault(one.node, {})[one.position] = one
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """So that n10 comes after n9."""
    parts: list[tuple[int, str]] = []
    for letter in name:
        if letter.isdigit() and parts and parts[-1][0] >= 0:
            parts[-1] = (parts[-1][0] * 10 + int(letter), "")
        else:
            parts.append((int(letter), "") if letter.isdigit() else (-1, letter))
    return parts


def _band(score: float) -> _Band:
    return next(band for band in _BANDS if score < band.below)


def _summary(nodes: dict[str, dict[int, Score]]) -> str:
    every = [one.score for gpus in nodes.values() for one in gpus.values()]
    if not every:
        return "no score"
    slow = sum(score >= 1.10 for score in every)
    return f"{len(every)} GPUs from {min(every):.3f} to {max(every):.3f}, {slow} slower than typical by 10 % or more"


def _letters(gpus: dict[int, Score], widest: int, *, colour: bool) -> str:
    return "".join(_paint(_band(gpus[place].score), colour=colour) if place in gpus else " " for place in range(widest))


def _paint(band: _Band, *, colour: bool) -> str:
    if not colour:
        return band.letter
    dark = band.terminal in {25, 88, 160}
    return f"\033[48;5;{band.terminal};38;5;{255 if dark else 16}m{band.letter}\033[0m"
