# SPDX-License-Identifier: Apache-2.0
"""Reads the inputs of a simulation: traces, scores, clusters, events."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from policy.formats.errors import FormatError
from policy.simulate.inputs import sacct
from policy.simulate.inputs.sacct import Recorded
from policy.simulate.inputs.text import InputTable, read_table
from policy.simulate.inputs.traces import FORMS, Notes, Unit
from policy.simulate.jobs import TraceJob

__all__ = ["Recorded", "Trace", "read_traces"]


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of one or more files, by submission time."""

    jobs: Sequence[TraceJob]
    notes: Mapping[str, int]
    """Sentences on what was left out or assumed, with the number of jobs."""
    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    """The real starts and ends, if the trace is a cluster's own accounting."""


def read_traces(sources: Sequence[str], unit: Unit = "auto") -> Trace:
    """Reads trace files of any known form; the column names tell the form.

    Traces with dates begin at 0, the first submission; others keep their own clock.
    """
    notes: Notes = Counter()
    jobs: dict[str, TraceJob] = {}
    recorded: dict[str, Recorded] = {}
    dated = set()
    for source in sources:
        table = read_table(source)
        form = form_of(table)
        dated.add(form in ("sacct", "philly"))
        some, when = _read(table, form, unit, notes)
        if len(sources) > 1 and form != "sacct":
            some = [replace(job, id=f"{Path(source).name.partition('.')[0]}/{job.id}") for job in some]
        _refuse_twins(some, source)
        # Accounting of two months lists a job that ran over the turn of the month twice.
        jobs.update((job.id, job) for job in some)
        recorded.update(when)
    if len(dated) > 1:
        raise FormatError(f"{sources[0]}: traces with dates and traces with seconds cannot be read together")
    if not jobs:
        left_out = "; ".join(f"{count} {what}" for what, count in notes.items())
        raise FormatError(f"{', '.join(sources)}: there is no job to simulate{left_out and f' ({left_out})'}")
    ordered = sorted(jobs.values(), key=lambda job: job.submit)
    if dated == {True}:
        ordered, recorded = _from_zero(ordered, recorded)
    return Trace(ordered, dict(notes), recorded)


def form_of(table: InputTable) -> str:
    """Returns the name of a table's form; for an unknown form a FormatError lists the known ones."""
    names = set(table.header)
    if "JobID" in names:
        return "sacct"
    for form, (_, columns) in FORMS.items():
        if columns <= names:
            return form
    known = "; ".join(",".join(sorted(columns)) for _, columns in FORMS.values())
    raise FormatError(
        f"{table.source}, line 1: no known trace has the columns {','.join(table.header)[:80]}; "
        f"known are {known}; and what berth collect writes, or sacct -P with JobID"
    )


def _read(table: InputTable, form: str, unit: Unit, notes: Notes) -> tuple[list[TraceJob], Mapping[str, Recorded]]:
    if form != "sacct":
        return FORMS[form][0](table, unit, notes), {}
    if unit == "iterations":
        raise FormatError(f"{table.source}: sacct counts seconds; leave --duration-unit out")
    return sacct.read(table, notes)


def _refuse_twins(jobs: Sequence[TraceJob], source: str) -> None:
    twice = [name for name, count in Counter(job.id for job in jobs).items() if count > 1]
    if twice:
        raise FormatError(f"{source}: job {twice[0]} is there twice; each job needs a name of its own")


def _from_zero(
    jobs: Sequence[TraceJob], recorded: Mapping[str, Recorded]
) -> tuple[list[TraceJob], dict[str, Recorded]]:
    first = jobs[0].submit
    return (
        [replace(job, submit=job.submit - first) for job in jobs],
        {name: Recorded(when.start - first, when.end - first) for name, when in recorded.items()},
    )
