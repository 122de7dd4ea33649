# SPDX-License-Identifier: Apache-2.0
"""The fields of a job plan, by the part of Berth that they belong to (docs/develop/formats.md, section 2)."""

import re
from typing import NamedTuple

from policy.formats.errors import FormatError
from policy.formats.job_plan import (
    NOTHING,
    Field,
    JobPlan,
    decimal,
    flag,
    mark,
    names,
    numbers,
    pairs,
    whole,
    word,
    yes_or_no,
)

# The decision

STATE, ID, WHY = word("state"), word("id"), word("why")
AT, START, PINS = whole("at"), whole("start"), whole("pins")

PLACED, WAITING = "placed", "waiting"
"""States of a job that holds a place: one that was free, and one that comes free."""

PINNED_STATES = frozenset({PLACED, WAITING})

LATER = "later"
"""State of a job without a place in sight; the planner gives it one later."""

PASSED = "passed"
"""State of a job that is left to Slurm."""

RELEASED = "released"
"""State of a job that was given back to Slurm for good."""

OBSERVED = "observed"
"""State of a job that Berth only watches: the plan says what Berth would have done."""

# The request

ASKED, WAS = pairs("asked"), pairs("was")

NOTHING_ELSE = (("kept", ""),)
"""Value of `WAS` of a job in which a pin replaces nothing else."""

N, K, CPUS, MEM = whole("n"), whole("k"), whole("cpus"), whole("mem")
SHUT = names("shut")

# The place

NODES, GPUS, SEATS = names("nodes"), numbers("gpus"), yes_or_no("seats")
LEVEL, GBPS, SUM, CUT = word("level"), decimal("gbps", "g"), decimal("sum", "g"), decimal("cut", "g")
ALL_REDUCE = 0.76
"""GB/s of an all-reduce on GPUs of a node, over those across their narrowest cut (docs/research/links.md)."""

OTHERS = word("others")
"""The mark of the list of excluded nodes, for a job whose list Berth wrote."""

LAYOUT, MODEL = word("layout"), word("model")

PLAIN = "plain"
"""Layout of a pin that names nodes alone: Slurm chooses the job's GPUs there."""


class Avoided(NamedTuple):
    """A node that a job keeps away from, and until when."""

    node: str
    until: float


def _avoided(text: str) -> tuple[Avoided, ...]:
    parts = (item.rpartition("@") for item in text.split(",") if item)
    return tuple(Avoided(node, float(until)) for node, _, until in parts)


AVOIDS = Field("avoids", _avoided, lambda value: ",".join(f"{one.node}@{int(one.until)}" for one in value))
DISAGREES = word("disagrees")

# Waiting for a level, and reasons

INSISTS, WAIT, UNTIL = word("insists"), whole("wait"), whole("until")
BECAUSE, BECAUSE_TEXT = word("because"), word("because_text")
HELPS = pairs("helps")
"""The changes of its request by which a waiting job would fit now: a `limit` in seconds, `gpus`, or a `partition`."""

REASON = (BECAUSE, BECAUSE_TEXT, HELPS)
"""Fields that say why a job waits."""


def _two(text: str) -> tuple[int, int]:
    first, second = map(int, text.split(","))
    return first, second


PROMISED = Field("promised", _two, lambda value: f"{value[0]},{value[1]}")
"""The start that plain Slurm would have planned for the job, and the latest that keeps the promise of it."""

# Splits and spreading (the needs of a job that is spread: policy/request/spread.py)


class Split(NamedTuple):
    """A number of nodes on which a job may lie, and the MB that each of them must give; None means all of the node."""

    nodes: int
    mem: int | None


def _splits(text: str) -> tuple[Split, ...]:
    found = []
    for one in filter(None, text.split(",")):
        nodes, _, mem = one.partition(":")
        if not (nodes.isascii() and nodes.isdigit() and int(nodes)) or (mem and not (mem.isascii() and mem.isdigit())):
            raise FormatError(f"{one!r} is no split such as 2:4000")
        found.append(Split(int(nodes), int(mem) if mem else None))
    return tuple(found)


SPLITS = Field(
    "splits", _splits, lambda value: ",".join(f"{one.nodes}:{'' if one.mem is None else one.mem}" for one in value)
)
OPEN = mark("open")
"""A job that has its user's request, so that Slurm may start it on several nodes now."""

# Shares, hosts and guests

