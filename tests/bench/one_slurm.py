# SPDX-License-Identifier: Apache-2.0
"""Waits of one drawn trace under one model of Slurm, with places chosen in several ways, with and without delays.

python -m tests.bench.one_slurm
"""

from __future__ import annotations

from random import Random
from statistics import fmean

from policy.placement.registry import create
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.world import Layout, build

SEEDS = (1, 2, 3)
WAYS = {
    "plain Slurm": ("slurm", SlurmSettings()),
    "plain Slurm, backfill each 2 s": ("slurm", SlurmSettings(bf_interval_s=2)),
    "plain Slurm, with delays": ("slurm", SlurmSettings(delays=Delays())),
    "plain Slurm, with delays, bf_resolution 1": ("slurm", SlurmSettings(delays=Delays(resolution=1))),
    "plain Slurm, with delays, 25.05": ("slurm", SlurmSettings(delays=Delays(), slurm="25.05")),
    "Berth's policy at the start": ("berth", SlurmSettings(pinned=True)),
    "berthd": ("berth", SlurmSettings(berthd=True)),
    "berthd, with delays": ("berth", SlurmSettings(berthd=True, delays=Delays())),
}


def drawn(seed: int, count: int = 400) -> list[TraceJob]:
    """More than eight nodes can run at once; each limit is 1.1 to 4 times the run time."""
    draw, jobs, at = Random(seed), list[TraceJob](), 0.0
    for number in range(count):
        at += draw.expovariate(1 / 30)
        gpus, work = draw.choice((1, 1, 2, 4, 8, 16)), draw.uniform(20, 1800)
        limit = work * draw.uniform(1.1, 4)
        jobs.append(TraceJob(str(number), gpus, at, work, limit=limit, nodes=max(1, gpus // 8)))
    return jobs


def main() -> None:
    """Play each way and print it."""
    for name, (policy, settings) in WAYS.items():
        fleet = build(Layout(8, 8, nodes_per_leaf=4))
        figures = [run(drawn(seed), fleet, create(policy), settings).figures() for seed in SEEDS]
        wait, makespan = (fmean(float(str(one[key])) for one in figures) for key in ("avg_wait_s", "makespan_s"))
        each = ", ".join(f"{float(str(one['avg_wait_s'])):.0f}" for one in figures)
        print(f"| {name} | {wait:.0f} | {each} | {makespan:.0f} |", flush=True)


if __name__ == "__main__":
    main()
