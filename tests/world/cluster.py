# SPDX-License-Identifier: Apache-2.0
"""A small model of slurmctld and its nodes: records of jobs, starts, ends, and what a change is allowed to do.

It keeps to what Slurm 24.11 to 26.05 do where Berth can tell; whom it starts first is left to the script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from policy.formats import hostlist
from tests.world import reservations

EPOCH = 1_700_000_000.0
REQUEUE_DELAY = 121
"""Seconds for which Slurm holds a job that was put back into the queue."""

MIN_JOB_AGE = 300
"""Seconds for which the record of a job that is over is kept."""

BLOCKING = frozenset({"DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "REBOOT_ISSUED", "POWERING_DOWN",
                      "INVALID_REG"})  # fmt: skip
"""Marks of nodes that take no job."""

HELD = frozenset(
    {"job requeued in held state", "JobHeldUser", "JobHeldAdmin", "ReservationDeleted", "JobHoldMaxRequeue"}
)
TAKEN = "ReqNodeNotAvail, May be reserved for other job"
"""Slurm's reason where a job before takes a required node; it stays until the job is written again."""

RUNNING_FLAGS = frozenset({"CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE"})

_TYPED = re.compile(r"gres/(gpu|shard|seat):g(\d+):(\d+)")
_COUNT = re.compile(r"gres/gpu(?:[:=](\d+))?")


class Refusal(Exception):
    """slurmctld refuses a call, in its own words."""


@dataclass(frozen=True)
class Portion:
    """Holds the GPUs, parts and seats of a job on one node, held or asked for."""

    gpus: int = 0
    seats: int = 0
    shards: tuple[tuple[int, int], ...] = ()
    cpus: int = 1
    mem: int = 100


@dataclass
class ModelNode:
    """A node: its size, its marks, and what jobs hold of it."""

    name: str
    gpus: int = 4
    cpus: int = 32
    mem: int = 64_000
    partitions: str = "gpu"
    features: str = "h100"
    flags: set[str] = field(default_factory=set)
    boot: int = int(EPOCH) - 9_000
    held: dict[int, Portion] = field(default_factory=dict)
    epilogs: set[int] = field(default_factory=set)

    @property
    def open(self) -> bool:
        return not self.flags & BLOCKING and not self.epilogs

    @property
    def state(self) -> str:
        """As scontrol writes it."""
        base = "DOWN" if "DOWN" in self.flags else "IDLE" if not self.held else "MIXED"
        rest = sorted(self.flags - {"DOWN", "NOT_RESPONDING"}) + (["COMPLETING"] if self.epilogs else [])
        return "+".join([base, *rest]) + ("*" if "NOT_RESPONDING" in self.flags else "")

    def used(self) -> tuple[int, int, dict[int, int]]:
        """Masks of whole GPUs and seats that are held, and percent of each shared GPU."""
        gpus = seats = 0
        shards: dict[int, int] = {}
        for one in self.held.values():
            gpus |= one.gpus
            seats |= one.seats
            for gpu, percent in one.shards:
                shards[gpu] = shards.get(gpu, 0) + percent
        return gpus, seats, shards

    def fits(self, wants: Portion) -> bool:
        """Tells whether it has room for this now."""
        gpus, seats, shards = self.used()
        full = (1 << self.gpus) - 1
        shared = sum(1 << gpu for gpu in shards)
        if (wants.gpus | wants.seats) & ~full or wants.gpus & (gpus | shared) or wants.seats & seats:
            return False
        for gpu, percent in wants.shards:
            if gpu >= self.gpus or gpus >> gpu & 1 or shards.get(gpu, 0) + percent > 100:
                return False
        cpus = sum(one.cpus for one in self.held.values())
        mem = sum(one.mem for one in self.held.values())
        return cpus + wants.cpus <= self.cpus and mem + wants.mem <= self.mem


