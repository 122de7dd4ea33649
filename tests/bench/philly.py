# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=philly`: Philly under Slurm's rules, placed by plain Slurm's, packed, random and Berth's policy.

What the trace lacks is drawn from seeds: limits and models (policy/simulate/pal_rounds/philly.py), application
classes, and the scores of the GPUs. Every policy gets the same jobs, limits, order and queue; `slurm` and `packed`
know no scores, and `pinned-random` is the control: what it gains, the placement has not gained.

    whole week     80 nodes of 8 GPUs, ten to a leaf of 8 nodes, two pods of 5 leaves; 14,167 jobs
    103959, e13805 the two virtual clusters on their own 8 and 16 nodes, over the whole trace
    hard quotas    the week, each virtual cluster held to its part of the 640 GPUs
    borrowing      as before, but jobs expected to end within 4 hours may use what others leave idle
    gangs          jobs of 8 GPUs and more of the whole trace on 56 nodes, waiting up to 10 minutes for one leaf
    pinned         the week as under berthd: pinned heads, run times predicted; plain Slurm stays as it was

A job's bounded slow-down is its time from submission to end over its run time, the latter taken as 10 s at least; the
worst account is the virtual cluster whose jobs have the greatest on average: it shows whom quotas and lending cost.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from random import Random
from statistics import fmean

import numpy as np
from rich.console import Console
from rich.table import Table

from policy.cluster.cost import CostModel
from policy.cluster.fleet import Fleet
from policy.placement.registry import create
from policy.placement.slurm_like import SlurmPolicy
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.philly import LOCALITIES, with_limits, with_models
from policy.simulate.play import run
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.queue.waits import REASONS
from policy.simulate.slurm.settings import LocalityRule, Quotas, SlurmSettings
from policy.simulate.world import Layout, build
from tests.bench import philly_data
from tests.bench.table import FOLDER, Figure, report

POLICIES = ("slurm", "packed", "pinned-random", "berth")
SHORTEST_S = 10.0
"""Run time below which waits are not held against a job of that length: bounded slow-down's usual bound."""
CLASSES = {"compute": 1.0, "mixed": 0.5, "memory": 0.2}
"""How much of a GPU's slowness a class feels."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    jobs: Sequence[TraceJob]
    nodes: int
    settings: SlurmSettings = field(default_factory=SlurmSettings)
    plain: SlurmSettings = field(default_factory=SlurmSettings)
    """The settings of the policy `slurm`, where Berth's own machinery is part of the scenario."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Philly's busiest week under Slurm's rules.")
    parser.add_argument("--seeds", type=int, default=3, help="draws of what the trace lacks (default: 3)")
    seeds = range(parser.parse_args().seeds)
    philly_data.need(philly_data.ALL, philly_data.WEEK, philly_data.NODES)
    tasks = [(number, policy, seed) for number in range(len(scenarios(0))) for policy in POLICIES for seed in seeds]
    with ProcessPoolExecutor() as pool:
        runs = list(pool.map(one_run, tasks, chunksize=1))
    rows = [mean(group) for _, group in groupby(runs, key=lambda run: (run["scenario"], run["policy"]))]
    show(rows)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER.parent / "philly-runs.json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    report(
        "philly",
        "Philly under Slurm's rules",
        compare(rows),
        {"runs": "build/philly-runs.json", "seeds": f"{len(seeds)}"},
    )


def one_run(task: tuple[int, str, int]) -> dict[str, object]:
    """One scenario, policy and seed, as figures."""
    place, name, seed = task
    scenario = scenarios(seed)[place]
    policy = SlurmPolicy() if name == "slurm" else create(name)
    settings = scenario.plain if name == "slurm" else scenario.settings
    outcome = run(scenario.jobs, cluster(scenario.nodes, seed), policy, settings)
    figures = outcome.figures()
    waits, levels = figures["waits"], figures["levels"]
    assert isinstance(waits, dict)
    assert isinstance(levels, dict)
    by_reason = {f"{reason}_h": sum(one[reason] for one in waits["seconds"].values()) / 3_600 for reason in REASONS}
    # Of the jobs that need several nodes, those that got them in one leaf.
    wide = {"in_one_leaf": levels[">8"].get("leaf", 0), "wide": sum(levels[">8"].values())}
    return {"scenario": scenario.name, "seed": seed, **figures, **by_reason, **wide, **slow_downs(outcome)}


def slow_downs(outcome: SimulationOutcome) -> dict[str, float]:
    """The mean bounded slow-down of all jobs, and that of the account that fares worst."""
    by_account: dict[str, list[float]] = {}
    for job in outcome.jobs:
        start, end = outcome.starts[job.id], outcome.ends[job.id]
        slow_down = max(1.0, (end - job.submit) / max(end - start, SHORTEST_S))
        by_account.setdefault(job.account, []).append(slow_down)
    every = [slow_down for some in by_account.values() for slow_down in some]
    return {"slow_down": fmean(every), "slow_down_worst_account": max(map(fmean, by_account.values()))}


