"""Draws plots as SVG text, lines over a grid and stacked bars, with the standard library alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 48

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c564b", "#7f7f7f")
"""Colours that colour-blind people can tell apart (after Okabe and Ito), dark enough for thin lines."""
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
"""Line patterns, which tell series apart when the colours run out."""

_ENOUGH_DECADES = 1.5
_TICKS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dash: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, and their positions in the picture."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Returns the position of a value."""
        if self.logarithmic:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Returns round values along the range."""
        if self.logarithmic:
            steps = (1, 2, 5) if math.log10(self.high / self.low) < 3 * _ENOUGH_DECADES else (1,)
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            some = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            return [value for value in some if self.low <= value <= self.high]
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
        count = math.floor((self.high - self.low) / step + 1e-9)
        first = math.ceil(self.low / step - 1e-9)
        return [(first + number) * step for number in range(count + 1) if (first + number) * step <= self.high * 1.0001]


def colour(place: int) -> str:
    """Returns the colour of a series by its place."""
    return COLOURS[place % len(COLOURS)]


def turn(place: int) -> int:
    """Returns how many times the colours have run out before this place."""
    return place // len(COLOURS)


def dash(place: int) -> str:
    """Returns a pattern by its place; the first is a solid line."""
    return _DASHES[place % len(_DASHES)]


def plot(
    series: Sequence[Series],
    title: str,
    x_title: str,
    y_title: str,
    *,
    y_high: float | None = None,
    log_x: bool = False,
    from_zero: bool = True,
) -> str:
    """Draws lines in one picture, with their legend."""
    xs = [value for one in series for value in one.x]
    top = y_high or max((value for one in series for value in one.y), default=1.0) * 1.05 or 1.0
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    if log_x:
        low = max(low, high / 1e6, 1e-9)
    log_x = log_x and high / low > 10**_ENOUGH_DECADES
    if not log_x and from_zero:
        low = min(low, 0.0)
    across = Axis(low, high if high > low else low + 1, _LEFT, WIDTH - _RIGHT, log_x)
    up = Axis(0.0, top, HEIGHT - _BOTTOM, _TOP)
    legend, rows = _legend([(one.name, one.colour, one.dash) for one in series])
    parts = [_frame(across, up, x_title, y_title)]
    for one in series:
        points = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in zip(one.x, one.y, strict=True))
        pattern = f' stroke-dasharray="{one.dash}"' if one.dash else ""
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{one.colour}" stroke-width="1.8"'
            f' stroke-linejoin="round"{pattern}><title>{escape(one.name)}</title></polyline>'
        )
    return _picture(title, [*parts, legend], rows)


def bars(rows: Mapping[str, Mapping[str, float]], title: str, x_title: str) -> str:
    """Draws a horizontal stacked bar for each row, with a legend of the parts."""
    parts = list(dict.fromkeys(name for row in rows.values() for name in row))
    most = max((sum(row.values()) for row in rows.values()), default=0.0) or 1.0
    left = 24 + max(7 * len(name) for name in rows)
    each, gap = 22, 10
    bottom = _TOP + len(rows) * (each + gap)
    across = Axis(0.0, most * 1.02, left, WIDTH - _RIGHT)
    pieces = [
        f'<g class="grid">{"".join(_line(across.at(t), _TOP, across.at(t), bottom) for t in across.ticks())}</g>',
        *(_text(across.at(tick), bottom + 16, _short(tick), "middle") for tick in across.ticks()),
        _text((left + WIDTH - _RIGHT) / 2, bottom + 36, x_title, "middle", "title"),
    ]
    for number, (name, row) in enumerate(rows.items()):
        y = _TOP + number * (each + gap) + gap / 2
        pieces.append(_text(left - 8, y + each / 2 + 4, name, "end"))
        done = 0.0
        for part, value in row.items():
            start, end = across.at(done), across.at(done + value)
            done += value
            pieces.append(
                f'<rect x="{start:.1f}" y="{y:.1f}" width="{max(0.0, end - start):.1f}" height="{each}"'
                f' fill="{colour(parts.index(part))}"><title>{escape(f"{name}: {part} {_short(value)}")}</title></rect>'
            )
    legend, lines = _legend([(part, colour(place), "") for place, part in enumerate(parts)], bottom + 48, box=True)
    return _picture(title, [*pieces, legend], lines, bottom + 48)


def _frame(across: Axis, up: Axis, x_title: str, y_title: str) -> str:
    lines = [_line(across.at(tick), up.end, across.at(tick), up.start) for tick in across.ticks()]
    lines += [_line(across.start, up.at(tick), across.end, up.at(tick)) for tick in up.ticks()]
    texts = [_text(across.at(tick), up.start + 16, _short(tick), "middle") for tick in across.ticks()]
    texts += [_text(across.start - 7, up.at(tick) + 4, _short(tick), "end") for tick in up.ticks()]
    middle = (up.start + up.end) / 2
    return (
        f'<g class="grid">{"".join(lines)}</g>{"".join(texts)}'
        + _text((across.start + across.end) / 2, up.start + 36, x_title, "middle", "title")
        + f'<text class="title" text-anchor="middle" transform="translate(14 {middle:.1f}) rotate(-90)">'
        + f"{escape(y_title)}</text>"
    )


def _legend(names: Sequence[tuple[str, str, str]], top: float = HEIGHT, *, box: bool = False) -> tuple[str, int]:
    """Draws signs and names in rows; returns the number of rows too."""
    parts, x, row = [], float(_LEFT), 0
    for name, tint, pattern in names:
        width = 34 + 7.2 * len(name)
        if x + width > WIDTH and x > _LEFT:
            x, row = float(_LEFT), row + 1
        y = top + 14 + 20 * row
        if box:
            parts.append(f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="14" height="10" fill="{tint}"/>')
        else:
            dashes = f' stroke-dasharray="{pattern}"' if pattern else ""
            parts.append(
                f'<line x1="{x:.1f}" y1="{y - 4:.1f}" x2="{x + 20:.1f}" y2="{y - 4:.1f}" stroke="{tint}"'
                f' stroke-width="3"{dashes}/>'
            )
        parts.append(_text(x + 25, y, name, "start"))
        x += width + 12
    return "".join(parts), row + 1


def _picture(title: str, parts: Sequence[str], legend_rows: int, base: float = HEIGHT) -> str:
    height = base + 8 + 20 * legend_rows
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    tag = f' class="{kind}"' if kind else ""
    return f'<text{tag} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    """Formats a number for an axis.

    >>> _short(0.5), _short(20.0), _short(1500000.0)
    ('0.5', '20', '1.5M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            scale = 1e3 if letter == "k" else size
            return f"{value / scale:.4g}{letter}"
    return f"{value:.4g}"