@dataclass
class ModelJob:
    """A record of slurmctld; the texts are as they would be there."""

    id: int
    user: int
    name: str
    n: int
    """Nodes that its user asked for."""
    k: int
    """GPUs on each node, or 0."""
    kind: str
    """The kind of its request: whole, range, share, host, guest or cpu."""
    work: int
    """Seconds that it runs."""
    fate: str
    """State in which it then ends."""
    gpus: int = 0
    """GPUs that its user asked for in all: without a number of nodes Berth may lay them on several."""
    limit: int = 60
    share: int = 0
    gpu_mem: int = 0
    """MiB of each GPU that a share asks for; 0: no word of it."""
    array: int = 0
    task: int | None = None
    tasks: list[int] = field(default_factory=list)
    at_once: int = 0
    partition: str = "gpu"
    priority: int = 1_000
    submitted: int = 0
    begin: int = 0
    user_begin: int = 0
    put_off_at: float = -1.0
    cpus: int = 1
    req_nodes: str = ""
    user_nodes: str = ""
    exc_nodes: str = ""
    user_excluded: str = ""
    list_changed: bool = False
    """A person changed its excluded nodes, and berthd has not read that yet."""
    tres_per_node: str = ""
    tres_per_job: str = ""
    licenses: str = ""
    admin_comment: str = ""
    extra: str = ""
    comment: str = ""
    features: str = ""
    requeue: bool = True
    never_requeued: bool = False
    """Slurm refuses its requeue whatever its record says."""
    refusals: int = 0
    """The requeues that Slurm refused."""
    expedites: bool = False
    """A run that fails brings it back at once (`--requeue=expedite`), if its node was at fault."""
    epilog_failed: bool = False
    state: str = "PENDING"
    flag: str = ""
    """The mark that Slurm writes in place of the state."""
    reason: str = "None"
    nodes: tuple[str, ...] = ()
    start: int = 0
    end: int = 0
    restarts: int = 0
    ends_on: set[str] = field(default_factory=set)
    after: str = ""
    """The state after its Epilogs; PENDING with a state of its own where RequeueExit brings it back only then."""
    comes_expedited: bool = False
    comes_held: bool = False
    """It comes back on hold (RequeueExitHold)."""
    over_at: float = 0.0
    touched: bool = False
    """A person changed its request, so that no pin of Berth's need fit."""
    gpus_touched: bool = False
    """Nothing but its GPUs: what else is in it is its user's, or Berth's."""
    user_hold: bool = False
    was_suspended: bool = False
    """Slurm takes the priority of a job that is suspended; put back into the queue, it is held."""
    degraded: bool = False
    """A node could not set up its share, and says so; then it fails, as a rule."""
    fails: bool = True
    completed: bool = False
    """It ran to its own end, and was not run again by a person."""
    warned: bool = False
    has_script: bool = True
    exit: tuple[int, int] = (0, 0)
    """Its exit status, and the signal that ended it."""

    @property
    def shown(self) -> str:
        return "COMPLETING" if self.ends_on else self.flag or self.state

    @property
    def shown_nodes(self) -> tuple[str, ...]:
        """Its nodes, without those on which it has ended already."""
        return tuple(name for name in self.nodes if name in self.ends_on) if self.ends_on else self.nodes

    @property
    def end_state(self) -> str:
        """The state in which its run will end."""
        return "FAILED" if self.degraded and self.fails else self.fate

    @property
    def waits(self) -> bool:
        return self.state == "PENDING" and not self.ends_on

    @property
    def holds(self) -> bool:
        return bool(self.nodes) and (self.state in {"RUNNING", "SUSPENDED"} or bool(self.ends_on))

    @property
    def over(self) -> bool:
        return self.state not in {"PENDING", "RUNNING", "SUSPENDED"} and not self.ends_on

    @property
    def held(self) -> bool:
        return self.priority == 0

    def portion(self) -> Portion | None:
        """Returns its request on each node, GPU by GPU; None where it only counts GPUs."""
        gpus = seats = 0
        shards: list[tuple[int, int]] = []
        for kind, place, count in _TYPED.findall(f"{self.tres_per_node},{self.tres_per_job}"):
            if kind == "gpu":
                gpus |= 1 << int(place)
            elif kind == "seat":
                seats |= 1 << int(place)
            else:
                shards.append((int(place), int(count)))
        if not (gpus or seats or shards) and self.counted():
            return None
        return Portion(gpus, seats, tuple(shards), -(-self.cpus // self.n), 100 * -(-self.cpus // self.n))

    def counted(self) -> int:
        """GPUs of any kind that it asks for on each node."""
        for text, each in ((self.tres_per_node, 1), (self.tres_per_job, self.n)):
            if match := _COUNT.fullmatch(text):
                return max(1, int(match[1] or 1) // each)
        return 0


class ModelCluster:
    """slurmctld's state, and nothing of Berth's."""

    def __init__(self, nodes: Iterable[ModelNode], version: str = "26.05.0") -> None:
        self.nodes = {node.name: node for node in nodes}
        self.version = version
        self.jobs: dict[int, ModelJob] = {}
        self.next_id = 1
        self.reservations: dict[str, reservations.ModelReservation] = {}
        self.reserved_before = 0
        self.partition_state = "UP"
        self.in_control = True
        self.counts_models = False
        self.licenses = ("berth_h100", "berth_l40s")
        self.now = EPOCH
        self.started: list[tuple[ModelJob, bool]] = []
        """Runs that began since a check looked at them, and whether the job had come to an end before."""
        self.seen_seconds = 0
        self.came_back: set[str] = set()
        """Nodes that came back into slurm.conf, which berthd has not read since: no list excludes them."""
        self.read_at = 0.0
        """The last reading on which a pass was based; 0 after `berth release`, which knows only what plans say."""
        self.crossed: set[int] = set()
        """Jobs whose list of excluded nodes a person changed since berthd read what the call under way is based on."""

    # What there is

    def job_of(self, name: str, *, keep_last: bool = False) -> list[ModelJob]:
        """The records that a name means: a number, `11_4`, or `11_[4-6]`.

        A task gets a record of its own by that; with `keep_last` the last one keeps the array's as it is.
        """
        number, _, task = name.partition("_")
        if not number.isdigit():
            raise Refusal("Invalid job id specified")
        if not task:
            found = [job for job in self.jobs.values() if job.array == int(number)] or (
                [self.jobs[int(number)]] if int(number) in self.jobs else []
            )
        else:
            wanted = set(_numbers(task.strip("[]")))
            found = [job for job in self.jobs.values() if job.array == int(number) and job.task in wanted]
            for job in list(self.jobs.values()):
                if job.array == int(number) and job.tasks and job.waits:
                    mine = sorted(wanted & set(job.tasks))
                    if mine and len(mine) == len(job.tasks) and "[" in task:
                        found.append(job)
                    elif keep_last and len(job.tasks) == 1:
                        found += [job] * len(mine)
                    else:
                        found += [self.split(job, one) for one in mine]
        if not found:
            raise Refusal("Invalid job id specified")
        return found

    def split(self, job: ModelJob, task: int) -> ModelJob:
        """Give a task of an array a record of its own; the last one keeps the array's."""
        job.tasks.remove(task)
        if not job.tasks:
            job.task = task
            return job
        one = replace(job, id=self.next_id, task=task, tasks=[], ends_on=set())
        self.next_id += 1
        self.jobs[one.id] = one
        if job.id in self.crossed:
            self.crossed.add(one.id)
        return one

    def add(self, job: ModelJob) -> None:
        self.jobs[job.id] = job
        self.next_id = max(self.next_id, job.id) + 1

    def order(self) -> list[ModelJob]:
        """Waiting jobs, first the one that Slurm tries first."""
        waiting = [job for job in self.jobs.values() if job.waits]
        return sorted(
            waiting,
            key=lambda job: (job.flag != EXPEDITING, -job.priority, job.submitted, job.array or job.id, job.task or 0),
        )

    # Starts and ends

    def schedule(self, *, strict: bool) -> None:
        """One pass; in a `strict` one a job that cannot start keeps those behind it from its nodes, or from all."""
        barred: set[str] = set()
        closed = False
        for job in self.order():
            if not self._may_start(job):
                continue
            if closed:
                job.reason = TAKEN if job.reason == TAKEN else "Priority"
                continue
            found = self._place(job, barred)
            if found is not None:
                self._start(job, found)
                if job.tasks:
                    job.reason = "Resources"
                continue
            required = set(hostlist.expand(job.req_nodes))
            if not strict:
                job.reason = TAKEN if job.reason == TAKEN else "Resources"
                continue
            job.reason = "Resources" if required.isdisjoint(barred) else TAKEN
            closed = not required
            barred |= required

    def _may_start(self, job: ModelJob) -> bool:
        if job.held:
            if job.reason not in HELD:
                job.reason = "JobHeldUser" if job.user_hold else "JobHeldAdmin"
            return False
        if job.begin > self.now:
            job.reason = "BeginTime"
            return False
        if self.partition_state in {"DOWN", "INACTIVE"}:
            job.reason = "PartitionDown" if self.partition_state == "DOWN" else "PartitionInactive"
            return False
        if job.at_once and job.array:
            running = sum(one.holds for one in self.jobs.values() if one.array == job.array)
            if running >= job.at_once:
                job.reason = "JobArrayTaskLimit"
                return False
        return True

    def _place(self, job: ModelJob, barred: set[str]) -> dict[str, Portion] | None:
        required = list(hostlist.expand(job.req_nodes))
        excluded = set(hostlist.expand(job.exc_nodes))
        if any(name not in self.nodes for name in required):
            return None
        names = required if len(required) >= job.n else [*required, *(n for n in self.nodes if n not in required)]
        wants, found = job.portion(), dict[str, Portion]()
        for name in names:
            node = self.nodes[name]
            if name in barred or name in excluded or not node.open or job.partition not in node.partitions.split(","):
                continue
            portion = wants if wants is not None else self._any(node, job)
            if portion and node.fits(portion) and not reservations.keep_off(self, node, job, portion):
                found[name] = portion
            if len(found) == job.n:
                break
        if len(found) < job.n or not set(required[: job.n]) <= found.keys():
            return None
        return found

    def _any(self, node: ModelNode, job: ModelJob) -> Portion | None:
        gpus, _, shards = node.used()
        free = [place for place in range(node.gpus) if not gpus >> place & 1 and place not in shards]
        count = job.counted()
        if len(free) < count:
            return None
        cpus = -(-job.cpus // job.n)
        return Portion(sum(1 << place for place in free[:count]), cpus=cpus, mem=100 * cpus)

    def _start(self, job: ModelJob, found: dict[str, Portion]) -> None:
        if job.tasks:
            job = self.split(job, job.tasks[0])
        job.state, job.reason, job.nodes = "RUNNING", "None", tuple(found)
        job.flag, job.exit = "", (0, 0)
        job.start = int(self.now)
        job.end = job.start + job.work
        for name, portion in found.items():
            self.nodes[name].held[job.id] = portion
        if any("POWERED_DOWN" in self.nodes[name].flags for name in found):
            job.flag = "POWER_UP_NODE"
            for name in found:
                self.nodes[name].flags.discard("POWERED_DOWN")
        self.started.append((job, job.completed))

    def finish(self, job: ModelJob, state: str, *, again: bool = False) -> None:
        """A run ends: what it held is free at once, its nodes take nobody before their Epilogs have ended.

        Then the job is over, or `again` in the queue.
        """
        job.after = "PENDING" if again else state
        job.state, job.flag = job.after, ""
        job.exit = (0, 0) if again else _EXITS.get(state, (0, 0))
        job.end = int(self.now)
        job.completed = not again and state in {"COMPLETED", "CANCELLED", "TIMEOUT"}
        job.restarts += again
        job.ends_on = {name for name in job.nodes if name in self.nodes}
        for name in job.ends_on:
            self.nodes[name].held.pop(job.id, None)
            self.nodes[name].epilogs.add(job.id)
        job.over_at = self.now
        if not job.ends_on:
            self._after(job)

    def epilog_done(self, job_id: int, name: str, *, failed: bool = False) -> None:
        """The Epilog of a job on a node is over; the node is free again, or drained because it `failed`."""
        job, node = self.jobs.get(job_id), self.nodes.get(name)
        if node is not None:
            node.epilogs.discard(job_id)
            node.flags |= {"DRAIN"} if failed else set()
        if job is None or name not in job.ends_on:
            return
        job.epilog_failed = job.epilog_failed or failed
        job.ends_on.discard(name)
        if not job.ends_on:
            self._after(job)

    def _after(self, job: ModelJob) -> None:
        if job.after == "PENDING":
            job.restarts += job.state != "PENDING"
            is_node_at_fault, job.epilog_failed = job.epilog_failed, False
            expedited, job.comes_expedited = job.comes_expedited or job.flag == EXPEDITING, False
            self._back(job)
            if expedited:
                job.begin = job.user_begin = 0
            if expedited and is_node_at_fault:
                job.flag, job.reason = EXPEDITING, "None"
            elif expedited:
                job.flag, job.priority, job.user_hold = "REQUEUE_HOLD", 0, True
                job.reason = "job requeued in held state"
            elif job.comes_held:
                job.priority, job.flag, job.reason, job.user_hold = 0, "SPECIAL_EXIT", "JobHeldUser", True
                job.comes_held = False
        else:
            job.over_at = self.now

    def _back(self, job: ModelJob) -> None:
        job.state, job.nodes, job.after = "PENDING", (), ""
        if not job.held:
            job.reason = "BeginTime"
        if job.begin <= self.now:
            job.begin = int(self.now) + REQUEUE_DELAY
        job.start, job.end, job.submitted = 0, 0, int(self.now)
        job.completed = job.degraded = job.warned = False

    def tick(self) -> None:
        """Ends runs and reservations, and forgets records, as time passes."""
        self.reservations = {name: one for name, one in self.reservations.items() if one.end > self.now}
        for job in list(self.jobs.values()):
            if (
                job.state == "RUNNING"
                and not job.ends_on
                and (job.flag not in RUNNING_FLAGS or job.flag == "SIGNALING")
            ):
                if job.end <= self.now:
                    self.finish(job, job.end_state)
            elif job.over and job.over_at + MIN_JOB_AGE < self.now:
                del self.jobs[job.id]

    # Changes

    def requeue(self, name: str, *, incomplete: bool, hold: bool = False) -> None:
        """scontrol requeue."""
        for job in self.job_of(name):
            if incomplete and (job.state == "PENDING" or job.over or job.ends_on):
                continue  # Slurm says nothing of that
            if job.state == "PENDING":
                raise Refusal("Job is pending execution")
            if not job.requeue or job.never_requeued:
                job.refusals += 1
                raise Refusal("Requested operation is presently disabled")
            if job.over:
                job.restarts += 1
                self._back(job)
            elif job.ends_on:
                job.after = job.state = "PENDING"
                job.restarts += 1
            else:
                self.finish(job, "PENDING", again=True)
            if hold:
                job.priority, job.reason, job.user_hold = 0, "job requeued in held state", True

    def cancel(self, job: ModelJob) -> None:
        """scancel."""
        if job.holds and not job.ends_on:
            self.finish(job, "CANCELLED")
        elif job.waits:
            job.state, job.over_at, job.completed, job.flag = "CANCELLED", self.now, True, ""
            job.start = job.end = int(self.now)
        elif job.ends_on and job.after == "PENDING":
            job.after = job.state = "CANCELLED"
            job.completed = True


EXPEDITING = "EXPEDITING"
_EXITS = {"FAILED": (1, 0), "NODE_FAIL": (0, 1), "CANCELLED": (0, 15)}


def _numbers(text: str) -> Iterable[int]:
    for part in filter(None, text.split("%", maxsplit=1)[0].split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
