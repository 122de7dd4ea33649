# SPDX-License-Identifier: Apache-2.0
"""Tracks running jobs: their speed on their GPUs, their ends, and what a requeue costs them."""

from collections.abc import Callable
from math import isinf

from policy.cluster.cost import NEIGHBOURS
from policy.placement.base import Berth
from policy.simulate.result import Stretch
from policy.simulate.slurm.nodes.ledger import Ledger
from policy.simulate.slurm.queue.jobs import Task
from policy.simulate.slurm.settings import SlurmSettings
from topology.sets.wiring import positions

Schedule = Callable[[float, str, Task], None]


class RunningJobs:
    """The jobs that run."""

    def __init__(self, ledger: Ledger, settings: SlurmSettings, schedule: Schedule) -> None:
        self.ledger = ledger
        self.held: dict[str, int] = {}
        """GPUs that each account with a quota holds."""
        self.tasks: dict[int, Task] = {}
        self.stretches: list[Stretch] = []
        self._settings = settings
        self._schedule = schedule
        self._fleet = ledger.fleet
        self._factors: dict[int, list[float]] = {}
        self._launch = settings.delays.launch if settings.delays else 0.0
        self._on: list[dict[int, Task]] = [{} for _ in self._fleet.names]
        self._width = int(self._fleet.size.max(initial=0))
        self._neighbours_count = self._fleet.costs.neighbours_count

    def start(self, task: Task, berth: Berth, now: float) -> None:
        """Starts a job."""
        task.berth, task.started, task.begun = berth, now, now + self._launch
        task.since = task.begun
        task.state, task.facts = "RUNNING", None
        task.gpus = tuple(
            node * self._width + place
            for node, mask in zip(berth.nodes, berth.masks, strict=True)
            for place in positions(mask)
        )
        self.tasks[task.index] = task
        self._hold(task, task.job.gpus)
        for node in berth.nodes:
            self._on[node][task.index] = task
        task.cost = self._cost(task)
        self._plan_end(task)
        self._reprice_neighbours(berth, now)
        task.cores = self.ledger.take(berth.nodes, berth.masks, self._expected_end(task, now), task.cpus)

    def stop(self, task: Task, now: float) -> None:
        """Stops a job that ended at `now`, or that is taken off its GPUs."""
        berth = task.berth
        assert berth is not None, "only running jobs stop"  # noqa: S101 - narrows the type
        self._progress(task, now)
        task.served += (now - task.started) * task.job.gpus
        self.stretches.append(Stretch(task.job.id, task.begun, now, task.gpus))
        del self.tasks[task.index]
        self._hold(task, -task.job.gpus)
        for node in berth.nodes:
            del self._on[node][task.index]
        self._reprice_neighbours(berth, now)
        task.berth = None
        task.serial += 1
        task.facts = None
        self.ledger.give(berth.nodes, berth.masks, list(task.cores))

    def requeue(self, task: Task, now: float) -> None:
        """Takes a job off its GPUs; all its work is lost."""
        self.stop(task, now)
        task.left = task.job.work
        task.debt = self._settings.requeue_cost_s

    def overrun(self, task: Task) -> None:
        """Handles a job that runs longer than expected: from now on the plan assumes its time limit."""
        assert task.berth is not None, "only running jobs overrun"  # noqa: S101 - narrows the type
        self.ledger.expect(task.berth.nodes, task.berth.masks, task.started + task.limit)

    def node_changes(self, node: int, factor: float, now: float, *, begins: bool) -> list[Task]:
        """Slows a node, fails it (infinite factor) or lets it recover; returns the jobs to be requeued."""
        factors = self._factors.setdefault(node, [])
        (factors.append if begins else factors.remove)(factor)
        down = any(map(isinf, factors))
        self.ledger.set_up(node, up=not down and bool(self._fleet.ready[node]))
        if down:
            return list(self._on[node].values())
        for task in list(self._on[node].values()):
            self._reprice(task, now)
        return []

    def _hold(self, task: Task, gpus: int) -> None:
        if task.quota:
            self.held[task.quota] = self.held.get(task.quota, 0) + gpus

    def _cost(self, task: Task) -> float:
        berth, job, fleet = task.berth, task.job, self._fleet
        assert berth is not None, "only running jobs have a cost"  # noqa: S101 - narrows the type
        table = self._fleet.scores.get(job.app_class)
        if not job.gpus:
            return 1.0
        if self._settings.rate is not None:
            return self._settings.rate(job, berth.nodes, berth.masks) * max(map(self._factor, berth.nodes))
        score = 1.0
        if table is not None or self._factors:
            score = max(
                self._factor(node) * (1.0 if table is None else max(table[node, place] for place in positions(mask)))
                for node, mask in zip(berth.nodes, berth.masks, strict=True)
            )
        locality = fleet.costs.locality(job.model, job.app_class, berth.level, job.gpus)
        if self._neighbours_count and any(map(self._shared, berth.nodes)):
            locality *= fleet.costs.locality(job.model, job.app_class, NEIGHBOURS, job.gpus)
        return float(score) * locality

    def _shared(self, node: int) -> bool:
        """Tells whether several jobs with GPUs run on a node."""
        return sum(other.job.gpus > 0 for other in self._on[node].values()) > 1

    def _reprice_neighbours(self, berth: Berth, now: float) -> None:
        """Changes the speed of the jobs on a berth's nodes after one of them started or ended."""
        if self._neighbours_count:
            for other in {id(one): one for node in berth.nodes for one in self._on[node].values()}.values():
                self._reprice(other, now)

    def _factor(self, node: int) -> float:
        product = 1.0
        for factor in self._factors.get(node, ()):
            product *= factor
        return product

    def _progress(self, task: Task, now: float) -> None:
        # Between Slurm's decision and its first instruction a job computes nothing.
        passed = max(0.0, now - task.since)
        task.since = max(now, task.since)
        paid = min(passed, task.debt)
        task.debt -= paid
        task.left = max(0.0, task.left - (passed - paid) / task.cost)

    def _reprice(self, task: Task, now: float) -> None:
        self._progress(task, now)
        cost = self._cost(task)
        if cost != task.cost:
            task.cost = cost
            self._plan_end(task)
            if self._settings.durations == "true" and task.berth is not None:
                self.ledger.expect(task.berth.nodes, task.berth.masks, self._expected_end(task, now))

    def _plan_end(self, task: Task) -> None:
        task.serial += 1
        end = task.since + task.debt + task.left * task.cost
        killed = task.begun + task.limit
        if self._settings.kill and killed < end:
            task.ended = killed
            self._schedule(killed, "kill", task)
        else:
            task.ended = end
            self._schedule(end, "end", task)

    def _expected_end(self, task: Task, now: float) -> float:
        if self._settings.durations == "true":
            end = now + task.debt + task.left * task.cost
            return min(end, task.started + task.limit) if self._settings.kill else end
        end = task.started + task.expected
        if task.expected < task.limit:
            self._schedule(end, "overrun", task)
        return end
