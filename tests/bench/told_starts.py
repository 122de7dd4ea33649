# SPDX-License-Identifier: Apache-2.0
"""The start that a waiting job is told, beside the start that came, in the timed simulator.

`python -m tests.bench.told_starts [--kind a100-4] [--limits tripled] [--traces 0,1,...] [--draw 101]`: each waiting job
is asked about every half hour. *Berth* tells what `berth why` says. *Plain* is plain Slurm's own run, where the plan of
its backfill is told, as by `squeue --start`. A row for each told wait and for each size of job: looks, the part that
started by then or within a minute, the 10, 50 and 90 % quantiles of the real wait over the told one, and the median of
what the told wait was off by, over the told wait. Real waits count as a minute at least.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from policy.cluster.fleet import Fleet
from policy.placement.registry import create
from policy.plan.queue.plan import Plan
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.result import EPOCH, SimulationOutcome
from policy.simulate.slurm.queue.waits import size_class
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.slurm.world import SlurmWorld
from tests.bench import look_ahead
from tests.bench import placement_slurm as slurm

EVERY, A_MINUTE = 1_800.0, 60.0
BOUNDS = (A_MINUTE, 600.0, 3_600.0, 14_400.0, 86_400.0, float("inf"))


class Look(NamedTuple):
    """A look at a waiting job."""

    gpus: int
    told: float
    """The told wait, in seconds."""
    real: float


def berth(jobs: Sequence[TraceJob], fleet: Fleet, settings: SlurmSettings) -> tuple[SimulationOutcome, list[Look]]:
    """Plays the jobs by berthd, and asks `berth why`."""
    looks, last, ids = list[tuple[int, float, float]](), dict[int, float](), dict[int, TraceJob]()
    plans, begins = Plan.replan, SlurmWorld.__init__

    def replan(self: Plan, *arguments: Any, **more: Any) -> Any:
        changes, at = plans(self, *arguments, **more), self.book.cluster.at if self.book else 0.0
        for entry in self.queue:
            asked = at - last.get(entry.job.id, 0.0) >= EVERY and entry.may_start_at(at)
            if asked and entry.last.start is not None:
                last[entry.job.id] = at
                looks.append((entry.job.id, at - EPOCH, max(0.0, entry.last.start - at)))
        return changes

    def begin(self: SlurmWorld, *arguments: Any) -> None:
        begins(self, *arguments)
        ids.update({task.id: task.job for task in self.tasks})

    with patch.object(Plan, "replan", replan), patch.object(SlurmWorld, "__init__", begin):
        outcome = run(jobs, fleet, create("berth"), settings)
    return outcome, [Look(ids[job].gpus, told, outcome.starts[ids[job].id] - at) for job, at, told in looks]


def plain(outcome: SimulationOutcome, fleet: Fleet) -> Iterator[Look]:
    """Yields looks at the plan of plain Slurm's backfill in its own run."""
    planned, jobs = look_ahead.Planned(outcome, fleet), sorted(outcome.jobs, key=lambda job: job.submit)
    for at in np.arange(EVERY, max(outcome.starts.values()), EVERY).tolist():
        line = [job for job in jobs if job.submit <= at < outcome.starts[job.id]]
        for place, start in planned.starts(at, line).items():
            yield Look(line[place].gpus, start - at, outcome.starts[line[place].id] - at)


def rows(looks: Iterable[Look]) -> Iterator[str]:
    """Yields a line for each told wait, and for each size of job that was told ten minutes or more."""
    every = [one for one in looks if one.told >= A_MINUTE]
    for least, most in pairwise(BOUNDS):
        yield f"told {least:.0f} to {most:.0f} s: {_row([one for one in every if least <= one.told < most])}"
    for size in sorted({size_class(one.gpus) for one in every}):
        longer = [one for one in every if one.told >= BOUNDS[1] and size_class(one.gpus) == size]
        yield f"{size} GPUs: {_row(longer)}"


def _row(looks: Sequence[Look]) -> str:
    if not looks:
        return "none"
    told, real = np.array([(one.told, max(A_MINUTE, one.real)) for one in looks]).T
    low, middle, high = np.quantile(real / told, (0.1, 0.5, 0.9))
    kept, off = 100 * float(np.mean(real <= told + A_MINUTE)), float(np.median(np.abs(real - told) / told))
    return f"{len(looks)}, {kept:.0f} %, {low:.2f}, {middle:.2f}, {high:.2f}, off by {off:.2f}"


def main() -> None:
    """Plays the traces and prints the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kind", default="a100-4")
    parser.add_argument("--limits", choices=("tripled", "drawn", "alike"), default="tripled")
    parser.add_argument("--traces", default=",".join(map(str, range(len(slurm.TRACES)))))
    parser.add_argument("--draw", type=int, default=101)
    asked = parser.parse_args()
    family, fleet = look_ahead.cluster_of(asked.kind)
    ours, theirs = list[Look](), list[Look]()
    for trace in map(int, asked.traces.split(",")):
        jobs = [job for job in slurm.jobs_of(family, trace, asked.draw) if job.gpus <= int(fleet.size.sum())]
        jobs = look_ahead.limited(jobs, asked.limits, trace, asked.draw)
        settings = SlurmSettings(order="fifo", berthd=True, delays=Delays(), seed=asked.draw)
        ours += berth(jobs, fleet, settings)[1]
        outcome = run(jobs, fleet, create("slurm"), SlurmSettings(order="fifo", delays=Delays(), seed=asked.draw))
        theirs += plain(outcome, fleet)
    for name, looks in (("Berth", ours), ("plain Slurm", theirs)):
        print("\n".join(f"{name}, {one}" for one in rows(looks)))


if __name__ == "__main__":
    main()
