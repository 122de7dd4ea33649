"""The changes that pin, release or annotate a job: the same through every gateway.

The keys are the names that the fields have in Slurm's job description; `node_count` is its least and its most nodes.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping

from policy.formats import excluded_nodes, hostlist, pin_text, segment, split_text
from policy.formats.errors import FormatError, SlurmError
from policy.formats.messages import tagged
from policy.formats.slurm_facts import JobFacts, JobText
from policy.request import counted, spread
from policy.request.tiers import GUARANTEED, OPPORTUNISTIC
from policy.slurm import fields
from policy.slurm.interface import Pin

_OF_A_PLACE_ALONE = frozenset(
    {"nodes", "gpus", "seats", "start", "whole", "granted", "slope", "sms", excluded_nodes.KEY}
)

_OF_A_PLACE = _OF_A_PLACE_ALONE | {"share", "asked_share", "gpu_mem", "way", "tier", "parked"}

_WHERE = frozenset(
    {"nodes", "gpus", "seats", "start", "way", "level", "gbps", "sum", "slope", "sms", excluded_nodes.KEY}
)

_OF_FAILURES = frozenset({"fail", "fail_text", "fail_at", "tried", "tried_before", "again", "retry_text"})
"""Written beside the plan, which may not have read them yet."""

_REFUSED_LATER = re.compile(r"license|gres|node name", re.IGNORECASE)
"""Slurm's words for what it finds wrong after it has written lists of nodes; the second of them may be such."""

NOW = "0"
"""As a begin time: at once. Else it is seconds since 1970, or with a + from now on."""

ANY_NODES = "any"
"""As a node count: as many as the request takes. It may also be a range, `1-4`."""

ENDED = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("OUT_OF_MEMORY", "REVOKED"),
    }
)
"""States of jobs that squeue shows only on demand."""


def pin(job: JobText, place: Pin) -> dict[str, str]:
    """A place; TooLong where Slurm would not take it.

    `disable_job_shrink` keeps an update that comes too late from harming a running job.
    """
    _must_wait(job)
    nodes, gpus = ",".join(place.nodes), ",".join(map(str, place.gpus))
    before = segment_of(job.admin_comment) or {}
    if place.again and not _is_placed_so(job, before, place):
        raise SlurmError(f"job {job.id} has another place or request since it was read")
    # Put back into the queue by Berth, it has a begin time that is not its user's.
    parked = "parked" in before or "move_until" in before
    values = dict(before if place.again else place.values)
    values |= {key: value for key, value in before.items() if key in _OF_FAILURES}
    excluded = _others(job, before, place.others)
    values.pop(excluded_nodes.KEY, None)
    values.pop("disagrees", None)
    if segment.pins_nodes_alone(values):
        return {"req_nodes": nodes, "admin_comment": segment.put(job.admin_comment, values)}
    if excluded.get("exc_nodes"):
        values[excluded_nodes.KEY] = excluded_nodes.mark_of(excluded["exc_nodes"])
    closes = place.closes and excluded.get("exc_nodes")
    return {
        **_typed(job, place),
        **_on_nodes(place.values, len(place.nodes), was_open=spread.OPEN in before),
        "req_nodes": "" if closes else nodes,
        **excluded,
        **_licenses(job, place.licenses),
        "admin_comment": segment.put(job.admin_comment, values),
        "extra": pin_text.extra_text(job.extra, place.nodes, gpus, {**_share(place), **_tier(place)}),
        **({"begin": NOW} if parked else {}),
        # Who may have to leave has to be able to come back.
        **({"requeue": "1"} if place.guest else {}),
    }


def park(job: JobText, values: Mapping[str, str], seconds: int) -> dict[str, str]:
    """On no node, and not to be started for so long: a guest without a seat.

    It asks for a whole GPU, which harms nobody should it start after all.
    """
    _must_wait(job)
    return {
        "tres_per_node": f"gres/gpu:{values.get('k', '1')}",
        **({"tres_per_job": ""} if job.tres_per_job else {}),
        "req_nodes": _asked(values).get("req_nodes", ""),
        **_others(job, segment_of(job.admin_comment)),
        "admin_comment": segment.put(job.admin_comment, {k: v for k, v in values.items() if k not in _WHERE}),
        "extra": segment.remove(job.extra),
        "begin": f"+{seconds}",
    }


