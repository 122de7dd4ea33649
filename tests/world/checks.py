# SPDX-License-Identifier: Apache-2.0
"""Checks the invariants after every step, and at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from policy.daemon.passes.planner import Planner
from policy.formats import plan_fields, segment, wire
from policy.plan.jobs.waiting_jobs import PARKED_FOR
from policy.request import counted
from tests.world import closers, reservations
from tests.world.cluster import BLOCKING, REQUEUE_DELAY, ModelCluster, ModelJob, ModelNode, Portion

if TYPE_CHECKING:
    from tests.world.world import DeterministicWorld

LONGEST_DELAY = PARKED_FOR + 120
"""Seconds for which Berth may keep a job from starting: a guest without a seat; each retry is far shorter."""

GPU_MIB = {"h100": 16_384, "l40s": 8_192}
"""MiB of each GPU that packed jobs may use, by model."""

FAULTS = ("planning it failed", "a step of the plan is left out", "fault of berthd's own")
"""Words of the log that tell of a defect."""


class ViolationError(AssertionError):
    """Something that must hold does not."""


def look(world: DeterministicWorld) -> None:
    """All that must hold at any moment."""
    cluster = world.cluster
    for started, was_over in cluster.started:
        starts_right(cluster, started, was_over=was_over)
    cluster.started.clear()
    for node in cluster.nodes.values():
        _owned_once(node.name, list(node.held.values()))
        _memory_is_there(cluster, node)
    for job in cluster.jobs.values():
        if job.waits:
            _pin_is_whole(cluster, job)
            if job.user_excluded not in {"", job.exc_nodes}:
                raise ViolationError(f"job {job.id} excludes {job.exc_nodes}, and its user wrote {job.user_excluded}")
            _wait_is_bounded(cluster, job, world.clock_back)
    _log_is_clean(world)


def starts_right(cluster: ModelCluster, started: ModelJob, *, was_over: bool) -> None:
    """A run begins that may, and where its pin says."""
    if was_over:
        raise ViolationError(f"job {started.id} started again after its end")
    if started.user_begin > cluster.now:
        raise ViolationError(f"job {started.id} started {started.user_begin - cluster.now:.0f} s too early")
    _started_right(cluster, started)


def _values(job: ModelJob) -> dict[str, str]:
    return _read(job.admin_comment)


@lru_cache(maxsize=4_096)
def _read(admin_comment: str) -> dict[str, str]:
    return segment.fields(admin_comment) or {}


def places(portion: Portion) -> list[int]:
    """The GPUs of a portion, of whatever kind."""
    mask = portion.gpus | portion.seats
    for place, _ in portion.shards:
        mask |= 1 << place
    return [place for place in range(64) if mask >> place & 1]


def _started_right(cluster: ModelCluster, job: ModelJob) -> None:
    """A run began on the GPUs that its pin says, and its node is told of the same."""
    values = _values(job)
    if job.touched or values.get("state") not in plan_fields.PINNED_STATES:
        return
    if not job.nodes:
        return  # its node went down within the step, and it waits again
    if closers.may_be_elsewhere(cluster, job):
        return
    if name := reservations.passed_by(cluster, job.nodes):
        raise ViolationError(f"job {job.id} has a place on {job.nodes}, and reservation {name} counts GPUs there")
    if tuple(values["nodes"].split(",")) != job.nodes and set(values["nodes"].split(",")) != set(job.nodes):
        raise ViolationError(f"job {job.id} was planned on {values['nodes']} and started on {job.nodes}")
    extra = segment.fields(job.extra) or {}
    for name in job.nodes:
        portion = cluster.nodes[name].held.get(job.id) if name in cluster.nodes else None
        if portion is None:
            continue
        if ",".join(map(str, places(portion))) != values["gpus"]:
            raise ViolationError(f"job {job.id} was planned on GPUs {values['gpus']} and got {places(portion)}")
        if extra.get("gpus") != values["gpus"]:
            raise ViolationError(f"job {job.id}: its node is told of GPUs {extra.get('gpus')}, not {values['gpus']}")
        if portion.shards and extra.get("share") != str(portion.shards[0][1]):
            raise ViolationError(f"job {job.id} pays for {portion.shards} and its node is told {extra}")
        if not portion.shards and "share" in extra and extra.get("tier") != "opportunistic":
            raise ViolationError(f"job {job.id} has whole GPUs, and its node holds it to {extra['share']} percent")
    if cluster.counts_models:
        _counted_right(cluster, job)


def _counted_right(cluster: ModelCluster, job: ModelJob) -> None:
    wanted: dict[str, int] = {}
    for name in job.nodes:
        portion = cluster.nodes[name].held.get(job.id) if name in cluster.nodes else None
        if portion is None:
            return  # it ended within the step
        if portion.gpus and "share" not in _values(job):
            model = f"{counted.PREFIX}{cluster.nodes[name].features}"
            wanted[model] = wanted.get(model, 0) + portion.gpus.bit_count()
    if counted.ours(job.licenses) != wanted:
        raise ViolationError(f"job {job.id} holds {wanted} and its licences say {job.licenses!r}")


def _memory_is_there(cluster: ModelCluster, node: ModelNode) -> None:
    """Shares of a GPU have its memory together: Slurm starts by percent alone."""
    taken: dict[int, int] = {}
    for number, portion in node.held.items():
        extra = segment.fields(cluster.jobs[number].extra) or {}
        for place, _ in portion.shards if extra.get("mem", "").isdigit() else ():
            taken[place] = taken.get(place, 0) + int(extra["mem"])
            if taken[place] > GPU_MIB[node.features]:
                raise ViolationError(f"{node.name} GPU {place}: shares have {taken[place]} MiB: {node.held}")


def _owned_once(name: str, held: list[Portion]) -> None:
    gpus = seats = 0
    shares: dict[int, int] = {}
    for portion in held:
        if portion.gpus & gpus or portion.seats & seats:
            raise ViolationError(f"{name}: a GPU or a seat has two owners: {held}")
        gpus |= portion.gpus
        seats |= portion.seats
        for place, percent in portion.shards:
            shares[place] = shares.get(place, 0) + percent
            if shares[place] > 100:
                raise ViolationError(f"{name} GPU {place}: shares add up to {shares[place]}")
    if any(gpus >> place & 1 for place in shares):
        raise ViolationError(f"{name}: a GPU is owned and shared: {held}")


def _pin_is_whole(cluster: ModelCluster, job: ModelJob) -> None:
    """A waiting job's request, segment and Extra say the same."""
    values = _values(job)
    if job.kind != "cpu" and not (job.touched or job.tres_per_node or job.tres_per_job):
        raise ViolationError(f"job {job.id} asks for no GPUs any more, beside [{job.admin_comment}]")
    if job.touched or values.get("state") not in plan_fields.PINNED_STATES or job.kind == "cpu":
        return
    portion = job.portion()
    where = f"job {job.id}: {job.req_nodes} {job.tres_per_node}{job.tres_per_job} beside [{job.admin_comment}]"
    if closers.closes(job) and (problem := closers.wrong(cluster, job)):
        raise ViolationError(f"{problem}, {where}")
    if sorted(closers.place_of(job)) != sorted(values.get("nodes", "").split(",")):
        raise ViolationError(f"request and segment name other nodes, {where}")
    if portion is None or ",".join(map(str, places(portion))) != values.get("gpus"):
        raise ViolationError(f"request and segment name other GPUs, {where}")
    nodes = len(closers.place_of(job))
    if len(places(portion)) * nodes != job.gpus or nodes != job.n:
        raise ViolationError(f"it has another number of GPUs than its user asked for, {where}")
    if job.kind == "share" and portion.shards:
        _share_is_counted(cluster, job, portion, where)


