# SPDX-License-Identifier: Apache-2.0
"""Reads a real cluster's accounting: the output of `sacct -P`, with its columns in any order."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from policy.formats.errors import FormatError
from policy.formats.flags import parse_time
from policy.simulate.inputs.text import InputRow, InputTable
from policy.simulate.inputs.traces import Notes
from policy.simulate.jobs import TraceJob

COMMAND = (
    "sacct -aPX -S START -E END "
    "-o JobID,User,Account,JobName,Submit,Eligible,Start,End,ElapsedRaw,State,AllocTRES,ReqTRES,Timelimit,NNodes"
)
"""The command for a complete table; a table with fewer columns can be read too."""

_GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_NOTHING = ("", "Unknown", "None", "N/A", "INVALID")
_NO_LIMIT = (*_NOTHING, "UNLIMITED", "Partition_Limit", "Partition", "INFINITE")


@dataclass(frozen=True, slots=True)
class Recorded:
    """The real start and end of a job."""

    start: float
    end: float


def read(table: InputTable, notes: Notes) -> tuple[list[TraceJob], Mapping[str, Recorded]]:
    """Returns the GPU jobs that ran, with their starts and ends; of a job that is listed twice, the last run counts."""
    table.need("JobID", "Submit")
    if not {"AllocTRES", "ReqTRES", "AllocGRES"} & set(table.header):
        raise FormatError(f"{table.source}, line 1: there is no column AllocTRES, which tells the GPUs of a job")
    if not ({"ElapsedRaw", "Elapsed"} & set(table.header) or {"Start", "End"} <= set(table.header)):
        raise FormatError(f"{table.source}, line 1: there is no column ElapsedRaw, which tells how long a job ran")
    jobs: dict[str, TraceJob] = {}
    recorded: dict[str, Recorded] = {}
    for row in table.rows:
        job = _job(row, notes)
        if job is None:
            continue
        # A requeued job has a line for each run (sacct -D); its wait began at the first submission.
        if job.id in jobs:
            notes["listed more than once: the last run counts"] += 1
        jobs[job.id] = job
        recorded.pop(job.id, None)
        if (start := _moment(row, "Start")) is not None:
            recorded[job.id] = Recorded(start, _moment(row, "End") or start + job.work)
    return list(jobs.values()), recorded


def _job(row: InputRow, notes: Notes) -> TraceJob | None:
    name = row["JobID"]
    if "." in name:
        return None  # a step; its job has a line of its own
    state = row.get("State").partition(" ")[0]
    if state == "PENDING" or "[" in name:
        notes["left out: still pending"] += 1
        return None
    submit, eligible = _moment(row, "Submit"), _moment(row, "Eligible")
    if submit is None:
        raise row.wrong("Submit", "a date and time such as 2026-11-01T08:30:00")
    work = _elapsed(row)
    if not work:
        notes["left out: never ran"] += 1
        return None
    gpus = _gpus(row)
    if not gpus:
        notes["left out: no GPUs"] += 1
        return None
    if state in ("RUNNING", "SUSPENDED"):
        notes["still running: the time so far counts as the whole"] += 1
    nodes = row.whole("NNodes") if row.get("NNodes") else None
    return TraceJob(
        id=name,
        gpus=gpus,
        # A job that is held or has a dependency does not wait for GPUs yet.
        submit=max(submit, eligible or submit),
        work=work,
        limit=_limit(row),
        nodes=nodes if nodes and gpus % nodes == 0 else None,
        user=row.get("User"),
        account=row.get("Account"),
        name=row.get("JobName"),
    )


def _gpus(row: InputRow) -> int:
    """Returns the GPUs of the whole job; where sacct lists types beside the sum, the sum counts."""
    for column in ("AllocTRES", "ReqTRES"):
        found = [(kind, int(count)) for kind, count in _GPUS.findall(row.get(column))]
        if found:
            plain = [count for kind, count in found if not kind]
            return plain[0] if plain else sum(count for _, count in found)
    text = row.get("AllocGRES")
    # Slurm before 20.11: `gpu:2` or `gpu:v100:2`, on each node.
    each = sum(int(count) for count in re.findall(r"gpu(?::[^:,]+)?:(\d+)", text))
    return each * (row.whole("NNodes", 1) if row.get("NNodes") else 1)


def _elapsed(row: InputRow) -> float:
    if row.get("ElapsedRaw"):
        return row.number("ElapsedRaw")
    text = row.get("Elapsed")
    if text not in _NOTHING:
        match = _ELAPSED.fullmatch(text)
        if match is None:
            raise row.wrong("Elapsed", "a time such as 1-02:03:04")
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    start, end = _moment(row, "Start"), _moment(row, "End")
    return 0.0 if start is None or end is None else max(0.0, end - start)


def _limit(row: InputRow) -> float | None:
    text = row.get("Timelimit")
    if text in _NO_LIMIT:
        return None
    try:
        return float(parse_time(text))
    except FormatError:
        raise row.wrong("Timelimit", "a time such as 1-00:00:00") from None


def _moment(row: InputRow, column: str) -> float | None:
    """Returns seconds since 1970; sacct writes local times without a zone, so all are read as if in one zone."""
    text = row.get(column)
    if text in _NOTHING:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise row.wrong(column, "a date and time such as 2026-11-01T08:30:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
