# SPDX-License-Identifier: Apache-2.0
"""One wide gang beside a stream of small jobs on eight nodes: what letting others go first costs and brings.

`python -m tests.bench.stream [SECONDS] [SEEDS]`: the gang needs four nodes. The small jobs, two and a half a unit of
time, run for 20 to 50 units, with a limit of 60. A unit takes so many seconds (60). Waits are told in units.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random

import numpy as np

from policy.placement.berth import BerthPolicy
from policy.placement.slurm_like import SlurmPolicy
from policy.request.settings import Settings
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.world import Layout, build

FLEET = replace(build(Layout(nodes=8, gpus_per_node=8, nodes_per_leaf=4)), cpus=np.full(8, 16, np.int64))
PLAIN = SlurmSettings(delays=Delays(), bf_interval_s=2, default_queue_depth=2_000, bf_max_job_test=2_000)


def jobs_of(seed: int, unit: float) -> list[TraceJob]:
    """Returns the gang and the small jobs, in the order of their submission."""
    draws = Random(seed)
    small = [
        TraceJob(
            f"s{number}",
            gpus=draws.choice((1, 2)),
            submit=number * 0.4 * unit,
            work=draws.uniform(20, 50) * unit,
            limit=60 * unit,
        )
        for number in range(150)
    ]
    gang = TraceJob("gang", gpus=32, nodes=4, submit=30.0 * unit, work=60 * unit, limit=120 * unit)
    return sorted([*small, gang], key=lambda one: one.submit)


def main(unit: float, seeds: str) -> None:
    """Prints the gang's wait and the mean wait, on plain Slurm, with Berth, and where Berth looks ahead."""
    for seed in map(int, seeds.split(",")):
        jobs, told = jobs_of(seed, unit), []
        for name, looks_ahead in (("plain Slurm", None), ("Berth", False), ("looks ahead", True)):
            berthd = looks_ahead is not None
            settings = replace(PLAIN, berthd=berthd, site=Settings(look_ahead=bool(looks_ahead)))
            outcome = run(jobs, FLEET, BerthPolicy() if berthd else SlurmPolicy(), settings)
            waits = {job.id: (outcome.starts[job.id] - job.submit) / unit for job in jobs}
            told.append(f"{name} {waits['gang']:.1f}, {sum(waits.values()) / len(waits):.1f}")
        print(f"seed {seed}: the gang's wait and the mean: {'; '.join(told)}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 60.0, sys.argv[2] if sys.argv[2:] else "5,8,9")
