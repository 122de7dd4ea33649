# SPDX-License-Identifier: Apache-2.0
"""Writes the report as lines for a terminal, and as tables that the HTML page shows too."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from policy.formats import hostlist
from policy.formats.slurm_syntax.moments import bounded
from policy.report.document import aligned

_LONGEST_NUMBER = 16
_LONGEST_LIST = 40
_WORTH_SAYING = 0.01
"""The verdict names no remedy that could save less than this part of the GPU time."""
_OWNERS = 10
"""Accounts and users that a table shows; the JSON has all of them."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """One part of the report."""

    title: str
    note: str
    """A hint for reading the table, with the source of its data."""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def names(self) -> set[int]:
        """Returns the columns of texts, which are aligned to the left; the first column is always one."""
        first = enumerate(self.rows[0])
        return {place for place, cell in first if not (place and cell[:1].isdigit() and len(cell) < _LONGEST_NUMBER)}


REASONS = {
    "fair_share": "fair share, limits",
    "fragmentation": "fragmentation",
    "locality": "wait for locality",
    "capacity": "capacity",
    "dependency": "dependency",
    "reservation": "reservation",
    "node": "nodes down",
    "held": "held",
    "other": "licences and others",
    "order_or_room": "order or room",
}


def headline(found: Mapping[str, Any]) -> str:
    """Returns a sentence on what the report covers."""
    counts, use = found["counts"], found["use"]
    if not counts["runs"]:
        return "No run of a GPU job ended in this time."
    known = "GPUs" if found["gpus_known"] else "GPUs (the most that were ever busy)"
    held = f", {use['held']:.1%} of the time of {found['gpus']} {known}" if use["held"] is not None else ""
    return (
        f"{counts['runs']:,} runs of GPU jobs ended from {day(found['since'])} to {day(found['until'])} UTC; they held "
        f"{hours(use['gpu_hours'])} GPU h{held}. Berth had placed {counts['by_berth']:,} of them."
    )


def verdict(found: Mapping[str, Any]) -> str:
    """Returns a sentence on the greatest delays, and one on what to do first."""
    delays = {size: sum(why["hours"] for why in one["reasons"]) for size, one in found["waits"].items()}
    whole = sum(delays.values())
    if not found["counts"]["runs"]:
        return ""
    if not whole:
        said = "No GPU job waited for a minute or more."
    else:
        size = max(delays, key=lambda one: delays[one])
        idle = sum(one["enough_idle_hours"] for one in found["waits"].values())
        who = f"{size.replace('>', 'more than ')} GPU{'' if size == '1' else 's'}"
        said = (
            f"GPU jobs waited {hours(whole)} h in delays of a minute or more, most of it jobs on {who}; for "
            f"{hours(idle)} h of that as many GPUs were idle as they asked for."
        )
    return f"{said} {_first(found)}".rstrip()


def left_out(found: Mapping[str, Any]) -> str:
    """Returns a sentence on what the tables leave out."""
    counts = found["counts"]
    return (
        f"Not counted: {counts['without_gpus']:,} runs without GPUs, {counts['parts']:,} on parts of GPUs or seats, "
        f"{counts['open']:,} that still ran at the end. {counts['never_started']:,} left the queue without a start."
    )


def tables(found: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Yields all tables that have rows."""
    every = (
        _waits,
        _reasons,
        _places,
        _in_more_leaves,
        _levels,
        _use,
        _neighbours,
        _status,
        _failures,
        _tries,
        _accounts,
        _users,
        _worth,
    )
    yield from (table for table in (make(found) for make in every) if table.rows)


def text(found: Mapping[str, Any]) -> str:
    """Returns the report as text for a terminal."""
    return _text([*filter(None, [verdict(found)]), headline(found), left_out(found)], tables(found))


def short(found: Mapping[str, Any]) -> str:
    """Returns the tables on waits and places alone, after the headline, and what to do first."""
    every = (_waits, _reasons, _places, _in_more_leaves)
    told = "\n" + _text([headline(found)], (table for make in every if (table := make(found)).rows))
    return f"{told}\n{first}\n" if (first := _first(found)) else told


def _first(found: Mapping[str, Any]) -> str:
    """Returns a sentence on the remedy that could save most GPU time, in hours a week."""
    used = found["use"]["gpu_hours"]
    stakes = [one for one in found["worth"] if one["unit"] == "GPU h" and one["value"] >= _WORTH_SAYING * used]
    if not stakes:
        return ""
    most = max(stakes, key=lambda one: float(one["value"]))
    weeks = max(1.0, found["until"] - found["since"]) / (7 * 86_400)
    least, mean, last = (max(0.0, most["value"] + side * most["spread"]) / weeks for side in (-1.96, 0.0, 1.96))
    return (
        f"What to do first: {most['remedy']}. It could bring {hours(mean)} GPU h a week at most ({hours(least)} to "
        f"{hours(last)} with a chance of 95 %, by the number and size of the runs): {most['counts']}."
    )


