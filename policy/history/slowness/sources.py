# SPDX-License-Identifier: Apache-2.0
"""Reads what the ranks of one job did in each step, from three sources, into one form: `StepTimes`.

    guard   the job lines of `berth-steps/1`: one row for each hour, the median step of each rank
    nccl    what NCCL's inspector wrote (plugins/profiler/inspector, formats v4.0 to v4.3): one row for each collective
    ops     `berth-ops/1` (docs/admin/stragglers.md): one row for each step, with a time for each operation

A rank's time is always its own: without the time in which it waits for other ranks. Pure: the caller reads the files.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np

from policy.formats.arrays import Floats
from policy.formats.errors import FormatError
from topology.calibrate.steps import JobReport

Source = Literal["guard", "nccl", "ops"]

OPS_FORMAT = "berth-ops/1"
MOST_ROWS = 20_000
"""Rows that are kept, the latest: more say nothing new."""

_OP = re.compile(r"([a-z][a-z_]{0,30})_ms")


@dataclass(frozen=True, slots=True)
class StepRank:
    """One rank of a job; what a source does not tell is None or empty."""

    rank: int
    node: str = ""
    gpu: int | None = None
    uuid: str = ""
    stage: int | None = None
    """The stage of the pipeline."""

    @property
    def text(self) -> str:
        """Names the rank, and its GPU as far as that is known."""
        where = self.node + (f":{self.gpu}" if self.gpu is not None else "")
        return f"rank {self.rank} on {where}" if where else f"rank {self.rank}"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The own times of a job's ranks, a row for each step and a column for each rank."""

    source: Source
    ranks: tuple[StepRank, ...]
    ops: Mapping[str, Floats]
    """By operation the milliseconds, [row, rank]; `step` where a source knows only the sum."""
    steps: Floats
    """The number of steps of each row."""
    shared_ms: Floats
    """The time of each row that all ranks spend together, as in a collective."""
    micro: int = 0
    """Microbatches of a step; 0: unknown."""
    notes: tuple[str, ...] = field(default=())

    @property
    def own(self) -> Floats:
        """Returns the sum over the operations."""
        return np.asarray(np.sum(np.stack(list(self.ops.values())), axis=0))


def from_guard(reports: Iterable[JobReport], job: str) -> StepTimes | None:
    """Returns the hours of a job in which all of its ranks told their steps; None without any."""
    hours = sorted((one for one in reports if one.job == job), key=lambda one: one.at)
    by_gpu = [{(rank.node, rank.position): rank for rank in one.ranks} for one in hours]
    most = max(map(len, by_gpu), default=0)
    everywhere = sorted(next((one for one in by_gpu if len(one) == most), {}))
    whole = [one for one in by_gpu if one.keys() >= set(everywhere)][-MOST_ROWS:]
    if not everywhere or not whole:
        return None
    ranks = tuple(StepRank(place, node, gpu, whole[-1][node, gpu].uuid) for place, (node, gpu) in enumerate(everywhere))
    own = np.array([[one[gpu].own_ms for gpu in everywhere] for one in whole])
    steps = np.array([float(max(1, median(rank.steps for rank in one.values()))) for one in whole])
    left_out = len(by_gpu) - len(whole)
    notes = (f"{left_out} hours are left out in which not all ranks told their steps",) if left_out else ()
    return StepTimes("guard", ranks, {"step": own}, steps, np.zeros(len(whole)), notes=notes)


def read(text: Iterable[str], name: str) -> StepTimes:
    """Reads the lines of one file, or of several put behind each other; the first line that says so tells the form.

    Raises:
        FormatError: if no form is known, or what is there is not enough for a comparison.

    """
    lines = [line for line in (one.rstrip("\n") for one in text) if line.strip()]
    values = [_json(line) for line in lines]
    for form, known in _FORMS:
        if any(known(one) for one in values if one is not None):
            return form([one for one in values if one is not None], name)
    raise FormatError(f"{name} has no step times: {OPS_FORMAT} and JSON of NCCL's inspector are read")


# --- NCCL's inspector ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Collective:
    exec_ms: float
    began_ms: float | None
    ended_ms: float | None


@dataclass(slots=True)
class _Communicator:
    size: int
    ranks: dict[int, StepRank] = field(default_factory=dict)
    collectives: dict[int, dict[int, _Collective]] = field(default_factory=lambda: defaultdict(dict))
    seen_ms: list[float] = field(default_factory=list)


def _inspector(values: Sequence[Mapping[str, Any]], name: str) -> StepTimes:
    """Takes the communicator in which ranks waited most for each other.

    All ranks leave a collective together. A rank that comes late is in it for a shorter time than the others, so that
    the differences of the times in a collective are the differences of what each rank did before.
    """
    found: dict[str, _Communicator] = {}
    context: Mapping[str, Any] = {}
    for one in values:
        if "dump_stats" in one:
            context = one
        known = one if "header" in one else {**context, **one}
        try:
            _add_collective(found, known)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise FormatError(f"{name}: a record of NCCL's inspector lacks, or has wrong, {problem}") from problem
    usable = [made for one in found.values() if (made := _of_communicator(one)) is not None]
    if not usable:
        raise FormatError(
            f"{name}: no communicator has 20 collectives of all of its ranks, and the time between them: "
            "give the files of all ranks, written with NCCL_INSPECTOR_DUMP_VERBOSE=1"
        )
    note: tuple[str, ...] = ()
    if len(usable) > 1:
        note = (f"the communicator of {len(usable)} in which ranks waited most for each other is taken",)
    best = max(usable, key=_waited)
    return StepTimes("nccl", best.ranks, best.ops, best.steps, best.shared_ms, notes=(*best.notes, *note))


