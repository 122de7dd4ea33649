# SPDX-License-Identifier: Apache-2.0
"""The changes that pin, release or annotate a job, the same for every gateway.

The keys are the fields' names in Slurm's job description; `node_count` is the least and the most nodes.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from policy.formats import hostlist, segment
from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.job_plan import NOTHING, JobPlan, of_text, readable
from policy.formats.messages import tagged
from policy.formats.plan_fields import (
    AGAIN,
    ASKED,
    ASKED_SHARE,
    CPUS,
    DISAGREES,
    FAIL,
    FAIL_AT,
    FAIL_TEXT,
    GBPS,
    GPU_MEM,
    GPUS,
    GRANTED,
    LATER,
    LEVEL,
    MOVE_UNTIL,
    NEED,
    NODES,
    OPEN,
    OTHERS,
    OWNS,
    PARKED,
    RELEASED,
    RETRY_TEXT,
    SEATS,
    SHARE,
    SLOPE,
    SMS,
    SPLITS,
    START,
    STATE,
    SUM,
    TIER,
    TRIED,
    TRIED_BEFORE,
    WAS,
    WAY,
    WHOLE,
    WHY,
    K,
    N,
    holds_place,
    laid_on,
    pins_nodes_alone,
)
from policy.formats.slurm_facts import JobFacts, JobText
from policy.formats.slurm_syntax import excluded_nodes, pin_text
from policy.request import counted, node_range
from policy.request.spread import SPREAD, SpreadNeeds
from policy.request.tiers import GUARANTEED, OPPORTUNISTIC
from policy.slurm import fields
from policy.slurm.interface import Pin

_OF_A_PLACE_ALONE = (NODES, GPUS, SEATS, START, WHOLE, GRANTED, SLOPE, SMS, NEED, OTHERS)

_OF_A_PLACE = (*_OF_A_PLACE_ALONE, SHARE, ASKED_SHARE, GPU_MEM, WAY, TIER, PARKED)

_WHERE = (NODES, GPUS, SEATS, START, WAY, LEVEL, GBPS, SUM, SLOPE, SMS, NEED, OTHERS)

_OF_FAILURES = (FAIL, FAIL_TEXT, FAIL_AT, TRIED, TRIED_BEFORE, AGAIN, RETRY_TEXT)
"""Fields that are written beside the plan; a plan that is written later may not have read them."""

_REFUSED_LATER = re.compile(r"license|gres|node name", re.IGNORECASE)
"""Slurm's words for faults that it finds after it has written lists of nodes, or the first of two lists."""

NOW = "0"
"""The begin time `now`. Others are seconds since 1970, or with a + seconds from now."""

ANY_NODES = "any"
"""The node count of a request that leaves it open. Others are a number or a range, `1-4`."""

ENDED = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("OUT_OF_MEMORY", "REVOKED"),
    }
)
"""States of ended jobs, which squeue shows only on demand."""


def pin(job: JobText, place: Pin) -> dict[str, str]:
    """Returns the change that pins a job; raises TooLong if Slurm would not take it.

    `disable_job_shrink` keeps an update that comes too late from harming a running job.
    """
    _must_wait(job)
    nodes, gpus = ",".join(place.nodes), ",".join(map(str, place.gpus))
    before = readable(job.admin_comment) or NOTHING
    if place.again and not _is_placed_so(job, before, place):
        raise SlurmError(f"job {job.id} has another place or request since it was read")
    # A job that Berth requeued has a begin time that is not its user's.
    parked = PARKED in before or MOVE_UNTIL in before
    plan = ((before if place.again else place.plan) | before.only(_OF_FAILURES)).without(OTHERS, DISAGREES)
    excluded = _others(job, before, place.others)
    if pins_nodes_alone(plan):
        return {"req_nodes": nodes, "admin_comment": plan.into(job.admin_comment)}
    told = excluded.get("exc_nodes")
    if told:
        plan = plan.having(OTHERS(excluded_nodes.mark_of(told)))
    return {
        **_typed(job, place),
        **_on_nodes(place.plan, len(place.nodes), was_open=OPEN in before),
        "req_nodes": "" if place.closes and told else nodes,
        **excluded,
        **_licenses(job, place.licenses),
        "admin_comment": plan.into(job.admin_comment),
        "extra": pin_text.extra_text(job.extra, place.nodes, gpus, {**_share(place), **_tier(place)}),
        **({"begin": NOW} if parked else {}),
        # A guest must be allowed to be requeued.
        **({"requeue": "1"} if place.guest else _forbids_requeue(before)),
    }


