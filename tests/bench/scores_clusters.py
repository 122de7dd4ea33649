# SPDX-License-Identifier: Apache-2.0
"""PAL's gain over Packed-Sticky on every cluster whose profile is at hand, by what is believed of its GPUs.

*Raw* are scores as PAL takes them, one run or what was published; *posterior* is our estimate; *oracle* knows what jobs
will meet. Where jobs meet the very run that was measured, for ever, raw is the oracle: so PAL's simulator has it. A
cluster that is no multiple of 64 GPUs is made up of its whole nodes, each drawn once before any comes again.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from policy.formats.arrays import Floats
from tests.bench.paper.draw import whole_nodes
from tests.bench.scores_profiles import FILES, GPUS, NODES, TRACES, Gain, estimates, fleet_of, judged, profile
from tests.bench.simulate import data_folder, sia_trace
from topology.calibrate.runs import GpuVisit, KernelRun, Visit
from topology.scores import Score, load

SIDES = ("raw", "posterior", "oracle")
_TABLES = {"the artifact's 64 GPUs": "pal-sim-64gpu.csv", "Frontera, 32 GPUs": "32gpu-variability.csv"}
_ONE_BY_ONE = "Longhorn, GPUs one by one"
_AT = "2026-11-20T10:00:00Z"
_TIME_MS = 100.0
"""Of a typical GPU in a table that has scores and no times."""

Tables = Mapping[str, Floats]
Scores = Mapping[tuple[str, str, int], float]
"""By class, node and position."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What its jobs meet, and what is believed of it."""

    name: str
    meets: str
    truth: Tables
    raw: Tables
    posterior: Tables


@dataclass(frozen=True, slots=True)
class Row:
    """Mean JCT of PAL over Packed-Sticky's, by what is believed."""

    cluster: str
    meets: str
    raw: float
    posterior: float
    oracle: float


def rows(gains: Sequence[Gain], seeds: range) -> list[Row]:
    """One for each cluster; `gains` has Longhorn's whole nodes already."""
    data = data_folder()
    if data is None:
        return []
    traces = [sia_trace(data, number) for number in TRACES]
    logs: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for seed in seeds:
        for one in _clusters(data, seed):
            for number, jobs in zip(TRACES, traces, strict=True):
                base = judged(jobs, fleet_of(one.truth), "packed-sticky", one.truth)[0]
                believed = (one.raw, one.posterior, one.truth)
                found = [judged(jobs, fleet_of(some), "pal", one.truth)[0] / base for some in believed]
                logs[one.name, one.meets].append(found)
                sys.stderr.write(f"\rseed {seed}, {one.name}, workload {number}   ")
    sys.stderr.write("\n")
    made = [Row(*key, *np.exp(np.log(some).mean(axis=0)).tolist()) for key, some in logs.items()]
    known = {(one.truth, one.knowledge): one.jct for one in gains if one.policy == "pal"}
    for truth in dict.fromkeys(one.truth for one in gains):
        of = [known[truth, what] for what in ("one run", "estimate", "truth")]
        made.append(Row("Longhorn, whole nodes", f"its {truth}", *of))
    return made


def _clusters(data: Path, seed: int) -> Iterator[Cluster]:
    for name, file in _TABLES.items():
        path = data / "pal" / "variability" / file
        if path.exists():
            yield _published(name, path, seed)
    if all((data / "pal" / "variability" / file).exists() for file in FILES.values()):
        yield _one_by_one(seed)


def _published(name: str, path: Path, seed: int) -> Cluster:
    """A table of scores, taken as the one run that each is."""
    table = load(path)
    nodes = list(dict.fromkeys(one.node for one in table))
    raw = _grids(table, nodes, {})
    one_run = [_visit(node, app_class, table) for app_class in raw for node in nodes]
    known = {(e.app_class, e.place.node, e.place.position): e.score for e in estimates(one_run)}
    both = {**raw, **{f"posterior/{name}": grid for name, grid in _grids(table, nodes, known).items()}}
    drawn = whole_nodes(both, NODES, seed) if len(nodes) != NODES else both
    truth = {app_class: drawn[app_class] for app_class in raw}
    posterior = {app_class: drawn[f"posterior/{app_class}"] for app_class in raw}
    return Cluster(name, "what was measured once", truth, truth, posterior)


def _grids(table: Sequence[Score], nodes: Sequence[str], known: Scores) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    for one in table:
        grid = found.setdefault(one.app_class, np.ones((len(nodes), GPUS)))
        score = known.get((one.app_class, one.node, one.position), one.score)
        grid[nodes.index(one.node), one.position] = score
    return found


def _visit(node: str, app_class: str, table: Sequence[Score]) -> Visit:
    mine = [one for one in table if (one.node, one.app_class) == (node, app_class)]
    gpus = tuple(
        GpuVisit(one.position, f"{node}:{one.position}", "-", runs=(KernelRun(app_class, _TIME_MS * one.score),))
        for one in mine
    )
    return Visit(node, _AT, gpus)


def _one_by_one(seed: int) -> Cluster:
    """As PAL's simulator draws: each GPU gets one of all runs, each class on its own; that run it then has for ever."""
    truth: dict[str, Floats] = {}
    posterior: dict[str, Floats] = {}
    for app_class in FILES:
        draw = np.random.default_rng([seed, 3, *app_class.encode()])
        visits = profile(app_class)
        runs = [(gpu.uuid, gpu.runs[0].time_ms) for visit in visits for gpu in visit.gpus]
        typical = float(np.median([time for _, time in runs]))
        known = {e.place.uuid: e.score for e in estimates(list(visits))}
        chosen = [runs[place] for place in draw.integers(0, len(runs), NODES * GPUS)]
        truth[app_class] = np.array([time / typical for _, time in chosen]).reshape(NODES, GPUS)
        posterior[app_class] = np.array([known.get(uuid, 1.0) for uuid, _ in chosen]).reshape(NODES, GPUS)
    return Cluster(_ONE_BY_ONE, "the drawn run for ever", truth, truth, posterior)
