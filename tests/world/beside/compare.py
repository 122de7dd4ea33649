# SPDX-License-Identifier: Apache-2.0
"""What both sides must agree on, read through Berth's own gateway and its parsing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.slurm import fields
from policy.slurm.by_command import job_json
from policy.slurm.by_command.command import CommandGateway
from policy.slurm.by_command.job_json import JobJson

Run = Callable[..., bytes]
View = dict[str, Any]

_FOR_ROOM = re.compile(r"None$|Resources$|Priority$|ReqNodeNotAvail|Nodes_required|Licenses$")
_OF_JOBS = ("state", "partition", "limit", "cpus", "nodes", "required", "excluded", "gpus", "share", "guest",
            "segment", "user", "count", "holds", "wants_gpus",
            "array", "task", "tasks", "at_once", "licenses", "features")  # fmt: skip
_OF_NODES = ("cpus", "cpus_used", "mem_used", "up", "lost", "completing", "gpus", "seats", "gpus_used", "seats_used",
             "shards")  # fmt: skip
_OF_RECORDS = ("admin_comment", "extra", "nodes", "required_nodes", "excluded_nodes", "licenses", "tres_per_node",
               "tres_per_job", "restart_cnt", "requeue", "batch_flag", "array_task_string")  # fmt: skip


def view(run: Run, first: int) -> View:
    """All that is compared: nodes, jobs from a number on, and what the questions of states find."""
    gateway = CommandGateway(run)
    reading = gateway.read(ended=True)
    jobs = {job.id: job for job in reading.jobs if job.id >= first}
    found: View = {f"node {node.name}": _node(node) for node in reading.nodes}
    records = _records(run, jobs)
    for number, job in jobs.items():
        found[f"job {number}"] = _last_task(_job(job) | _record(records.get(number)))
    now = gateway.read(ended=False)
    found["queue"] = {
        "not over": sorted(job.id for job in now.jobs if job.id >= first),
        "may hold pins": sorted(str(one) for one in gateway.pinned_jobs() if int(str(one).partition("_")[0]) >= first),
        "partition": [(one.up, one.drains) for one in now.partitions if one.name == "gpu"],
        "unreadable": dict(reading.unreadable),
    }
    return found


def _records(run: Run, jobs: Mapping[int, JobFacts]) -> dict[int, JobJson]:
    if not jobs:
        return {}
    listed = ",".join(map(str, jobs))
    return {one.job_id: one for one in job_json.decode(run("squeue", "-a", "-t", "all", "--json", f"--jobs={listed}"))}


def _node(node: NodeFacts) -> View:
    shared = list(node.shared)
    while shared and not shared[-1]:
        shared.pop()
    return {name: getattr(node, name) for name in _OF_NODES} | {"shared": shared}


def _job(job: JobFacts) -> View:
    values = asdict(job)
    reason = "room" if _FOR_ROOM.match(job.reason) else job.reason
    waits = job.state in {"PENDING", "ARRAY"}
    later = job.begin is not None and job.begin > time.time()
    if later and reason == "JobArrayTaskLimit":
        reason = "BeginTime"  # Slurm gives now one and now the other
    return {name: values[name] for name in _OF_JOBS} | {
        "reason": reason if waits else "",
        "held": job.priority == 0,
        "begins later": later,
        "mem": job.mem if job.nodes else None,
        "started": job.start is not None if job.state not in {"PENDING", "ARRAY"} else None,
    }


def _record(record: JobJson | None) -> View:
    if record is None:
        return {"record": "none"}
    states = [record.job_state] if isinstance(record.job_state, str) else sorted(record.job_state)
    return {f"record {name}": getattr(record, name) for name in _OF_RECORDS} | {
        "record states": states,
        "record name": str(record.name),
        "record gres": [str(fields.gres_used(one)) for one in record.gres_detail],
        # Which signal ends a job that is cancelled is its own matter.
        "record exit": ()
        if "CANCELLED" in states
        else (record.exit_code.return_code.number, record.exit_code.signal.id.number),
    }


def _last_task(job: View) -> View:
    """Slurm gives the last task of an array a record of its own when it has tried to start it, or later."""
    if job["tasks"].isdecimal():
        task = int(job["tasks"])
        job |= {"state": "PENDING", "task": task, "tasks": "", "record array_task_string": ""}
        job["record name"] = f"{job['array']}_{task}"
    if not job["tasks"]:
        job["at_once"] = None
    return job


def differences(model: View, real: View) -> list[str]:
    """A line for each value on which they disagree."""
    lines = []
    for key in sorted(model.keys() | real.keys()):
        one, other = model.get(key), real.get(key)
        if one is None or other is None:
            lines.append(f"{key}: in {'Slurm' if one is None else 'the model'} alone: {one or other}")
            continue
        lines += [
            f"{key} {name}: {one.get(name)!r} in the model, {other.get(name)!r} in Slurm"
            for name in sorted(one.keys() | other.keys())
            if one.get(name) != other.get(name)
        ]
    return lines