def park(job: JobText, plan: JobPlan, seconds: int) -> dict[str, str]:
    """Returns the change that parks a guest: no node, and a begin time so many seconds ahead.

    It asks for a whole GPU, so that it harms no other job if it starts after all.
    """
    _must_wait(job)
    return {
        "tres_per_node": f"gres/gpu:{plan.get(K, 1)}",
        **({"tres_per_job": ""} if job.tres_per_job else {}),
        "req_nodes": _asked(plan).get("req_nodes", ""),
        **_others(job, readable(job.admin_comment)),
        "admin_comment": plan.without(*_WHERE).into(job.admin_comment),
        "extra": segment.remove(job.extra),
        "begin": f"+{seconds}",
    }


def release(job: JobText, reason: str, *, for_now: bool = False) -> dict[str, str] | None:
    """Returns the change to a request equal to the user's; None if the job has no pin.

    A packed job gets whole GPUs: without Berth nothing would hold it to its share. With `for_now` its plan keeps its
    whole request, and the next berthd gives it a place again; else it is left to Slurm for good.
    """
    _must_wait(job)
    plan = of_text(job.admin_comment)
    if plan is None or not (holds_place(plan) or PARKED in plan):
        return None
    if not (PARKED in plan or pins_nodes_alone(plan) or _names_gpus(job)):
        return _without_nodes(job, plan, reason)
    # A job without a script carries its request into its first step, where no later pin would fit it.
    later = for_now and not (_pinned_by_job(job) or node_range.of(plan.get(WAS, ())))
    dropped, state = (_OF_A_PLACE_ALONE, LATER) if later else (_OF_A_PLACE, RELEASED)
    kept = plan.without(*dropped)
    told = STATE(state), WHY(tagged(reason, 106))
    if pins_nodes_alone(plan):
        return {"req_nodes": "", "admin_comment": kept.having(*told).into(job.admin_comment)}
    fewest = min((split.nodes for split in plan.read(SPLITS, ())), default=0)
    kept |= laid_on(plan, fewest)
    needs = plan.read(SPREAD)
    if needs is not None and later:
        kept = kept.having(OPEN.set)
    parked = plan.get(PARKED)
    return {
        **_untyped(job, kept),
        **(_on_any_nodes(kept, needs) if needs is not None else _in_range(plan) or _on_nodes(plan, fewest)),
        "req_nodes": _asked(plan).get("req_nodes", ""),
        **_others(job, plan),
        "admin_comment": kept.having(*told).into(job.admin_comment),
        "extra": segment.remove(job.extra),
        **({} if parked is None else {"begin": str(parked)}),
        **_forbids_requeue(plan),
    }


def give_back(
    text: Callable[[], JobText], write: Callable[[JobText, dict[str, str]], None], reason: str, *, for_now: bool
) -> bool:
    """Releases a job by functions that read its texts and write them; returns False if it has no pin.

    If an administrator has changed the request since it was read, Slurm refuses; then the new request is released.
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

    It writes lists of nodes before it checks licences and GRES, and does not undo them if it then refuses.
    """
    return "req_nodes" in values and bool(_REFUSED_LATER.search(refusal))


