# SPDX-License-Identifier: Apache-2.0
"""How much of PAL's gain remains when scores are what one can know: the published runs of Longhorn, Sia-Philly traces.

A cluster of 16 nodes of 4 GPUs is drawn, whole nodes, from those that ran an application at least three times. One run
of each node is what jobs meet (*the next run*); scores are made of the other runs, in PAL's way (one run of them, or
each GPU's median) or by our estimate. *Typical* is the same with each GPU's median over all of its runs as what jobs
meet, so that nobody meets a run in which a node waited.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np

from policy.cluster.cost import CostModel, pal_locality
from policy.cluster.fleet import Fleet
from policy.formats.arrays import Floats
from policy.placement.registry import create
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.rounds import RoundsSettings
from policy.simulate.world import Layout, build
from tests.bench.paper.joint.policy import JointBerth
from tests.bench.paper.watched import WatchedRounds
from tests.bench.simulate import data_folder, sia_trace
from topology.calibrate.peers import verdicts
from topology.calibrate.runs import GpuVisit, KernelRun, Visit, seconds_of
from topology.calibrate.statistics import Estimate, calibrate

NODES, GPUS = 16, 4
TRACES = (1, 3, 4, 7)
FILES = {
    "compute": "resnet-longhorn-agg.csv",
    "mixed": "bert-longhorn-agg.csv",
    "memory": "bert-longhorn-agg.csv",
    "D": "pagerank-longhorn-agg.csv",
}
"""As in PAL's artifact."""
KNOWLEDGE = ("truth", "one run", "median of runs", "estimate")
TRUTHS = ("next run", "typical")
_LEAST_RUNS = 3


def visits_of(path: Path, app_class: str) -> list[Visit]:
    """The published runs of one application, a visit for each time that all GPUs of a node ran it."""
    together: dict[tuple[str, str], dict[str, dict[str, str]]] = defaultdict(dict)
    with path.open() as lines:
        for row in csv.DictReader(lines):
            # PageRank ran on one GPU after another; its n-th runs belong together.
            when = row["ts"] if app_class != "D" else f"#{row['reps']}"
            together[f"{row['cabinet']}-{row['node']}", when][row["uuid"]] = row
    found = []
    for (node, when), gpus in sorted(together.items()):
        seconds = 1.6e9 + 86_400.0 * int(when[1:]) if when.startswith("#") else float(when)
        some = tuple(
            GpuVisit(position, uuid, "V100", runs=(_run(gpus[uuid], app_class),))
            for position, uuid in enumerate(sorted(gpus))
        )
        at = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found.append(Visit(node, at, some))
    return found


def _run(row: Mapping[str, str], app_class: str) -> KernelRun:
    # PageRank's columns after the time are shifted, so that its power and clock are not known.
    known = app_class != "D"
    return KernelRun(
        app_class,
        float(row["perf"]),
        sm_mhz=float(row["freq"]) if known else 0.0,
        power_w=float(row["mean_pwr"]) if known else 0.0,
    )


@lru_cache(maxsize=8)
def profile(app_class: str) -> tuple[Visit, ...]:
    """The visits of one class's application."""
    data = data_folder()
    assert data, "asked only where the data is"
    return tuple(visits_of(data / "pal" / "variability" / FILES[app_class], app_class))