def _add_collective(found: dict[str, _Communicator], known: Mapping[str, Any]) -> None:
    header, metadata, operation = known["header"], known.get("metadata", {}), known.get("coll_perf")
    one = found.setdefault(str(header["id"]), _Communicator(int(header["n_ranks"])))
    rank = int(header["rank"])
    one.ranks[rank] = StepRank(rank, str(metadata.get("hostname", "")))
    if "dump_timestamp_us" in metadata:
        one.seen_ms.append(float(metadata["dump_timestamp_us"]) / 1e3)
    if operation is None:
        return
    kernels = operation.get("event_trace_ts", {}).get("kernel_events", [])
    began = min((float(one["kernel_start_ts"]) for one in kernels if one["kernel_start_ts"]), default=None)
    ended = max((float(one["kernel_stop_ts"]) for one in kernels if one["kernel_stop_ts"]), default=None)
    one.collectives[int(operation["coll_sn"])][rank] = _Collective(
        float(operation["coll_exec_time_us"]) / 1e3,
        None if began is None else began / 1e3,
        None if ended is None else ended / 1e3,
    )


def _of_communicator(one: _Communicator) -> StepTimes | None:
    numbers = sorted(sn for sn, ranks in one.collectives.items() if len(ranks) == one.size)[-MOST_ROWS:]
    if one.size < 2 or len(numbers) < 20:
        return None
    order = sorted(one.ranks)
    rows = [[one.collectives[sn][rank] for rank in order] for sn in numbers]
    inside = np.array([[cell.exec_ms for cell in row] for row in rows])
    together = inside.min(axis=1)
    late = inside.max(axis=1, keepdims=True) - inside
    typical = _before(rows, late)
    notes: tuple[str, ...] = ()
    if typical is None:
        # Without time stamps only the whole span is known, and that roughly: from the first to the last dump.
        span = max(one.seen_ms, default=0.0) - min(one.seen_ms, default=0.0)
        between = span / (numbers[-1] - numbers[0] + 1) - float(np.mean(late.max(axis=1) + together))
        if between <= 0.0:
            return None
        typical = np.full((len(rows), 1), between)
        notes = ("times between collectives follow from the dumps' span; NCCL_INSPECTOR_DUMP_VERBOSE=1 tells them",)
    own = np.maximum(late + typical, 1e-6)
    ranks = tuple(one.ranks[rank] for rank in order)
    return StepTimes("nccl", ranks, {"step": own}, np.ones(len(rows)), together, notes=notes)


def _before(rows: Sequence[Sequence[_Collective]], late: Floats) -> Floats | None:
    """Returns what each row's quickest rank did since the last collective, by time stamps of its own host.

    Clocks of hosts differ, so that only times of one rank are subtracted from each other.
    """
    if any(cell.began_ms is None or cell.ended_ms is None for row in rows for cell in row):
        return None
    began = np.array([[cell.began_ms for cell in row] for row in rows], dtype=float)
    ended = np.array([[cell.ended_ms for cell in row] for row in rows], dtype=float)
    gaps = np.full(began.shape, np.nan)
    gaps[1:] = np.maximum(began[1:] - ended[:-1], 0.0)
    gaps[0] = np.median(gaps[1:], axis=0)
    return np.median(gaps - late, axis=1, keepdims=True).clip(min=0.0)


def _waited(times: StepTimes) -> float:
    own = times.own
    return float(np.sum(own.max(axis=1) - own.mean(axis=1)))


# --- berth-ops/1 -----------------------------------------------------------------------------------------------------


def _ops(values: Sequence[Mapping[str, Any]], name: str) -> StepTimes:
    """Reads JSON lines of one step of one rank each; steps that some rank does not have are left out."""
    head = next(one for one in values if one.get("format") == OPS_FORMAT)
    cells: dict[int, dict[int, dict[str, float]]] = defaultdict(dict)
    ranks: dict[int, StepRank] = {}
    try:
        for one in values:
            if "format" in one:
                continue
            rank, step = int(one["rank"]), int(one["step"])
            times = {found[1]: float(value) for key, value in one.items() if (found := _OP.fullmatch(key))}
            if not times or not all(np.isfinite(value) and value >= 0.0 for value in times.values()):
                raise FormatError(f"{name}: step {step} of rank {rank} has no time, or one that is no number")
            cells[step][rank] = times
            ranks[rank] = StepRank(
                rank, str(one.get("node", "")), _number(one, "gpu"), str(one.get("uuid", "")), _number(one, "stage")
            )
        micro = int(head.get("microbatches", 0))
    except (KeyError, TypeError, ValueError) as problem:
        raise FormatError(f"{name}: a line of {OPS_FORMAT} lacks, or has wrong, {problem}") from problem
    order = sorted(ranks)
    steps = sorted(step for step, row in cells.items() if len(row) == len(order))[-MOST_ROWS:]
    if not order or not steps:
        raise FormatError(f"{name}: there is no step that all ranks tell")
    kinds = sorted({kind for step in steps for row in cells[step].values() for kind in row})
    ops = {kind: np.array([[cells[step][rank].get(kind, 0.0) for rank in order] for step in steps]) for kind in kinds}
    return StepTimes(
        "ops", tuple(ranks[rank] for rank in order), ops, np.ones(len(steps)), np.zeros(len(steps)), max(micro, 0)
    )


def _number(one: Mapping[str, Any], key: str) -> int | None:
    return None if one.get(key) is None else int(one[key])


def _json(line: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, Mapping) else None


_Form = Callable[[Sequence[Mapping[str, Any]], str], StepTimes]
_FORMS: tuple[tuple[_Form, Callable[[Mapping[str, Any]], bool]], ...] = (
    (_ops, lambda one: one.get("format") == OPS_FORMAT),
    (_inspector, lambda one: "coll_perf" in one or "dump_stats" in one),
)