def put_right(write: Callable[[], None], without_list: Callable[[], None]) -> None:
    """Writes the undo of a change of which only the nodes were written; a second time if Slurm does not answer.

    If it stayed half written, no later pass could tell Berth's list of excluded nodes from the user's. If Slurm does
    not know a node of the former list any more, the undo is written without that list.
    """
    with suppress(SlurmError):
        try:
            write()
        except NoAnswer:
            write()
        except SlurmError as problem:
            if "node name" not in str(problem):
                raise
            without_list()


def taken_back(job: JobText, now: JobText, values: Mapping[str, str], *, without_list: bool = False) -> dict[str, str]:
    """Returns the undo of a change of which only the nodes were written, from the job before it and as it is `now`.

    `without_list` leaves out Berth's list of excluded nodes, if the job requires its nodes.

    A job whose request was changed after it was read has no place with these GPUs, and gets its user's own nodes.
    """
    before = readable(job.admin_comment) or NOTHING
    if not _asks_otherwise(job, now):
        drops = without_list and job.required and excluded_nodes.is_ours(job.excluded, before)
        excluded = "" if drops else job.excluded
        return {"req_nodes": job.required, **({"exc_nodes": excluded} if "exc_nodes" in values else {})}
    excluded = "" if excluded_nodes.is_ours(job.excluded, before) else job.excluded
    return {
        "req_nodes": _asked(before).get("req_nodes", "" if _names_gpus(job) else job.required),
        **({"exc_nodes": excluded} if "exc_nodes" in values else {}),
    }


def was_written(refusal: str) -> bool:
    """Tells whether slurmctld reports an error though it has written a change: the job's partition is INACTIVE."""
    return "partition configuration not available" in refusal


def annotate(job: JobText, plan: JobPlan, *, requeue: bool = False) -> dict[str, str]:
    """Returns the change to another plan; with `requeue` Slurm may requeue the job, whatever its user has said.

    If the plan has no place, the place is taken out of the Extra too: a job that its owner has changed had one. A
    guest that gets its GPU for itself has its user's --no-requeue again.
    """
    owns = OWNS in plan and OWNS not in (readable(job.admin_comment) or NOTHING)
    unplaced = job.state == "PENDING" and plan.get(STATE) == LATER
    text = segment.remove(job.extra) if unplaced else job.extra
    return {
        "admin_comment": plan.into(job.admin_comment),
        **({"extra": text} if text != job.extra else {}),
        **({"requeue": "1"} if requeue else _forbids_requeue(plan) if owns else {}),
    }


def delay(job: JobText, plan: JobPlan, seconds: int) -> dict[str, str]:
    """Returns the change to another plan and to a begin time so many seconds ahead."""
    return {**annotate(job, plan), "begin": f"+{seconds}"}


def was_put_back(job: JobText) -> bool:
    """Tells whether a requeue took effect: Slurm leaves an ended job as it is, and reports no error."""
    return job.state not in ENDED


def pinned(jobs: Iterable[JobFacts], called: str = "") -> list[int | str]:
    """Returns the jobs that may have a pin, as names for changes; with `called`, only those of this name.

    A number also names the tasks of that array and the parts of that heterogeneous job, `ARRAY_TASK` a single task.
    """
    number, _, task = called.partition("_")
    found: list[int | str] = []
    for job in filter(may_hold_pin, jobs):
        if task and job.tasks and job.array == int(number) and int(task) in fields.numbers(job.tasks):
            found.append(called)
        elif not called or (task and (job.array, job.task) == (int(number), int(task))):
            found.append(job.id)
        elif not task and int(number) in {job.id, job.array, job.het}:
            # For scontrol an array's number means its running tasks too, and it takes no list of tasks.
            found += [f"{job.array}_{one}" for one in fields.numbers(job.tasks)] or [job.id]
    return found


