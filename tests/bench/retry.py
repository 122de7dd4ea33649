# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.retry`: Philly's week with failing jobs, retried in three ways, under Slurm's rules.

The trace has no failures, so failing jobs are added until their trials take the published 17.76 % of the GPU time
(tests/bench/retry_trials.py says how they are drawn); the cluster is so large that its mean load is about two thirds.

    fixed                every trial that Philly's fixed number of retries led to
    adaptive             what `decide` allows, with the share of mistakes that the rules make on unknown programs
    adaptive, pre-flight  besides, jobs of several GPUs, good ones too, first run on one GPU for up to 10 minutes

    moving               adaptive, and half of the jobs say --movable=5: what berthd's own search moves

Lost are the GPU hours of failed trials and of all pre-flights. Empty nodes are counted while 62 to 72 % of the GPUs are
busy, and weighed by time; Philly had fewer than 4.5 % of them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from statistics import fmean, median

import numpy as np

from policy.placement.registry import create
from policy.placement.slurm_like import SlurmPolicy
from policy.request.settings import RelocationRules, Settings
from policy.simulate.jobs import TraceJob
from policy.simulate.result import SimulationOutcome, Stretch
from policy.simulate.slurm.queue.waits import REASONS, SIZES
from policy.simulate.slurm.settings import SlurmSettings
from policy.simulate.slurm.world import SlurmWorld
from tests.bench import philly, philly_data
from tests.bench.paper.moved import MovingSettings, MovingWorld
from tests.bench.paper.worlds import play
from tests.bench.retry_trials import (
    GPU_HOURS_EACH,
    HOUR,
    PREFLIGHT_S,
    Failing,
    Run,
    adaptive,
    draw,
    fixed,
    given_up,
    with_preflight,
)
from tests.bench.table import Figure, at_least, report

LOST_SHARE = 0.1776
"""Of all GPU time, that of unsuccessful jobs."""
NODES = 100
PER_NODE = 8
TWO_THIRDS = (0.62, 0.72)
EMPTY_IN_PHILLY = 0.045
MOVABLE = 0.5
"""Of the jobs; nobody knows how many would say so."""
MOVE_COST_S = 300.0
"""What a move costs each of them, besides the restart."""
NO_MOVES = "adaptive"
WAYS: dict[str, Callable[[Failing], list[Run]]] = {
    "fixed": fixed,
    "adaptive": adaptive,
    "preflight": with_preflight,
}
MOVING = {"moving": "adaptive"}
"""Rows beside those, with running jobs moved, and how their jobs are retried."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs, and for each job that another has to end for: which, and how long after it."""

    jobs: list[TraceJob]
    after: dict[str, tuple[str, float]]
    lost: frozenset[str]
    """Failed trials and pre-flights."""
    told: dict[str, float]
    """Of each failing job of several GPUs, the run that first fails, and the job's submission."""


def workload(way: str, seed: int) -> Workload:
    """The week with failing jobs, retried in one way."""
    week = philly.drawn(philly_data.jobs(philly_data.WEEK), seed)
    source = Random(seed)
    good_hours = sum(job.gpus * job.work for job in week) / HOUR
    number = round(good_hours * LOST_SHARE / (1 - LOST_SHARE) / GPU_HOURS_EACH)
    jobs, after, lost, told = list(week), {}, set(), {}
    if way == "preflight":
        for job in week:
            if job.gpus > 1:
                first = replace(job, id=f"{job.id}-preflight", gpus=1, nodes=None, work=PREFLIGHT_S, model="")
                jobs.append(first)
                after[job.id] = (first.id, 0.0)
                lost.add(first.id)
    heard: set[int] = set()
    for place, failing in enumerate(draw(number, sizes(week), seed)):
        when = source.choice(week)
        before = ""
        for trial, run in enumerate(WAYS[way](failing)):
            name = f"failing{place}-{trial}"
            limit = 2 * run.seconds + HOUR
            jobs.append(replace(when, id=name, gpus=run.gpus, work=run.seconds, limit=limit, model="", nodes=None))
            lost.add(name)
            if failing.gpus > 1 and run.fails and place not in heard:
                heard.add(place)
                told[name] = when.submit
            if before:
                after[name] = (before, run.after)
            before = name
    jobs.sort(key=lambda job: job.submit)
    return Workload(jobs, after, frozenset(lost), told)