def waiting_visits() -> tuple[int, int, int]:
    """Of ResNet-50's visits: those 1.5 times slower than typical on all GPUs, those found waiting, and both."""
    visits = profile("compute")
    typical = float(np.median([run.time_ms for visit in visits for gpu in visit.gpus for run in gpu.runs]))
    slow = {n for n, visit in enumerate(visits) if min(g.runs[0].time_ms for g in visit.gpus) > 1.5 * typical}
    waited = {(visit.node, visit.at) for _, _, visit, _, _, wrong in verdicts(visits) if wrong == "waiting"}
    found = {n for n, visit in enumerate(visits) if (visit.node, visit.at) in waited}
    return len(slow), len(found), len(slow & found)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tables of one drawn cluster: what jobs meet, and what is believed, by class."""

    truths: Mapping[str, Mapping[str, Floats]]
    beliefs: Mapping[str, Mapping[str, Floats]]


def drawn(seed: int) -> Drawn:
    """The same nodes and held-out visits for all."""
    truths: dict[str, dict[str, Floats]] = {name: {} for name in TRUTHS}
    beliefs: dict[str, dict[str, Floats]] = {name: {} for name in KNOWLEDGE[1:]}
    for app_class in FILES:
        draw = np.random.default_rng([seed, *app_class.encode()])
        visits = profile(app_class)
        by_node: dict[str, list[Visit]] = defaultdict(list)
        for visit in visits:
            if len(visit.gpus) == GPUS:
                by_node[visit.node].append(visit)
        usable = sorted(node for node, some in by_node.items() if len(some) >= _LEAST_RUNS)
        chosen = [usable[place] for place in draw.permutation(len(usable))[:NODES]]
        chosen += [usable[place] for place in draw.integers(0, len(usable), NODES - len(chosen))]
        held = {node: by_node[node][int(draw.integers(len(by_node[node])))] for node in usable}
        typical = float(np.median([run.time_ms for visit in visits for gpu in visit.gpus for run in gpu.runs]))
        known = [visit for visit in visits if held.get(visit.node) is not visit]
        scores = {(e.place.node, e.place.position): e.score for e in estimates(known)}
        for row, node in enumerate(chosen):
            every = np.array([[gpu.runs[0].time_ms for gpu in visit.gpus] for visit in by_node[node]]) / typical
            at = next(n for n, visit in enumerate(by_node[node]) if visit is held[node])
            others = np.delete(every, at, axis=0)
            # PAL's simulator draws a run for each GPU on its own.
            single = np.array([others[int(draw.integers(len(others))), gpu] for gpu in range(GPUS)])
            _put(truths["next run"], app_class, row, every[at])
            _put(truths["typical"], app_class, row, np.median(every, axis=0))
            _put(beliefs["one run"], app_class, row, single)
            _put(beliefs["median of runs"], app_class, row, np.median(others, axis=0))
            _put(beliefs["estimate"], app_class, row, np.array([scores.get((node, gpu), 1.0) for gpu in range(GPUS)]))
    return Drawn(truths, beliefs)


def estimates(visits: list[Visit]) -> tuple[Estimate, ...]:
    """Of these visits alone, at the time of the last."""
    return calibrate(visits, max(seconds_of(visit.at) for visit in visits)).estimates


def _put(tables: dict[str, Floats], app_class: str, row: int, values: Floats) -> None:
    tables.setdefault(app_class, np.ones((NODES, GPUS)))[row] = values


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean JCT over that of Packed-Sticky on the same machine, geometric mean over traces and seeds."""

    truth: str
    knowledge: str
    policy: str
    jct: float
    makespan: float


def gains(seeds: range, policies: tuple[str, ...] = ("pal", "berth")) -> list[Gain]:
    """All of the table."""
    data = data_folder()
    assert data, "asked only where the data is"
    traces = {number: sia_trace(data, number) for number in TRACES}
    logs: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for seed in seeds:
        cluster = drawn(seed)
        for truth, real in cluster.truths.items():
            for number, jobs in traces.items():
                base = judged(jobs, fleet_of(real), "packed-sticky", real)
                for knowledge in KNOWLEDGE:
                    believed = real if knowledge == "truth" else cluster.beliefs[knowledge]
                    for policy in policies:
                        got = judged(jobs, fleet_of(believed), policy, real)
                        logs[truth, knowledge, policy].append((got[0] / base[0], got[1] / base[1]))
                sys.stderr.write(f"\rseed {seed}, {truth}, workload {number}   ")
    sys.stderr.write("\n")
    means = {key: np.exp(np.log(some).mean(axis=0)) for key, some in logs.items()}
    return [Gain(*key, float(jct), float(makespan)) for key, (jct, makespan) in means.items()]


def fleet_of(scores: Mapping[str, Floats]) -> Fleet:
    """Nodes that are believed to have these scores."""
    return build(Layout(NODES, GPUS), scores, CostModel(pal_locality()))


def judged(jobs: Sequence[TraceJob], fleet: Fleet, policy: str, truth: Mapping[str, Floats]) -> tuple[float, float]:
    """Mean JCT and makespan of a policy where jobs meet this truth."""
    placed = JointBerth() if policy == "berth" else create(policy.removesuffix("-sticky"))
    found = WatchedRounds(jobs, fleet, placed, RoundsSettings(), truth=truth).run().figures()
    return float(str(found["avg_jct_s"])), float(str(found["makespan_s"]))