def target(job: JobFacts, task: int | None = None) -> int | str:
    """Returns Slurm's name for a job or task in a change; an array's number would mean its running tasks too."""
    if task is not None:
        return f"{job.array}_{task}"
    tasks = job.tasks.partition("%")[0]
    return f"{job.array}_[{tasks}]" if tasks and "." not in tasks else job.id


def may_hold_pin(job: JobFacts) -> bool:
    """Tells whether a job with Berth's pin waits, or may be requeued.

    A requeued job ends on its nodes first, and Slurm shows only that; if a change of it works, it was requeued.
    """
    waits = job.state in {"PENDING", "ARRAY", "COMPLETING"}
    pinned_to = job.gpus or pins_nodes_alone(job.plan) or _on_its_place(job.required, job.known)
    return waits and (bool(pinned_to and job.required) or PARKED in job.known)


def _forbids_requeue(plan: JobPlan) -> dict[str, str]:
    """Returns the change that gives a job that was a guest its user's --no-requeue again."""
    is_guest = plan.get(TIER) == OPPORTUNISTIC
    return {"requeue": "0"} if is_guest and "no_requeue" in dict(plan.get(WAS, ())) else {}


def _names_gpus(job: JobText) -> bool:
    return bool(_named_gpus(job))


def _named_gpus(job: JobText) -> int | None:
    return fields.pinned(job.tres_per_node) or fields.pinned(job.tres_per_job)


def _is_placed_so(job: JobText, now: JobPlan, place: Pin) -> bool:
    same = now.only((STATE, NODES, GPUS)) == place.plan.only((STATE, NODES, GPUS))
    return same and _named_gpus(job) == sum(1 << gpu for gpu in place.gpus)


def _asks_otherwise(job: JobText, now: JobText) -> bool:
    return (job.tres_per_node, job.tres_per_job) != (now.tres_per_node, now.tres_per_job)


def _on_its_place(required: Collection[str], plan: JobPlan) -> bool:
    """Tells whether a job requires exactly the nodes of the place that Berth gave it."""
    nodes = plan.get(NODES, ()) if holds_place(plan) else ()
    return bool(nodes) and set(required) == set(nodes)


def _without_nodes(job: JobText, plan: JobPlan, reason: str) -> dict[str, str] | None:
    """Returns the change that removes the nodes and the Extra of a pin whose GPUs an administrator has changed."""
    ours = _on_its_place(hostlist.expand(job.required), plan)
    extra = segment.remove(job.extra)
    if not ours and extra == job.extra:
        return None
    kept = plan.without(*_OF_A_PLACE).having(STATE(RELEASED), WHY(tagged(reason, 106)))
    return {
        **({"req_nodes": _asked(plan).get("req_nodes", "")} if ours else {}),
        **_others(job, plan),
        "admin_comment": kept.into(job.admin_comment),
        "extra": extra,
    }


def _asked(plan: JobPlan) -> dict[str, str]:
    return dict(plan.get(ASKED, ()))


def _others(job: JobText, before: JobPlan | None, told: str = "") -> dict[str, str]:
    """Returns the change of the excluded nodes to the list `told`, or removes Berth's; the user's list stays."""
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
    """Returns a packed job's fields in the Extra, for its node; none for whole GPUs."""
    if not place.share:
        return {}
    plan = place.plan
    # On the node `mem` is the GPU's memory.
    mem = {"mem": str(plan[GRANTED])} if GRANTED in plan else {}
    asked = {"asked_share": str(plan[ASKED_SHARE])} if ASKED_SHARE in plan else {}
    return {"share": str(place.share), **asked, **mem, "way": plan.get(WAY, "mps")}


