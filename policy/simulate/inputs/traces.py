# SPDX-License-Identifier: Apache-2.0
"""Reads the published forms of traces: PAL's and similar ones, Sia's first form, Philly's."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from policy.formats.errors import FormatError, nearest
from policy.formats.flags import parse_time
from policy.simulate.inputs.models import GPU_HOURS, ITERATION_S, app_class
from policy.simulate.inputs.text import InputRow, InputTable
from policy.simulate.jobs import TraceJob

Unit = Literal["auto", "iterations", "seconds"]

Notes = Counter[str]
"""Sentences on what was left out or assumed, with the number of jobs."""


def pal(table: InputTable, unit: Unit, notes: Notes) -> list[TraceJob]:
    """Reads `job_id,num_gpus,submit_time,duration[,model]` and, in Berth's form, class, limit, nodes, user, account.

    PAL writes a duration in iterations, Shockwave in a unit that PAL runs at one second each.
    """
    table.need("job_id", "num_gpus", "submit_time", "duration")
    jobs = []
    for row in table.rows:
        model = row.get("model")
        gpus = row.whole("num_gpus", 1)
        nodes = row.whole("nodes", 1) if row.get("nodes") else None
        if nodes and gpus % nodes:
            raise row.wrong("nodes", f"a number of nodes that divides {gpus} GPUs")
        jobs.append(
            TraceJob(
                id=row["job_id"],
                gpus=gpus,
                submit=row.number("submit_time"),
                work=_work(row, model, unit, notes),
                model=model,
                app_class=row.get("class") or app_class(model),
                limit=_limit(row),
                nodes=nodes,
                user=row.get("user"),
                account=row.get("account"),
                name=row.get("name"),
            )
        )
    return jobs


def _work(row: InputRow, model: str, unit: Unit, notes: Notes) -> float:
    duration = row.number("duration")
    if unit == "seconds" or (unit == "auto" and model not in ITERATION_S):
        if model and unit == "auto":
            notes["are of models without a known iteration time: their durations count as seconds"] += 1
        return duration
    if model not in ITERATION_S:
        hint = nearest(model, ITERATION_S) if model else ""
        raise FormatError(
            f'{row.source}, line {row.line}: no iteration time of model "{model}" is known{hint}; '
            "give --duration-unit seconds if durations are seconds"
        )
    return duration * ITERATION_S[model]


def _limit(row: InputRow) -> float | None:
    text = row.get("limit")
    if not text:
        return None
    try:
        return float(parse_time(text))
    except FormatError:
        raise row.wrong("limit", "a time as Slurm writes it (a bare number is minutes)") from None


def sia(table: InputTable, unit: Unit, notes: Notes) -> list[TraceJob]:
    """Reads `name,time,application,num_replicas`; run times are missing and drawn from the application's size."""
    table.need("name", "time", "application", "num_replicas")
    if unit != "auto":
        raise FormatError(f"{table.source}: this form has no durations; leave --duration-unit out")
    jobs = []
    for row in table.rows:
        application = row["application"]
        if application not in GPU_HOURS:
            raise row.wrong("application", f"one of {', '.join(GPU_HOURS)}")
        name = f"{row['workload']}/{row['name']}" if row.get("workload") else row["name"]
        gpus = row.whole("num_replicas", 1)
        # Seeded by the job's own name, so that a job has the same size in every run and on every machine.
        low, high = GPU_HOURS[application]
        hours = low * (high / low) ** random.Random(name).random()  # noqa: S311 - drawn, not secret
        jobs.append(
            TraceJob(
                name, gpus, row.number("time"), hours * 3600 / gpus, application, app_class(application), name=name
            )
        )
    notes["have run times drawn from the size class of the application, as this form has none"] += len(jobs)
    return jobs


def philly(table: InputTable, unit: Unit, notes: Notes) -> list[TraceJob]:
    """Reads `timestamp,duration,num_gpus,cluster`: dates and seconds; the virtual cluster is the account."""
    table.need("timestamp", "duration", "num_gpus", "cluster")
    if unit == "iterations":
        raise FormatError(f"{table.source}: durations of this form are seconds; leave --duration-unit out")
    jobs = []
    for row in table.rows:
        gpus, work = row.whole("num_gpus"), row.number("duration")
        if not gpus or not work:
            notes["left out: no GPUs or no run time"] += 1
            continue
        account = row["cluster"]
        jobs.append(TraceJob(f"philly-{row.line - 1}", gpus, _moment(row), work, account=account, user=account))
    return jobs


def _moment(row: InputRow) -> float:
    try:
        moment = datetime.fromisoformat(row["timestamp"])
    except ValueError:
        raise row.wrong("timestamp", "a date and time such as 2017-10-16 08:30:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


Reader = Callable[[InputTable, Unit, Notes], list[TraceJob]]

FORMS: dict[str, tuple[Reader, frozenset[str]]] = {
    "pal": (pal, frozenset({"job_id", "num_gpus", "submit_time", "duration"})),
    "sia": (sia, frozenset({"name", "time", "application", "num_replicas"})),
    "philly": (philly, frozenset({"timestamp", "duration", "num_gpus", "cluster"})),
}
"""Readers, and the columns that identify each form."""
