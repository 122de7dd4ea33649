"""Draws bars and a line as SVG."""

from collections.abc import Mapping, Sequence

from policy.report.text import day, hours
from topology.drawing.style import CARD, FAINT, INK, MUTED, TINTS
from topology.drawing.svg import Canvas, fit

_WIDTH, _LABEL, _VALUE = 860.0, 170.0, 100.0
_ROW, _BAR, _SIZE = 28.0, 16.0, 12.0


def bars(key: str, title: str, unit: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Draws one stacked bar for each row, with the sum of its parts behind it."""
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    colours = {part: TINTS[place % len(TINTS)] for place, part in enumerate(parts)}
    canvas = Canvas()
    canvas.text(16, 26, title, size=14, fill=INK, bold=True)
    top = _legend(canvas, colours, 48) if len(parts) > 1 else 40.0
    room = _WIDTH - _LABEL - _VALUE - 32
    most = max((sum(row.values()) for row in rows.values()), default=0.0) or 1.0
    for place, (name, row) in enumerate(rows.items()):
        y, x = top + place * _ROW, _LABEL
        canvas.text(_LABEL - 10, y + _BAR - 3, fit(name, _LABEL - 20, _SIZE), size=_SIZE, fill=INK, anchor="end")
        for part, value in row.items():
            length = value / most * room
            canvas.rect(
                x, y, length, _BAR, fill=colours[part], radius=0, tip=f"{name}, {part}: {_amount(value)} {unit}"
            )
            x += length
        canvas.text(x + 8, y + _BAR - 3, f"{_amount(sum(row.values()))} {unit}", size=_SIZE, fill=MUTED)
    told = "; ".join(f"{name}: {_amount(sum(row.values()))} {unit}" for name, row in rows.items())
    height = top + len(rows) * _ROW + 10
    return canvas.done(_WIDTH, height, title=title, description=told, background=CARD, key=key)


def line(key: str, title: str, points: Sequence[Sequence[float]], most: float, until: float) -> str:
    """Draws steps over time, with a mark at `most`."""
    canvas, left, top, tall = Canvas(), 60.0, 44.0, 160.0
    room = _WIDTH - left - 30
    canvas.text(16, 26, title, size=14, fill=INK, bold=True)
    begin = points[0][0]
    span = max(1.0, until - begin)
    scale = max(most, *(value for _, value in points), 1.0)
    for part in (0.0, 0.5, 1.0):
        y = top + tall * (1 - part * most / scale)
        canvas.line(left, y, left + room, y, stroke=FAINT, width=1)
        canvas.text(left - 8, y + 4, f"{part * most:,.0f}", size=_SIZE, fill=MUTED, anchor="end")
    words = [f"M{left:.1f} {top + tall:.1f}"]
    for place, (at, value) in enumerate(points):
        end = points[place + 1][0] if place + 1 < len(points) else until
        y = top + tall * (1 - value / scale)
        words.append(f"L{left + (at - begin) / span * room:.1f} {y:.1f}H{left + (end - begin) / span * room:.1f}")
    canvas.path(" ".join([*words, f"V{top + tall:.1f}Z"]), fill=TINTS[4])
    canvas.text(left, top + tall + 20, day(begin), size=_SIZE, fill=MUTED)
    canvas.text(left + room, top + tall + 20, day(until), size=_SIZE, fill=MUTED, anchor="end")
    return canvas.done(
        _WIDTH, top + tall + 34, title=title, description=f"of {most:,.0f} GPUs", background=CARD, key=key
    )


def _legend(canvas: Canvas, colours: Mapping[str, str], y: float) -> float:
    x = 16.0
    for part, colour in colours.items():
        wide = 30 + len(part) * 7
        if x + wide > _WIDTH:
            x, y = 16.0, y + 20
        canvas.rect(x, y - 9, 11, 11, fill=colour, radius=2)
        canvas.text(x + 17, y, part, size=_SIZE, fill=MUTED)
        x += wide
    return y + 16


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else hours(value)
