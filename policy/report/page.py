"""Writes the report as one HTML file, without scripts or other files."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from policy.report import charts
from policy.report.text import REASONS, ReportTable, headline, left_out, tables
from topology.drawing.style import BACKGROUND, CARD, FAINT, INK, MUTED
from topology.drawing.svg import FONT

_STYLE = f"""
body {{ margin: 2rem auto; max-width: 900px; padding: 0 1rem; background: {BACKGROUND}; color: {INK}; }}
body {{ font: 15px/1.5 {FONT}; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
table {{ border-collapse: collapse; background: {CARD}; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid {FAINT}; text-align: left; vertical-align: top; }}
td.n, th.n {{ text-align: right; white-space: nowrap; }} th {{ font-weight: 600; }}
p.note {{ color: {MUTED}; font-size: .87rem; margin: .3rem 0 1rem; }}
svg {{ max-width: 100%; height: auto; margin: .6rem 0; }}
"""


def page(found: Mapping[str, Any]) -> str:
    """Returns the whole file."""
    pictures = dict(_pictures(found))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>',
        f"<title>Berth: GPU jobs</title><style>{_STYLE}</style></head><body>",
        "<h1>GPU jobs</h1>",
        f'<p>{escape(headline(found))}</p><p class="note">{escape(left_out(found))}</p>',
        pictures.get("busy", ""),
    ]
    for table in tables(found):
        parts += [_table(table), pictures.get(table.title, "")]
    return "\n".join([*filter(None, parts), "</body></html>", ""])


def _table(table: ReportTable) -> str:
    numeric = table.numeric()

    def row(tag: str, cells: Sequence[str]) -> str:
        kinds = [' class="n"' if place in numeric else "" for place in range(len(cells))]
        inner = [f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)]
        return f"<tr>{''.join(inner)}</tr>"

    lines = [row("th", table.columns), *(row("td", cells) for cells in table.rows)]
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f"<h2>{escape(table.title)}</h2>\n<table>\n" + "\n".join(lines) + f"\n</table>{note}"


def _pictures(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the pictures, each under the title of the table that it follows."""
    if found["busy"]:
        yield "busy", charts.line("busy", "GPUs held by jobs", found["busy"], found["gpus"], found["until"])
    waits = {_gpus(size): _by_reason(one) for size, one in found["waits"].items() if one["reasons"]}
    if waits:
        yield "What jobs waited for", charts.bars("waits", "Hours of delays by reason", "h", waits)
    places = found["places"]["by_size"]
    if places:
        rows = {
            _gpus(size): {
                f"on {on} node{'' if on == '1' else 's'}": used for on, used in one["gpu_hours_on_nodes"].items()
            }
            for size, one in places.items()
        }
        yield "Places of jobs on several GPUs", charts.bars("places", "GPU time by nodes used", "GPU h", rows)
    if found["status"]:
        rows = {name: {"GPU time": one["gpu_hours"]} for name, one in found["status"].items()}
        yield "How runs ended", charts.bars("ends", "GPU time by end", "GPU h", rows)
    if found["failures"]:
        rows = {name: {"GPU time": one["gpu_hours"]} for name, one in found["failures"].items()}
        yield "What runs failed of", charts.bars("failures", "GPU time lost by class", "GPU h", rows)
    if busy := found["use"]["busy"]["size"]:
        rows = {_gpus(size): {"busy": round(100 * share, 1)} for size, share in busy.items()}
        yield "Time in which held GPUs were busy", charts.bars("use", "Busy while held", "%", rows)


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