def _share_is_counted(cluster: ModelCluster, job: ModelJob, portion: Portion, where: str) -> None:
    """A share counts what it asks for, or its part of the memory; its node holds it to what it asks for."""
    least = min((GPU_MIB[cluster.nodes[name].features] for name in job.req_nodes.split(",") if name in cluster.nodes),
                default=0)  # fmt: skip
    counted = min(100, max(job.share, -(-100 * job.gpu_mem // least))) if least else 0
    if counted and {percent for _, percent in portion.shards} != {counted}:
        raise ViolationError(f"it counts another part than {counted} %, {where}")
    extra = segment.fields(job.extra) or {}
    if int(extra.get("asked_share", extra.get("share", "0"))) != job.share:
        raise ViolationError(f"its node holds it to another share than {job.share} %, {where}, {job.extra}")


def _wait_is_bounded(cluster: ModelCluster, job: ModelJob, clock_back: int) -> None:
    """Checks that a person wrote what keeps a job from starting, or that it has an end and a reason."""
    if job.held and not (job.user_hold or job.was_suspended):
        raise ViolationError(f"job {job.id} is held, and no person did that")
    if job.begin <= max(job.user_begin, cluster.now):
        return
    values = _values(job)
    reason = {"parked", "move_until", "again", "evicted"} & values.keys()
    if not reason and job.begin > cluster.now + REQUEUE_DELAY + 3_700 + clock_back and not job.restarts:
        raise ViolationError(f"job {job.id} waits until {job.begin} without a reason: {job.admin_comment}")
    if job.begin > cluster.now + LONGEST_DELAY + clock_back:
        raise ViolationError(f"job {job.id} waits for {job.begin - cluster.now:.0f} s, longer than any bound")


def _log_is_clean(world: DeterministicWorld) -> None:
    for line in world.logged:
        if any(words in line for words in FAULTS):
            raise ViolationError(f"berthd met a defect: {line}")
    if len(world.logged) > 400:
        del world.logged[:200]


def given_once(world: DeterministicWorld, request: dict[str, str], reply: bytes | None, *, kept: bool) -> None:
    """No whole GPU is given, as free at once, to two jobs before a snapshot shows the first of them.

    But for one that is not `kept`: its user's former jobs never came into Slurm's queue.
    """
    if reply is None:
        return
    message = wire.decode(reply)
    values = segment.fields(f"[berth/1 {message.fields.get('segment', '')}]") or {}
    later = {"held", "begin"} & request.keys()
    if message.verb != "place" or values.get("state") != "placed" or later or "share" in values or "tier" in values:
        return
    world._forget_given()
    now = {(node, int(gpu)) for node in values["nodes"].split(",") for gpu in values["gpus"].split(",")}
    for nonce, (_, before) in world.given.items():
        if both := before & now:
            raise ViolationError(f"GPUs {sorted(both)} were given to job {nonce} and to job {request['nonce']}")
    if kept:
        world.given[request["nonce"]] = world.clock.time(), now


def what_is_there(cluster: ModelCluster) -> tuple[list[ModelJob], dict[str, bool]]:
    """The jobs that wait or hold GPUs, and which nodes take jobs."""
    jobs = [job for job in cluster.jobs.values() if job.waits or job.holds]
    return jobs, {node.name: not node.flags & BLOCKING for node in cluster.nodes.values()}


def sees_all(planner: Planner, there: list[ModelJob], takes_jobs: dict[str, bool]) -> None:
    """A pass that met no trouble has read what was there when it began: jobs that waited or held GPUs, open nodes."""
    reading = planner._looks.reading
    if reading is None:
        return
    waiting = {job.id for job in reading.jobs if job.state in {"PENDING", "ARRAY"}}
    present = {job.id for job in reading.jobs}
    for job in there:
        if (job.waits and job.id not in waiting) or (job.holds and job.id not in present):
            raise ViolationError(f"berthd does not see job {job.id}, which is {job.shown}")
    for node in reading.nodes:
        if node.up != takes_jobs[node.name]:
            raise ViolationError(f"{node.name} takes jobs for berthd: {node.up}, and for Slurm: {not node.up}")


def closed_right(cluster: ModelCluster, planner: Planner) -> None:
    """A pass that met no trouble has opened each partition in which a pinned job can start behind another."""
    if planner._looks.acts and (problem := closers.after_pass(cluster, planner)):
        raise ViolationError(problem)


def picture_agrees(planner: Planner) -> None:
    """After a pass no GPU counts as free that the reading shows as held."""
    tracker = planner._tracker
    if tracker is None:
        return
    free = tracker._gpus[:, 0]
    for place, node in enumerate(tracker._nodes):
        if node is not None and int(free[place]) & node.gpus_used:
            raise ViolationError(f"{node.name}: free {int(free[place]):b} and held {node.gpus_used:b}")


def opened_for_freed(world: DeterministicWorld) -> None:
    """Without faults a notice opens each partition in which a pinned job can start behind another, before it ends."""
    planner = world.processes.planner
    if planner is not None and planner._looks.acts and (problem := closers.starts_fewer(world.cluster, planner)):
        raise ViolationError(problem)


def freed_right(world: DeterministicWorld) -> None:
    """A notice frees the GPUs of its job, and nobody else's."""
    planner = world.processes.planner
    if planner is None or planner._tracker is None or planner._looks.reading is None:
        return
    tracker = planner._tracker
    shown = {job.id: job for job in planner._looks.reading.jobs if job.state == "RUNNING"}
    for name, node in world.cluster.nodes.items():
        place = tracker.fleet.index.get(name)
        if place is None:
            continue
        for job_id, portion in node.held.items():
            job = world.cluster.jobs[job_id]
            seen = shown.get(job_id)
            if seen is None or seen.start != job.start or job.ends_on or world.said.get(job_id) == job.restarts:
                continue
            if int(tracker._gpus[place, 0]) & portion.gpus:
                raise ViolationError(f"{name}: GPUs of job {job_id}, which runs, count as free after another's notice")


def may_requeue(cluster: ModelCluster, name: str, *, incomplete: bool) -> None:
    """berthd runs nobody again who came to an end, and ends nobody but guests and those that may be moved."""
    number, _, task = name.partition("_")
    for job in cluster.jobs.values():
        mine = (job.array == int(number) and str(job.task) == task) if task else job.id == int(number)
        if not mine:
            continue
        if job.over and job.completed and not incomplete:
            raise ViolationError(f"berthd runs job {job.id} again, which ended as {job.state}")
        values = _values(job)
        goes = values.get("tier") == "opportunistic" or "f.movable" in values or job.kind == "guest"
        if job.holds and not job.ends_on and not goes:
            raise ViolationError(f"berthd ends job {job.id}, which is no guest and not movable")


def may_cancel(cluster: ModelCluster, name: str) -> None:
    """berthd ends nobody for good but guests that Slurm has refused to requeue time and again."""
    for job in cluster.job_of(name):
        if job.refusals < _TRIES:
            raise ViolationError(f"berthd ends job {job.id} after {job.refusals} refused requeues")


_TRIES = 2


def nothing_of_ours(cluster: ModelCluster) -> None:
    """After `berth release --all` jobs that wait, or end to wait again, are as their users wrote them."""
    for job in cluster.jobs.values():
        if job.state != "PENDING" or (job.touched and not job.gpus_touched):
            continue
        portion = job.portion()
        left = [
            *(["the nodes"] if job.req_nodes != job.user_nodes else []),
            *(["the GPUs"] if portion is not None and job.kind != "cpu" else []),
            *(["the excluded nodes"] if job.exc_nodes != job.user_excluded else []),
            *(["the Extra"] if "[berth/1" in job.extra else []),
            *(
                ["the begin time"]
                if "parked" in _values(job) and job.begin > max(job.user_begin, cluster.now + REQUEUE_DELAY)
                else []
            ),
            *(["the mark of excluded nodes"] if "others" in _values(job) else []),
        ]
        if left:
            raise ViolationError(
                f"after berth release --all job {job.id} ({job.shown}) keeps {', '.join(left)}: {job.admin_comment}"
            )


def all_started(world: DeterministicWorld) -> None:
    """With all faults over, whoever can start has started."""
    if late := not_started(world.cluster):
        raise ViolationError(late)


def not_started(cluster: ModelCluster) -> str:
    """Tells who could have started and has not; empty where there is nobody."""
    for job in cluster.jobs.values():
        if job.holds and job.state == "RUNNING" and job.end > cluster.now:
            continue
        asked_by_hand = job.touched and not job.gpus_touched
        if not job.waits or asked_by_hand or _may_wait(job) or _takes_turns(cluster, job) or not _fits(cluster, job):
            continue
        return (
            f"job {job.id} ({job.kind}, {job.n} x {job.k}, {job.shown}, {job.reason},"
            f" begin {job.begin - cluster.now:+.0f} s) has not started:"
            f" {job.req_nodes} {job.tres_per_node}{job.tres_per_job} {job.admin_comment}"
        )
    return ""


def _fits(cluster: ModelCluster, job: ModelJob) -> bool:
    """Tells whether there are nodes that the job could have if nobody else were there."""
    named = job.user_nodes.split(",") if job.user_nodes else list(cluster.nodes)
    usable = [cluster.nodes[name] for name in named if cluster.nodes[name].open and name != job.user_excluded]
    return sum(reservations.left(cluster, node, job) >= job.k for node in usable) >= job.n


def _may_wait(job: ModelJob) -> bool:
    """Tells whether a job has a reason to wait still."""
    values = _values(job)
    # A node that is suspected of having failed it is avoided for hours, and a guest waits for a host.
    return "avoids" in values or (job.kind == "guest" and "parked" in values)


def _takes_turns(cluster: ModelCluster, job: ModelJob) -> bool:
    """Tells whether a task waits for another one of its array that runs: an array may take longer than the calm."""
    tasks = [one for one in cluster.jobs.values() if job.array and one.array == job.array]
    return bool(job.at_once) and sum(one.holds and one.end > cluster.now for one in tasks) >= job.at_once


def sizes(thing: object, seen: set[int], depth: int = 0) -> Iterator[tuple[str, int]]:
    """The number of members of each container that an object of berthd holds."""
    if id(thing) in seen or depth > 6:
        return
    seen.add(id(thing))
    if isinstance(thing, (dict, set, list, deque)):
        yield type(thing).__name__, len(thing)
        if isinstance(thing, dict):
            for member in thing.values():
                yield from sizes(member, seen, depth + 1)
        return
    if not type(thing).__module__.startswith("policy."):
        return
    names: list[str] = list(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        names += [name for name in getattr(kind, "__slots__", ()) if hasattr(thing, name)]
    for name in names:
        value: Any = getattr(thing, name)
        if name in {"_fleet", "fleet", "_understanding", "book", "_book"}:
            continue
        for where, count in sizes(value, seen, depth + 1):
            yield f"{type(thing).__name__}.{name} {where}", count


def small(world: DeterministicWorld) -> None:
    """Memory and files do not grow with the number of jobs that were ever there."""
    for thing in (world.processes.planner, world.processes.answerer):
        for where, count in sizes(thing, set()):
            if count > 300:
                raise ViolationError(f"{where} has {count} members with no job left")
    found = [path for path in world.folder.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in found)
    if len(found) > 12 or total > 200_000:
        raise ViolationError(f"{len(found)} files of {total} bytes are left: {found}")
