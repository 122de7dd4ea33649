# SPDX-License-Identifier: Apache-2.0
"""The start that `berth why` tells a waiting job, beside the start that came, in the timed simulator.

`python -m tests.bench.told_starts [--kind a100-4] [--limits tripled] [--traces 0,1,...] [--draw 101]`: each waiting job
is asked every half hour. A row for each told wait: looks, the part that started by then or within a minute, and the
10, 50 and 90 % quantiles of the real wait over the told one. Waits count as a minute at least.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from policy.simulate.play import run
from policy.simulate.result import EPOCH
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.slurm.world import SlurmWorld
from tests.bench import look_ahead
from tests.bench import placement_slurm as slurm

EVERY, A_MINUTE = 1_800.0, 60.0
BOUNDS = (A_MINUTE, 600.0, 3_600.0, 14_400.0, 86_400.0, float("inf"))


def told_and_real(kind: str, limits: str, trace: int, draw: int) -> Iterator[tuple[float, float]]:
    """Yields the told and the real wait of each look."""
    family, fleet = look_ahead.cluster_of(kind)
    jobs = [job for job in slurm.jobs_of(family, trace, draw) if job.gpus <= int(fleet.size.sum())]
    looks, last, ids = list[tuple[int, float, float]](), dict[int, float](), dict[int, str]()
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
        ids.update({task.id: task.job.id for task in self.tasks})

    settings = SlurmSettings(order="fifo", berthd=True, site=Settings(), delays=Delays(), seed=draw)
    with patch.object(Plan, "replan", replan), patch.object(SlurmWorld, "__init__", begin):
        limited = look_ahead.limited(jobs, limits, trace, draw)
        outcome = run(limited, fleet, slurm.policy_of("berth", draw), settings)
    for job, at, told in looks:
        yield told, outcome.starts[ids[job]] - at


def main() -> None:
    """Plays the traces and prints the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kind", default="a100-4")
    parser.add_argument("--limits", choices=("tripled", "drawn", "alike"), default="tripled")
    parser.add_argument("--traces", default=",".join(map(str, range(len(slurm.TRACES)))))
    parser.add_argument("--draw", type=int, default=101)
    asked = parser.parse_args()
    played = (told_and_real(asked.kind, asked.limits, trace, asked.draw) for trace in map(int, asked.traces.split(",")))
    waits = np.array([one for looks in played for one in looks])
    for least, most in pairwise(BOUNDS):
        told, real = waits[(waits[:, 0] >= least) & (waits[:, 0] < most)].T
        if told.size:
            low, middle, high = np.quantile(np.maximum(real, A_MINUTE) / told, (0.1, 0.5, 0.9))
            kept = 100 * float(np.mean(real <= told + A_MINUTE))
            print(f"told {least:.0f} to {most:.0f} s: {told.size}, {kept:.0f} %, {low:.2f}, {middle:.2f}, {high:.2f}")


if __name__ == "__main__":
    main()
