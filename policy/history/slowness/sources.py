# SPDX-License-Identifier: Apache-2.0
"""Reads what the ranks of one job did in each step, from two sources, into one form: `StepTimes`.

    guard   the job lines of `berth-steps/1`: one row for each hour, the median step of each rank
    ops     `berth-ops/1` (docs/admin/stragglers.md): one row for each step, with a time for each operation

A rank's time is always its own: without the time in which it waits for other ranks. Pure: the caller reads the files.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np

from policy.formats.arrays import Floats
from policy.formats.errors import FormatError
from topology.calibrate.steps import JobReport

Source = Literal["guard", "ops"]

OPS_FORMAT = "berth-ops/1"
MOST_ROWS = 20_000
"""Rows that are kept, the latest: more say nothing new."""

_OP = re.compile(r"([a-z][a-z_]{0,30})_ms")


@dataclass(frozen=True, slots=True)
class StepRank:
    """One rank of a job; what a source does not tell is None or empty."""

    rank: int | None
    """None from the guard, which knows a GPU and not the number of the process there."""
    node: str = ""
    gpu: int | None = None
    uuid: str = ""
    stage: int | None = None
    """The stage of the pipeline."""

    @property
    def text(self) -> str:
        """Names the rank, and its GPU as far as that is known."""
        where = self.node + (f":{self.gpu}" if self.gpu is not None else "")
        who = "the rank" if self.rank is None else f"rank {self.rank}"
        return f"{who} on {where}" if where else who


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The own times of a job's ranks, a row for each step and a column for each rank."""

    source: Source
    ranks: tuple[StepRank, ...]
    ops: Mapping[str, Floats]
    """By operation the milliseconds, [row, rank]; `step` where a source knows only the sum."""
    steps: Floats
    """The number of steps of each row."""
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
    ranks = tuple(StepRank(None, node, gpu, whole[-1][node, gpu].uuid) for node, gpu in everywhere)
    own = np.array([[one[gpu].own_ms for gpu in everywhere] for one in whole])
    steps = np.array([float(max(1, median(rank.steps for rank in one.values()))) for one in whole])
    left_out = len(by_gpu) - len(whole)
    notes = (f"{left_out} hours are left out in which not all ranks told their steps",) if left_out else ()
    return StepTimes("guard", ranks, {"step": own}, steps, notes=notes)


def from_ops(text: Iterable[str], name: str) -> StepTimes:
    """Reads JSON lines of one step of one rank each; steps that some rank does not have are left out.

    Raises:
        FormatError: if this is no such file, or what is there is not enough for a comparison.

    """
    values = [one for line in text if (one := _json(line)) is not None]
    head = next((one for one in values if one.get("format") == OPS_FORMAT), None)
    if head is None:
        raise FormatError(f"{name} has no step times: {OPS_FORMAT} is read")
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
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise FormatError(f"{name}: a line of {OPS_FORMAT} lacks, or has wrong, {problem}") from problem
    order = sorted(ranks)
    steps = sorted(step for step, row in cells.items() if len(row) == len(order))[-MOST_ROWS:]
    if not order or not steps:
        raise FormatError(f"{name}: there is no step that all ranks tell")
    kinds = sorted({kind for step in steps for row in cells[step].values() for kind in row})
    ops = {kind: np.array([[cells[step][rank].get(kind, 0.0) for rank in order] for step in steps]) for kind in kinds}
    return StepTimes("ops", tuple(ranks[rank] for rank in order), ops, np.ones(len(steps)), max(micro, 0))


def _number(one: Mapping[str, Any], key: str) -> int | None:
    return None if one.get(key) is None else int(one[key])


def _json(line: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, Mapping) else None
