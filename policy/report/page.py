# SPDX-License-Identifier: Apache-2.0
"""Writes the report as one HTML file, without scripts or other files."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import islice, pairwise
from typing import Any

from policy.report import charts
from policy.report.text import REASONS, ReportTable, day, headline, left_out, tables, verdict
from topology.drawing.style import BACKGROUND, CARD, FAINT, INK, MUTED
from topology.drawing.svg import FONT

_PLOTS = 3
"""A page shows this many plots, the first of those that have something to show."""
_STYLE = f"""
body {{ margin: 2rem auto; max-width: 900px; padding: 0 1rem; background: {BACKGROUND}; color: {INK}; }}
body {{ font: 15px/1.5 {FONT}; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
table {{ border-collapse: collapse; background: {CARD}; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid {FAINT}; text-align: left; vertical-align: top; }}
td.n, th.n {{ text-align: right; white-space: nowrap; }} th {{ font-weight: 600; }}
p.verdict {{ font-size: 1.15rem; }} p.note {{ color: {MUTED}; font-size: .87rem; margin: .3rem 0 1rem; }}
svg {{ max-width: 100%; height: auto; margin: .6rem 0; }}
"""


def page(found: Mapping[str, Any]) -> str:
    """Returns the whole file."""
    pictures = list(islice(_pictures(found), _PLOTS)) if charts.available() else [_note(charts.MISSING)]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>',
        f"<title>Berth: GPU jobs</title><style>{_STYLE}</style></head><body>",
        "<h1>GPU jobs</h1>",
        f'<p class="verdict">{escape(verdict(found))}</p>' if verdict(found) else "",
        f"<p>{escape(headline(found))}</p>",
        _note(left_out(found)),
        *pictures,
        *(_table(table) for table in tables(found)),
    ]
    return "\n".join([*filter(None, parts), "</body></html>", ""])


def _table(table: ReportTable) -> str:
    numeric = table.numeric()

    def row(tag: str, cells: Sequence[str]) -> str:
        kinds = [' class="n"' if place in numeric else "" for place in range(len(cells))]
        inner = [f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)]
        return f"<tr>{''.join(inner)}</tr>"

    lines = [row("th", table.columns), *(row("td", cells) for cells in table.rows)]
    note = _note(table.note) if table.note else ""
    return f"<h2>{escape(table.title)}</h2>\n<table>\n" + "\n".join(lines) + f"\n</table>{note}"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _pictures(found: Mapping[str, Any]) -> Iterator[str]:
    """Yields the plots, those that matter most first, each under its title."""
    waits = {_gpus(size): _by_reason(one) for size, one in found["waits"].items() if one["reasons"]}
    if waits:
        yield _titled("What jobs waited for", charts.bars("Waits by reason", waits, "hours of delays"))
    if found["busy"]:
        points = [*found["busy"], [found["until"], 0.0]]
        begin = points[0][0]
        x = [(edge[0] - begin) / 86_400 for left, right in pairwise(points) for edge in (left, right)]
        y = [float(left[1]) for left, _ in pairwise(points) for _ in range(2)]
        held = charts.Series("held", x, y)
        words = f"days since {day(begin)} UTC"
        title = f"GPUs held by jobs, of {found['gpus']:,}"
        yield _titled(
            title, charts.lines(title, [held], words, "GPUs", y_high=max(found["gpus"], *y, 1.0), filled=True)
        )
    if found["failures"]:
        rows = {name: {"GPU time": one["gpu_hours"]} for name, one in found["failures"].items()}
        yield _titled("GPU time lost to failures", charts.bars("GPU time lost by class", rows, "GPU h"))
    if places := found["places"]["by_size"]:
        rows = {
            _gpus(size): {
                f"on {on} node{'' if on == '1' else 's'}": used for on, used in one["gpu_hours_on_nodes"].items()
            }
            for size, one in places.items()
        }
        yield _titled("Nodes of jobs on several GPUs", charts.bars("GPU time by nodes used", rows, "GPU h"))


def _titled(title: str, picture: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{picture}"


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
