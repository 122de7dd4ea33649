# SPDX-License-Identifier: Apache-2.0
"""Plays slurmctld for berthd: records of nodes and jobs on paper, and the answers of the program berth-slurm.

A job starts on the nodes and GPUs of its pin as soon as all of them are free, the one of the highest priority first.
A job without a pin waits for one. Nothing else of Slurm's scheduling is played.
"""

from __future__ import annotations

import heapq
import json
import random
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from policy.formats import hostlist, segment
from policy.formats.slurm_syntax import pin_text
from policy.formats.wire import escape, unescape
from policy.slurm import fields
from tests.bench.load.locks import SlurmLook, leave_alone_s
from tests.bench.load.workload import Workload

CPUS, MEM_MB, MEM_EACH_MB = 128, 1_000_000, 30_000
_CONFIG = {
    "SLURM_VERSION": "26.05.0",
    "ClusterName": "paper",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "DefMemPerCPU": "100",
    "KillWait": "30 sec",
    "AccountingStorageType": "(null)",
    "Licenses": "(null)",
}
_PARTITION = (
    "PartitionName=gpu AllowGroups=ALL Default=YES DefaultTime=NONE MaxTime=UNLIMITED MinNodes=0 MaxNodes=UNLIMITED"
    " PriorityTier=1 OverSubscribe=NO State=UP"
)
_WRITTEN = {
    "req_nodes": "required",
    "exc_nodes": "excluded",
    "tres_per_node": "tres_per_node",
    "tres_per_job": "tres_per_job",
    "admin_comment": "admin_comment",
    "extra": "extra",
}


@dataclass(slots=True)
class PaperNode:
    """A node; what it holds is told by masks of GPUs."""

    number: int
    name: str
    features: str
    used: int = 0
    ending: int = 0

    def line(self) -> str:
        """Its record, as berth-slurm prints it."""
        places = range(8)
        kinds = (("gpu", 1), ("shard", 100), ("seat", 1))
        gres = ",".join(f"{kind}:g{place}:{count}" for kind, count in kinds for place in places)
        taken = [f"gpu:g{place}:1(IDX:{place})" for place in places if self.used >> place & 1]
        taken += [f"seat:g{place}:1(IDX:{place})" for place in places if self.used >> place & 1]
        held = self.used.bit_count()
        state = ("IDLE" if not held else "MIXED") + ("+COMPLETING" if self.ending else "")
        record = [self.number, self.name, CPUS, held, MEM_MB, MEM_EACH_MB * held, 1, state, gres, ",".join(taken)]
        return json.dumps(["node", *record, self.features, "gpu", 1, 0])


@dataclass(slots=True)
class PaperJob:
    """A job; the texts are as in Slurm's record."""

    id: int
    user: int
    nodes_asked: int
    gpus_each: int
    submitted: int
    limit_minutes: int = 60
    priority: int = 0
    state: str = "PENDING"
    required: str = ""
    excluded: str = ""
    tres_per_node: str = ""
    tres_per_job: str = ""
    admin_comment: str = ""
    extra: str = ""
    array: int = 0
    task: int | None = None
    tasks: list[int] = field(default_factory=list)
    """Those that have not split off, in reverse order."""
    size: int = 0
    """Tasks of the array when it came."""
    on: tuple[str, ...] = ()
    mask: int = 0
    start: int = 0
    end: int = 0
    ends_on: set[str] = field(default_factory=set)
    at: tuple[str, ...] = ()
    """The nodes of its pin, while it waits."""

    @property
    def over(self) -> bool:
        return self.state == "COMPLETED"

    def line(self) -> str:
        """Its record, as berth-slurm prints it."""
        k, n = self.gpus_each, self.nodes_asked
        places = [place for place in range(8) if self.mask >> place & 1]
        gres = ",".join(f"{kind}:g{place}:1(IDX:{place})" for kind in ("gpu", "seat") for place in places)
        tres = f"cpu={n * k},mem={n * k * MEM_EACH_MB}M,node={n},billing={n * k}"
        tasks = hostlist.fold_numbers(tuple(reversed(self.tasks))) if self.tasks else ""
        base = "COMPLETED" if self.state == "COMPLETING" else self.state
        end = self.end or (self.start + 60 * self.limit_minutes if self.start else 0)
        record = [
            *(self.id, self.state, int(self.over), self.user, "gpu", self.priority, self.submitted, self.start, end),
            *(self.submitted, self.limit_minutes, n * k, n, ",".join(self.on), self.required, self.excluded, ""),
            *("None" if self.on else "Resources", escape(self.tres_per_job), escape(self.tres_per_node), "", ""),
            *(tres, [gres] * len(self.on), self.array, self.task, tasks, 0, 0, "", ""),
            *(escape(self.admin_comment), escape(self.extra), "lab", "job", base),
        ]
        return json.dumps(["job", *record])