def release(job: JobText, reason: str, *, for_now: bool = False) -> dict[str, str] | None:
    """A request equal to the user's; None where the job has no pin (any more).

    A packed job gets its GPUs whole: without Berth nobody would hold it to its share. `for_now` its segment keeps all
    that it asked for, and the next berthd gives it a place again; else it is left to Slurm for good.
    """
    _must_wait(job)
    values = segment.fields(job.admin_comment)
    if values is None or not (values.get("state") in segment.PINNED_STATES or "parked" in values):
        return None
    if not ("parked" in values or segment.pins_nodes_alone(values) or _names_gpus(job)):
        return _without_nodes(job, values, reason)
    # A job without a script carries its request into its first step, where no later pin would fit it.
    later = for_now and not _pinned_by_job(job)
    dropped, state = (_OF_A_PLACE_ALONE, segment.LATER) if later else (_OF_A_PLACE, "released")
    kept = {key: value for key, value in values.items() if key not in dropped}
    if segment.pins_nodes_alone(values):
        told = {**kept, "state": state, "why": tagged(reason, 106)}
        return {"req_nodes": "", "admin_comment": segment.put(job.admin_comment, told)}
    fewest = min((split.nodes for split in split_text.parse(values.get(split_text.KEY, ""))), default=0)
    kept |= split_text.on(values, fewest)
    needs = spread.read(values[spread.KEY]) if spread.KEY in values else None
    if needs is not None and later:
        kept[spread.OPEN] = "1"
    return {
        **_untyped(job, kept),
        **(_on_any_nodes(kept, needs) if needs is not None else _on_nodes(values, fewest)),
        "req_nodes": _asked(values).get("req_nodes", ""),
        **_others(job, values),
        "admin_comment": segment.put(job.admin_comment, {**kept, "state": state, "why": tagged(reason, 106)}),
        "extra": segment.remove(job.extra),
        **({"begin": values["parked"]} if values.get("parked", "").isdigit() else {}),
    }


def give_back(
    text: Callable[[], JobText], write: Callable[[JobText, dict[str, str]], None], reason: str, *, for_now: bool
) -> bool:
    """Releases a job with what reads its texts and what writes them; False where it has no pin (any more).

    Slurm refuses the change of a request that an administrator changed after it was read: then by what it is now.
    """
    job = text()
    restored = release(job, reason, for_now=for_now)
    if restored is None:
        return False
    try:
        write(job, restored)
    except SlurmError as problem:
        now = text() if wrote_nodes(restored, str(problem)) else job
        if not _asks_otherwise(job, now):
            raise
        if (restored := release(now, reason, for_now=for_now)) is not None:
            write(now, restored)
    return True


def wrote_nodes(values: Mapping[str, str], refusal: str) -> bool:
    """Tells whether slurmctld has written a part of a change that it refused.

    It writes lists of nodes before it looks at licences and GRES, and leaves them where it then refuses those.
    """
    return "req_nodes" in values and bool(_REFUSED_LATER.search(refusal))


def taken_back(job: JobText, now: JobText, values: Mapping[str, str]) -> dict[str, str]:
    """Returns what puts right a change of which only the nodes were written: a job before it, and as it is `now`.

    Whose request was changed after it was read has no place with these GPUs (any more), and gets its user's own nodes.
    """
    if not _asks_otherwise(job, now):
        return {"req_nodes": job.required, **({"exc_nodes": job.excluded} if "exc_nodes" in values else {})}
    before = segment_of(job.admin_comment) or {}
    excluded = "" if excluded_nodes.is_ours(job.excluded, before) else job.excluded
    return {
        "req_nodes": _asked(before).get("req_nodes", "" if _names_gpus(job) else job.required),
        **({"exc_nodes": excluded} if "exc_nodes" in values else {}),
    }


def was_written(refusal: str) -> bool:
    """Tells whether slurmctld reports an error though it has written a change: the job's partition is INACTIVE."""
    return "partition configuration not available" in refusal


def annotate(job: JobText, values: Mapping[str, str], *, requeue: bool = False) -> dict[str, str]:
    """Another segment; with `requeue` Slurm may requeue the job from then on, whatever its user has said.

    A job without a place tells its node of none: one that its owner has changed had one.
    """
    unplaced = job.state == "PENDING" and values.get("state") == segment.LATER
    text = segment.remove(job.extra) if unplaced else job.extra
    return {
        "admin_comment": segment.put(job.admin_comment, values),
        **({"extra": text} if text != job.extra else {}),
        **({"requeue": "1"} if requeue else {}),
    }


def delay(job: JobText, values: Mapping[str, str], seconds: int) -> dict[str, str]:
    """Another segment, and not to be started for so long."""
    return {**annotate(job, values), "begin": f"+{seconds}"}


