# SPDX-License-Identifier: Apache-2.0
"""Runs where Slurm is, as SlurmUser, with Berth's Python: what each gateway says and does, as JSON.

gateway_script.py fits                 the gateways that can be used here
gateway_script.py read                 two readings of each, and what changed between them
gateway_script.py act '{"NAME": {..}}' one change of each kind by each gateway, to jobs of its own
gateway_script.py rest '{"NAME": {..}}' a place for what is left of arrays, by each gateway
gateway_script.py behind '{"NAME": {..}}' a place for what was left of an array before one of its tasks started
gateway_script.py guests '{"NAME": ..}' what is done to guests by each gateway, to jobs of its own
"""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from policy.formats.errors import BerthError, ConfigError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import Reading
from policy.slurm.changes import target
from policy.slurm.gateways import open_gateway
from policy.slurm.interface import Gateway, Pin

NAMES = ("pyslurm", "libslurm", "command")


def available() -> dict[str, Gateway]:
    """The gateways that fit here, by name."""
    found: dict[str, Gateway] = {}
    for name in NAMES:
        try:
            found[name] = open_gateway(name)
        except ConfigError as problem:
            print(problem, file=sys.stderr)
    return found


def refused(call: Callable[[], object]) -> str:
    """The sentence with which a gateway refuses; empty where it does not."""
    try:
        call()
    except BerthError as problem:
        return str(problem)
    return ""


def facts(reading: Reading) -> dict[str, Any]:
    """A reading without its moment."""
    return {**dataclasses.asdict(reading), "at": 0.0}


def read(gateway: Gateway) -> dict[str, Any]:
    """All that a gateway reads, and whether what did not change is the same object."""
    first, second = gateway.read(ended=True), gateway.read(ended=True)
    known = {id(one) for kind in (first.jobs, first.nodes) for one in kind}
    return {
        "all": facts(second),
        "live": sorted(job.id for job in gateway.read(ended=False).jobs),
        # Only the expected times of waiting jobs may have moved in between.
        "others": [job.id for job in second.jobs if id(job) not in known and job.start == job.end is None]
        + [node.name for node in second.nodes if id(node) not in known],
        "gone": refused(lambda: gateway.job(4_000_000)),
        "version": gateway.version(),
        "in_control": gateway.in_control(),
        "config": gateway.config().get("ClusterName"),
        "pinned": sorted(gateway.pinned_jobs()),
    }


def node_of(gateway: Gateway, job_id: int) -> tuple[int, str]:
    """The CPUs in use on n2, where the job to be requeued runs, and the job's state, in one reading."""
    reading = gateway.read(ended=False)
    used = next(node.cpus_used for node in reading.nodes if node.name == "n2")
    return used, next((job.state for job in reading.jobs if job.id == job_id), "")


def another_writes(job_id: int, text: str) -> None:
    """Changes a job as a site's own program does, while Berth looks elsewhere."""
    subprocess.run(["scontrol", "update", f"JobId={job_id}", f"AdminComment={text}"], check=True)


def act(gateway: Gateway, jobs: dict[str, int]) -> dict[str, Any]:
    """One change of each kind; the values are what the test expects to find in Slurm."""
    gateway.read(ended=False)
    values = {"state": "placed", "id": "00", "n": "1", "k": "2", "asked": "req_nodes:n[3-4]", "why": "50 % [x]"}
    place = Pin(("n4",), (0, 5), seats=True, plan=JobPlan(values))
    gateway.pin(jobs["pin"], place)
    gateway.pin(f"{jobs['array']}_3", place)
    gateway.pin(jobs["release"], place)
    gateway.pin(jobs["by_job"], place)
    another_writes(jobs["late"], "billed to 7% [berth/1 state=waiting] by night")
    gateway.pin(jobs["late"], place)
    # Without a look in between the texts of the last one still are the base.
    reading = gateway.read(ended=False)
    waits = next(job for job in reading.jobs if job.id == jobs["pin"])
    task = next(job for job in reading.jobs if (job.array, job.task) == (jobs["array"], 3))
    again = [gateway.release(jobs["release"], "because") for _ in range(2) if gateway.read(ended=False)]
    another_writes(jobs["running"], "billed to 8%")
    gateway.annotate(jobs["running"], JobPlan({"state": "noted"}))
    before, _ = node_of(gateway, jobs["requeue"])
    gateway.requeue(jobs["requeue"])
    after, state = node_of(gateway, jobs["requeue"])
    return {
        "freed": before - after,
        "requeued": state in {"PENDING", "COMPLETING", "REQUEUED"},
        "seen": [[job.gpus, job.required, dict(job.known.texts), job.state] for job in (waits, task)],
        "task": task.id,
        "released": again,
        "text": dataclasses.asdict(gateway.job(jobs["pin"])) | {"id": 0},
        "late": refused(lambda: gateway.pin(jobs["running"], place)),
        "gone": refused(lambda: gateway.pin(4_000_000, place)),
        "no task": refused(lambda: gateway.pin("4000000_1", place)),
    }


