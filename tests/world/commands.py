# SPDX-License-Identifier: Apache-2.0
"""Slurm's commands on the model: the same words and the same text as squeue, scontrol and scancel print."""

from __future__ import annotations

import json
import socket

from policy.formats import hostlist
from tests.world import people, updates
from tests.world.cluster import ModelCluster, ModelJob, ModelNode, Portion, Refusal


def answer(cluster: ModelCluster, words: tuple[str, ...]) -> str:  # noqa: PLR0912 - a table
    """Do what a command line says, and return what it prints; a `Refusal` where slurmctld does not do it."""
    match words:
        case ("scontrol", "ping"):
            host = socket.gethostname() if cluster.in_control else "elsewhere"
            return f"Slurmctld(primary) at {host} is UP\n"
        case ("scontrol", "version"):
            return f"slurm {cluster.version}\n"
        case ("scontrol", "show", "federation"):
            return "No federation\n"
        case ("scontrol", "show", "config"):
            return _config(cluster)
        case ("scontrol", "show", "node", "-o", "-d"):
            return "".join(map(_node, cluster.nodes.values()))
        case ("scontrol", "show", "node", names, "--json"):
            known = [cluster.nodes[name] for name in names.split(",") if name in cluster.nodes]
            return json.dumps({"nodes": [{"name": node.name, "boot_time": _set(node.boot)} for node in known]})
        case ("scontrol", "show", "partition", *_):
            return (
                f"PartitionName=gpu AllowGroups=ALL Default=YES DefaultTime=NONE MaxTime=UNLIMITED MinNodes=0"
                f" MaxNodes=UNLIMITED PriorityTier=1 OverSubscribe=NO State={cluster.partition_state}\n"
            )
        case ("scontrol", "show", "reservation", "-o"):
            found = [one for one in cluster.reservations.values() if one.node in cluster.nodes]
            return "".join(one.line(cluster.now) for one in found) or "No reservations in the system\n"
        case ("scontrol", "show", "job", number, "--json"):
            return json.dumps({"jobs": [_record(cluster, job) for job in _shown(cluster, int(number))]})
        case ("squeue", "-a", "-t", "all", "--json", listed):
            numbers = [int(one) for one in listed.removeprefix("--jobs=").split(",")]
            return json.dumps({"jobs": [_record(cluster, cluster.jobs[n]) for n in numbers if n in cluster.jobs]})
        case ("squeue", "-h", "-a", "-r", "-t", states, "-O", form):
            return _queue(cluster, states, form, apart=True)
        case ("squeue", "-h", "-a", "-t", states, "-O", form):
            return _queue(cluster, states, form, apart=False)
        case ("scontrol", "update", name, state, *_) if name.startswith("NodeName="):
            people.update_node(cluster, name.removeprefix("NodeName="), state.removeprefix("State="))
        case ("scontrol", "update", "PartitionName=gpu", state):
            cluster.partition_state = state.removeprefix("State=")
        case ("scontrol", "hold" | "uhold" | "release" | "suspend" | "resume" | "requeuehold" as verb, name):
            people.act(cluster, verb, name)
        case ("scontrol", "update", name, *changed):
            updates.update(cluster, name.removeprefix("JobId="), dict(word.split("=", 1) for word in changed))
        case ("scontrol", "requeue", "Incomplete", name):
            cluster.requeue(name, incomplete=True)
        case ("scontrol", "requeue", name):
            cluster.requeue(name, incomplete=False)
        case ("scancel", "--ctld", *_, "-s", signal, name):
            for job in cluster.job_of(name):
                if job.over:
                    continue
                if job.state in {"PENDING", "SUSPENDED"}:
                    raise Refusal("Job can not be altered now, try again later")
                job.warned = bool(signal) and not job.ends_on
        case ("scancel", "--ctld", name) | ("scancel", name):
            for job in cluster.job_of(name):
                cluster.cancel(job)
        case _:
            raise AssertionError(f"the model knows no such command: {words}")
    return ""


