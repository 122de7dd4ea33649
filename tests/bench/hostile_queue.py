# SPDX-License-Identifier: Apache-2.0
"""Searches for a queue in which a job starts later than promised: queues are drawn, and the worst one is mutated.

`python -m tests.bench.hostile_queue [--minutes 10] [--seed 1] [--jobs 24]`: four nodes of four GPUs in leaves of two,
of which some are slow, in the timed simulator. Jobs on one GPU up to all of them run for a minute to an hour, with
limits of one to ten times that. A job is *over* by the seconds after the latest start that keeps its promise, but by
no more than it starts later than in plain Slurm's own run: the promise is a plan by time limits, and a hole in that
plan may close in plain Slurm, too, when jobs end sooner. The worst queue is also played without look-ahead; *late* are
jobs by the state at their submission, in each system's own run (tests/bench/look_ahead.py).

`--plain` searches for the worst queue of plain Slurm beside itself: a job is over by the seconds after its promise, but
by no more than it starts later than if Slurm listed the nodes in the opposite order. So much is chance.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from time import monotonic
from typing import Any
from unittest.mock import patch

import numpy as np

from policy.placement.berth import BerthPolicy
from policy.placement.slurm_like import SlurmPolicy
from policy.plan.jobs.promise import Promise
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.result import EPOCH
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.slurm.world import SlurmWorld
from policy.simulate.world import Layout, build
from tests.bench import look_ahead

NODES, GPUS = 4, 4
SPEEDS = np.array([[1.0, 1.0, 1.02, 1.0], [1.0, 1.3, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.1, 1.1, 1.1, 1.1]])
FLEET, OPPOSITE = (build(Layout(NODES, GPUS, 2), {"compute": one, "memory": one}) for one in (SPEEDS, SPEEDS[::-1]))
SHAPES = ((1, 1), (1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (3, 4), (4, 2), (4, 4))
"""Nodes and GPUs on each."""
HOUR = 3_600.0
PLAIN = SlurmSettings(order="fifo", delays=Delays())
Played = Callable[[Sequence[TraceJob]], dict[str, tuple[float, Promise]]]
FRESH = 12
"""Queues that are drawn before the worst one is mutated, and rounds without a worse one before it is left."""


def drawn(draws: Random, number: int) -> TraceJob:
    """Returns a job that nothing is known of."""
    nodes, gpus = draws.choice(SHAPES)
    work = 60.0 * 60.0 ** draws.random()
    limit = work * 10.0 ** draws.random() + 60.0
    return TraceJob(str(number), nodes * gpus, draws.uniform(0.0, HOUR), work, nodes=nodes, limit=limit)


def mutated(draws: Random, jobs: Sequence[TraceJob]) -> list[TraceJob]:
    """Returns a queue in which one to three jobs are drawn anew, or come or run at another time."""
    found = list(jobs)
    for _ in range(draws.randint(1, 3)):
        place = draws.randrange(len(found))
        one, way = found[place], draws.randrange(4)
        other = drawn(draws, place)
        changes: dict[str, Any] = {"submit": max(0.0, one.submit + draws.gauss(0.0, 300.0))}
        if way == 1:
            changes = {"work": other.work, "limit": other.work * (one.limit or other.work) / one.work}
        elif way == 2:
            changes = {"gpus": other.gpus, "nodes": other.nodes}
        found[place] = other if way == 3 else replace(one, **changes)
    return found


def overs(jobs: Sequence[TraceJob]) -> dict[str, tuple[float, Promise]]:
    """Plays a queue; returns by job how many seconds it is over, and its promise."""
    promised, ids = dict[int, Promise](), dict[int, str]()
    plans, begins = Plan.replan, SlurmWorld.__init__

    def replan(self: Plan, *arguments: Any, **more: Any) -> Any:
        changes = plans(self, *arguments, **more)
        promised.update({one.job.id: one.last.promise for one in self.queue if one.last.promise is not None})
        return changes

    def begin(self: SlurmWorld, *arguments: Any) -> None:
        begins(self, *arguments)
        ids.update({task.id: task.job.id for task in self.tasks})

    with patch.object(Plan, "replan", replan), patch.object(SlurmWorld, "__init__", begin):
        starts = run(jobs, FLEET, BerthPolicy(), berthd(looks_ahead=True)).starts
    plain = run(jobs, FLEET, SlurmPolicy(), PLAIN).starts
    return {
        ids[job]: (starts[ids[job]] - max(one.latest - EPOCH, plain[ids[job]]), one) for job, one in promised.items()
    }


def overs_of_plain(jobs: Sequence[TraceJob]) -> dict[str, tuple[float, Promise]]:
    """Plays a queue by plain Slurm alone; returns by job how many seconds it is over, and its promise."""
    one, other = (run(jobs, fleet, SlurmPolicy(), PLAIN) for fleet in (FLEET, OPPOSITE))
    return {
        job.id: (one.starts[job.id] - max(made.latest, other.starts[job.id]), made)
        for job, made in look_ahead.promised(one, FLEET)
    }


def berthd(*, looks_ahead: bool) -> SlurmSettings:
    """Returns the settings of a timed Slurm with berthd."""
    return SlurmSettings(order="fifo", berthd=True, site=Settings(look_ahead=looks_ahead), delays=Delays())


def worst(jobs: Sequence[TraceJob], played: Played) -> tuple[float, str]:
    """Returns by how much the job that is most over is so, in seconds, and which job that is."""
    return max(((late, job) for job, (late, _) in played(jobs).items()), default=(0.0, ""))


def main() -> None:
    """Searches, and prints the worst queue."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--plain", action="store_true", help="plain Slurm beside itself")
    asked = parser.parse_args()
    play = overs_of_plain if asked.plain else overs
    draws, until, played = Random(asked.seed), monotonic() + 60.0 * asked.minutes, 0
    best, best_queue = (0.0, ""), list[TraceJob]()
    while monotonic() < until:
        tried = [[drawn(draws, number) for number in range(asked.jobs)] for _ in range(FRESH)]
        found, queue = max(((worst(jobs, play), jobs) for jobs in tried), key=lambda one: one[0][0])
        in_vain, played = 0, played + FRESH
        while in_vain < FRESH and monotonic() < until:
            other = mutated(draws, queue)
            seen, played, in_vain = worst(other, play), played + 1, in_vain + 1
            if seen[0] > found[0]:
                found, queue, in_vain = seen, other, 0
        if found[0] > best[0]:
            best, best_queue = found, queue
            print(f"{played} queues: job {best[1]} is over by {best[0]:.0f} s", flush=True)
    for job in sorted(best_queue, key=lambda one: one.submit):
        shape = f"{job.nodes} x {job.gpus // (job.nodes or 1)}"
        print(f"  {job.id}: {job.submit:.0f} s, {shape}, {job.work:.0f} of {job.limit:.0f}")
    for name, policy, settings in (
        ("look-ahead", BerthPolicy(), berthd(looks_ahead=True)),
        ("without", BerthPolicy(), berthd(looks_ahead=False)),
        ("plain Slurm", SlurmPolicy(), PLAIN),
    ):
        print(f"{name}: {look_ahead.late(run(best_queue, FLEET, policy, settings), FLEET)} of {asked.jobs} jobs late")


if __name__ == "__main__":
    main()
