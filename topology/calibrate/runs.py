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

import difflib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from topology.errors import TopologyFileError


def records(lines: Iterable[str], form: str, source: str) -> Iterator[tuple[str, object]]:
    """Yields each object after the first, with the place to name in an error about it."""
    head = {"format": form}
    begun = False
    for number, line in enumerate(lines, 1):
        where = f"{source}, line {number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise TopologyFileError(f"{where}: it is not JSON ({error.msg}); take the line out") from error
        if begun:
            yield where, values
        elif values != head:
            raise TopologyFileError(f"{where}: it should be {json.dumps(head)}")
        begun = True
    if not begun:
        raise TopologyFileError(f"{source}: line 1 should be {json.dumps(head)}, not nothing")


def read_lines(path: str | os.PathLike[str], what: str) -> list[str]:
    """Returns the whole lines of a file; a last one that was never finished is left out."""
    source = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TopologyFileError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopologyFileError(f"{source}: not a file of {what}: it is not UTF-8 text") from error
    return text[: text.rfind("\n") + 1].splitlines()


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
        with Path(path).open("a+b") as file:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)
            head = "" if whole else json.dumps({"format": FORMAT}) + "\n"
            file.write((head + "".join(f"{encode(visit)}\n" for visit in visits)).encode())
            file.flush()
            os.fsync(file.fileno())
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


T = TypeVar("T")


def _visit(values: object, where: str) -> Visit:
    visit = _made(Visit, values, where)
    seconds_of(visit.at)
    gpus = tuple(_gpu(one, where) for one in visit.gpus)
    if visit.way not in {"together", "alone"}:
        raise TopologyFileError(f'{where}: way is together or alone, not "{visit.way}"')
    return Visit(visit.node, visit.at, gpus, visit.way)


def _gpu(values: object, where: str) -> GpuVisit:
    gpu = _made(GpuVisit, values, where)
    made = {one.name: getattr(gpu, one.name) for one in fields(gpu)}
    made["runs"] = tuple(_run(one, where) for one in gpu.runs)
    made["links"] = tuple(_made(CopySpeed, one, where) for one in gpu.links)
    made["xids"] = tuple(gpu.xids)
    return GpuVisit(**made)


def _run(values: object, where: str) -> KernelRun:
    run = _made(KernelRun, values, where)
    if not run.app_class or not run.time_ms > 0:
        raise TopologyFileError(f"{where}: a run needs a class and a time above 0")
    return replace(run, foreign=tuple(run.foreign))


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "Way": (str,),
    "int | None": (int, type(None)),
}


def _made(kind: type[T], values: object, where: str) -> T:
    """Makes an object of this kind; the caller checks its parts."""
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict):
        raise TopologyFileError(f"{where}: a {kind.__name__} is an object with {', '.join(known)}")
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise TopologyFileError(f'{where}: unknown key "{name}"' + (f', did you mean "{near[0]}"?' if near else ""))
        wanted = _KINDS.get(str(known[name].type), (list,))
        bad = not isinstance(value, wanted) or isinstance(value, bool)
        if bad or (isinstance(value, float) and not (math.isfinite(value) and value >= 0)):
            raise TopologyFileError(f"{where}, key {name}: {str(value)[:40]} does not fit")
    try:
        return kind(**values)
    except TypeError as error:
        missing = ", ".join(sorted(name for name in known if name not in values))
        raise TopologyFileError(f"{where}: a {kind.__name__} lacks some of {missing}") from error