def was_put_back(job: JobText) -> bool:
    """Tells whether the job is on its way into the queue: Slurm leaves one that has ended, and reports no error."""
    return job.state not in ENDED


def segment_of(admin_comment: str) -> dict[str, str] | None:
    """The segment of a job, or None where it has none that this Berth can read."""
    try:
        return segment.fields(admin_comment)
    except FormatError:
        return None


def pinned(jobs: Iterable[JobFacts], called: str = "") -> list[int | str]:
    """Those that may hold a pin, as they are to be written to; of them only who is `called` so.

    An admin means with a number also the tasks of that array and the parts of that heterogeneous job, and with
    `ARRAY_TASK` one of them.
    """
    number, _, task = called.partition("_")
    found: list[int | str] = []
    for job in filter(may_hold_pin, jobs):
        if task and job.tasks and job.array == int(number) and int(task) in fields.numbers(job.tasks):
            found.append(called)
        elif not called or (task and (job.array, job.task) == (int(number), int(task))):
            found.append(job.id)
        elif not task and int(number) in {job.id, job.array, job.het}:
            # By the array's number scontrol means its running tasks too, and it takes no list of tasks.
            found += [f"{job.array}_{one}" for one in fields.numbers(job.tasks)] or [job.id]
    return found


def target(job: JobFacts, task: int | None = None) -> int | str:
    """Returns how Slurm names what is to be changed; an array's own number would mean its running tasks too."""
    if task is not None:
        return f"{job.array}_{task}"
    tasks = job.tasks.partition("%")[0]
    return f"{job.array}_[{tasks}]" if tasks and "." not in tasks else job.id


def may_hold_pin(job: JobFacts) -> bool:
    """Tells whether a job waits, or may come back into the queue, where, or as, Berth wrote it.

    One that was put back ends on its nodes first, and Slurm shows that alone; what it does with a change tells more.
    """
    waits = job.state in {"PENDING", "ARRAY", "COMPLETING"}
    values = job.segment or {}
    pinned_to = job.gpus or segment.pins_nodes_alone(values) or _on_its_place(job.required, values)
    return waits and (bool(pinned_to and job.required) or "parked" in values)


def _names_gpus(job: JobText) -> bool:
    return bool(_named_gpus(job))


def _named_gpus(job: JobText) -> int | None:
    return fields.pinned(job.tres_per_node) or fields.pinned(job.tres_per_job)


def _is_placed_so(job: JobText, now: Mapping[str, str], place: Pin) -> bool:
    same = all(now.get(key) == place.values.get(key) for key in ("state", "nodes", "gpus"))
    return same and _named_gpus(job) == sum(1 << gpu for gpu in place.gpus)


def _asks_otherwise(job: JobText, now: JobText) -> bool:
    return (job.tres_per_node, job.tres_per_job) != (now.tres_per_node, now.tres_per_job)


def _on_its_place(required: Collection[str], values: Mapping[str, str]) -> bool:
    """Tells whether a job has to run on just the nodes of the place that Berth gave it."""
    placed = values.get("state") in segment.PINNED_STATES and values.get("nodes")
    return bool(placed) and set(required) == set(hostlist.expand(values["nodes"]))


def _without_nodes(job: JobText, values: Mapping[str, str], reason: str) -> dict[str, str] | None:
    """The rest of a pin whose GPUs an administrator has changed: that stands, and the nodes go with the Extra."""
    ours = _on_its_place(hostlist.expand(job.required), values)
    extra = segment.remove(job.extra)
    if not ours and extra == job.extra:
        return None
    kept = {key: value for key, value in values.items() if key not in _OF_A_PLACE}
    return {
        **({"req_nodes": _asked(values).get("req_nodes", "")} if ours else {}),
        **_others(job, values),
        "admin_comment": segment.put(job.admin_comment, {**kept, "state": "released", "why": tagged(reason, 106)}),
        "extra": extra,
    }


def _asked(values: Mapping[str, str]) -> dict[str, str]:
    return dict(item.partition(":")[::2] for item in values.get("asked", "").split(";"))


def _others(job: JobText, before: Mapping[str, str] | None, told: str = "") -> dict[str, str]:
    """All nodes but those of the place, where the user excludes none; what Berth wrote before it takes back."""
    ours = excluded_nodes.is_ours(job.excluded, before)
    if job.excluded and not ours:
        return {}
    return {"exc_nodes": told} if told or ours else {}


def _licenses(job: JobText, wanted: Mapping[str, int] | None) -> dict[str, str]:
    changed = None if wanted is None else counted.change(job.licenses, wanted)
    return {} if changed is None else {"licenses": changed}


