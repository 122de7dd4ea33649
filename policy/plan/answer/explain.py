# SPDX-License-Identifier: Apache-2.0
"""Explains a job's decision to people: in one sentence, and as rows, for `berth why` and the page of `berth web`."""

import time
from collections.abc import Sequence

from policy.formats import hostlist
from policy.formats import plan_fields as fields
from policy.formats.job_plan import JobPlan
from policy.formats.messages import tagged, untagged
from policy.formats.slurm_syntax.moments import local_time
from policy.retry.classes import CLASSES

__all__ = ["rows", "sentence"]

_STATES = {
    "placed": ("placed, its GPUs were free when it was decided", 101),
    "waiting": ("waits for GPUs that come free soonest", 102),
    "later": ("waits until a place is in sight", 104),
    "observed": ("only watched: Slurm chooses; this is what Berth would have done", 105),
    "passed": ("left to Slurm", 201),
    "released": ("its place was given up, Slurm chooses", 106),
}
"""By the plan's state: the decision, and the number of its message."""

_UNKNOWN = ("unknown", 707)


def sentence(job_id: int, slurm_state: str, plan: JobPlan, failure: Sequence[tuple[str, str]] = ()) -> str:
    """Returns the decision in one sentence, with the id of the message that counts most."""
    told = dict(failure)
    if "failed" in told:
        known = told.get("known by", "by what it is known is not told")
        return tagged(f"job {job_id} failed: {told['failed']}; {known}", FAILURE)
    if slurm_state == "PENDING" and fields.DISAGREES in plan:
        return tagged(f"job {job_id} is held: {plan[fields.DISAGREES]}", DISAGREES)
    return tagged(f"job {job_id} {_happens(slurm_state, plan)}", _STATES.get(plan.get(fields.STATE, ""), _UNKNOWN)[1])


FAILURE, DISAGREES = 619, 602
"""Numbers of messages about a job that failed, and about one that its node has held."""


