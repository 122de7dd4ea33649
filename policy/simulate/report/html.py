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
    """Returns the plots that matter, before them the average over a swept number."""
    few = _few(every)
    waits = {_name(line): _waits(line) for line in every if any(run.waits for run in line.runs)}
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
        _over_values(every),
        *(["<p>Below: the first and the last of the swept values.</p>"] if len(few) < len(every) else []),
        section(
            "Job completion time",
            _jct(few),
            "Share of jobs that were done within a time, counted from submission; further left and up is better.",
        ),
        section(
            "Waiting time",
            _waited(few),
            "Share of jobs that waited longer than a time before they first started; lower is better.",
        ),
        *why,
    ]


def _setup(study: Study, jobs: int) -> str:
    if {"nodes", "gpus-per-node"} & {name for name, _ in study.sweeps}:
        cluster = "clusters of the swept sizes"
    elif study.topology:
        cluster = f"the nodes of {study.topology}"
    else:
        gpus = study.machine or f"{study.gpus_per_node} GPUs"
        cluster = f"{study.nodes} nodes of {gpus}"
    traces = ", ".join(study.traces)
    return f"{jobs} jobs of {traces} on {cluster}; mode {study.mode}."


def _table(rows: Sequence[Summary]) -> str:
    head, body = cells_of(rows)
    names = next(place for place, name in enumerate(head) if name.startswith("avg JCT"))
    read = (
        "JCT: from submission to end. Held: GPUs that jobs held, over all. Useful: ideal GPU time of the jobs, over "
        "all. Makespan: from the first submission to the last end."
    )
    return f"{table(head, body, range(names))}\n{paragraph(read)}"


def _notes(notes: Mapping[str, int]) -> list[str]:
    if not notes:
        return []
    return ["<ul>" + "".join(f"<li>{count} jobs {escape(text)}</li>" for text, count in notes.items()) + "</ul>"]


def _name(line: Line) -> str:
    return ", ".join([line.policy, *(f"{name} {value}" for name, value in line.swept)])


def _few(every: Sequence[Line]) -> Sequence[Line]:
    """Returns all lines, or for a large sweep those of the first and the last values, to keep plots readable."""
    values = list(dict.fromkeys(line.swept for line in every if line.swept))
    if len(every) <= len(charts.COLOURS) or not values:
        return every
    return [line for line in every if line.swept in (values[0], values[-1])]


def _look(every: Sequence[Line], line: Line) -> tuple[str, str]:
    """Returns colour and pattern: a colour for each policy, and in a sweep a pattern for each value."""
    policies = list(dict.fromkeys(one.policy for one in every))
    values = list(dict.fromkeys(one.swept for one in every if one.swept)) or [()]
    place = policies.index(line.policy)
    return charts.colour(place), charts.dash(values.index(line.swept) if line.swept else charts.turn(place))


def _over_values(every: Sequence[Line]) -> str:
    """Returns a plot of average JCT over a swept number, if just one number is swept; else nothing."""
    swept = [line for line in every if line.swept]
    if not swept or any(len(line.swept) > 1 for line in swept):
        return ""
    name = swept[0].swept[0][0]
    try:
        points = [(line.policy, float(line.swept[0][1]), line.mean("avg_jct_s") or 0.0) for line in swept]
    except ValueError:
        return ""
    size, unit = unit_of(jct for _, _, jct in points)
    series = []
    for place, policy in enumerate(dict.fromkeys(policy for policy, _, _ in points)):
        own = sorted((value, jct / size) for one, value, jct in points if one == policy)
        x, y = zip(*own, strict=True)
        series.append(charts.Series(policy, x, y, charts.colour(place), charts.dash(charts.turn(place))))
    picture = charts.lines(f"Average JCT over {name}", series, name, f"average JCT, {unit}")
    return section(f"Average JCT over {name}", picture, "Mean over the seeds; lower is better.")


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
    for line, runs in zip(every, curves, strict=True):
        times = [sum(values) / len(values) / size for values in zip(*runs, strict=True)]
        shares = [number / (len(times) - 1) for number in range(len(times))]
        series.append(charts.Series(_name(line), times, shares, *_look(every, line)))
    return series


def _waits(line: Line) -> dict[str, float]:
    reasons = dict.fromkeys(name for run in line.runs for name in run.waits)
    hours = len(line.runs) * 3600
    return {name.replace("_", " "): sum(run.waits.get(name, 0.0) for run in line.runs) / hours for name in reasons}