def sizes(week: Sequence[TraceJob]) -> tuple[list[int], list[int], list[int]]:
    """GPUs of the week's jobs, by the table's classes of demand."""
    every = [job.gpus for job in week]
    return [1], [gpus for gpus in every if 2 <= gpus <= 4], [gpus for gpus in every if gpus > 4]


def one_run(task: tuple[str, str, int]) -> dict[str, float | str]:
    """One policy, one way and one seed, as figures."""
    name, way, seed = task
    work = workload(MOVING.get(way, way), seed)
    plain = name == "slurm"
    settings = SlurmSettings() if plain else SlurmSettings(pinned=True, durations="predicted")
    world = MovingWorld if way in MOVING else SlurmWorld
    if way in MOVING:
        site = Settings(moving=RelocationRules(enabled=True))
        settings = MovingSettings(pinned=True, durations="predicted", site=site, movable=movable(work.jobs, seed))
    policy = SlurmPolicy() if plain else create(name)
    outcome = play(world, work.jobs, philly.cluster(NODES, seed), policy, replace(settings, after=work.after))
    lost = sum(hours(one) for one in outcome.stretches if one.job in work.lost)
    good = [job for job in work.jobs if job.id not in work.lost]
    waits = [outcome.starts[job.id] - job.submit for job in good]
    return {
        "policy": name,
        "way": way,
        "lost_h": lost,
        "all_h": sum(hours(one) for one in outcome.stretches),
        "wait_s": fmean(waits),
        "first_word_s": median(outcome.ends[name] - submit for name, submit in work.told.items()),
        "moved": float(str(outcome.extra.get("moved", 0))),
        **waits_by_reason(outcome),
        **empty_nodes(outcome),
    }


def movable(jobs: Sequence[TraceJob], seed: int) -> dict[str, float]:
    """The jobs that may be moved, and at which cost."""
    draw = Random(seed)
    return {job.id: MOVE_COST_S for job in jobs if draw.random() < MOVABLE}


def waits_by_reason(outcome: SimulationOutcome) -> dict[str, float]:
    """Hours that jobs of several GPUs waited, by reason."""
    waits = outcome.extra["waits"]
    assert isinstance(waits, dict), "the simulation counts waits by reason"
    seconds = waits["seconds"]
    return {f"{reason}_h": sum(seconds[size][reason] for size in SIZES[1:]) / HOUR for reason in REASONS}


KEPT = ("lost_h", "all_h", "wait_s", "empty", "first_word_s", "moved", *(f"{reason}_h" for reason in REASONS))


def moving_figures(row: Mapping[str, float], base: Mapping[str, float]) -> list[Figure]:
    """With running jobs moved beside the same week without: waits of larger jobs by reason, and empty nodes."""
    peer = "not moved"
    return [
        Figure("moving_moves", row["moved"], "moves"),
        *(
            Figure(f"moving_{one}_h", row[f"{one}_h"], "h", peer, base[f"{one}_h"])
            for one in REASONS
            if base[f"{one}_h"]
        ),
        Figure("moving_wait_s", row["wait_s"], "s", peer, base["wait_s"]),
        Figure("moving_gpu_h", row["all_h"], "GPU h", peer, base["all_h"]),
        at_least("moving_empty_nodes", row["empty"], EMPTY_IN_PHILLY, "", peer, base["empty"]),
    ]


def hours(stretch: Stretch) -> float:
    """GPU hours."""
    return len(stretch.gpus) * (stretch.end - stretch.start) / HOUR


def empty_nodes(outcome: SimulationOutcome) -> dict[str, float]:
    """The share of nodes without any job while about two thirds of the GPUs are busy, and for how long that was."""
    changes = sorted(
        (at, change, stretch.gpus)
        for stretch in outcome.stretches
        for at, change in ((stretch.start, 1), (stretch.end, -1))
    )
    counts, busy, empty = np.zeros(NODES, np.int64), 0, NODES
    weighed = whole = 0.0
    before = changes[0][0]
    for at, change, gpus in changes:
        if TWO_THIRDS[0] <= busy / (NODES * PER_NODE) <= TWO_THIRDS[1]:
            weighed += (at - before) * empty / NODES
            whole += at - before
        before = at
        for gpu in gpus:
            node = gpu // PER_NODE
            empty -= counts[node] == 0 < change
            counts[node] += change
            empty += counts[node] == 0 > change
        busy += change * len(gpus)
    return {"empty": weighed / whole if whole else 0.0, "two_thirds_h": whole / HOUR}


