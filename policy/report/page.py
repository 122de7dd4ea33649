# SPDX-License-Identifier: Apache-2.0
"""Writes the report as one HTML file, without scripts or other files."""

from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from typing import Any

from policy.report import charts
from policy.report.document import document, paragraph, section, table
from policy.report.text import REASONS, day, headline, left_out, tables, verdict

_PLOTS = 3
"""A page shows this many plots, the first of those that have something to show."""


def page(found: Mapping[str, Any]) -> str:
    """Returns the whole file."""
    pictures = list(islice(_pictures(found), _PLOTS)) if charts.available() else [paragraph(charts.MISSING)]
    parts = [
        "<h1>GPU jobs</h1>",
        paragraph(verdict(found), "verdict"),
        paragraph(headline(found)),
        paragraph(left_out(found)),
        *pictures,
        *(section(one.title, table(one.columns, one.rows, one.names()), one.note) for one in tables(found)),
    ]
    return document("Berth: GPU jobs", parts)


def _pictures(found: Mapping[str, Any]) -> Iterator[str]:
    """Yields the plots, those that matter most first, each under its title."""
    waits = {_gpus(size): _by_reason(one) for size, one in found["waits"].items() if one["reasons"]}
    if waits:
        yield section("What jobs waited for", charts.bars("Waits by reason", waits, "hours of delays"))
    if found["busy"]:
        points = [*found["busy"], [found["until"], 0.0]]
        begin = points[0][0]
        x = [(edge[0] - begin) / 86_400 for left, right in pairwise(points) for edge in (left, right)]
        y = [float(left[1]) for left, _ in pairwise(points) for _ in range(2)]
        held = charts.Series("held", x, y)
        words = f"days since {day(begin)} UTC"
        title = f"GPUs held by jobs, of {found['gpus']:,}"
        yield section(
            title, charts.lines(title, [held], words, "GPUs", y_high=max(found["gpus"], *y, 1.0), filled=True)
        )
    if found["failures"]:
        rows = {name: {"GPU time": one["gpu_hours"]} for name, one in found["failures"].items()}
        yield section("GPU time lost to failures", charts.bars("GPU time lost by class", rows, "GPU h"))
    if places := found["places"]["by_size"]:
        rows = {
            _gpus(size): {
                f"on {on} node{'' if on == '1' else 's'}": used for on, used in one["gpu_hours_on_nodes"].items()
            }
            for size, one in places.items()
        }
        yield section("Nodes of jobs on several GPUs", charts.bars("GPU time by nodes used", rows, "GPU h"))


def _gpus(size: str) -> str:
    return "1 GPU" if size == "1" else f"{size} GPUs"


def _by_reason(one: Mapping[str, Any]) -> dict[str, float]:
    """Returns hours by reason; delays without a reason are split by whether enough GPUs were idle."""
    parts: dict[str, float] = {}
    for reason in one["reasons"]:
        name = REASONS.get(reason["reason"], reason["reason"])
        if reason["reason"] == "order_or_room":
            idle = min(one["enough_idle_hours"], reason["hours"])
            parts["order or room, enough GPUs idle"] = idle
            parts["order or room, too few GPUs idle"] = reason["hours"] - idle
        else:
            parts[name] = parts.get(name, 0.0) + reason["hours"]
    return {name: value for name, value in parts.items() if value}