def _shown(cluster: ModelCluster, number: int) -> list[ModelJob]:
    if number not in cluster.jobs:
        raise Refusal("Invalid job id specified")
    return [cluster.jobs[number]]


def _config(cluster: ModelCluster) -> str:
    values = {
        "SLURM_VERSION": cluster.version,
        "ClusterName": "world",
        "SelectTypeParameters": "CR_CORE_MEMORY",
        # A node that is powered down wakes for a job.
        "ResumeProgram": "/usr/sbin/resume",
        "DefMemPerCPU": "100",
        "KillWait": "30 sec",
        "MaxBatchRequeue": "5",
        "AccountingStorageType": "(null)",
        "Licenses": "berth_h100:12,berth_l40s:2" if cluster.counts_models else "(null)",
    }
    return "".join(f"{key:<23} = {value}\n" for key, value in values.items())


def _node(node: ModelNode) -> str:
    places = range(node.gpus)
    has = [f"{kind}:g{place}:{count}" for kind, count in (("gpu", 1), ("shard", 100), ("seat", 1)) for place in places]
    gpus, seats, shards = node.used()
    used = [f"gpu:g{place}:{gpus >> place & 1}(IDX:{place})" for place in places]
    used += [f"shard:g{place}:{shards.get(place, 0)}({shards.get(place, 0)}/100)" for place in places]
    used += [f"seat:g{place}:{seats >> place & 1}(IDX:{place})" for place in places]
    cpus, mem = (sum(getattr(one, what) for one in node.held.values()) for what in ("cpus", "mem"))
    return (
        f"NodeName={node.name} Arch=x86_64 CoresPerSocket={node.cpus}  CPUAlloc={cpus} CPUEfctv={node.cpus}"
        f" CPUTot={node.cpus} CPULoad=0.00 AvailableFeatures={node.features} ActiveFeatures={node.features}"
        f" Gres={','.join(has) or '(null)'} GresDrain=N/A GresUsed={','.join(used) or '(null)'} NodeAddr=x"
        f" RealMemory={node.mem} AllocMem={mem} FreeMem=1 Sockets=1 Boards=1 State={node.state}"
        f" ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={node.partitions} BootTime=None\n"
    )


def _set(number: int) -> dict[str, int | bool]:
    return {"set": number > 0, "number": number}


def _record(cluster: ModelCluster, job: ModelJob) -> dict[str, object]:
    states = [job.state, *(["COMPLETING"] if job.ends_on else []), *([job.flag] if job.flag else [])]
    return {
        "job_id": job.id,
        "job_state": states,
        "user_id": job.user,
        "admin_comment": job.admin_comment,
        "extra": job.extra,
        "partition": job.partition,
        "nodes": hostlist.fold(job.shown_nodes),
        "required_nodes": job.req_nodes,
        "excluded_nodes": job.exc_nodes,
        "licenses": job.licenses,
        "tres_per_node": job.tres_per_node,
        "tres_per_job": job.tres_per_job,
        "gres_detail": [
            detail
            for name in job.nodes
            if name in cluster.nodes and job.id in cluster.nodes[name].held
            if (detail := _detail(cluster.nodes[name].held[job.id]))
        ],
        "start_time": _set(job.start),
        "end_time": _set(job.end),
        "exit_code": {"return_code": _set(job.exit[0]), "signal": {"id": _set(job.exit[1])}},
        "restart_cnt": job.restarts,
        "requeue": job.requeue,
        "batch_flag": job.has_script,
        "array_job_id": _set(job.array),
        "array_task_id": {"set": job.task is not None, "number": job.task or 0},
        "array_task_string": _folded(job),
    }


def _detail(part: Portion) -> str:
    words = [f"gpu:g{place}:1(IDX:{place})" for place in range(16) if part.gpus >> place & 1]
    words += [f"shard:g{place}:{percent}({percent}/100)" for place, percent in part.shards]
    words += [f"seat:g{place}:1(IDX:{place})" for place in range(16) if part.seats >> place & 1]
    return ",".join(words)


def _folded(job: ModelJob) -> str:
    """The tasks as Slurm lists them, and how many may run at once."""
    listed = _listed(job.tasks)
    return f"{listed}%{job.at_once}" if listed and job.at_once else listed