class PaperSlurm:
    """All records, what changed since the last look, and who may start."""

    def __init__(self, workload: Workload) -> None:
        self.random = random.Random(workload.seed)
        self.workload = workload
        self.nodes: dict[str, PaperNode] = {}
        for group in workload.cluster:
            for _ in range(group.nodes):
                number = len(self.nodes)
                self.nodes[f"n{number}"] = PaperNode(number, f"n{number}", group.machine.replace("-", "_"))
        self.names = list(self.nodes)
        self.jobs: dict[int, PaperJob] = {}
        self.running: list[int] = []
        self.pinned_to: dict[str, set[int]] = {name: set() for name in self.names}
        self.new_jobs: set[int] = set()
        self.new_nodes: set[str] = set()
        self.gone: list[int] = []
        self.touched: set[str] = set()
        self.forget_at: list[tuple[float, int]] = []
        self.next_id = 1
        self.started: list[tuple[int, int, int]] = []
        """Nodes and GPUs on each of the jobs that have begun, and 0; of an array with no tasks left how many it had."""
        self.updates = self.refused = self.asked = 0
        self.looks: list[SlurmLook] = []
        self.nodes_due, self.behind = 0.0, False
        """When each look came, the records there were, and how many of them had changed."""
        self._fill()

    # The beginning

    def draw(self) -> tuple[int, int]:
        """Nodes and GPUs on each of a job of these sizes."""
        sizes = self.workload.sizes
        size = self.random.choices(sizes, [one.weight for one in sizes])[0]
        return min(size.nodes, len(self.names)), size.gpus

    def _fill(self) -> None:
        """Jobs on nearly all GPUs, and those that wait, each with some pin, as a berthd before might have left them."""
        now = int(time.time())
        for name in self.names:
            left = list(range(8))
            self.random.shuffle(left)
            while left and self.random.random() < 0.97:
                k = min(len(left), self.random.choice([1, 1, 2, 4, 8]))
                gpus, left = sorted(left[:k]), left[k:]
                job = self._add(1, k, now - 60)
                self._pin(job, (name,), gpus, "placed")
                self._run(job, now - 60)
        waiting = self.workload.waiting
        for number in range(waiting.jobs + waiting.arrays):
            n, k = self.draw() if number < waiting.jobs else (1, 1)
            job = self._add(n, k, now - 30)
            first = self.random.randrange(len(self.names) - n + 1)
            self._pin(job, tuple(self.names[first : first + n]), range(k), "waiting")
            if number >= waiting.jobs:
                job.array, job.size = job.id, waiting.tasks_each
                job.tasks = list(range(job.size))[::-1]
            self._wait(job)

    def _add(self, n: int, k: int, submitted: int) -> PaperJob:
        job = PaperJob(self.next_id, 1_000 + self.next_id % 50, n, k, submitted, priority=4_000_000 - self.next_id)
        self.next_id += 1
        self.jobs[job.id] = job
        self.new_jobs.add(job.id)
        return job

    def _pin(self, job: PaperJob, names: tuple[str, ...], gpus: Iterable[int], state: str) -> None:
        places = list(gpus)
        job.required = ",".join(names)
        job.tres_per_node = pin_text.tres_text(("gpu", "seat"), places, 1)
        values = {
            "state": state, "id": f"{job.id:016x}", "asked": f"tres_per_node:gres/gpu:{job.gpus_each}",
            "n": str(job.nodes_asked), "k": str(job.gpus_each), "cpus": str(job.gpus_each),
            "mem": str(MEM_EACH_MB * job.gpus_each), "nodes": job.required, "gpus": ",".join(map(str, places)),
            "seats": "1", "level": "node", "at": str(job.submitted),
        }  # fmt: skip
        job.admin_comment = segment.put("", values)
        job.extra = pin_text.extra_text("", names, values["gpus"], {})

    # Starts and ends

    def submitted(self, user: int, n: int, k: int, texts: dict[str, str], tasks: int = 0) -> PaperJob:
        """A job comes, or an array of so many tasks, as the plugin has written it."""
        job = self._add(n, k, int(time.time()))
        job.user = user
        if tasks:
            job.array, job.tasks, job.size = job.id, list(range(tasks))[::-1], tasks
        for key, value in texts.items():
            setattr(job, key, value)
        self._wait(job)
        return job

    def _wait(self, job: PaperJob) -> None:
        for name in job.at:
            self.pinned_to[name].discard(job.id)
        job.mask = fields.pinned(job.tres_per_node) or fields.pinned(job.tres_per_job) or 0
        job.at = hostlist.expand(job.required) if job.mask else ()
        for name in job.at:
            self.pinned_to[name].add(job.id)
        self.touched.update(job.at)
        self.new_jobs.add(job.id)
        job.mask = 0

    def _run(self, job: PaperJob, now: int) -> None:
        job.mask = fields.pinned(job.tres_per_node) or fields.pinned(job.tres_per_job) or 0
        job.state, job.start, job.on = "RUNNING", now, hostlist.expand(job.required)
        for name in job.on:
            self.nodes[name].used |= job.mask
        self.new_nodes.update(job.on)
        self.new_jobs.add(job.id)
        self.running.append(job.id)
        for name in job.at:
            self.pinned_to[name].discard(job.id)
        job.at = ()

    def schedule(self) -> int:
        """Start who is pinned to nodes that came free; how many."""
        touched, self.touched = self.touched, set()
        waiting = {number for name in touched for number in self.pinned_to[name]}
        begun, now = 0, int(time.time())
        for number in sorted(waiting, key=lambda one: -self.jobs[one].priority):
            job = self.jobs[number]
            while job.state == "PENDING" and job.at and self._free(job):
                begun += 1
                if not job.array:
                    self.started.append((job.nodes_asked, job.gpus_each, 0))
                self._run(self.split(job, job.tasks[-1]) if job.tasks else job, now)
        return begun

    def _free(self, job: PaperJob) -> bool:
        mask = fields.pinned(job.tres_per_node) or fields.pinned(job.tres_per_job) or 0
        return all(not self.nodes[name].used & mask and not self.nodes[name].ending for name in job.at)

    def split(self, job: PaperJob, task: int) -> PaperJob:
        """Give a task of an array a record of its own; the last one keeps the array's."""
        job.tasks.remove(task)
        self.new_jobs.add(job.id)
        if not job.tasks:
            job.task = task
            self.started.append((job.nodes_asked, job.gpus_each, job.size))
            return job
        one = self._add(job.nodes_asked, job.gpus_each, job.submitted)
        one.user, one.priority, one.array, one.task = job.user, job.priority, job.array, task
        for key in _WRITTEN.values():
            setattr(one, key, getattr(job, key))
        self._wait(one)
        return one

    def end_one(self) -> PaperJob | None:
        """A job comes to its end, and its Epilogs begin; None where none runs."""
        if not self.running:
            return None
        at = self.random.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        job = self.jobs[self.running.pop()]
        job.state, job.end, job.ends_on = "COMPLETING", int(time.time()), set(job.on)
        for name in job.on:
            self.nodes[name].ending += 1
        self.new_nodes.update(job.on)
        self.new_jobs.add(job.id)
        return job

    def epilog_ended(self, number: int, name: str) -> None:
        """A node is through with a job."""
        job, node = self.jobs[number], self.nodes[name]
        node.used &= ~job.mask
        node.ending -= 1
        self.new_nodes.add(name)
        self.touched.add(name)
        job.ends_on.discard(name)
        if not job.ends_on:
            job.state = "COMPLETED"
            self.new_jobs.add(number)
            heapq.heappush(self.forget_at, (time.monotonic() + self.workload.keep_ended_s, number))

    def forget(self) -> None:
        """Drop records as Slurm does some time after a job's end."""
        while self.forget_at and self.forget_at[0][0] < time.monotonic():
            number = heapq.heappop(self.forget_at)[1]
            del self.jobs[number]
            self.new_jobs.discard(number)
            self.gone.append(number)

    # The answers of berth-slurm

    def answer(self, command: str) -> Iterator[str]:
        """The lines that answer a command."""
        verb, _, rest = command.partition(" ")
        match verb:
            case "read":
                yield from self._read(everything=rest == "all")
            case "config":
                yield json.dumps(["config", escape("".join(f"{key} = {value}\n" for key, value in _CONFIG.items()))])
            case "ping":
                yield json.dumps(["ping", socket.gethostname(), ""])
            case "job":
                self.asked += 1
                job = self.jobs.get(int(rest))
                if job is None:
                    yield '["error","Invalid job id specified"]'
                    return
                yield job.line()
            case "update":
                name, _, changes = rest.partition(" ")
                self.updates += 1
                if problem := self._update(name, dict(word.split("=", 1) for word in changes.split(" "))):
                    self.refused += 1
                    yield json.dumps(["error", problem])
                    return
            case _:
                yield json.dumps(["error", f"not played: {verb}"])
                return
        yield '["ok"]'

    def _read(self, *, everything: bool) -> Iterator[str]:
        if everything:
            self.new_jobs, self.new_nodes, self.gone = set(self.jobs), set(self.nodes), []
            yield json.dumps(["partition", 0, escape(_PARTITION)])
        at = time.monotonic()
        at_nodes = everything or at >= self.nodes_due
        self.looks.append(SlurmLook(at, len(self.jobs), len(self.new_jobs), len(self.nodes) if at_nodes else 0))
        yield from (self.jobs[number].line() for number in sorted(self.new_jobs))
        yield from (json.dumps(["gone", "job", number]) for number in self.gone)
        self.new_jobs, self.gone = set(), []
        behind = bool(self.new_nodes) and not at_nodes
        if behind or (at_nodes and self.behind):
            self.behind = behind
            yield json.dumps(["nodes", int(behind)])
        if at_nodes:
            self.nodes_due = at + leave_alone_s(len(self.nodes))
            yield from (self.nodes[name].line() for name in self.new_nodes)
            self.new_nodes = set()

    def _update(self, name: str, changes: dict[str, str]) -> str:
        number, _, task = name.partition("_")
        job = self.jobs.get(int(number))
        if job is None:
            return "Invalid job id specified"
        if task.isdigit():
            if int(task) not in job.tasks:
                return "Invalid job id specified"
            job = self.split(job, int(task))
        if job.state != "PENDING":
            return "Job is no longer pending execution"
        for key, value in changes.items():
            if key in _WRITTEN:
                setattr(job, _WRITTEN[key], unescape(value))
        self._wait(job)
        return ""
