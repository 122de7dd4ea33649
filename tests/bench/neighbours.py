# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.neighbours`: small jobs alone or packed, where jobs on one node slow each other down.

Philly's week with failing jobs, as in tests/bench/retry.py: of its jobs the part `KEPT`, drawn by the seed, on as small
a part of the cluster. A GPU job runs `factor` times as long while another GPU job runs on one of its nodes; 1.52 is
what Philly measured of a job on two GPUs (table 4). No time limit ends a job here, as it would end slow jobs early.

`berth 0.1` is Berth's policy with a tenth of the nodes kept empty for jobs that need whole ones, `berth` the part that
it has as it ships. With 1 it packs all jobs, as without a table of costs. Told are the mean time from submission to end
over plain Slurm's, in the geometric mean over seeds with a 95 % bootstrap interval, and the part of the nodes that are
empty at two thirds load.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from random import Random
from unittest.mock import patch

import numpy as np

from policy.cluster.cost import NEIGHBOURS, CostModel
from policy.formats.arrays import Floats
from policy.placement import berth as berth_policy
from policy.placement.registry import create
from policy.simulate.pal_rounds.philly import LOCALITIES
from policy.simulate.play import run
from policy.simulate.slurm.settings import SlurmSettings
from tests.bench import philly, philly_data
from tests.bench.retry import Workload, workload
from tests.bench.table import Figure, report

KEPT = 0.3
NODES = 30
FACTORS = (1.0, 1.2, 1.52)
POLICIES = ("slurm", "pinned-random", "berth 1", "berth")
CURVE = ("berth 0", "berth 0.1", "berth 0.2", "berth 0.3")


def thinned(work: Workload, seed: int) -> Workload:
    """Returns the part of the jobs; the trials of one failing job stay together."""
    draw, names = Random(seed), set[str]()
    for job in work.jobs:
        if (work.after[job.id][0] in names) if job.id in work.after else draw.random() < KEPT:
            names.add(job.id)
    after = {name: before for name, before in work.after.items() if name in names}
    return replace(work, jobs=[job for job in work.jobs if job.id in names], after=after)


def one_run(task: tuple[str, float, int]) -> tuple[float, float]:
    """Returns the mean time from submission to end, and the part of empty nodes at two thirds load."""
    named, factor, seed = task
    name, _, kept = named.partition(" ")
    work = thinned(workload("fixed", seed), seed)
    neighbours = {"*": {**LOCALITIES["*"], NEIGHBOURS: {1: factor}}}
    fleet = replace(philly.cluster(NODES, seed), costs=CostModel({**LOCALITIES, **neighbours}))
    settings = SlurmSettings() if name == "slurm" else SlurmSettings(pinned=True, durations="predicted")
    policy = create(name, seed=seed) if name == "pinned-random" else create(name)
    with patch.object(berth_policy, "KEPT_EMPTY", float(kept or berth_policy.KEPT_EMPTY)):
        outcome = run(work.jobs, fleet, policy, replace(settings, after=work.after, kill=False))
    return float(str(outcome.figures()["avg_jct_s"])), float(str(outcome.extra["empty_nodes"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--factors", default=",".join(map(str, FACTORS)))
    parser.add_argument("--curve", action="store_true", help="with other parts of the nodes kept empty too")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    args = parser.parse_args()
    philly_data.need(philly_data.ALL, philly_data.WEEK, philly_data.NODES)
    policies = (*POLICIES, *(CURVE if args.curve else ()))
    figures: list[Figure] = []
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        for factor in map(float, args.factors.split(",")):
            tasks = [(name, factor, seed) for name in policies for seed in range(1, args.seeds + 1)]
            runs = np.array(list(pool.map(one_run, tasks))).reshape(len(policies), args.seeds, 2)
            figures += rows(factor, policies, runs)
    notes = {
        "nodes": str(NODES),
        "seeds": str(args.seeds),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    report("neighbours", "Small jobs alone or packed, where neighbours cost time", figures, notes)


def rows(factor: float, policies: Sequence[str], runs: Floats) -> list[Figure]:
    """Returns the figures of one factor, each policy over plain Slurm, and Berth over random placement."""
    logs, found = np.log(runs[:, :, 0]), []
    for place, name in enumerate(policies):
        empty = Figure(f"{factor:g}_{name}_empty", float(runs[place, :, 1].mean()), "part of nodes")
        found += [empty] if not place else [_ratio(f"{factor:g}_{name}", logs[place] - logs[0], "slurm"), empty]
    berth, random = policies.index("berth"), policies.index("pinned-random")
    return [*found, _ratio(f"{factor:g}_berth_over_random", logs[berth] - logs[random], "pinned-random")]


def _ratio(name: str, logs: Floats, peer: str) -> Figure:
    draws = np.random.default_rng(0).choice(logs, (2_000, logs.size)).mean(axis=1)
    lower, upper = np.exp(np.quantile(draws, (0.025, 0.975)))
    return Figure(name, float(np.exp(logs.mean())), f"mean time ({lower:.3f} to {upper:.3f})", peer, 1.0)


if __name__ == "__main__":
    main()
