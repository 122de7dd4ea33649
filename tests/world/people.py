# SPDX-License-Identifier: Apache-2.0
"""Carries out what people ask of the model by scontrol: holds, suspensions, nodes and partitions."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from policy.formats import segment
from tests.world.cluster import EXPEDITING, RUNNING_FLAGS, ModelCluster, ModelJob, ModelNode, Refusal
from tests.world.updates import NOT_AVAILABLE


def act(cluster: ModelCluster, verb: str, name: str) -> None:
    """Do one of scontrol's verbs to a job."""
    if verb == "requeuehold":
        cluster.requeue(name, incomplete=False, hold=True)
        return
    try:
        found = cluster.job_of(name)
    except Refusal:
        raise Refusal(
            "Unexpected message received" if verb in {"suspend", "resume"} else "Invalid job id specified"
        ) from None
    for job in found:
        _ACTS[verb](cluster, job)
    if cluster.partition_state == "INACTIVE" and verb in {"hold", "uhold", "release"}:
        raise Refusal(NOT_AVAILABLE)


def hold(job: ModelJob, reason: str = "JobHeldUser") -> None:
    """A waiting job does not start until it is released."""
    job.priority, job.reason, job.user_hold = 0, reason, reason == "JobHeldUser"


def release(job: ModelJob) -> None:
    """A held job may start again."""
    job.priority, job.reason, job.user_hold, job.was_suspended = 1_000, "None", False, False
    if job.flag == "SPECIAL_EXIT":
        job.flag, job.exit = "", (0, 0)


def _hold(_: ModelCluster, job: ModelJob, reason: str) -> None:
    _not_over(job)
    if job.state == "PENDING":
        hold(job, reason)
    else:
        job.priority, job.user_hold = 0, reason == "JobHeldUser"


def _release(_: ModelCluster, job: ModelJob) -> None:
    _not_over(job)
    if job.held:
        release(job)


def _suspend(cluster: ModelCluster, job: ModelJob) -> None:
    if job.over or (job.ends_on and job.state != "PENDING"):
        raise Refusal("Job/step already completing or completed")
    if job.state == "SUSPENDED":
        return
    if job.state != "RUNNING":
        raise Refusal("Job is pending execution")
    suspend(cluster, job)


def _resume(cluster: ModelCluster, job: ModelJob) -> None:
    if job.over or (job.ends_on and job.state != "PENDING"):
        raise Refusal("Job/step already completing or completed")
    if job.state != "SUSPENDED":
        raise Refusal("Job is pending execution" if job.state == "PENDING" else "Job is not suspended")
    resume(cluster, job)


def suspend(cluster: ModelCluster, job: ModelJob) -> None:
    """A job stops, and others may have its CPUs; its GPUs and its memory stay its own, and its priority is gone."""
    job.state, job.priority, job.was_suspended = "SUSPENDED", 0, True
    _hand_cpus(cluster, job, 0)


def resume(cluster: ModelCluster, job: ModelJob) -> None:
    """It goes on."""
    job.state, job.priority, job.was_suspended = "RUNNING", 1_000, False
    _hand_cpus(cluster, job, -(-job.cpus // job.n))


def _hand_cpus(cluster: ModelCluster, job: ModelJob, cpus: int) -> None:
    for name in job.nodes:
        node = cluster.nodes.get(name)
        if node is not None and job.id in node.held:
            node.held[job.id] = replace(node.held[job.id], cpus=cpus)


def _not_over(job: ModelJob) -> None:
    if job.over or (job.ends_on and job.state != "PENDING"):
        raise Refusal("Job has already finished")


_ACTS = {
    "hold": lambda cluster, job: _hold(cluster, job, "JobHeldAdmin"),
    "uhold": lambda cluster, job: _hold(cluster, job, "JobHeldUser"),
    "release": _release,
    "suspend": _suspend,
    "resume": _resume,
}


def update_node(cluster: ModelCluster, name: str, state: str) -> None:
    """scontrol update of a node."""
    node = cluster.nodes[name]
    match state:
        case "DRAIN":
            node.flags.add("DRAIN")
        case "UNDRAIN":
            node.flags.discard("DRAIN")
        case "RESUME":
            if not node.flags & {"DRAIN", "DOWN"}:
                raise Refusal(f"Invalid node state {'transition' if cluster.version >= '25' else 'specified'}")
            node.flags -= {"DRAIN", "DOWN"}
        case "DOWN":
            lose(cluster, node)
            node.flags.add("DOWN")


def lose(cluster: ModelCluster, node: ModelNode) -> None:
    """A node goes down: its jobs end, or go back into the queue."""
    for job_id in sorted({*node.held, *node.epilogs}):
        job = cluster.jobs[job_id]
        if not job.ends_on:
            cluster.finish(job, "NODE_FAIL", again=job.requeue)
            job.completed = False
            if job.expedites:
                job.flag, job.epilog_failed = EXPEDITING, True
        cluster.epilog_done(job_id, node.name)


def other_gpus(job: ModelJob) -> None:
    """A user asks for another number of GPUs: the plugin takes the place out of the change."""
    job.req_nodes, job.tres_per_node, job.tres_per_job, job.touched = "", "gres/gpu:1", "", True
    job.extra, job.gpus_touched = "", False


def put_off(cluster: ModelCluster, job: ModelJob) -> None:
    """A user, or an administrator for a guest that waits for a seat, writes a later StartTime: it starts no sooner."""
    job.put_off_at = cluster.now
    job.begin = job.user_begin = int(max(cluster.now, job.submitted)) + 90 + 30 * (job.id % 4)


def exclude(job: ModelJob, marks: Path, at: float) -> None:
    """A list of excluded nodes of its user's own, in place of Berth's if there was one; without its place.

    The plugin leaves its marks, with the time of the world.
    """
    values = segment.fields(job.admin_comment) or {}
    if others := [name for name in ("n1", "n2", "n3") if name not in values.get("nodes", "").split(",")]:
        job.exc_nodes = job.user_excluded = others[job.id % len(others)]
        job.list_changed = True
        for number in filter(None, (job.array, job.id) if marks.is_dir() else ()):
            (marks / str(number)).write_text(job.exc_nodes if number == job.id else "")
            os.utime(marks / str(number), (at, at))


def exits(cluster: ModelCluster, job: ModelJob, code: int) -> None:
    """A run ends with a status; 77 is in the site's RequeueExit, 78 in its RequeueExitHold.

    A job that comes back by that is FAILED until its Epilogs have ended.
    """
    cluster.finish(job, "FAILED" if code else "COMPLETED")
    job.exit = (code, 0)
    if code and job.expedites:
        job.after, job.comes_expedited = "PENDING", True
    elif code in {77, 78} and job.requeue:
        job.after, job.comes_held = "PENDING", code == 78


def concerns(what: str, job: ModelJob) -> bool:
    """Tells whether this can happen to a job."""
    if what in {"expedite", "suspend", "stop", "signal", "resize"}:
        return job.state == "RUNNING" and not job.ends_on and not job.flag
    if what in {"continue", "resume"}:
        return job.flag in RUNNING_FLAGS or job.state == "SUSPENDED"
    if what == "exclude":
        return job.waits and not job.user_nodes
    if what == "put-off":
        # In the seconds after an eviction its begin time is Slurm's, and berthd's to take away.
        return job.waits and (job.kind != "guest" or "state=later" in job.admin_comment)
    if what == "free":
        return job.waits and job.held
    if what in {"hold", "special-exit", "reservation-gone", "revoke", "nodes", "gpus", "gpus-alone", "priority"}:
        return job.waits
    return not job.over
