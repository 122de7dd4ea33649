# SPDX-License-Identifier: Apache-2.0
"""Reads facts from pyslurm's objects. pyslurm has no types: its objects are `Any` here and nowhere else."""

import time
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from policy.formats import hostlist, segment
from policy.formats.job_plan import readable
from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.formats.slurm_syntax import excluded_nodes as others
from policy.slurm import changes, fields
from policy.slurm.fields import Gres, UsedGres

HeldByNode = Mapping[str, UsedGres]
"""A job's allocation by node name."""


class JobReader:
    """A `pyslurm.Job` whose texts may contain any byte, and whose requests may count a site's own GRES as `100G`."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._job, name)
        except UnicodeDecodeError as problem:
            # pyslurm decodes every text as UTF-8; its error contains the raw text.
            return problem.object.decode("utf-8", "surrogateescape")
        except ValueError:
            if name != "gres_per_node":
                raise
            # pyslurm reads every count as a number.
            return {}


class Requests(NamedTuple):
    """A job's requests for GRES, as Slurm writes them."""

    per_node: str = ""
    per_job: str = ""
    per_socket: str = ""
    per_task: str = ""


def requests_in(job: JobReader) -> Requests:
    """Returns the part of a job's requests that pyslurm reads: the one by node."""
    return Requests(",".join(f"{name}:{count}" for name, count in job.gres_per_node.items()))


def asked_at(job: JobReader) -> tuple[object, ...]:
    """Returns the fields that pyslurm reads and that change with the request."""
    return job.submit_time, job.required_nodes, job.admin_comment, job.gres_per_node


def _is_over(job: JobReader) -> bool:
    return job.state in changes.ENDED


def _task(job: JobReader) -> int | None:
    """Returns a task's number in its array; None for other jobs, and for tasks that have not split off."""
    if job.array_id is None or job.array_tasks_waiting:
        return None
    # pyslurm gives no number for task 0, nor for an array that ended before all of its tasks had split off.
    none = _is_over(job) and job.id == job.array_id
    number: int | None = job.array_task_id
    return number or (None if none else 0)


def job_facts(job: JobReader, requests: Requests, held: HeldByNode) -> JobFacts:
    """Returns a job's facts from a `pyslurm.Job`."""
    count = job.num_nodes or 1
    tasks, _ = fields.tasks(job.array_tasks_waiting or "")
    nodes = hostlist.expand(job.allocated_nodes or "")
    submitted, eligible = job.submit_time or 0, job.eligible_time or 0
    state = fields.job_state(job.state)
    waits = state == "PENDING" and not nodes
    wants_gpus = fields.wants_gpus(requests)
    plan = readable(job.admin_comment or "")
    return JobFacts(
        id=job.id,
        # The record of tasks that have not split off stands for many jobs, none of them placed.
        state="ARRAY" if tasks else state,
        expedited=job.state == fields.EXPEDITING,
        partition=job.partition or "",
        priority=job.priority or 0,
        submitted=submitted,
        start=job.start_time,
        end=_end(job),
        limit=None if job.time_limit is None else job.time_limit * 60,
        cpus=job.cpus,
        nodes=nodes,
        required=others.required_by(job.required_nodes or "", plan),
        excluded=others.of_the_user(job.excluded_nodes or "", plan),
        closes=others.closes(job.required_nodes or "", job.excluded_nodes or "", plan),
        features=",".join(job.constraints),
        reason=job.state_reason or "None",
        # A job with a script is pinned by node, one without by job: srun would trip over the former.
        gpus=fields.pinned(requests.per_node) or fields.pinned(requests.per_job),
        share=fields.share(requests.per_node),
        guest=fields.guest(requests.per_node),
        plan=plan,
        user=job.user_id,
        count=count,
        mem=_mem(job, count),
        holds=tuple(held[name].gpus for name in nodes if name in held) if wants_gpus else (),
        wants_gpus=wants_gpus,
        models=fields.models(requests),
        array=job.array_id or 0,
        task=_task(job),
        tasks=tasks,
        at_once=job.array_tasks_parallel,
        het=job.heterogeneous_id or 0,
        reservation=job.reservation or "",
        licenses=",".join(job.licenses),
        account=job.account or "",
        name=job.name or "",
        begin=eligible if waits and eligible > submitted else None,
        own_extra=segment.remove(job.extra or ""),
    )


def _end(job: JobReader) -> int | None:
    # As in squeue, a job without a limit has no end until it ends.
    if job.time_limit is None and job.end_time is not None and job.end_time > time.time():
        return None
    end: int | None = job.end_time
    return end


def _mem(job: JobReader, count: int) -> int | None:
    tres = job.allocated_tres or job.requested_tres
    memory = tres.mem if tres else None
    return round(memory.count / count) if memory else None


def held_by_node(job: JobReader) -> HeldByNode:
    """Returns the GRES that a job holds on each of its nodes."""
    if not job.allocated_nodes or _is_over(job):
        return {}
    layout: Mapping[str, Mapping[str, Any]] = job.get_resource_layout_per_node()
    return {node: _held(part["gres"]) for node, part in layout.items()}


def _held(gres: Mapping[str, int | Mapping[str, Any]]) -> UsedGres:
    """Joins GRES that pyslurm has split into Slurm's form `gpu:g1:1(IDX:1),gpu:h100:2(IDX:0-1),shard:g7:30(30/100)`."""
    detail = ",".join(
        f"{name}:{what['count']}(IDX:{what['indexes']})" if isinstance(what, Mapping) else f"{name}:{what}()"
        for name, what in gres.items()
    )
    # Untyped GPUs are known only by their indices.
    return fields.gres_used(detail)._replace(gpus=fields.held(detail))


def node_gres(node: Any) -> Gres:
    """Returns the GRES of a node."""
    return fields.gres(",".join(f"{name}:{count}" for name, count in node.configured_gres.items()))


def node_facts(node: Any, has: Gres, used: UsedGres) -> NodeFacts:
    """Returns a node's facts from a pyslurm node."""
    return fields.node_facts(
        node.state,
        has,
        used,
        name=node.name,
        cpus=node.effective_cpus,
        cpus_used=node.allocated_cpus,
        mem=fields.mem_for_jobs(node.real_memory or 0, node.memory_reserved_for_system or 0),
        mem_used=node.allocated_memory,
        threads=node.threads_per_core or 1,
        weight=1 if node.weight is None else node.weight,
        features=frozenset(node.active_features),
        partitions=frozenset(node.partitions),
    )


def used_by_node(held: Iterable[HeldByNode]) -> dict[str, UsedGres]:
    """Returns the GRES in use on each node, summed over jobs: pyslurm does not read a node's GresUsed."""
    used: dict[str, UsedGres] = {}
    for nodes in held:
        for name, part in nodes.items():
            used[name] = _together(used[name], part) if name in used else part
    return used


def _together(one: UsedGres, other: UsedGres) -> UsedGres:
    shared = tuple(map(sum, zip_longest(one.shared, other.shared, fillvalue=0)))
    return UsedGres(one.gpus | other.gpus, one.seats | other.seats, shared)