def _text(parts: list[str], shown: Iterable[ReportTable]) -> str:
    for table in shown:
        rows = aligned([table.columns, *table.rows], table.names())
        lines = [table.title, *(f"  {row}" for row in rows)]
        parts.append("\n".join([*lines, *([f"  ({table.note})"] if table.note else [])]))
    return "\n\n".join(parts) + "\n"


def _waits(found: Mapping[str, Any]) -> ReportTable:
    times = ("p50_s", "p90_s", "p95_s", "mean_s", "longest_s")
    rows = [
        [
            *(size, f"{one['runs']:,}", f"{one['delays']:,}", f"{one['late']:,} of {one['promised']:,}"),
            *(span(one[time]) for time in times),
        ]
        for size, one in found["waits"].items()
    ]
    note = (
        "from when a job could start; a delay is a wait of a minute or more; late: started later than the promise of "
        "what plain Slurm would have planned allows; quantiles within 2 %"
    )
    columns = ("GPUs", "runs", "delays", "late", "median", "p90", "p95", "mean", "longest")
    return ReportTable("Waits by GPUs", note, columns, rows)


def _reasons(found: Mapping[str, Any]) -> ReportTable:
    rows = []
    for size, one in found["waits"].items():
        for reason in one["reasons"]:
            by = {"berthd": "berthd", "slurm": "Slurm's last reason"}.get(reason["by"], "nobody")
            name = REASONS.get(reason["reason"], reason["reason"])
            idle = hours(one["enough_idle_hours"]) if reason["reason"] == "order_or_room" else ""
            rows.append([size, name, f"{reason['delays']:,}", hours(reason["hours"]), idle, by])
    note = (
        "Slurm keeps one reason of a job and none for order and room; beside those: hours in which as many GPUs were "
        "idle somewhere as the job asked for, so that fragmentation, order or a quota kept it"
    )
    return ReportTable(
        "What jobs waited for", note, ("GPUs", "reason", "delays", "hours", "of them beside idle GPUs", "says"), rows
    )


def _places(found: Mapping[str, Any]) -> ReportTable:
    places = found["places"]
    rows = [
        [size, on, f"{count:,}", hours(one["gpu_hours_on_nodes"][on])]
        for size, one in places["by_size"].items()
        for on, count in one["runs_on_nodes"].items()
    ]
    runs = places["runs"]
    note = (
        f"{runs.get('more_nodes', 0):,} of {runs.get('runs', 0):,} runs had more nodes than they needed; "
        f"{runs.get('more_nodes_asked', 0):,} of these asked for them"
    )
    for level, word in (("leaf", "leaves"), ("nvlink", "NVLink domains")):
        if known := runs.get(f"several_nodes_{level}_known"):
            note += f"; {runs.get(f'more_{level}', 0):,} of {known:,} on several nodes lay in more {word} than needed"
    return ReportTable("Places of jobs on several GPUs", note, ("GPUs", "nodes", "runs", "GPU h"), rows)


def _in_more_leaves(found: Mapping[str, Any]) -> ReportTable:
    rows = [
        [
            *(one["job"], f"{one['gpus']:,}", _folded(one["nodes"])),
            *(str(one["leaves"]), str(one["leaves_needed"]), hours(one["gpu_hours"])),
        ]
        for one in found["places"]["in_more_leaves"]
    ]
    columns = ("job", "GPUs", "nodes", "leaves", "needed", "GPU h")
    return ReportTable("Jobs in more leaves than needed", "those that held most", columns, rows)


def _folded(nodes: Sequence[str]) -> str:
    text = hostlist.fold(nodes)
    return text if len(text) <= _LONGEST_LIST else f"{text[:_LONGEST_LIST]}..."


def _levels(found: Mapping[str, Any]) -> ReportTable:
    rows = [
        [size, level, f"{count:,}"]
        for size, one in found["places"]["by_size"].items()
        for level, count in one["levels_by_berthd"].items()
    ]
    return ReportTable("Levels that berthd gave", "", ("GPUs", "level", "runs"), rows)


