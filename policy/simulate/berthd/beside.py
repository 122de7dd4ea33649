# SPDX-License-Identifier: Apache-2.0
"""berthd beside the simulated Slurm: it answers submissions, and plans at each change."""

from collections.abc import Callable, Mapping

from policy.formats.errors import UsageError
from policy.placement.base import Policy
from policy.simulate.berthd.processes import SimulatedAnswerer, SimulatedPlanner, pinned_by
from policy.simulate.berthd.records import SlurmRecords
from policy.simulate.slurm.clock import Loop
from policy.simulate.slurm.queue.jobs import Task
from policy.simulate.slurm.world import SlurmWorld

QUIET_TICK = 120.0
"""Seconds between berthd's passes while nothing changes."""


class BesideSlurm:
    """berthd's two processes; the first plan is made before any job comes."""

    def __init__(self, world: SlurmWorld, policy: Policy) -> None:
        self._world = world
        self._clock = world.clock
        self._records = SlurmRecords(world)
        self._answerer = SimulatedAnswerer(policy, world.settings)
        self._planner = SimulatedPlanner(
            world.fleet, policy, world.settings, self._answerer, self._records, world.clock
        )
        self._tick = Loop(world.clock, world.delays.tick, self._plan)
        self._quiet_tick = Loop(world.clock, QUIET_TICK, self.changed)
        self._plan()

    def submitted(self, task: Task) -> None:
        """Answers a submission."""
        decision = self._answerer.answer(task, self._records.partition, self._clock.now)
        if decision.reply.verb == "refuse":
            raise UsageError(f"job {task.job.id}: {decision.reply.message}")
        if decision.reply.verb == "place":
            names, mask, plan = pinned_by(decision)
            task.pin_to(tuple(self._world.fleet.index[name] for name in names), mask)
            task.plan = plan
            self._records.note(task)

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
        """Returns all updates, those that came too late, and their reasons."""
        records = self._records
        return {"updates": records.updates, "denied": records.denied, "reasons": dict(self._planner.reasons)}

    def _plan(self) -> None:
        """Runs one pass of berthd; while jobs wait, another follows after some time even if nothing changes."""
        self._tick.not_before = self._planner.one_pass(self._clock.now)
        if len(self._world.queue):
            self._quiet_tick.wake()