def _tier(place: Pin) -> dict[str, str]:
    """Returns an owner's or a guest's fields in the Extra, for its node; none for a job that has its GPUs alone."""
    plan = place.plan
    tier = plan.get(TIER, "")
    if place.share or tier not in {GUARANTEED, OPPORTUNISTIC}:
        return {}
    mem = {"mem": str(plan[GPU_MEM])} if GPU_MEM in plan else {}
    slope = {"slope": f"{plan[SLOPE]:.2f}"} if SLOPE in plan else {}
    need = {"need": plan[NEED]} if place.guest and NEED in plan else {}
    # A guest under MPS is held to the SMs that its owner leaves; the guard does the rest.
    held = {"share": str(plan[SMS])} if place.guest and SMS in plan else {}
    return {"tier": tier, **held, **mem, "way": plan.get(WAY, "time"), **slope, **need}


def _on_nodes(plan: JobPlan, nodes: int, *, was_open: bool = False) -> dict[str, str]:
    """Returns the node count and CPUs of a job with several splits: Slurm would keep the CPUs of more nodes."""
    if not (was_open or SPLITS in plan) or CPUS not in plan:
        return {}
    needs = plan.read(SPREAD) if was_open else None
    if needs is not None and needs.tasks:
        # Its CPUs are those of its tasks, and its GPUs are in the pin.
        return {"node_count": str(nodes), **({"tres_per_task": ""} if needs.task_gpus else {})}
    return {"node_count": str(nodes), "min_cpus": str(nodes * plan[CPUS])}


def _on_any_nodes(plan: JobPlan, needs: SpreadNeeds) -> dict[str, str]:
    """Returns the user's request: GPUs of the job, of each task or node, on the user's number of nodes or any."""
    gpus = {"tres_per_node": "", "tres_per_job": f"gres/gpu:{plan[N] * plan[K]}"}
    if needs.task_gpus:
        gpus = {key: _asked(plan).get(key, "") for key in ("tres_per_node", "tres_per_job", "tres_per_task")}
    nodes = str(needs.nodes) if needs.nodes else f"1-{needs.tasks}" if needs.tasks else ANY_NODES
    # Tasks have kept their CPUs.
    cpus = {} if needs.tasks else {"min_cpus": str(needs.cpus * (needs.nodes or 1))}
    return {**gpus, "node_count": nodes, **cpus}


def _in_range(plan: JobPlan) -> dict[str, str]:
    """Returns the user's request of a job with a range of numbers of nodes; nothing for other jobs."""
    nodes, asked = node_range.of(plan.get(WAS, ())), _asked(plan)
    if not nodes:
        return {}
    gpus = {key: asked.get(key, "") for key in ("tres_per_job", "tres_per_node")}
    # Slurm would keep the CPUs of more nodes.
    return {**gpus, "node_count": nodes, "min_cpus": str(int(nodes.partition("-")[0]) * (plan.get(CPUS) or 1))}


def _typed(job: JobText, place: Pin) -> dict[str, str]:
    """Returns the request for exactly these GPUs; by job, each type counts once for each node."""
    # A share is no GPU for Slurm, so srun takes it by node too.
    by_job = _pinned_by_job(job) and not place.share and not place.guest
    count = place.share or (len(place.nodes) if by_job else 1)
    whole = ("gpu", "seat") if place.seats else ("gpu",)
    kinds = ("seat",) if place.guest else ("shard",) if place.share else whole
    tres = pin_text.tres_text(kinds, place.gpus, count)
    if by_job:
        return {"tres_per_job": tres}
    # A job that no plugin saw may ask by job; Slurm refuses such a number beside typed GPUs.
    return {"tres_per_node": tres, **({"tres_per_job": ""} if job.tres_per_job else {})}


def _untyped(job: JobText, plan: JobPlan) -> dict[str, str]:
    """Returns the request for as many GPUs of Slurm's choice."""
    n, k = plan.get(N), plan.get(K)
    if n is None or k is None:
        raise SlurmError(f"the plan of job {job.id} does not say how many GPUs it asked for")
    if _pinned_by_job(job):
        return {"tres_per_job": f"gres/gpu:{n * k}"}
    return {"tres_per_node": f"gres/gpu:{k}"}
