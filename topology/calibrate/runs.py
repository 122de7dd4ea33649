# SPDX-License-Identifier: Apache-2.0
"""Records of calibration runs, `berth-runs/1` (docs/develop/formats.md), and a node's own verdicts.

A *visit* is one calibration of one node. In it each GPU has a *run* of each application class. Visits are appended,
never changed, so that the file is the history too. Standard library only: compute nodes write it.

>>> run = KernelRun("compute", time_ms=151.0, mad_ms=0.1, samples=80)
>>> visit = Visit("n1", "2026-11-21T10:00:00Z", (GpuVisit(0, "GPU-a", runs=(run,)),))
>>> decode([f'{{"format": "{FORMAT}"}}', encode(visit)]) == (visit,)
True
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

from topology.calibrate.records import append_lines, made, read_lines, records
from topology.errors import TopologyFileError

FORMAT = "berth-runs/1"

Way = Literal["together", "alone"]
Verdict = Literal["", "foreign", "xid", "throttled", "unsteady", "outliers", "waiting"]
"""Reason that a run does not count; empty: it counts. `waiting` can be seen only beside its peers."""

_UNSTEADY = 0.01
"""A run whose samples vary by more than this says nothing."""
_MOST_DROPPED = 0.10
"""Samples that may be dropped as outliers."""
_MAD_TO_SD = 1.4826
_MOST_THROTTLED = 0.01
"""Part of a run in which the hardware may have been slowed down for heat or power supply."""


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One kernel on one GPU for some seconds; 0 in a column that the device did not tell."""

    app_class: str
    time_ms: float
    """Median time of a batch of launches."""
    mad_ms: float = 0.0
    """Median absolute deviation of the batches, outliers left out."""
    samples: int = 0
    dropped: int = 0
    """Samples farther than 3 x 1.4826 x MAD from the median, which were left out."""
    kernel: str = ""
    """The kernel that ran, such as `mma-fp16-8192`; only runs of one kernel are compared."""
    seconds: float = 0.0
    sm_mhz: float = 0.0
    mem_mhz: float = 0.0
    power_w: float = 0.0
    temp_c: float = 0.0
    capped_s: float = 0.0
    """Seconds at the power limit: normal for `compute`."""
    thermal_s: float = 0.0
    hw_slow_s: float = 0.0
    """Seconds in which the hardware slowed itself down: power brake, external brake, overheating."""
    foreign: tuple[int, ...] = ()
    """Processes of others that had the GPU open meanwhile."""
    tflops: float = 0.0
    gb_per_s: float = 0.0
    """Arithmetic and memory throughput; 0 where the kernel does none of it."""


@dataclass(frozen=True, slots=True)
class CopySpeed:
    """Copy rate of a GPU."""

    kind: str
    """`to-host` and `to-device` (PCIe), `peer` from another GPU, `staged` where that goes through the host."""
    gb_per_s: float
    peer: int | None = None
    """Position of the other GPU."""


@dataclass(frozen=True, slots=True)
class GpuVisit:
    """The records of one GPU in a visit."""

    position: int
    uuid: str
    model: str = ""
    driver: str = ""
    power_limit_w: float = 0.0
    xids: tuple[int, ...] = ()
    """Errors that the driver reported meanwhile."""
    runs: tuple[KernelRun, ...] = ()
    links: tuple[CopySpeed, ...] = ()
    steady_s: float = 0.0
    """Seconds that the clock took to settle, from the start of the warm-up."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One calibration of one node."""

    node: str
    at: str
    """Its end, UTC, such as `2026-11-21T10:00:00Z`."""
    gpus: tuple[GpuVisit, ...]
    way: Way = "together"
    """All GPUs of the node at once, or one by one."""


def verdict(gpu: GpuVisit, run: KernelRun) -> Verdict:
    """Returns the fault of a run that can be seen without its peers."""
    if run.foreign:
        return "foreign"
    if gpu.xids:
        return "xid"
    if run.thermal_s + run.hw_slow_s > _MOST_THROTTLED * max(run.seconds, 1.0):
        return "throttled"
    if run.samples and run.dropped > _MOST_DROPPED * run.samples:
        return "outliers"
    if _MAD_TO_SD * run.mad_ms > _UNSTEADY * run.time_ms:
        return "unsteady"
    return ""


def seconds_of(at: str) -> float:
    """Returns seconds since 1970 of a time in a record."""
    try:
        time = datetime.fromisoformat(at)
    except ValueError as error:
        raise TopologyFileError(f'"{at[:40]}" is no time; write it as 2026-11-21T10:00:00Z') from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def encode(visit: Visit) -> str:
    """Returns a visit as one line; what is as by default is left out."""
    return json.dumps(_short(asdict(visit), Visit), separators=(",", ":"))


def decode(lines: Iterable[str], source: str = "the runs") -> tuple[Visit, ...]:
    """Read visits; an error names the file and the line."""
    return tuple(_visit(values, where) for where, values in records(lines, FORMAT, source))


def load(path: str | os.PathLike[str]) -> tuple[Visit, ...]:
    """Read a file of runs; a last line that was never finished is left out."""
    return decode(read_lines(path, "runs"), os.fspath(path))


def append(visits: Sequence[Visit], path: str | os.PathLike[str]) -> None:
    """Add visits at the end; the file is begun where there is none, and a torn last line is cut off."""
    try:
        append_lines(path, FORMAT, map(encode, visits), sync=True)
    except OSError as error:
        raise TopologyFileError(f"cannot write {os.fspath(path)}: {error.strerror}") from error


def _short(values: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Returns the values without defaults, which are most of a record."""
    parts = {"gpus": GpuVisit, "runs": KernelRun, "links": CopySpeed}
    short = {}
    for one in fields(kind):
        value = values[one.name]
        if one.name in parts:
            value = [_short(part, parts[one.name]) for part in value]
        if value not in (one.default, ()) and not (value == [] and one.default == ()):
            short[one.name] = value
    return short


def _visit(values: object, where: str) -> Visit:
    visit = made(Visit, values, where)
    seconds_of(visit.at)
    if not all(run.app_class and run.time_ms > 0 for gpu in visit.gpus for run in gpu.runs):
        raise TopologyFileError(f"{where}: a run needs a class and a time above 0")
    return visit