def _listed(tasks: list[int]) -> str:
    parts: list[list[int]] = []
    for task in sorted(tasks):
        if parts and parts[-1][-1] == task - 1:
            parts[-1].append(task)
        else:
            parts.append([task])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _queue(cluster: ModelCluster, states: str, form: str, *, apart: bool) -> str:
    columns = [column.partition(":")[::2] for column in form.split(",")]
    wanted = states.split(",")
    lines = []
    for job in cluster.jobs.values():
        if not _is_wanted(job, wanted):
            continue
        joined = [] if apart else _joined(cluster, job, wanted)
        if joined and joined[0] is not job:
            continue
        for task in job.tasks if apart and job.tasks else [job.task]:
            values = _line(cluster, job, task)
            if len(joined) > 1:
                own = {one.task for one in joined if one.task is not None}
                tasks = sorted(own.union(*(one.tasks for one in joined)))
                values["JobArrayID"] = f"{job.array}_[{_listed(tasks)}]"
            lines.append("".join(f"{values.get(name, '')}{mark}" for name, mark in columns) + "\n")
    return "".join(lines)


def _joined(cluster: ModelCluster, job: ModelJob, wanted: list[str]) -> list[ModelJob]:
    """The waiting records of an array, which squeue shows as one line, and without the most tasks at once."""
    if not job.array or not job.waits:
        return []
    others = (one for one in cluster.jobs.values() if one.array == job.array and one.waits)
    return [one for one in others if _is_wanted(one, wanted)]


def _is_wanted(job: ModelJob, wanted: list[str]) -> bool:
    """As squeue does: a job with a mark is found by its mark alone, one that ends by COMPLETING too."""
    if wanted == ["all"]:
        return True
    marks = {"COMPLETING"} if job.ends_on else {job.flag} if job.flag else {job.state}
    if job.flag and not job.ends_on and job.flag in {"CONFIGURING", "POWER_UP_NODE"}:
        marks.add("CONFIGURING")
    return not marks.isdisjoint(wanted)


def _line(cluster: ModelCluster, job: ModelJob, task: int | None) -> dict[str, str]:
    if job.tasks:
        whole = f"{job.array}_[{_folded(job)}]"
        name = f"{job.array}_{task}" if task is not None else whole
    else:
        name = f"{job.array}_{job.task}" if job.array else str(job.id)
    end = job.start + job.limit * 60 if job.holds and not job.ends_on else job.end
    count = len(job.shown_nodes) if job.ends_on else job.n
    state = "CONFIGURING" if job.flag == "POWER_UP_NODE" and not job.ends_on else job.shown
    return {
        "JobID": str(job.id),
        "State": state,
        "UserID": str(job.user),
        "Partition": job.partition,
        "PriorityLong": str(job.priority),
        "SubmitTime": str(job.submitted),
        "StartTime": str(job.start) if job.start else "N/A",
        "EndTime": str(end) if end else "N/A",
        "EligibleTime": str(max(job.submitted, job.begin)),
        "TimeLimit": f"{job.limit // 60}:{job.limit % 60:02d}:00",
        "NumCPUs": str(job.cpus * count // job.n),
        "NumNodes": str(count),
        "NodeList": hostlist.fold(job.shown_nodes) if job.holds or job.over else "",
        "ReqNodes": job.req_nodes,
        "ExcNodes": job.exc_nodes,
        "Feature": job.features or "(null)",
        "Reason": job.reason,
        "tres-per-job": job.tres_per_job or "N/A",
        "tres-per-node": job.tres_per_node or "N/A",
        "tres-per-socket": "N/A",
        "tres-per-task": "N/A",
        "tres-alloc": f"cpu={job.cpus},mem={100 * job.cpus}M,node={job.n},billing=1",
        "JobArrayID": name,
        "HetJobID": "",
        "Reservation": "(null)",
        "Licenses": job.licenses or "(null)",
        "Account": "",
        "Name": job.name,
        "admin_comment": job.admin_comment,
    }
