# SPDX-License-Identifier: Apache-2.0
"""Draws charts as SVG by matplotlib: the one chart layer of reports, simulations and the results page.

Machines and clusters are drawings, not charts: topology/drawing has those. matplotlib is an extra
(`slurm-berth[report]`) and takes a second to import, so it is imported when the first chart is drawn. The same figures
give the same bytes.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c564b", "#7f7f7f")
"""Colours that colour-blind people can tell apart (after Okabe and Ito), dark enough for thin lines."""
MISSING = "The plots are left out: they need matplotlib (package berth-report, or pip install 'slurm-berth[report]')."

_INK, _FAINT = "#2b3345", "#8893a5"
_DASHES = ("-", "--", ":", "-.")
_WIDTH = 8.6
"""Inches; an SVG has 72 units an inch."""
_ROW = 0.34
_STYLE = {
    "svg.fonttype": "none",
    # In a browser without DejaVu: Verdana is as wide, so labels keep their room.
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    # So that it is faint on a dark page too.
    "grid.alpha": 0.35,
    "grid.linewidth": 0.8,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = COLOURS[0]
    dash: str = "-"


def available() -> bool:
    """Tells if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def colour(place: int) -> str:
    """Returns the colour of a series by its place."""
    return COLOURS[place % len(COLOURS)]


def dash(place: int) -> str:
    """Returns a line pattern by its place; the first is a solid line.

    >>> dash(0), dash(1)
    ('-', '--')
    """
    return _DASHES[place % len(_DASHES)]


def turn(place: int) -> int:
    """Returns how many times the colours have run out before this place."""
    return place // len(COLOURS)


def lines(
    title: str,
    series: Sequence[Series],
    x_title: str,
    y_title: str,
    *,
    y_high: float | None = None,
    log_x: bool = False,
    filled: bool = False,
    alone: bool = False,
) -> str:
    """Draws lines over one axis; `filled` shades the area below the first, `alone` gives the file a background."""

    def draw(axes: "Axes") -> None:
        for one in series:
            axes.plot(one.x, one.y, color=one.colour, linestyle=one.dash, linewidth=1.8, label=one.name)
        if filled:
            first = series[0]
            axes.fill([first.x[0], *first.x, first.x[-1]], [0.0, *first.y, 0.0], color=first.colour, alpha=0.25)
        if log_x:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, y_high)
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        if len(series) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    return _svg(title, 3.4, draw, alone=alone)


def bars(title: str, rows: Mapping[str, Mapping[str, float]], x_title: str, *, alone: bool = False) -> str:
    """Draws a horizontal stacked bar for each row, with the sum of its parts behind it."""
    parts = list(dict.fromkeys(part for row in rows.values() for part, value in row.items() if value))

    def draw(axes: "Axes") -> None:
        names = list(rows)
        left = [0.0] * len(names)
        for place, part in enumerate(parts):
            widths = [rows[name].get(part, 0.0) for name in names]
            axes.barh(names, widths, left=left, height=0.62, color=colour(place), label=part)
            left = [old + width for old, width in zip(left, widths, strict=True)]
        for y, whole in enumerate(left):
            _value(axes, whole, y, whole, 9)
        axes.invert_yaxis()
        axes.set_xlabel(x_title)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.1)
        if len(parts) > 1:
            _legend_below(axes, len(parts))

    return _svg(title, _height(len(rows), len(parts)), draw, alone=alone)


def _value(axes: "Axes", value: float, y: float, after: float, size: float) -> None:
    """Writes a value behind its bar or point; the gap is no space, which browsers leave out."""
    axes.annotate(
        _short(value),
        (after, y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=size,
        # Hides the lines behind it.
        bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 1.0},
    )


def _height(rows: float, parts: int) -> float:
    return 0.8 + _ROW * rows + (0.3 if parts > 1 else 0.0)


def _legend_below(axes: "Axes", parts: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=min(parts, 4), fontsize=9, handlelength=1.0)


def _svg(title: str, height: float, draw: Callable[["Axes"], None], *, alone: bool) -> str:
    """Returns the picture as text; in a page it takes the colour of the text around it, and has no ids of its own."""
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with rc_context({**_STYLE, "svg.hashsalt": title, "axes.facecolor": "white" if alone else "none"}):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure.add_subplot())
        for artist in figure.findobj():
            # A clip is a reference inside the picture; nothing here is drawn outside of its axes.
            artist.set_clip_on(False)
        file = StringIO()
        figure.savefig(
            file,
            format="svg",
            facecolor="white" if alone else "none",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = file.getvalue()
    text = text[text.index("<svg") :]
    # Names such as patch_3, which nothing refers to, and which two pictures of a page would share.
    text = re.sub(r' id="[\w.]+_[0-9]+"', "", text)
    text = re.sub(r"<svg ", f'<svg role="img" aria-label="{escape(title, {chr(34): "&quot;"})}" ', text, count=1)
    if not alone:
        text = text.replace(_INK, "currentColor")
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def _short(value: float) -> str:
    """Formats a number for a chart.

    >>> _short(0.5), _short(20.0), _short(2570.4), _short(1500000.0)
    ('0.5', '20', '2,570', '1.5M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