SHARE, ASKED_SHARE, GPU_MEM, WAY = whole("share"), whole("asked_share"), whole("gpu_mem"), word("way")
WHOLE, GRANTED = mark("whole"), whole("granted")
TIER, MPS, UPGRADE, PARKED, OWNS = word("tier"), mark("mps"), whole("upgrade"), whole("parked"), mark("owns")
SLOPE, SMS, NEED = decimal("slope", ".2f"), whole("sms"), word("need")
"""The last: the job number of a guest's owner, and the MiB that it is known to need, as `JOB:MIB`."""
EVICTED, EVICTED_TEXT, SHORT_RUNS = whole("evicted"), word("evicted_text"), whole("short")
DEGRADED, DEGRADED_TEXT = whole("degraded"), word("degraded_text")


class HeldLevel(NamedTuple):
    """A node, and the level by which it holds a job to its share."""

    node: str
    level: str


def _held(text: str) -> tuple[HeldLevel, ...]:
    parts = (item.partition(":") for item in text.split(",") if ":" in item)
    return tuple(HeldLevel(node, level) for node, _, level in parts)


HELD, HELD_TEXT = Field("held", _held, lambda value: ",".join(map(":".join, value))), word("held_text")

# Failures and retries (the runs that failed: policy/retry/history.py)

FAIL, FAIL_TEXT, FAIL_AT = word("fail"), word("fail_text"), whole("fail_at")
TRIED, TRIED_BEFORE = word("tried"), whole("tried_before")
AGAIN, RETRY_TEXT, BY_OTHERS = whole("again"), word("retry_text"), mark("by_others")
IDLE_TOLD = Field("idle_told", _two, lambda value: f"{value[0]},{value[1]}")
"""The times that a job was told it ends for its idle GPUs, and the last one; the third time it was ended."""
IDLE_END = word("idle_end")

# Moving


class Destination(NamedTuple):
    """Nodes, and the GPUs on each of them, to which a job is moved."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...]


def _destination(text: str) -> Destination:
    nodes, _, gpus = text.partition(":")
    return Destination(tuple(filter(None, nodes.split(","))), tuple(int(gpu) for gpu in gpus.split(",") if gpu))


MOVE_UNTIL, MOVE_FOR, MOVE_TEXT = whole("move_until"), whole("move_for"), word("move_text")
MOVE_TO = Field("move_to", _destination, lambda to: f"{','.join(to.nodes)}:{','.join(map(str, to.gpus))}")
MOVES, SIGNAL = numbers("moves"), word("signal")

UNDER_WAY = (MOVE_UNTIL, MOVE_FOR, MOVE_TO, MOVE_TEXT)
"""Fields of a job that is being moved, until it has its new place."""

# The pre-flight

PREFLIGHT, PREFLIGHT_TEXT = word("preflight"), word("preflight_text")
"""The number of a waiting job's pre-flight, or `run` in the plan of a pre-flight itself (docs/user/preflight.md)."""

_RUN = "run"
_MARK = re.compile(rf"{_RUN}|[1-9][0-9]{{0,9}}")

# Flags that are read again

RETRY, MOVABLE, APP_CLASS, GPU_TIER = flag("retry"), flag("movable"), flag("app-class"), flag("gpu-tier")
ON_HANG = flag("on-hang")


def pins_nodes_alone(plan: JobPlan | None) -> bool:
    """Tells whether the pin of a job names nodes and no GPUs."""
    return plan is not None and plan.get(LAYOUT) == PLAIN


def preflight_of(plan: JobPlan | None) -> int | None:
    """Returns the pre-flight on which a job depends; None if it has none.

    >>> preflight_of(JobPlan.of(PREFLIGHT("4711"))), preflight_of(JobPlan.of(PREFLIGHT("run"))), preflight_of(None)
    (4711, None, None)
    """
    value = (plan or NOTHING).get(PREFLIGHT, "")
    return int(value) if value.isascii() and value.isdigit() else None


def is_preflight(plan: JobPlan | None) -> bool:
    """Tells whether a job is a pre-flight."""
    return (plan or NOTHING).get(PREFLIGHT) == _RUN


def marks_preflight(value: str) -> bool:
    """Tells whether a submission's value may stand in a plan."""
    return bool(_MARK.fullmatch(value))


def holds_place(plan: JobPlan | None) -> bool:
    """Tells whether a job has a place by its plan."""
    return plan is not None and plan.get(STATE, "") in PINNED_STATES


def laid_on(plan: JobPlan, nodes: int) -> JobPlan:
    """Returns what changes in the plan with the number of nodes; nothing for a job that may not be split."""
    split = next((one for one in plan.get(SPLITS, ()) if one.nodes == nodes), None)
    if split is None:
        return NOTHING
    return JobPlan.of(N(nodes), K(plan[N] * plan[K] // nodes), MEM(split.mem))