def _must_wait(job: JobText) -> None:
    if job.state != "PENDING":
        raise SlurmError(f"job {job.id} is {job.state.lower()}, only the place of a waiting job can change")


def _pinned_by_job(job: JobText) -> bool:
    # The plugin pins a job without a script by job, because srun would trip over the other form; keep its choice.
    return "gres/gpu:g" in job.tres_per_job


def _share(place: Pin) -> dict[str, str]:
    """Returns what the node has to know of a packed job; nothing for whole GPUs."""
    if not place.share:
        return {}
    values = place.values
    # On the node there is no memory but the GPU's to speak of.
    mem = {"mem": values["granted"]} if "granted" in values else {}
    asked = {"asked_share": values["asked_share"]} if "asked_share" in values else {}
    return {"share": str(place.share), **asked, **mem, "way": values.get("way", "mps")}


def _tier(place: Pin) -> dict[str, str]:
    """Returns what the node has to know of a host or a guest; nothing of who has its GPUs alone."""
    values = place.values
    if place.share or values.get("tier") not in {GUARANTEED, OPPORTUNISTIC}:
        return {}
    mem = {"mem": values["gpu_mem"]} if "gpu_mem" in values else {}
    slope = {"slope": values["slope"]} if "slope" in values else {}
    # A guest under MPS is held to what its host leaves; what both have beyond that is the guard's.
    held = {"share": values["sms"]} if place.guest and "sms" in values else {}
    return {"tier": values["tier"], **held, **mem, "way": values.get("way", "time"), **slope}


def _on_nodes(values: Mapping[str, str], nodes: int, *, was_open: bool = False) -> dict[str, str]:
    """The number of nodes of a job that may have others, and its CPUs: on fewer nodes Slurm would keep those of all."""
    if not (was_open or split_text.KEY in values) or "cpus" not in values:
        return {}
    needs = spread.read(values[spread.KEY]) if was_open and spread.KEY in values else None
    if needs is not None and needs.tasks:
        # Its CPUs are those of its tasks, and its GPUs are in the pin.
        return {"node_count": str(nodes), **({"tres_per_task": ""} if needs.task_gpus else {})}
    return {"node_count": str(nodes), "min_cpus": str(nodes * int(values["cpus"]))}


def _on_any_nodes(values: Mapping[str, str], needs: spread.SpreadNeeds) -> dict[str, str]:
    """As its user asked: GPUs of the whole job or of each task, on as many nodes as they take or the user said."""
    asked = _asked(values)
    in_all = f"gres/gpu:{int(values['n']) * int(values['k'])}"
    gpus = {"tres_per_job": in_all}
    if needs.task_gpus:
        gpus = {"tres_per_job": asked.get("tres_per_job", ""), "tres_per_task": asked.get("tres_per_task", "")}
    nodes = str(needs.nodes) if needs.nodes else f"1-{needs.tasks}" if needs.tasks else ANY_NODES
    # Tasks have kept their CPUs.
    cpus = {} if needs.tasks else {"min_cpus": str(needs.cpus * (needs.nodes or 1))}
    return {"tres_per_node": "", **gpus, "node_count": nodes, **cpus}


def _typed(job: JobText, place: Pin) -> dict[str, str]:
    """The request for exactly these GPUs; by job, each type counts once for each node."""
    # A share is no GPU in Slurm's eyes: srun trips over nothing.
    by_job = _pinned_by_job(job) and not place.share and not place.guest
    count = place.share or (len(place.nodes) if by_job else 1)
    whole = ("gpu", "seat") if place.seats else ("gpu",)
    kinds = ("seat",) if place.guest else ("shard",) if place.share else whole
    tres = pin_text.tres_text(kinds, place.gpus, count)
    if by_job:
        return {"tres_per_job": tres}
    # A job that no plugin saw may ask by job; Slurm refuses such a number beside typed GPUs.
    return {"tres_per_node": tres, **({"tres_per_job": ""} if job.tres_per_job else {})}


def _untyped(job: JobText, values: Mapping[str, str]) -> dict[str, str]:
    """As many GPUs, of Slurm's choice."""
    try:
        n, k = int(values["n"]), int(values["k"])
    except (KeyError, ValueError):
        raise SlurmError(f"the segment of job {job.id} does not say how many GPUs it asked for") from None
    if _pinned_by_job(job):
        return {"tres_per_job": f"gres/gpu:{n * k}"}
    return {"tres_per_node": f"gres/gpu:{k}"}
