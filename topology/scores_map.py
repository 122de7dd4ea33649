"""Score tables as heat maps of the machine room, nodes x GPUs: SVG, and text for a terminal. Standard library only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from topology.drawing.style import BACKGROUND, INK, LINE, MUTED
from topology.drawing.svg import Canvas, fit, text_width
from topology.scores import Score


@dataclass(frozen=True, slots=True)
class _Band:
    below: float
    words: str
    letter: str
    colour: str
    terminal: int
    """One of the 256 colours of terminals."""


# Blue is fast, orange to dark red slow; darker is farther from typical, so that it reads without colour too.
_BANDS = (
    _Band(0.95, "faster by 5 % or more", "=", "#2166ac", 25),
    _Band(0.98, "faster by 2 to 5 %", "-", "#92c5de", 110),
    _Band(1.02, "typical", ".", "#e9ecef", 253),
    _Band(1.05, "slower by 2 to 5 %", "+", "#fdd49e", 223),
    _Band(1.10, "by 5 to 10 %", "o", "#fc8d59", 209),
    _Band(1.15, "by 10 to 15 %", "x", "#d7301f", 160),
    _Band(math.inf, "by 15 % or more", "#", "#7f0000", 88),
)
_CELL, _GAP, _HEAD, _EDGE, _ROW = 18.0, 3.0, 104.0, 28.0, 24.0
_MOST_ROWS = 32
_WELL_KNOWN = 0.025
"""An error up to which a square is full; three runs reach it."""
_NAME_SIZE = 11.0
_MOST_NAME = 14


def draw_map(scores: Sequence[Score], app_class: str, title: str = "") -> str:
    """Returns an SVG of one class: a row a node, a square a GPU; what is known badly has a small square."""
    nodes = _nodes(scores, app_class)
    widest = max((max(gpus) + 1 for gpus in nodes.values()), default=1)
    rows = min(_MOST_ROWS, max(len(nodes), 1))
    columns = max(1, math.ceil(len(nodes) / rows))
    name = min(_MOST_NAME, max(map(len, nodes), default=1))
    of_name = text_width("m" * name, _NAME_SIZE)
    width_column = of_name + 8 + widest * (_CELL + _GAP) + _EDGE
    keys = math.ceil((len(_BANDS) + 1) / 4)
    width = max(2 * _EDGE + columns * width_column - _EDGE, 760.0)
    height = _HEAD + 22 * keys + rows * _ROW + _EDGE
    canvas = Canvas()
    canvas.text(_EDGE, 38, title or f"Scores for {app_class}", size=20, fill=INK, bold=True)
    canvas.text(_EDGE, 60, _summary(nodes), size=13, fill=MUTED)
    _legend(canvas, width)
    top = _HEAD + 22 * keys
    for number, (node, gpus) in enumerate(nodes.items()):
        column, row = divmod(number, rows)
        x, y = _EDGE + column * width_column, top + row * _ROW
        canvas.text(x, y + 13, fit(node, of_name, _NAME_SIZE, keep_end=True), size=_NAME_SIZE, fill=INK)
        for position, one in gpus.items():
            _square(canvas, x + of_name + 8 + position * (_CELL + _GAP), y, one)
    return canvas.done(
        width,
        height,
        title=title or f"Scores for {app_class}",
        description=f"{len(nodes)} nodes; {_summary(nodes)}",
        background=BACKGROUND,
    )


def text_map(scores: Sequence[Score], app_class: str, width: int = 100, *, colour: bool = False) -> str:
    """Returns the same for a terminal, as many nodes side by side as fit."""
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


def _square(canvas: Canvas, x: float, y: float, one: Score) -> None:
    # The less is known the smaller the square.
    known = max(0.4, 1.0 - 10.0 * max(one.error - _WELL_KNOWN, 0.0))
    side = _CELL * known
    tip = f"{one.node} GPU {one.position}\n{one.app_class} {one.score:.3f}"
    tip += f" +- {one.error:.3f}" if one.error else ""
    tip += f"\n{one.runs} runs" + (f", the last {one.at}" if one.at else "")
    middle = (_CELL - side) / 2
    if side < _CELL:
        canvas.rect(x, y, _CELL, _CELL, fill="none", stroke=LINE, radius=3, thickness=0.5)
    canvas.rect(x + middle, y + middle, side, side, fill=_band(one.score).colour, radius=3, tip=tip)


def _legend(canvas: Canvas, width: float) -> None:
    step = (width - 2 * _EDGE) / 4
    for number, band in enumerate(_BANDS):
        x, y = _EDGE + number % 4 * step, _HEAD - 14 + 22 * (number // 4)
        canvas.rect(x, y - 11, 13, 13, fill=band.colour, radius=3)
        canvas.text(x + 20, y, band.words, size=12, fill=INK)
    number = len(_BANDS)
    x, y = _EDGE + number % 4 * step, _HEAD - 14 + 22 * (number // 4)
    canvas.rect(x, y - 11, 13, 13, fill="none", stroke=LINE, radius=3, thickness=0.5)
    canvas.rect(x + 3.5, y - 7.5, 6, 6, fill=LINE, radius=2)
    canvas.text(x + 20, y, "known badly: few runs", size=12, fill=INK)


def _letters(gpus: dict[int, Score], widest: int, *, colour: bool) -> str:
    return "".join(_paint(_band(gpus[place].score), colour=colour) if place in gpus else " " for place in range(widest))


def _paint(band: _Band, *, colour: bool) -> str:
    if not colour:
        return band.letter
    dark = band.terminal in {25, 88, 160}
    return f"\033[48;5;{band.terminal};38;5;{255 if dark else 16}m{band.letter}\033[0m"