def _happens(slurm_state: str, plan: JobPlan) -> str:
    """Returns what happens to a job, and why."""
    reason = plan.get(fields.WHY, "no reason was given")
    if slurm_state == "PENDING" and fields.BECAUSE in plan:
        expected = f", expected by {local_time(start)}" if (start := plan.get(fields.START)) else ""
        place = f" for {_place(plan)}{expected}" if fields.NODES in plan else ""
        reason, number = untagged(plan.get(fields.BECAUSE_TEXT) or plan[fields.BECAUSE])
        helps, promised = _helps(plan), f", promised {text}" if (text := _promised(plan)) else ""
        told = f"waits{place}{promised}: {reason}{f'; it would fit now {helps}' if helps else ''}"
        return told if number is None else tagged(told, number)
    if plan.get(fields.STATE, "") in {fields.PASSED, fields.RELEASED}:
        return f"is left to Slurm: {reason}"
    if plan.get(fields.STATE) == fields.OBSERVED:
        return f"is only watched; Berth would have given it {_place(plan)}: {reason}"
    if plan.get(fields.STATE) == fields.LATER:
        return f"waits until a place is in sight: {reason}"
    if slurm_state != "PENDING":
        done = "runs" if slurm_state in {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"} else "ran"
        return f"{done} on {_place(plan)}: {reason}"
    if plan.get(fields.STATE) == fields.WAITING:
        expected = f", expected by {local_time(start)}" if (start := plan.get(fields.START)) else ""
        return f"waits for {_place(plan)}{expected}: {reason}"
    return f"has {_place(plan)} and starts when Slurm starts it: {reason}"


def _promised(plan: JobPlan) -> str:
    """Returns when plain Slurm would have started a job, and what was used of the time that Berth may add."""
    if (promised := plan.get(fields.PROMISED)) is None:
        return ""
    start, latest = promised
    used = min(max(0, int(time.time()) - start), latest - start)
    return f"for {local_time(start)} as plain Slurm would plan it ({used} of {latest - start} s more are used)"


def _place(plan: JobPlan) -> str:
    """Returns a job's nodes and GPUs in short."""
    gpus = plan.get(fields.GPUS, ())
    names = hostlist.fold(plan.get(fields.NODES, ()))
    return f"{names or 'no node'} GPU{'s' if len(gpus) != 1 else ''} {hostlist.fold_numbers(gpus) or '?'}"


def _helps(plan: JobPlan) -> str:
    """Returns a text on the changes of its request by which a job would fit now; empty without any.

    >>> _helps(JobPlan.of(fields.HELPS((("limit", "7200"), ("gpus", "1")))))
    'with a time limit of 2 h, or with 1 GPU'
    """
    words = {
        "limit": lambda value: f"with a time limit of {_span(int(value))}",
        "gpus": lambda value: f"with {value} GPU{'s' if value != '1' else ''}",
        "partition": lambda value: f"in partition {value}",
    }
    return ", or ".join(words[name](value) for name, value in plan.get(fields.HELPS, ()) if name in words)


def _span(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds % 3_600 else f"{seconds // 3_600} h"


def _links(plan: JobPlan) -> list[tuple[str, str]]:
    """Returns the rows about the links of several GPUs of a node."""
    weakest, together, cut = plan.get(fields.GBPS, 0.0), plan.get(fields.SUM, 0.0), plan.get(fields.CUT, 0.0)
    text = f"{weakest:g} GB/s in the weakest pair, {together:g} GB/s over all pairs"
    found = [("NVLink", text if together else "none between these GPUs")]
    return [*found, ("all-reduce", f"about {cut * fields.ALL_REDUCE:.0f} GB/s on a node")] if cut else found


def rows(job_id: int, slurm_state: str, plan: JobPlan) -> list[tuple[str, str]]:
    """Returns the decision as rows for people."""
    found = [
        ("job", f"{job_id} ({slurm_state.lower()})"),
        ("decision", tagged(*_STATES.get(plan.get(fields.STATE, ""), _UNKNOWN))),
    ]
    if fields.NODES in plan:
        count = plan.get(fields.N, 1)
        found.append(("nodes", ",".join(plan[fields.NODES]) + (f" ({count} nodes)" if count > 1 else "")))
        gpus = plan.get(fields.GPUS, ())
        found.append(("GPUs", hostlist.fold_numbers(gpus) + (" on each node" if count > 1 else "")))
        found += _links(plan) if len(gpus) > 1 else []
        found.append(("sharing", _sharing(plan)))
        if fields.HELD in plan:
            levels = ", ".join(f"{one.node}:{one.level}" for one in plan[fields.HELD])
            found.append(("enforced", f"{plan.get(fields.HELD_TEXT, '')} ({levels})"))
    if plan.get(fields.STATE) == fields.WAITING and (start := plan.get(fields.START)) is not None:
        found.append(("expected", local_time(start)))
    if fields.BECAUSE in plan and slurm_state == "PENDING":
        found.append(("waits for", f"{plan[fields.BECAUSE]}: {plan.get(fields.BECAUSE_TEXT, '')}"))
        found += [("would fit now", helps)] if (helps := _helps(plan)) else []
        found += [("promised", text)] if (text := _promised(plan)) else []
    found += _preflight(plan, slurm_state)
    found += _guest(plan)
    found += _moved(plan, slurm_state)
    if fields.DISAGREES in plan and slurm_state == "PENDING":
        found.append(("held", plan[fields.DISAGREES]))
    if fields.DEGRADED_TEXT in plan:
        found.append(("sent away", plan[fields.DEGRADED_TEXT]))
    if slurm_state in {"PENDING", "RUNNING"}:
        found += _failure(plan)
    if fields.INSISTS in plan:
        found.append(("level", _insists(plan)))
    found.append(("reason", plan.get(fields.WHY, "none given")))
    if fields.ASKED in plan:
        found.append(("asked", ", ".join(f"{key}:{value}" for key, value in plan[fields.ASKED])))
    found += [(f"--{name}", value or "given") for name, value in plan.flags]
    if (at := plan.get(fields.AT)) is not None:
        found.append(("decided", local_time(at)))
    if pins := plan.get(fields.PINS):
        found.append(("moved", f"{pins} times since"))
    return found


def _moved(plan: JobPlan, slurm_state: str) -> list[tuple[str, str]]:
    """Returns rows on a job that is moved while it runs."""
    found = []
    if (until := plan.get(fields.MOVE_UNTIL)) is not None:
        to = plan.get(fields.MOVE_TO, fields.Destination((), ()))
        where = f"{','.join(to.nodes)} (GPUs {','.join(map(str, to.gpus))})"
        when = "" if slurm_state == "PENDING" else f" by {local_time(until)}"
        found.append(("moves on", f"to {where}{when}, because {plan.get(fields.MOVE_TEXT, '?')}"))
    times = plan.get(fields.MOVES, ())
    if times and not found:
        often = "once" if len(times) == 1 else f"{len(times)} times"
        found.append(("moved on", f"{often} while it ran, last at {local_time(times[-1])}"))
    return found


def _sharing(plan: JobPlan) -> str:
    """Returns a text on the other jobs that may use the job's GPUs."""
    if (share := plan.get(fields.SHARE)) is None and plan.get(fields.TIER, "") in _TIERS:
        way = "at the same time, in one fault domain" if plan.get(fields.WAY) == "mps" else "in turn"
        return _TIERS[plan[fields.TIER]].format(way=way)
    if share is None:
        return "no guest on these GPUs" if plan.get(fields.SEATS) else "seats left free"
    gpu_mem = plan.get(fields.GPU_MEM) or plan.get(fields.GRANTED)
    memory = f" and {gpu_mem} MiB" if gpu_mem else ""
    counts = f", counted as {share} %," if fields.ASKED_SHARE in plan else ""
    part = f"{plan.get(fields.ASKED_SHARE, share)} %{memory} of each GPU{counts}"
    if fields.WHOLE in plan:
        return f"asks for these GPUs whole, until {part} are free for it"
    return f"{part}, {'in turn with' if plan.get(fields.WAY) == 'time' else 'at the same time as'} other packed jobs"


_TIERS = {
    "guaranteed": "owns these GPUs and may have a guest on each, {way}",
    "opportunistic": "a guest: has a seat on this GPU, shares it {way}, and leaves when an owner needs it",
}


def _preflight(plan: JobPlan, slurm_state: str) -> list[tuple[str, str]]:
    """Returns a row for a job that is a pre-flight, or has one."""
    if fields.is_preflight(plan):
        return [("pre-flight", "this job is one: it tries a script on one GPU, and another job waits for it")]
    number = fields.preflight_of(plan)
    if number is None:
        return []
    if fields.PREFLIGHT_TEXT in plan:
        return [("pre-flight", f"job {number} {plan[fields.PREFLIGHT_TEXT]}")]
    return [("pre-flight", f"job {number}{' runs first, on one GPU' if slurm_state == 'PENDING' else ''}")]


def _guest(plan: JobPlan) -> list[tuple[str, str]]:
    """Returns rows for guests, and for jobs that may become guests."""
    found = []
    if fields.PARKED in plan:
        found.append(("guest", "waits on no node, until a seat is free for it"))
    if fields.OWNS in plan:
        found.append(("guest", "it has its GPU for itself now, though Slurm's books show a seat"))
    elif fields.UPGRADE in plan:
        found.append(("upgrade", _upgrade(plan)))
    if fields.EVICTED_TEXT in plan:
        times = plan.get(fields.EVICTED, "?")
        found.append(("sent away", f"{times} times from a seat, last because {plan[fields.EVICTED_TEXT]}"))
    return found


def _failure(plan: JobPlan) -> list[tuple[str, str]]:
    """Returns rows on why the last run failed, and on whether the job is tried again."""
    kind = CLASSES.get(plan.get(fields.FAIL, ""))
    if kind is None:
        return []
    found = [("last failed", f"{kind.name}: {kind.what}"), ("known by", plan.get(fields.FAIL_TEXT, ""))]
    if fields.RETRY_TEXT in plan:
        found.append(("try again", f"{'yes' if fields.AGAIN in plan else 'no'}: {plan[fields.RETRY_TEXT]}"))
    if (again := plan.get(fields.AGAIN)) is not None:
        found.append(("not before", local_time(again)))
    return found


def _upgrade(plan: JobPlan) -> str:
    """Returns a text on how a job that waits for GPUs of its own may begin as a guest."""
    if plan.get(fields.TIER) == "opportunistic":
        return "a guest until its turn for a GPU of its own comes"
    after = plan.get(fields.UPGRADE)
    return f"may begin as a guest{f' after {after} s of waiting' if after else ''}, and waits for a GPU of its own"


def _insists(plan: JobPlan) -> str:
    """Returns the level that a job requires, and the time left of it."""
    text = f"insists on {plan[fields.INSISTS]} for {plan.get(fields.WAIT, '?')} s"
    if (until := plan.get(fields.UNTIL)) is None:
        return text
    left = until - int(time.time())
    return f"{text}, {left} s left" if left > 0 else f"{text}, which are over"