def many_draws(number: int, draws: int) -> dict[str, float]:
    """GPU hours lost to failed trials in the mean over many draws, without waiting or slow GPUs; by way."""
    week = philly_data.jobs(philly_data.WEEK)
    of = sizes(week)
    totals = dict.fromkeys(WAYS, 0.0)
    wrong = trials = 0
    for seed in range(draws):
        for job in draw(number, of, 1_000 + seed):
            trials += len(job.seconds)
            wrong += given_up(job)
            for way, runs in WAYS.items():
                totals[way] += sum(run.gpus * run.seconds for run in runs(job)) / HOUR
    totals["preflight"] += draws * sum(job.gpus > 1 for job in week) * PREFLIGHT_S / HOUR
    return {
        **{way: total / draws for way, total in totals.items()},
        "given_up": wrong / draws / number,
        "trials": trials / draws / number,
    }


def main() -> None:
    """Play all, and report."""
    parser = argparse.ArgumentParser(description="Philly's week with failing jobs, retried in three ways.")
    parser.add_argument("--seeds", type=int, default=2, help="draws that are played (default: 2)")
    parser.add_argument("--draws", type=int, default=200, help="draws that are only counted (default: 200)")
    args = parser.parse_args()
    philly_data.need(philly_data.WEEK)
    tasks = [("berth", way, seed) for way in (*WAYS, *MOVING) for seed in range(args.seeds)]
    tasks += [("slurm", "fixed", seed) for seed in range(args.seeds)]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        runs = list(pool.map(one_run, tasks))
    rows = {
        key: {name: fmean(float(run[name]) for run in some) for name in KEPT}
        for key, some in ((key, list(group)) for key, group in groupby(runs, lambda run: (run["policy"], run["way"])))
    }
    week = philly_data.jobs(philly_data.WEEK)
    good_hours = sum(job.gpus * job.work for job in week) / HOUR
    number = round(good_hours * LOST_SHARE / (1 - LOST_SHARE) / GPU_HOURS_EACH)
    drawn = many_draws(number, args.draws)
    base = rows["berth", "fixed"]
    figures = [
        Figure("failing_jobs", number, "jobs"),
        Figure("trials_each", drawn["trials"], "", "Philly", 2.36),
        Figure("fixed_lost_drawn_h", drawn["fixed"], "GPU h", "published", number * GPU_HOURS_EACH),
        Figure("adaptive_lost_drawn_h", drawn["adaptive"], "GPU h", "fixed", drawn["fixed"]),
        Figure("preflight_lost_drawn_h", drawn["preflight"], "GPU h", "fixed", drawn["fixed"]),
        Figure("given_up_share", drawn["given_up"], ""),
    ]
    for way in WAYS:
        row = rows["berth", way]
        figures += [
            Figure(f"{way}_lost_h", row["lost_h"], "GPU h", "fixed", base["lost_h"]),
            Figure(f"{way}_lost_share", row["lost_h"] / row["all_h"], ""),
            Figure(f"{way}_wait_s", row["wait_s"], "s", "fixed", base["wait_s"]),
            Figure(f"{way}_first_word_s", row["first_word_s"], "s", "fixed", base["first_word_s"]),
        ]
    figures += moving_figures(rows["berth", "moving"], rows["berth", NO_MOVES])
    berth, plain = base["empty"], rows["slurm", "fixed"]["empty"]
    figures += [
        at_least("empty_nodes", berth, EMPTY_IN_PHILLY, "", "slurm", plain),
        Figure("wait_s", base["wait_s"], "s", "slurm", rows["slurm", "fixed"]["wait_s"]),
    ]
    notes = {"seeds": str(args.seeds), "draws": str(args.draws), "nodes": f"{NODES} of {PER_NODE} GPUs"}
    report("retry", "Failing jobs in Philly's week", figures, notes)


if __name__ == "__main__":
    main()
