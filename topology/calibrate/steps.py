# SPDX-License-Identifier: Apache-2.0
"""Reports of jobs and the guard since the last calibration, `berth-steps/1` (docs/develop/formats.md).

A *job* line has the step times of one run of a job, by rank; a *clock* line has the SM clock that the guard saw while a
GPU worked at its power limit. Standard library only: any program can write them.

>>> rank = Rank("n1", 0, "GPU-a", own_ms=151.0, steps=400)
>>> report = JobReport("4711", "bert-large", "compute", "2026-11-21T10:00:00Z", (rank,))
>>> decode([f'{{"format": "{FORMAT}"}}', encode(report)]) == (report,)
True
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from topology.calibrate.records import made, read_lines, records
from topology.calibrate.runs import seconds_of
from topology.errors import TopologyFileError

FORMAT = "berth-steps/1"


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a job."""

    node: str
    position: int
    uuid: str
    own_ms: float
    """Median time of a step without the time in which the rank waits for others."""
    steps: int = 0
    """Number of steps behind the median."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """One run of a job."""

    job: str
    app: str
    """Runs of one application, with one batch size and number of ranks, have one name: only these are compared."""
    app_class: str
    at: str
    """Its end, UTC."""
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class ClockReport:
    """The guard's report of a GPU that worked at its power limit."""

    node: str
    position: int
    uuid: str
    at: str
    model: str
    power_limit_w: float
    sm_mhz: float
    """Median."""
    seconds: float
    """Seconds for which it was watched."""
    app: str = ""
    """The program: at the power limit each program has a clock of its own, so only clocks of one are compared."""


Report = JobReport | ClockReport
_KINDS: Mapping[str, type[Report]] = {"job": JobReport, "clock": ClockReport}
_LEAST = 1e-6


def encode(report: Report) -> str:
    """Returns a report as one line."""
    kind = next(name for name, one in _KINDS.items() if isinstance(report, one))
    return json.dumps({"kind": kind, **asdict(report)}, separators=(",", ":"))


def load(path: str | os.PathLike[str]) -> tuple[Report, ...]:
    """Read a file of step times; a last line that was never finished is left out."""
    return decode(read_lines(path, "step times"), os.fspath(path))


def decode(lines: Iterable[str], source: str = "the step times") -> tuple[Report, ...]:
    """Read reports; an error names the file and the line."""
    return tuple(_report(values, where) for where, values in records(lines, FORMAT, source))


def _report(values: object, where: str) -> Report:
    kind = _KINDS.get(str(values.pop("kind", ""))) if isinstance(values, dict) else None
    if kind is None:
        raise TopologyFileError(f'{where}: a line is an object whose "kind" is {" or ".join(_KINDS)}')
    report = made(kind, values, where)
    told = [rank.own_ms for rank in report.ranks] if isinstance(report, JobReport) else [report.sm_mhz]
    if min(told, default=0.0) < _LEAST:
        raise TopologyFileError(f"{where}: a job has ranks, each with own_ms, and a clock sm_mhz, all above 0")
    seconds_of(report.at)
    return report
