# SPDX-License-Identifier: Apache-2.0
"""What must hold of jobs that close their partition: pins without required nodes (docs/decisions/018).

There is one such form. A job with whole GPUs requires no node, and Berth's list excludes each node but those of its
place. A node beside these may be left open only until the next pass of berthd without trouble, and only if the node
came back or a person changed the list since the last one. Only there the job may start elsewhere, with its GPU types.

After each such pass Slurm's main pass starts the pinned jobs that it would start if all pins required their nodes.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from policy.formats import hostlist, plan_fields, segment
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_syntax.array_tasks import waiting_tasks
from policy.formats.slurm_syntax.excluded_nodes import is_ours

if TYPE_CHECKING:
    from policy.daemon.passes.planner import Planner
    from tests.world.cluster import ModelCluster, ModelJob


def closes(job: ModelJob) -> bool:
    """Tells whether a waiting job with a place requires no node."""
    values = segment.fields(job.admin_comment) or {}
    placed = values.get("state") in plan_fields.PINNED_STATES and "nodes" in values
    return job.waits and placed and "others" in values and not (job.req_nodes or job.touched)


def place_of(job: ModelJob) -> list[str]:
    """The nodes on which a waiting job is to start: those of its segment if it closes its partition."""
    named = (segment.fields(job.admin_comment) or {})["nodes"] if closes(job) else job.req_nodes
    return list(hostlist.expand(named))


def wrong(cluster: ModelCluster, job: ModelJob) -> str:
    """What is wrong with the form of a job that closes its partition."""
    values = segment.fields(job.admin_comment) or {}
    portion = job.portion()
    if portion is None or portion.shards or job.tasks or not values.keys().isdisjoint({"share", "tier", "parked"}):
        return "a job of its kind never closes its partition"
    if not (is_ours(job.exc_nodes, JobPlan(values)) or job.list_changed):
        return "it requires no node, and its list is not Berth's"
    if (left := left_open(cluster, job)) - cluster.came_back and not job.list_changed:
        return f"it requires no node, and {sorted(left)} are not excluded"
    return ""


def left_open(cluster: ModelCluster, job: ModelJob) -> set[str]:
    """The nodes that are neither of a job's place nor excluded."""
    return cluster.nodes.keys() - set(place_of(job)) - set(hostlist.expand(job.exc_nodes))


def may_be_elsewhere(cluster: ModelCluster, job: ModelJob) -> bool:
    """Tells whether a run began elsewhere since a node came back, or since a person changed the list that kept it."""
    if job.req_nodes or "others" not in (segment.fields(job.admin_comment) or {}):
        return False
    place = hostlist.expand((segment.fields(job.admin_comment) or {})["nodes"])
    return job.list_changed or not set(job.nodes) - cluster.came_back - set(place)


def after_pass(cluster: ModelCluster, planner: Planner) -> str:
    """What is wrong after a pass without trouble, in which berthd wrote what could not wait."""
    soon = {job_id for job_id, _ in planner._updates.waiting}
    cluster.read_at = planner._looks.reading.at if planner._looks.reading is not None else 0.0
    for job in cluster.jobs.values():
        # A job that is about to get another place requires its nodes by that update.
        job.list_changed = job.id in soon and (job.list_changed or bool(cluster.came_back))
    cluster.came_back.clear()
    return starts_fewer(cluster, planner)


def starts_fewer(cluster: ModelCluster, planner: Planner) -> str:
    """Tells which jobs Slurm's main pass does not start because others close their partition.

    A change that berthd is about to write opens a partition too. A job that Slurm still shows with a limit, such as
    that of its array, counts as one that cannot start: backfill starts it, as it does on plain Slurm.
    """
    closing = [job for job in cluster.jobs.values() if closes(job)]
    if not closing:
        return ""
    soon = {job_id for job_id, _ in planner._updates.waiting}
    now = _starts(cluster, soon)
    left = _starts(cluster, {job.id for job in closing}) - now
    reading = planner._looks.reading
    if reading is not None:
        limited = [job for job in reading.jobs if not job.may_start]
        left -= {(job.array or job.id, task) for job in limited for task in waiting_tasks(job.tasks) or [job.task or 0]}
    return (
        f"jobs {sorted(left)} can start, and jobs {[job.id for job in closing]} close their partition" if left else ""
    )


def _starts(cluster: ModelCluster, opened: set[int]) -> set[tuple[int, int]]:
    """The pinned jobs that a main pass would start if some of those that close their partition were opened before."""
    model = deepcopy(cluster)
    model.started.clear()
    for job in model.jobs.values():
        if job.id in opened and closes(job):
            job.req_nodes = ",".join(place_of(job))
    model.schedule(strict=True)
    ours = (job for job, _ in model.started if job.portion() is not None and not job.touched)
    return {(job.array or job.id, job.task or 0) for job in ours}