def _use(found: Mapping[str, Any]) -> ReportTable:
    use = found["use"]
    words = {"size": "GPUs", "nodes": "nodes", "status": "ended"}
    rows = [[words[by], key, f"{busy:.1%}"] for by, keys in use["busy"].items() for key, busy in keys.items()]
    note = f"as Slurm's accounting saw it (gres/gpuutil), of {hours(use['measured_gpu_hours'])} GPU h that it measured"
    return ReportTable("Time in which held GPUs were busy", note, ("by", "class", "busy"), rows)


def _neighbours(found: Mapping[str, Any]) -> ReportTable:
    rows = [[name, f"{one['jobs']:,}", f"{one['factor']:.2f}"] for name, one in found["neighbours"].items()]
    note = "jobs with hours alone on their nodes and hours beside others, by their own step times; *: all accounts"
    return ReportTable(
        "What neighbours on a node cost", note, ("account", "jobs", "step beside others over alone"), rows
    )


def _status(found: Mapping[str, Any]) -> ReportTable:
    status = found["status"]
    runs, used = (sum(one[key] for one in status.values()) for key in ("runs", "gpu_hours"))
    rows = [
        [name, f"{one['runs']:,}", part(one["runs"], runs), hours(one["gpu_hours"]), part(one["gpu_hours"], used)]
        for name, one in status.items()
    ]
    return ReportTable("How runs ended", "", ("end", "runs", "of runs", "GPU h", "of GPU time"), rows)


def _failures(found: Mapping[str, Any]) -> ReportTable:
    rows = [
        [
            *(name, f"{one['runs']:,}", f"{one['told_by_berthd']:,}", f"{one['users']:,}"),
            *(span(one["p50_s"]), span(one["p90_s"]), hours(one["gpu_hours"])),
            "yes" if one["passes_by_itself"] else "no",
        ]
        for name, one in found["failures"].items()
    ]
    note = "by berthd from the log, else by state and exit code, which seldom tell; may pass: another try can help"
    columns = ("class", "runs", "by berthd", "users", "median", "p90", "GPU h lost", "may pass")
    return ReportTable("What runs failed of", note, columns, rows)


def _tries(found: Mapping[str, Any]) -> ReportTable:
    words = {
        "again": "ran again after a failure",
        "passed_in_the_end": "of these, passed: what trying again saved",
        "failed_alike": "of these, failed again of what a try does not change",
        "resubmitted_alike": "new jobs of the same owner and size, soon after, that failed alike",
    }
    rows = [
        [words[name], f"{one['runs']:,}", hours(one["gpu_hours"])]
        for name, one in found["tries"].items()
        if one["runs"]
    ]
    return ReportTable("Tries", "", ("runs that", "runs", "GPU h"), rows)


def _accounts(found: Mapping[str, Any]) -> ReportTable:
    return _owners("Accounts", "account", found["accounts"])


def _users(found: Mapping[str, Any]) -> ReportTable:
    return _owners("Users", "user", found["users"])


def _owners(title: str, what: str, owners: Mapping[str, Mapping[str, Any]]) -> ReportTable:
    measured = any(one["busy"] is not None for one in owners.values())
    rows = []
    for name, one in islice(owners.items(), _OWNERS):
        cells = [name, f"{one['runs']:,}", hours(one["gpu_hours"]), f"{one['delays']:,}", hours(one["delay_hours"])]
        busy = "-" if one["busy"] is None else f"{one['busy']:.1%}"
        rows.append([*cells, hours(one["failed_gpu_hours"]), *([busy] if measured else [])])
    note = f"the {_OWNERS} of {len(owners):,} that held most" if len(owners) > _OWNERS else ""
    columns = (what, "runs", "GPU h", "delays", "hours delayed", "GPU h failed")
    return ReportTable(title, note, (*columns, *(["GPUs busy"] if measured else [])), rows)


def _worth(found: Mapping[str, Any]) -> ReportTable:
    rows = [[f"{hours(one['value'])} {one['unit']}", one["remedy"], one["counts"]] for one in found["worth"]]
    return ReportTable("What is at stake", "upper bounds", ("at most", "remedy", "what was counted"), rows)


def day(moment: float) -> str:
    """Formats a moment as a date and a time."""
    return datetime.fromtimestamp(bounded(moment), UTC).strftime("%Y-%m-%d %H:%M")


def span(seconds: float) -> str:
    """Formats a length of time for people.

    >>> span(42), span(5_400), span(200_000)
    ('42 s', '90 min', '55.6 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:,.1f} h"


def hours(value: float) -> str:
    """Formats hours, with two decimals below 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def part(value: float, whole: float) -> str:
    """Formats a share in percent."""
    return f"{value / whole:.1%}" if whole else "-"
