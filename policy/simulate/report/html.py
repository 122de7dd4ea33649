# SPDX-License-Identifier: Apache-2.0
"""Writes the page of `--report`: one file with the table and the plots, without network, scripts or other files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from xml.sax.saxutils import escape

from policy.report import charts
from policy.report.document import document, paragraph, section, table
from policy.simulate.report.summary import Line, Summary, lines
from policy.simulate.report.table import cells_of, unit_of
from policy.simulate.report.verdict import verdict
from policy.simulate.study import Study

_DECADES = 30.0
"""Times that differ by more than this factor are drawn on a logarithmic axis."""
_REASONS = {
    "fair_share": "fair share (its account is at its limit)",
    "fragmentation": "fragmentation (enough GPUs are free, but not near enough to each other)",
    "capacity": "capacity (not enough GPUs are free)",
    "priority": "priority (a place is free, but others come first)",
}


def page(study: Study, rows: Sequence[Summary], notes: Mapping[str, int], jobs: int) -> str:
    """Returns the whole page, which is valid XML too."""
    every = lines(rows)
    parts = [
        "<h1>berth simulate</h1>",
        paragraph(verdict(rows), "verdict"),
        paragraph(_setup(study, jobs)),
        *(_plots(every) if charts.available() else [paragraph(charts.MISSING)]),
        _table(rows),
        *_notes(notes),
    ]
    return document("berth simulate", parts)


def _plots(every: Sequence[Line]) -> list[str]:
    """Returns the plots that matter."""
    waits = {line.policy: _waits(line) for line in every if any(run.waits for run in line.runs)}
    why = (
        [
            section(
                "Why jobs waited",
                charts.bars("Waits by reason", waits, "hours of waiting"),
                "GPU jobs' waiting time by what they waited for. " + "; ".join(_REASONS.values()) + ".",
            )
        ]
        if waits
        else []
    )
    return [
        section(
            "Job completion time",
            _jct(every),
            "Share of jobs that were done within a time, counted from submission; further left and up is better.",
        ),
        section(
            "Waiting time",
            _waited(every),
            "Share of jobs that waited longer than a time before they first started; lower is better.",
        ),
        *why,
    ]


def _setup(study: Study, jobs: int) -> str:
    if study.topology:
        cluster = f"the nodes of {study.topology}"
    else:
        gpus = study.machine or f"{study.gpus_per_node} GPUs"
        cluster = f"{study.nodes} nodes of {gpus}"
    traces = ", ".join(study.traces)
    return f"{jobs} jobs of {traces} on {cluster}; mode {study.mode}."


def _table(rows: Sequence[Summary]) -> str:
    head, body = cells_of(rows)
    read = (
        "JCT: from submission to end. Held: GPUs that jobs held, over all. Useful: ideal GPU time of the jobs, over "
        "all. Makespan: from the first submission to the last end."
    )
    return f"{table(head, body, range(1))}\n{paragraph(read)}"


def _notes(notes: Mapping[str, int]) -> list[str]:
    if not notes:
        return []
    return ["<ul>" + "".join(f"<li>{count} jobs {escape(text)}</li>" for text, count in notes.items()) + "</ul>"]


def _jct(every: Sequence[Line]) -> str:
    curves = [[run.jct_s for run in line.runs] for line in every]
    size, unit = unit_of(line.mean("avg_jct_s") or 0.0 for line in every)
    series = _curves(every, curves, size)
    times = [value for one in series for value in one.x]
    return charts.lines(
        "Job completion time",
        [replace(one, x=[max(value, max(times) / 1e6) for value in one.x]) for one in series],
        f"job completion time, {unit}",
        "share of jobs",
        y_high=1,
        log_x=max(times) > _DECADES * max(min(times), max(times) / 1e6),
    )


def _waited(every: Sequence[Line]) -> str:
    curves = [[run.wait_s for run in line.runs] for line in every]
    size, unit = unit_of(line.mean("avg_wait_s") or 0.0 for line in every)
    # The last half percent is left out, because it would squeeze all others to the left.
    series = [replace(one, x=one.x[:-1], y=[1 - share for share in one.y[:-1]]) for one in _curves(every, curves, size)]
    return charts.lines("Waiting time", series, f"waiting time, {unit}", "share of jobs")


def _curves(every: Sequence[Line], curves: Sequence[Sequence[Sequence[float]]], size: float) -> list[charts.Series]:
    """Returns quantiles against their shares; over several seeds the mean of each quantile, as the typical curve."""
    series = []
    for place, (line, runs) in enumerate(zip(every, curves, strict=True)):
        times = [sum(values) / len(values) / size for values in zip(*runs, strict=True)]
        shares = [number / (len(times) - 1) for number in range(len(times))]
        dash = charts.dash(charts.turn(place))
        series.append(charts.Series(line.policy, times, shares, charts.colour(place), dash))
    return series


def _waits(line: Line) -> dict[str, float]:
    reasons = dict.fromkeys(name for run in line.runs for name in run.waits)
    hours = len(line.runs) * 3600
    return {name.replace("_", " "): sum(run.waits.get(name, 0.0) for run in line.runs) / hours for name in reasons}
