"""Explains a job's decision to people: in one sentence, and as rows, for `berth why` and the page of `berth web`."""

import time
from collections.abc import Mapping, Sequence

from policy.formats import hostlist, preflight_mark
from policy.formats.messages import tagged
from policy.formats.moments import local_time
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
"""By the segment's state: the decision, and the number of its message."""

_UNKNOWN = ("unknown", 707)


def sentence(job_id: int, slurm_state: str, values: Mapping[str, str], failure: Sequence[tuple[str, str]] = ()) -> str:
    """Returns the decision in one sentence, with the id of the message that counts most."""
    told = dict(failure)
    if "failed" in told:
        known = told.get("known by", "by what it is known is not told")
        return tagged(f"job {job_id} failed: {told['failed']}; {known}", FAILURE)
    if slurm_state == "PENDING" and "disagrees" in values:
        return tagged(f"job {job_id} is held: {values['disagrees']}", DISAGREES)
    return tagged(f"job {job_id} {_happens(slurm_state, values)}", _STATES.get(values.get("state", ""), _UNKNOWN)[1])


FAILURE, DISAGREES = 619, 602
"""Numbers of messages about a job that failed, and about one that its node has held."""


def _happens(slurm_state: str, values: Mapping[str, str]) -> str:
    """Returns what happens to a job, and why."""
    reason = values.get("why", "no reason was given")
    if slurm_state == "PENDING" and "because" in values:
        expected = f", expected at {local_time(start)}" if (start := values.get("start", "")).isdigit() else ""
        place = f" for {_place(values)}{expected}" if "nodes" in values else ""
        return f"waits{place}: {values.get('because_text') or values['because']}"
    if values.get("state") in {"passed", "released"}:
        return f"is left to Slurm: {reason}"
    if values.get("state") == "observed":
        return f"is only watched; Berth would have given it {_place(values)}: {reason}"
    if values.get("state") == "later":
        return f"waits until a place is in sight: {reason}"
    if slurm_state != "PENDING":
        done = "runs" if slurm_state in {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"} else "ran"
        return f"{done} on {_place(values)}: {reason}"
    if values.get("state") == "waiting":
        expected = f", expected at {local_time(start)}" if (start := values.get("start", "")).isdigit() else ""
        return f"waits for {_place(values)}{expected}: {reason}"
    return f"has {_place(values)} and starts when Slurm starts it: {reason}"


def _place(values: Mapping[str, str]) -> str:
    """Returns a job's nodes and GPUs in short."""
    gpus = tuple(int(gpu) for gpu in values.get("gpus", "").split(",") if gpu)
    names = hostlist.fold(values.get("nodes", "").split(","))
    return f"{names or 'no node'} GPU{'s' if len(gpus) != 1 else ''} {hostlist.fold_numbers(gpus) or '?'}"


def rows(job_id: int, slurm_state: str, values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the decision as rows for people."""
    found = [
        ("job", f"{job_id} ({slurm_state.lower()})"),
        ("decision", tagged(*_STATES.get(values.get("state", ""), _UNKNOWN))),
    ]
    if "nodes" in values:
        count = int(values.get("n", "1"))
        found.append(("nodes", values["nodes"] + (f" ({count} nodes)" if count > 1 else "")))
        gpus = tuple(int(gpu) for gpu in values.get("gpus", "").split(",") if gpu)
        found.append(("GPUs", hostlist.fold_numbers(gpus) + (" on each node" if count > 1 else "")))
        if len(gpus) > 1:
            weakest, together = float(values.get("gbps", "0")), float(values.get("sum", "0"))
            text = f"{weakest:g} GB/s in the weakest pair, {together:g} GB/s over all pairs"
            found.append(("NVLink", text if together else "none between these GPUs"))
        found.append(("sharing", _sharing(values)))
        if "held" in values:
            found.append(("enforced", f"{values.get('held_text', '')} ({values['held'].replace(',', ', ')})"))
    if values.get("state") == "waiting" and values.get("start", "").isdigit():
        found.append(("expected", local_time(values["start"])))
    if "because" in values and slurm_state == "PENDING":
        found.append(("waits for", f"{values['because']}: {values.get('because_text', '')}"))
    found += _preflight(values, slurm_state)
    found += _guest(values)
    found += _moved(values, slurm_state)
    if "disagrees" in values and slurm_state == "PENDING":
        found.append(("held", values["disagrees"]))
    if "degraded_text" in values:
        found.append(("sent away", values["degraded_text"]))
    if slurm_state in {"PENDING", "RUNNING"}:
        found += _failure(values)
    if "insists" in values:
        found.append(("level", _insists(values)))
    found.append(("reason", values.get("why", "none given")))
    if "asked" in values:
        found.append(("asked", values["asked"].replace(";", ", ")))
    found += [(f"--{name[2:]}", value or "given") for name, value in values.items() if name.startswith("f.")]
    if values.get("at", "").isdigit():
        found.append(("decided", local_time(values["at"])))
    if values.get("pins", "0") != "0":
        found.append(("moved", f"{values['pins']} times since"))
    return found


def _moved(values: Mapping[str, str], slurm_state: str) -> list[tuple[str, str]]:
    """Returns rows on a job that is moved while it runs."""
    found = []
    if "move_until" in values:
        names, _, gpus = values.get("move_to", "").partition(":")
        when = "" if slurm_state == "PENDING" else f" by {local_time(values['move_until'])}"
        found.append(("moves on", f"to {names} (GPUs {gpus}){when}, because {values.get('move_text', '?')}"))
    times = [one for one in values.get("moves", "").split(",") if one.isdigit()]
    if times and not found:
        often = "once" if len(times) == 1 else f"{len(times)} times"
        found.append(("moved on", f"{often} while it ran, last at {local_time(times[-1])}"))
    return found


def _sharing(values: Mapping[str, str]) -> str:
    """Returns a text on the other jobs that may use the job's GPUs."""
    if "share" not in values and values.get("tier") in _TIERS:
        way = "at the same time, in one fault domain" if values.get("way") == "mps" else "in turn"
        return _TIERS[values["tier"]].format(way=way)
    if "share" not in values:
        return "no guest on these GPUs" if values.get("seats") == "1" else "seats left free"
    gpu_mem = values.get("gpu_mem", values.get("granted"))
    memory = f" and {gpu_mem} MiB" if gpu_mem else ""
    counts = f", counted as {values['share']} %," if "asked_share" in values else ""
    part = f"{values.get('asked_share', values['share'])} %{memory} of each GPU{counts}"
    if "whole" in values:
        return f"asks for these GPUs whole, until {part} are free for it"
    return f"{part}, {'in turn with' if values.get('way') == 'time' else 'at the same time as'} other packed jobs"


_TIERS = {
    "guaranteed": "owns these GPUs and may have a guest on each, {way}",
    "opportunistic": "a guest: has a seat on this GPU, shares it {way}, and leaves when an owner needs it",
}


def _preflight(values: Mapping[str, str], slurm_state: str) -> list[tuple[str, str]]:
    """Returns a row for a job that is a pre-flight, or has one."""
    if preflight_mark.is_one(values):
        return [("pre-flight", "this job is one: it tries a script on one GPU, and another job waits for it")]
    number = preflight_mark.first(values)
    if number is None:
        return []
    if "preflight_text" in values:
        return [("pre-flight", f"job {number} {values['preflight_text']}")]
    return [("pre-flight", f"job {number}{' runs first, on one GPU' if slurm_state == 'PENDING' else ''}")]


def _guest(values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns rows for guests, and for jobs that may become guests."""
    found = []
    if "parked" in values:
        found.append(("guest", "waits on no node, until a seat is free for it"))
    if "owns" in values:
        found.append(("guest", "it has its GPU for itself now, though Slurm's books show a seat"))
    elif "upgrade" in values:
        found.append(("upgrade", _upgrade(values)))
    if "evicted_text" in values:
        times = values.get("evicted", "?")
        found.append(("sent away", f"{times} times from a seat, last because {values['evicted_text']}"))
    return found


def _failure(values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns rows on why the last run failed, and on whether the job is tried again."""
    kind = CLASSES.get(values.get("fail", ""))
    if kind is None:
        return []
    found = [("last failed", f"{kind.name}: {kind.what}"), ("known by", values.get("fail_text", ""))]
    if "retry_text" in values:
        found.append(("try again", f"{'yes' if 'again' in values else 'no'}: {values['retry_text']}"))
    if values.get("again", "").isdigit():
        found.append(("not before", local_time(values["again"])))
    return found


def _upgrade(values: Mapping[str, str]) -> str:
    """Returns a text on how a job that waits for GPUs of its own may begin as a guest."""
    if values.get("tier") == "opportunistic":
        return "a guest until its turn for a GPU of its own comes"
    after = int(values["upgrade"]) if values["upgrade"].isdigit() else 0
    return f"may begin as a guest{f' after {after} s of waiting' if after else ''}, and waits for a GPU of its own"


def _insists(values: Mapping[str, str]) -> str:
    """Returns the level that a job requires, and the time left of it."""
    text = f"insists on {values['insists']} for {values.get('wait', '?')} s"
    if not values.get("until", "").isdigit():
        return text
    left = int(values["until"]) - int(time.time())
    return f"{text}, {left} s left" if left > 0 else f"{text}, which are over"
