# SPDX-License-Identifier: Apache-2.0
"""Charts of the results page: groups of bars, points with intervals, growing costs, by the chart layer of reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policy.report.charts import _INK, COLOURS, _height, _legend_below, _svg, _value, colour, dash

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Mark:
    """A value to compare with: a bound, or the peer's."""

    value: float
    name: str


def groups(
    title: str,
    rows: Mapping[str, Mapping[str, float]],
    x_title: str,
    *,
    mark: Mark | None = None,
    alone: bool = False,
) -> str:
    """Draws a group of horizontal bars for each row, one for each part, each with its value, and a line at `mark`."""
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    height = 0.8 / len(parts)

    def draw(axes: Axes) -> None:
        for place, part in enumerate(parts):
            at = [(y - 0.4 + (place + 0.5) * height, row[part]) for y, row in enumerate(rows.values()) if part in row]
            ys, widths = zip(*at, strict=True)
            axes.barh(ys, widths, height=0.9 * height, color=colour(place), label=part)
            for y, width in at:
                _value(axes, width, y, width, 8)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.set_xlabel(x_title)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.1)
        _line_at(axes, mark)
        if len(parts) > 1:
            _legend_below(axes, len(parts))

    return _svg(title, _height(max(len(rows), 0.55 * len(rows) * len(parts)), len(parts)), draw, alone=alone)


def intervals(
    title: str,
    rows: Mapping[str, tuple[float, float, float]],
    x_title: str,
    mark: Mark,
    *,
    log_x: bool = False,
    alone: bool = False,
) -> str:
    """Draws a point with its least and greatest value for each row, and a line at `mark`."""

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import LogLocator  # noqa: PLC0415

        for y, (value, low, high) in enumerate(rows.values()):
            axes.plot([low, high], [y, y], color=COLOURS[0], linewidth=2, solid_capstyle="butt")
            axes.plot([value], [y], color=COLOURS[0], marker="o", markersize=6)
            _value(axes, value, y, high, 9)
        if log_x:
            axes.set_xscale("log", subs=[])
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter("{x:g}")
        _line_at(axes, mark)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.set_xlabel(x_title)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12, y=0.12)

    return _svg(title, _height(len(rows), 1), draw, alone=alone)


def growth(
    title: str, rows: Mapping[str, Mapping[float, float]], x_title: str, y_title: str, *, alone: bool = False
) -> str:
    """Draws a line for each row on two logarithmic axes, and a thin dashed one for what grows as the size does.

    Rows whose names are alike before the comma have one colour, and different dashes.
    """
    kinds = [name.split(",")[0] for name in rows]
    colours = {kind: colour(place) for place, kind in enumerate(dict.fromkeys(kinds))}

    def draw(axes: Axes) -> None:
        for place, (name, points) in enumerate(rows.items()):
            kind, before = kinds[place], kinds[:place]
            axes.plot(
                list(points), list(points.values()), color=colours[kind], linestyle=dash(before.count(kind)),
                marker="o", markersize=4, linewidth=1.8, label=name,
            )  # fmt: skip
        far = max(x for points in rows.values() for x in points)
        axes.plot([1.0, far], [1.0, far], color=_INK, linewidth=1.2, linestyle="--", label="as the size")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)

    return _svg(title, 4.4, draw, alone=alone)


def _line_at(axes: Axes, mark: Mark | None) -> None:
    """Draws an upright line, with its name above the axes on the right, where no legend stands."""
    if mark:
        axes.axvline(mark.value, color=_INK, linewidth=1.2, linestyle="--")
        axes.annotate(
            f"dashed: {mark.name}",
            (1.0, 1.0),
            xytext=(0, 4),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
