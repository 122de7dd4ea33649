"""berthd beside the simulated Slurm: it reads Slurm's records, answers submissions, and pins waiting jobs."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from policy.formats.errors import UsageError
from policy.formats.slurm_facts import Memory, PartitionFacts, Reading
from policy.simulate.berthd.processes import SimulatedAnswerer, SimulatedPlanner, pinned_by
from policy.simulate.berthd.records import NodeRecords, record_of
from policy.simulate.result import EPOCH
from policy.simulate.slurm.clock import Loop

if TYPE_CHECKING:
    from policy.formats.slurm_facts import JobFacts
    from policy.placement.base import Policy
    from policy.simulate.slurm.jobs import Task
    from policy.simulate.slurm.world import SlurmWorld

QUIET_TICK = 120.0
"""Seconds between berthd's passes while nothing changes."""


class BesideSlurm:
    """berthd's two processes, and the updates that they make in Slurm."""

    def __init__(self, world: "SlurmWorld", policy: "Policy") -> None:
        self._world = world
        self._clock = world.clock
        self._nodes = NodeRecords(world.ledger)
        members = world.fleet.members
        self._default = world.fleet.default_partition or next(iter(members))
        self._partitions = tuple(PartitionFacts(name, default=name == self._default) for name in members)
        self._by_nonce = {task.nonce: task for task in world.tasks}
        self._by_id = {task.id: task for task in world.tasks}
        self._answerer = SimulatedAnswerer(policy, world.settings)
        self._planner = SimulatedPlanner(world.fleet, policy, world.settings, self._answerer, self, world.clock)
        self._tick = Loop(world.clock, world.delays.tick, self._plan)
        self._quiet_tick = Loop(world.clock, QUIET_TICK, self.changed)
        self._updates = self._denied = 0
        self.written: list[tuple[float, str, Mapping[str, str]]] = []
        """Segments in the order in which they were written, if the outcome is to have them."""

    # The interface for the simulated Slurm

    def begin(self) -> None:
        """Plans for the first time, before any job comes."""
        self._plan()

    def submitted(self, task: "Task") -> None:
        """Answers a submission."""
        decision = self._answerer.answer(task, self._partition(task), self._clock.now)
        if decision.verb == "refuse":
            raise UsageError(f"job {task.job.id}: {decision.fields['message']}")
        if decision.verb == "place":
            names, mask, segment = pinned_by(decision)
            task.pin_to(tuple(self._world.fleet.index[name] for name in names), mask)
            task.segment = segment
            self._note(task)

    def changed(self) -> None:
        """Notes that Slurm's state has changed, so that a pass is due."""
        if self._world.settings.delays is None:
            self._world.soon("plan", self._plan)
        else:
            self._tick.wake()

    def notice(self, node: int, go_on: Callable[[float], None]) -> None:
        """Takes an Epilog's notice that a job has ended on a node."""
        self._planner.notice(node, go_on, self._clock.now)

    def figures(self) -> Mapping[str, object]:
        """Returns what was written into jobs: all updates, those that came too late, and their reasons."""
        return {"updates": self._updates, "denied": self._denied, "reasons": dict(self._planner.reasons)}

    @property
    def moved(self) -> int:
        """The number of running jobs that were moved."""
        return self._planner.moved

    def _plan(self) -> None:
        """Runs one pass of berthd; while jobs wait, another follows after some time even if nothing changes."""
        self._tick.not_before = self._planner.one_pass(self._clock.now)
        if len(self._world.queue):
            self._quiet_tick.wake()
        if self._planner.moving:
            self._clock.at(self._clock.now + 1.0, self.changed)

    # The interface for berthd

    def look(self) -> Reading:
        """Returns all that Slurm would report now."""
        world = self._world
        tasks = (*world.running.tasks.values(), *world.held.values(), *world.queue)
        return Reading(
            at=EPOCH + self._clock.now,
            nodes=self._nodes.read(),
            jobs=tuple([self._record(task) for task in tasks]),
            partitions=self._partitions,
            memory=Memory(),
            memory_counts=False,
        )

    def entered(self, nonce: str) -> float | None:
        """Returns the time at which a job entered the queue."""
        return self._by_nonce[nonce].entered

    def pin(self, job_id: int, nodes: tuple[int, ...], mask: int, values: dict[str, str]) -> None:
        """Pins a job, by one update; a job that has started meanwhile stays where it is."""
        task = self._by_id[job_id]
        if task.state != "PENDING":
            self._denied += 1
            return
        task.pin_to(nodes, mask)
        if task.waiting:
            self._world.queue.reshape(task)
        task.segment = values
        self._updated(task)
        self._world.release(task)

    def unpin(self, job_id: int) -> None:
        """Removes a job's pin, by one update."""
        task = self._by_id[job_id]
        if task.state == "PENDING" and task.pin:
            task.pin, task.pin_mask, task.segment = (), 0, {**(task.segment or {}), "state": "released"}
            self._updated(task)

    def annotate(self, job_id: int, values: Mapping[str, str]) -> None:
        """Replaces a job's segment, by one update."""
        task = self._by_id[job_id]
        task.segment = dict(values)
        self._updated(task)

    def state(self, job_id: int) -> str:
        """Returns the state of a job."""
        return self._by_id[job_id].state

    def put_back(self, job_id: int) -> bool:
        """Requeues a running job; its work so far is saved, and the move costs it the seconds of its `--movable`."""
        task = self._by_id[job_id]
        if task.state != "RUNNING":
            return False
        self._world.put_back(task, task.movable or 0.0)
        return True

    def _record(self, task: "Task") -> "JobFacts":
        return record_of(task, self._world.fleet.names, self._partition(task))

    def _partition(self, task: "Task") -> str:
        return self._world.settings.partitions.get(task.job.account, self._default)

    def _updated(self, task: "Task") -> None:
        self._updates += 1
        self._note(task)
        task.facts = None
        self._world.changed(asks_for_pass=True)

    def _note(self, task: "Task") -> None:
        if self._world.settings.history and task.segment is not None:
            self.written.append((self._clock.now, task.job.id, task.segment))