def rest(gateway: Gateway, jobs: dict[str, int]) -> dict[str, Any]:
    """The tasks that have not split off of an array that waits, and of one of which a task runs."""
    values = {"state": "placed", "id": "00", "n": "1", "k": "2", "asked": "", "why": "moved"}
    said = {}
    for name in ("waits", "runs"):
        reading = gateway.read(ended=False)
        job = next(job for job in reading.jobs if job.array == jobs[name] and job.tasks)
        gateway.pin(target(job), Pin(("n4",), (0, 5), seats=True, plan=JobPlan(values)))
        said[name] = target(job)
    return said


def behind(gateway: Gateway, jobs: dict[str, int]) -> dict[str, Any]:
    """A task starts after the last reading, on the node of the place that is then written."""
    reading = gateway.read(ended=False)
    job = next(job for job in reading.jobs if job.array == jobs["array"] and job.tasks)
    subprocess.run(["scontrol", "release", f"{jobs['array']}_1"], check=True)
    for _ in range(600):
        asked = ["squeue", "-h", "-o", "%T", "-j", f"{jobs['array']}_1"]
        if "RUNNING" in subprocess.run(asked, capture_output=True, text=True, check=True).stdout:
            break
        time.sleep(0.1)
    else:
        raise SystemExit(f"task {jobs['array']}_1 did not start")
    values = {"state": "placed", "id": "00", "n": "1", "k": "2", "asked": "", "why": "late"}
    place = Pin(("n3",), (0, 5), seats=True, plan=JobPlan(values))
    return {"target": target(job), "refused": refused(lambda: gateway.pin(target(job), place, hurry=True))}


def guests(gateway: Gateway, jobs: dict[str, int]) -> dict[str, Any]:
    """Warns, requeues and parks guests; the test reads what Slurm and the jobs say of it."""
    gateway.read(ended=False)
    values = {"state": "later", "id": "00", "n": "1", "k": "2", "asked": "req_nodes:n[3-4]", "parked": "0"}
    gateway.warn(jobs["warned"], "USR1")
    gateway.park(jobs["parked"], JobPlan({**values, "nodes": "n4", "gpus": "0,5"}), 3_600)
    gateway.park(f"{jobs['array']}_3", JobPlan({**values, "nodes": "n4", "gpus": "0,5"}), 3_600)
    gateway.annotate(jobs["kept"], JobPlan({"state": "noted"}), requeue=True)
    gateway.cancel(jobs["cancelled"])
    return {
        "kept": gateway.evict(jobs["kept"]),
        "running": gateway.evict(jobs["running"]),
        "ended": gateway.evict(jobs["ended"]),
        "not parked": refused(lambda: gateway.park(jobs["warned"], JobPlan(values), 60)),
        "no guest": refused(lambda: gateway.park(4_000_000, JobPlan(values), 60)),
        "nobody": refused(lambda: gateway.warn(4_000_000, "USR1")),
    }


DOES: dict[str, Callable[[Gateway, dict[str, int]], dict[str, Any]]] = {
    "act": act,
    "rest": rest,
    "behind": behind,
    "guests": guests,
}


def main() -> None:
    """Does what is asked for and print it."""
    gateways = available()
    if sys.argv[1] == "fits":
        answer: dict[str, Any] = dict.fromkeys(gateways)
    elif sys.argv[1] == "read":
        answer = {name: read(gateway) for name, gateway in gateways.items()}
    else:
        jobs = json.loads(sys.argv[2])
        answer = {name: DOES[sys.argv[1]](gateway, jobs[name]) for name, gateway in gateways.items()}
    for gateway in gateways.values():
        gateway.close()
    json.dump(answer, sys.stdout, default=sorted)


if __name__ == "__main__":
    main()
