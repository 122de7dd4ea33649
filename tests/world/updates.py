# SPDX-License-Identifier: Apache-2.0
"""scontrol update of a job on the model: field by field, in Slurm's own order, up to one that it refuses."""

from __future__ import annotations

import re
import time

from policy.formats import hostlist
from policy.formats.job_plan import readable
from policy.formats.slurm_syntax.excluded_nodes import is_ours
from tests.world.cluster import TAKEN, ModelCluster, ModelJob, Refusal

_FIELDS = {
    "ReqNodeList": "req_nodes",
    "ExcNodeList": "exc_nodes",
    "TresPerNode": "tres_per_node",
    "TresPerJob": "tres_per_job",
    "AdminComment": "admin_comment",
    "Extra": "extra",
    "Licenses": "licenses",
    "Comment": "comment",
    "Features": "features",
}
_NUMBERS = {"TimeLimit": "limit", "Priority": "priority", "NumCPUs": "cpus"}
_TEXTS = frozenset({"AdminComment", "Extra", "Comment"})
_WHILE_IT_RUNS = _TEXTS | {"Requeue", "NumNodes", "Licenses", "Nice", "Priority", "TimeLimit"}
"""What Slurm changes of a job that runs."""

_COUNTED = re.compile(r"gres/gpu:(\d+)")
NOT_AVAILABLE = "Requested partition configuration not available now"
_TYPED = re.compile(r"gres/(?:gpu|shard|seat):g\d")


def update(cluster: ModelCluster, name: str, changed: dict[str, str]) -> None:
    """Change what a name means; of several records each by itself, and the last refusal is told."""
    nodes = "ReqNodeList" in changed or "ExcNodeList" in changed
    number, _, task = name.partition("_")
    parts = sum(job.array == int(number) for job in cluster.jobs.values()) if nodes and number.isdigit() else 0
    if (parts > 1 and not task) or ("[" in task and nodes):
        raise Refusal("Requested operation not supported for job arrays")
    found = cluster.job_of(name, keep_last=True)
    if "NumNodes" in changed and not task and found[0].array and (len(found) > 1 or found[0].tasks):
        raise Refusal("Job resizing not supported for job arrays")
    problem: Refusal | None = None
    for job in found:
        try:
            _may_change(job, changed)
            if job.state == "PENDING":
                _write_nodes(cluster, job, changed)
            _check_rest(cluster, job, changed)
        except Refusal as refusal:
            problem = refusal
            continue
        for key, value in changed.items():
            _set(cluster, job, key, value)
        if is_ours(job.user_excluded, readable(job.admin_comment)):
            job.user_excluded = ""  # Berth's list stands in place of the user's
        if job.reason == TAKEN:
            job.reason = "None"
        if cluster.partition_state == "INACTIVE":
            # All is written, and yet Slurm says so.
            problem = Refusal(NOT_AVAILABLE)
    if problem:
        raise problem


def _may_change(job: ModelJob, changed: dict[str, str]) -> None:
    if job.over or (job.ends_on and job.state != "PENDING"):
        raise Refusal("Job has already finished")
    if job.state != "PENDING":
        if "ExcNodeList" in changed:
            raise Refusal("Job is no longer pending execution")
        if "ReqNodeList" in changed:
            raise Refusal("Requested operation not supported on this system")
        if changed.keys() & {"TresPerNode", "TresPerJob"}:
            raise Refusal("Job is no longer pending execution")
        if changed.keys() - _WHILE_IT_RUNS:
            for key in changed.keys() & _TEXTS:
                setattr(job, _FIELDS[key], changed[key])
            raise Refusal("Job is no longer pending execution")
    if job.held and changed.get("Priority", "0") != "0":
        raise Refusal("Job is in held state, pending scheduler release")


def _write_nodes(cluster: ModelCluster, job: ModelJob, changed: dict[str, str]) -> None:
    """Lists of nodes are written even where Slurm then refuses the second one, the licences or the GPUs."""
    for key in ("ExcNodeList", "ReqNodeList"):
        if any(one not in cluster.nodes for one in hostlist.expand(changed.get(key, ""))):
            raise Refusal("Invalid node name specified")
        if key in changed:
            _set(cluster, job, key, changed[key])


def _check_rest(cluster: ModelCluster, job: ModelJob, changed: dict[str, str]) -> None:
    for one in filter(None, changed.get("Licenses", "").split(",")):
        if one.partition(":")[0] not in cluster.licenses:
            raise Refusal("Invalid license specification")
    per_node, per_job = changed.get("TresPerNode", job.tres_per_node), changed.get("TresPerJob", job.tres_per_job)
    if per_node and per_job and bool(_TYPED.search(per_node)) != bool(_TYPED.search(per_job)):
        raise Refusal("Invalid GRES specification (with and without type identification)")
    each, in_all = _COUNTED.fullmatch(per_node), _COUNTED.fullmatch(per_job)
    if each and in_all and int(each[1]) * job.n != int(in_all[1]):
        raise Refusal("Invalid generic resource (gres) specification")


def _set(cluster: ModelCluster, job: ModelJob, key: str, value: str) -> None:
    match key:
        case "ExcNodeList" if job.id in cluster.crossed:
            # An update of Slurm cannot say which list it replaces: the later one of two that cross stands.
            job.exc_nodes = job.user_excluded = value
        case "StartTime":
            job.begin = _moment(cluster, value)
            if job.put_off_at >= cluster.read_at and job.begin != job.user_begin:
                # As with lists, a moment that berthd has not read yet crosses its own.
                job.user_begin = 0 if value.startswith("now+") else job.begin
            if not job.held:
                # After an update Slurm gives no reason.
                job.reason = "None" if job.begin <= cluster.now else "BeginTime"
        case "Requeue":
            job.requeue = value == "1"
        case "NumNodes":
            # This Slurm never lays a job on more nodes than it must: it has what Berth plans for, and no more.
            job.n = int(value.partition("-")[0])
            job.cpus = max(job.cpus, job.n)
            if job.kind == "range":
                job.gpus = job.n * job.k
        case "Nice" | "TresPerTask":
            pass
        case _ if key in _NUMBERS:
            setattr(job, _NUMBERS[key], int(value))
        case _:
            setattr(job, _FIELDS[key], value)


def _moment(cluster: ModelCluster, text: str) -> int:
    if text.startswith("now"):
        return int(cluster.now) + int(text[4:] or 0)
    return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