def mean(group: Iterable[dict[str, object]]) -> dict[str, object]:
    """The mean of each number over seeds."""
    rows = list(group)
    numbers = [key for key, value in rows[0].items() if isinstance(value, int | float) and key != "seed"]
    means = {key: sum(number(row[key]) for row in rows) / len(rows) for key in numbers}
    return {"scenario": rows[0]["scenario"], "policy": rows[0]["policy"], **means}


@cache
def scenarios(seed: int) -> list[Scenario]:
    """All scenarios with what a seed draws for them."""
    everything = drawn(philly_data.jobs(philly_data.ALL), seed)
    week = drawn(philly_data.jobs(philly_data.WEEK), seed)
    parts = philly_data.quotas(philly_data.nodes_of_accounts(), {job.account for job in week}, 640)
    # Under hard quotas a job that is wider than its virtual cluster could never run.
    fitting = [job for job in week if job.gpus <= parts[job.account]]
    hard = SlurmSettings(quotas=Quotas(parts))
    lent = SlurmSettings(quotas=Quotas(parts, borrow_s=4 * 3_600))
    leaf = SlurmSettings(locality=LocalityRule("leaf", 600))
    return [
        Scenario("103959", [job for job in everything if job.account == "103959"], 8),
        Scenario("e13805", [job for job in everything if job.account == "e13805"], 16),
        Scenario("week", week, 80),
        Scenario("week, hard quotas", fitting, 80, hard, hard),
        Scenario("week, borrowing", fitting, 80, lent, lent),
        Scenario("gangs", [job for job in everything if job.gpus >= 8], 56, leaf, leaf),
        Scenario("week, pinned", week, 80, SlurmSettings(pinned=True, durations="predicted")),
    ]


def drawn(jobs: Sequence[TraceJob], seed: int) -> list[TraceJob]:
    draw = Random(seed)
    classes = [draw.choice(list(CLASSES)) for _ in jobs]
    complete = with_models(with_limits(jobs, seed), seed=seed)
    return [replace(job, app_class=name) for job, name in zip(complete, classes, strict=True)]


def cluster(nodes: int, seed: int) -> Fleet:
    """Most GPUs within a few percent of the median, one in thirty 15 to 60 % slower."""
    draw = np.random.default_rng(seed)
    slowness = np.abs(draw.normal(0.0, 0.03, (nodes, 8)))
    slowness += np.where(draw.random((nodes, 8)) < 1 / 30, draw.uniform(0.15, 0.6, (nodes, 8)), 0.0)
    scores = {name: 1.0 + felt * slowness for name, felt in CLASSES.items()}
    return build(Layout(nodes, 8, nodes_per_leaf=8, leaves_per_pod=5), scores, CostModel(LOCALITIES))


COMPARED = {"avg_jct_s": "s", "geomean_jct_s": "s", "p99_jct_s": "s", "avg_wait_s": "s", "makespan_s": "s"}
REASONS_H = tuple(f"{reason}_h" for reason in REASONS)
OF_BERTH = {"slow_down": "", "slow_down_worst_account": "", "in_one_leaf": "jobs", **dict.fromkeys(REASONS_H, "h")}
"""What is told of Berth alone, beside plain Slurm."""


def compare(rows: Sequence[dict[str, object]]) -> list[Figure]:
    """Each policy beside plain Slurm's."""
    by_run = {(str(row["scenario"]), str(row["policy"])): row for row in rows}
    return [
        Figure(
            f"{scenario.replace(', ', '_').replace(' ', '_')}_{policy}_{name}",
            number(row[name]),
            unit,
            "slurm",
            number(by_run[scenario, "slurm"][name]),
        )
        for (scenario, policy), row in by_run.items()
        if policy != "slurm"
        for name, unit in (COMPARED | OF_BERTH if policy == "berth" else COMPARED).items()
        if number(row[name]) or number(by_run[scenario, "slurm"][name])
    ]


def show(rows: Sequence[dict[str, object]]) -> None:
    """A table for people."""
    table = Table(title="Means over seeds. JCT and waits in seconds; reasons in hours over all jobs")
    columns = (*list(COMPARED)[:4], *REASONS_H, "slow_down", "slow_down_worst_account", "in_one_leaf", "wide", "wall_s")
    for column in ("scenario", "policy", *columns):
        table.add_column(column.replace("_", " "))
    for row in rows:
        table.add_row(str(row["scenario"]), str(row["policy"]), *(f"{number(row[one]):,.4g}" for one in columns))
    Console(width=180).print(table)


def number(value: object) -> float:
    """A figure as a number."""
    assert isinstance(value, int | float)
    return float(value)


if __name__ == "__main__":
    main()
