# SPDX-License-Identifier: Apache-2.0
"""`berth why --slow JOBID`: the time that ranks and GPUs cost a finished job, or that its program itself was slow."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policy.cli.output import print_json, print_table
from policy.formats.errors import BerthError, SlurmError, UsageError
from policy.history.slowness.votes import in_other_jobs
from topology.calibrate.steps import JobReport

if TYPE_CHECKING:
    from policy.history.slowness.job import Known, Slowness
    from policy.history.slowness.sources import StepTimes
    from policy.site.config import Config

_MOST_BYTES = 256 << 20
_GOES_ON = frozenset({"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING"})


def run_slow(options: argparse.Namespace) -> int:
    """Prints what made a job slow."""
    from policy.history.slowness.job import analyse  # noqa: PLC0415 - needs numpy

    # A finished task of an array has a number of its own, which the accounting knows.
    job = options.job if options.job.isdigit() else last_run(options.job)
    config = _config()
    reports = _step_reports(config) if config else ()
    times = times_of_file(options.source) if options.source else _of_guard(config, reports, job)
    known = _known(config, reports, job)
    found = analyse(times, known)
    if options.json:
        print_json({"job": job, "slow": as_values(found)})
    elif options.verbose:
        print_table(slow_rows(job, found))
    else:
        print(f"Job {job} {found.text}.")
    return 0


def slow_rows(job: str, found: Slowness) -> list[tuple[str, str]]:
    """Returns all that was found, row by row."""
    from policy.history.slowness.job import BLAMED  # noqa: PLC0415 - needs numpy

    times = found.times
    rows = [
        ("job", job),
        ("seen", f"{times.steps.sum():.0f} steps of {len(times.ranks)} ranks, from {_SOURCES[times.source]}"),
        ("slowdown", f"{found.slowdown:.3f} times as long as with each step's work spread evenly"),
        ("lost", f"{found.lost:.1%} of its time"),
    ]
    rows += [(f"{one.cause} {one.share:.1%}", f"{one.text} ({BLAMED[one.blame]})") for one in found.parts]
    return [*rows, *(("note", text) for text in times.notes)]


_SOURCES = {
    "guard": "berth-guard's record",
    "ops": "a file of operations",
}


def as_values(found: Slowness) -> dict[str, Any]:
    """Returns the findings as a JSON object."""
    times = found.times
    parts = [
        {
            "cause": one.cause,
            "share": round(one.share, 5),
            "blame": one.blame,
            "text": one.text,
            "ranks": [times.ranks.index(rank) for rank in one.ranks],
            "factor": round(one.factor, 4),
            "from": round(one.during[0], 4),
            "to": round(one.during[1], 4),
        }
        for one in found.parts
    ]
    return {
        "source": times.source,
        "steps": int(times.steps.sum()),
        "slowdown": round(found.slowdown, 5),
        "lost": round(found.lost, 5),
        "cause": found.cause,
        "parts": parts,
        "ranks": [asdict(one) for one in times.ranks],
        "notes": list(times.notes),
    }


def _config() -> Config | None:
    """Returns berth.conf; None if this user cannot read it: files of the job itself may be enough."""
    from policy.formats.errors import ConfigError  # noqa: PLC0415
    from policy.site.config import config_path, load  # noqa: PLC0415

    try:
        return load(config_path())
    except ConfigError:
        return None


def _of_guard(config: Config | None, reports: Sequence[JobReport], job: str) -> StepTimes:
    from policy.history.slowness.sources import from_guard  # noqa: PLC0415 - needs numpy

    found = from_guard(reports, job)
    if found is not None:
        return found
    where = config.steps if config is not None else None
    if where is None:
        because = "berth.conf names no record of step times ([berthd] steps)"
    elif not reports:
        because = f"{where} is empty or not for this user to read"
    else:
        because = f"{where} has none; berth-guard records hosts, that is jobs with --gpu-tier=guaranteed"
    raise BerthError(f"no step times of job {job} are known: {because}; --from reads those that the job itself wrote")


def times_of_file(path: Path) -> StepTimes:
    """Reads the step times that a job itself wrote."""
    from policy.history.slowness.sources import from_ops  # noqa: PLC0415 - needs numpy

    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path}: more than 256 MiB; give some minutes of the job")
        with path.open(encoding="utf-8", errors="replace") as text:
            return from_ops(text, str(path))
    except OSError as problem:
        raise BerthError(f"{path} cannot be read: {problem.strerror}") from problem


def _known(config: Config | None, reports: Sequence[JobReport], job: str) -> Known:
    """Returns by GPU its slowness from scores and other jobs; the greater of both."""
    found = in_other_jobs(reports, job)
    app_class = next((one.app_class for one in reversed(reports) if one.job == job), "compute")
    for where, score in _scores_of(config, app_class).items() if config else ():
        found[where] = max(score, found.get(where, 0.0))
    return found


def last_run(name: str) -> str:
    """Returns the accounting's number of a task or a part whose last run has ended."""
    from policy.report.rows import COLUMNS, read  # noqa: PLC0415 - keeps `berth --help` fast
    from policy.slurm.by_command.command import run_command  # noqa: PLC0415

    answer = run_command("sacct", "-DP", "-j", name, "-o", ",".join(COLUMNS)).decode("utf-8", "replace")
    runs = [one for one in read(answer.splitlines()) if one.start is not None or one.state == "PENDING"]
    if not runs:
        raise SlurmError(f"job {name} is not in the accounting; berth why --slow reads it from there, by sacct")
    if runs[-1].state in _GOES_ON:
        raise BerthError(f"job {name} has not ended; until then berth why {name} explains its place")
    return runs[-1].id


def _step_reports(config: Config) -> Sequence[JobReport]:
    """Returns the jobs in the record of step times; empty if there is none, or this user may not read it."""
    from policy.site.step_records import reports_of  # noqa: PLC0415
    from topology.errors import TopologyError  # noqa: PLC0415

    try:
        return [one for one in reports_of(config.steps) if isinstance(one, JobReport)] if config.steps else ()
    except (TopologyError, OSError):
        return ()


def _scores_of(config: Config, app_class: str) -> dict[tuple[str, int], float]:
    """Returns the scores for a class; empty if there is no table, or this user may not read it."""
    from topology.errors import TopologyError  # noqa: PLC0415
    from topology.scores import load  # noqa: PLC0415

    try:
        table = load(config.scores) if config.scores else ()
    except TopologyError:
        return {}
    return {(one.node, one.position): one.score for one in table if one.app_class == app_class}
