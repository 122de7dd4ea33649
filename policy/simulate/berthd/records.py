# SPDX-License-Identifier: Apache-2.0
"""Slurm's records of simulated jobs and nodes, as a gateway reads them."""

from math import ceil, floor

from policy.formats.job_plan import NOTHING, JobPlan
from policy.formats.plan_fields import RELEASED, STATE
from policy.formats.slurm_facts import JobFacts, Memory, NodeFacts, PartitionFacts, Reading
from policy.request.demand import A_YEAR
from policy.simulate.result import EPOCH
from policy.simulate.slurm.nodes.ledger import Ledger
from policy.simulate.slurm.queue.jobs import Task
from policy.simulate.slurm.world import SlurmWorld


class NodeRecords:
    """The records of all nodes; those of unchanged nodes are the same objects as before."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        members = ledger.fleet.members.items()
        self._partitions = [
            frozenset(name for name, nodes in members if nodes[node]) for node in range(len(ledger.fleet.names))
        ]
        self._records = [self._read(node) for node in range(len(ledger.fleet.names))]
        ledger.changed.clear()

    def read(self) -> tuple[NodeFacts, ...]:
        """Returns what a gateway reads."""
        for node in self._ledger.changed:
            self._records[node] = self._read(node)
        self._ledger.changed.clear()
        return tuple(self._records)

    def _read(self, node: int) -> NodeFacts:
        ledger, fleet = self._ledger, self._ledger.fleet
        size, used = int(fleet.size[node]), int(fleet.full[node] & ~ledger.free[node])
        return NodeFacts(
            name=fleet.names[node],
            cpus=int(fleet.cpus[node]),
            cpus_used=int(fleet.cpus[node] - ledger.cpus[node]),
            mem=int(fleet.mem[node]),
            mem_used=0,
            threads=1,
            up=bool(ledger.up[node]),
            completing=bool(ledger.epilogs[node]),
            gpus=size,
            loose=0,
            seats=size,
            gpus_used=used,
            seats_used=used,
            partitions=self._partitions[node],
        )


class SlurmRecords:
    """The records that berthd reads and writes in the simulated Slurm; each write is one update."""

    def __init__(self, world: SlurmWorld) -> None:
        self._world = world
        self._nodes = NodeRecords(world.ledger)
        members = world.fleet.members
        self.partition = world.fleet.default_partition or next(iter(members))
        """The partition of all jobs."""
        self._partitions = tuple(PartitionFacts(name, default=name == self.partition) for name in members)
        self._by_nonce = {task.nonce: task for task in world.tasks}
        self._by_id = {task.id: task for task in world.tasks}
        self.updates = self.denied = 0

    def look(self) -> Reading:
        """Returns all that Slurm would report now."""
        world = self._world
        tasks = (*world.running.tasks.values(), *world.held.values(), *world.queue)
        return Reading(
            at=EPOCH + self._world.clock.now,
            nodes=self._nodes.read(),
            jobs=tuple([self._record(task) for task in tasks]),
            partitions=self._partitions,
            memory=Memory(),
            memory_counts=False,
        )

    def entered(self, nonce: str) -> float | None:
        """Returns the time at which a job entered the queue."""
        return self._by_nonce[nonce].entered

    def pin(self, job_id: int, nodes: tuple[int, ...], mask: int, plan: JobPlan) -> None:
        """Pins a job; a job that has started meanwhile stays where it is."""
        task = self._by_id[job_id]
        if task.state != "PENDING":
            self.denied += 1
            return
        task.pin_to(nodes, mask)
        if task.waiting:
            self._world.queue.reshape(task)
        task.plan = plan
        self._updated(task)
        self._world.release(task)

    def unpin(self, job_id: int) -> None:
        """Removes a job's pin."""
        task = self._by_id[job_id]
        if task.state == "PENDING" and task.pin:
            task.pin, task.pin_mask, task.plan = (), 0, (task.plan or NOTHING).having(STATE(RELEASED))
            self._updated(task)

    def _record(self, task: Task) -> JobFacts:
        return record_of(task, self._world.fleet.names, self.partition)

    def _updated(self, task: Task) -> None:
        self.updates += 1
        self.note(task)
        task.facts = None
        self._world.changed(asks_for_pass=True)

    def note(self, task: Task) -> None:
        """Keeps a plan as it was written, if the outcome has to contain all plans."""
        if self._world.settings.history and task.plan is not None:
            self._world.written.append((self._world.clock.now, task.job.id, task.plan.texts))


def record_of(task: Task, names: tuple[str, ...], partition: str) -> JobFacts:
    """Returns what a gateway reads of a job, the same object until it changes; a known end becomes its time limit."""
    if task.facts is None:
        runs, demand, berth = task.state == "RUNNING", task.demand, task.berth
        start = EPOCH + int(task.started) if runs else None
        task.facts = JobFacts(
            id=task.id,
            state=task.state,
            partition=partition,
            priority=floor(-task.key[0]),
            submitted=EPOCH + int(task.entered or 0),
            start=start,
            end=None if start is None else EPOCH + ceil(task.ended) if task.known else start + demand.limit,
            limit=demand.limit,
            cpus=task.cpus * demand.n,
            nodes=tuple(names[node] for node in berth.nodes) if berth else (),
            required=tuple(names[node] for node in task.pin),
            reason=task.reason if task.begin is None else "BeginTime",
            gpus=task.pin_mask if task.pin else None,
            plan=task.plan,
            count=demand.n,
            mem=0,
            holds=berth.masks if runs and berth else (),
            wants_gpus=demand.k > 0,
            begin=None if task.begin is None else EPOCH + ceil(task.begin),
        )
    return task.facts


def request_of(task: Task, partition: str) -> dict[str, str]:
    """Returns the request that the job_submit plugin would send for this job."""
    job, demand, rule = task.job, task.demand, task.locality
    fields = {
        "nonce": task.nonce,
        "uid": "1000",
        "client": "batch",
        "partition": partition,
        "cpus_per_task": str(task.cpus),
        "gpus": str(demand.k * demand.n),
    }
    if task.free:
        fields |= {"min_cpus": str(task.cpus), "tres_per_job": f"gres/gpu:{job.gpus}"}
    else:
        fields |= {
            "min_nodes": str(demand.n),
            "max_nodes": str(demand.n),
            "num_tasks": str(demand.n),
            "ntasks_per_node": "1",
            "min_cpus": str(task.cpus * demand.n),
            "tres_per_node": f"gres/gpu:{demand.k}",
        }
    if demand.limit < A_YEAR:
        fields["time_limit"] = str(ceil(demand.limit / 60))
    if job.app_class in ("compute", "mixed", "memory"):
        fields["flag.app_class"] = job.app_class
    if rule.level != "any" and job.gpus > 1:
        fields["flag.locality"] = f"{rule.level}@{rule.wait_s // 60:.0f}:{rule.wait_s % 60:02.0f}"
    return fields
