# SPDX-License-Identifier: Apache-2.0
"""Relaxation over splits beside one split: `python -m tests.bench.splits`, all in simulators, no Slurm needed.

    week     Philly's week on 80 nodes under the simulator of Slurm's scheduling, every job with --locality=leaf@10
    replay   the replay's seeds under berthd's own code beside slurmctld, jobs of 2 to 8 GPUs with --locality=leaf@1

Old: a job keeps one node, or the fewest that have equal numbers. New: it may be split (policy/request/spread.py).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import fmean

from policy.placement.registry import create
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.queue.waits import REASONS
from policy.simulate.slurm.settings import Delays, LocalityRule, SlurmSettings
from policy.simulate.world import Layout, build
from topology.network.fabric import LEVELS

from . import philly, philly_data
from .replay.simulated import CORES
from .replay.workload import Shape, draw

Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description="Relaxation over splits beside one split.")
    parser.add_argument("--seeds", type=int, default=3, help="draws of what Philly's trace lacks (default: 3)")
    parser.add_argument("--replay-seeds", type=int, default=5, help="seeds of the replay (default: 5)")
    parser.add_argument("--jobs", type=int, default=1500, help="jobs of a replay (default: 1500)")
    args = parser.parse_args()
    philly_data.need(philly_data.WEEK)
    with ProcessPoolExecutor() as pool:
        show("week", pool.map(week, range(args.seeds)))
        show("replay", pool.map(partial(replayed, args.jobs), range(1, args.replay_seeds + 1)))


def week(seed: int) -> dict[bool, Row]:
    """Philly's week with one draw of what it lacks."""
    jobs = philly.drawn(philly_data.jobs(philly_data.WEEK), seed)

    def play(splits: bool) -> SimulationOutcome:
        rule = LocalityRule("leaf", 600, splits=splits)
        settings = SlurmSettings(pinned=True, durations="predicted", locality=rule)
        return run(jobs, philly.cluster(80, seed), create("berth"), settings)

    return compared(play)


def replayed(jobs: int, seed: int) -> dict[bool, Row]:
    """One seed of the replay, on 64 nodes of 8 GPUs, four to a leaf, four leaves to a pod."""
    fleet = build(Layout(64, 8, nodes_per_leaf=4, leaves_per_pod=4))
    asked, waits = [], {}
    for job in draw(seed, Shape(jobs=jobs)):
        free = 1 < job.width <= 8
        trace = TraceJob(
            id=job.name, gpus=job.width, submit=job.at, work=job.seconds, app_class=job.app_class,
            limit=60.0 * job.limit, nodes=0 if free else job.nodes, cpus=min(job.cpus, CORES),
        )  # fmt: skip
        asked.append(trace)
        if free or job.leaf_wait:
            waits[job.name] = 60 if free else job.leaf_wait

    def play(splits: bool) -> SimulationOutcome:
        settings = SlurmSettings(
            berthd=True, delays=Delays(), bf_interval_s=2, kill=False, seed=seed,
            default_queue_depth=2_000, bf_max_job_test=2_000,
            localities={name: LocalityRule("leaf", wait, splits=splits) for name, wait in waits.items()},
        )  # fmt: skip
        return run(asked, fleet, create("berth"), settings)

    return compared(play)


def compared(play: Callable[[bool], SimulationOutcome]) -> dict[bool, Row]:
    """The figures without and with splits; those of jobs that lie on other numbers of nodes stand apart."""
    outcomes = {splits: play(splits) for splits in (False, True)}
    nodes = {splits: nodes_of(outcome) for splits, outcome in outcomes.items()}
    split = {job for job, count in nodes[True].items() if count > nodes[False][job]}
    return {splits: figures(outcome, split, nodes[splits]) for splits, outcome in outcomes.items()}


def nodes_of(outcome: SimulationOutcome) -> dict[str, int]:
    return {one.job: len({gpu // 8 for gpu in one.gpus}) for one in outcome.stretches}


def figures(outcome: SimulationOutcome, split: set[str], nodes: dict[str, int]) -> Row:
    groups = {
        "all": list(outcome.jobs),
        "1": [job for job in outcome.jobs if job.gpus == 1],
        "2-8": [job for job in outcome.jobs if 1 < job.gpus <= 8],
        "split": [job for job in outcome.jobs if job.id in split],
    }
    found: Row = {}
    for name, jobs in groups.items():
        waits = [outcome.starts[job.id] - job.submit for job in jobs]
        times = [outcome.ends[job.id] - job.submit for job in jobs]
        found |= {f"{name}: jobs": len(jobs), f"{name}: wait s": fmean(waits or [0.0])}
        found |= {f"{name}: longest wait s": max(waits, default=0.0), f"{name}: JCT s": fmean(times or [0.0])}
    waits_by = outcome.extra.get("waits")
    if isinstance(waits_by, dict):
        seconds = waits_by["seconds"].values()
        found |= {f"{reason}: h": sum(one[reason] for one in seconds) / 3_600 for reason in REASONS}
    levels = outcome.extra.get("levels")
    if isinstance(levels, dict):
        count: Counter[str] = Counter()
        for size, of_size in levels.items():
            count.update(of_size if size in {"2-4", "5-8"} else {})
        found |= {f"2-8 at {level}": count[level] for level in LEVELS}
    else:
        found |= {f"2-8 on {n} nodes": sum(nodes[job.id] == n for job in groups["2-8"]) for n in (1, 2, 4, 8)}
    return found


def show(name: str, results: Iterable[dict[bool, Row]]) -> None:
    """A table of means over seeds, in Markdown."""
    runs: Sequence[dict[bool, Row]] = list(results)
    print(f"\n{name}, mean of {len(runs)} seeds\n\n| figure | one split | splits |\n| --- | --- | --- |")
    for key in runs[0][False]:
        old, new = (fmean(run[splits][key] for run in runs) for splits in (False, True))
        print(f"| {key} | {old:,.1f} | {new:,.1f} |")


if __name__ == "__main__":
    main()
