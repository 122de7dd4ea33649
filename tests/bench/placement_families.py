# SPDX-License-Identifier: Apache-2.0
"""The honest set: families of machines and workloads on which placement policies are compared."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from policy.cluster.cost import ACROSS_NODES, PUBLISHED, CostModel, Table, one_factor, pal_locality
from policy.cluster.fleet import Fleet
from policy.formats.arrays import Floats
from policy.simulate.inputs import read_traces
from policy.simulate.inputs.others import shifted
from policy.simulate.inputs.scores import grids
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.events import NodeEvent
from policy.simulate.study import WAYS
from policy.simulate.world import Layout, build
from tests.bench.paper.draw import Weather, drawn_jobs, measured_runs, noisy, slow_nodes, whole_nodes
from topology.scores import load

DATA = Path(os.environ.get("BERTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
"""PAL's profiles and traces; without them the families that need none of its maps are drawn from made-up ones."""

NODES, GPUS_PER_NODE, NODES_PER_LEAF = 16, 4, 4
LEAF_AND_POD: Table = {"*": one_factor(leaf=1.3, pod=1.7, any=1.7)}
SHIFT_S = 600.0
"""Seeds of a family whose GPUs are fixed shift each arrival by up to this much."""

PROFILES = {
    "compute": "resnet-longhorn-agg.csv",
    "mixed": "bert-longhorn-agg.csv",
    "memory": "bert-longhorn-agg.csv",
    "D": "pagerank-longhorn-agg.csv",
}
"""As in PAL's artifact."""

TRACES = {
    "philly": tuple(f"pal/traces-sia-philly/workload-{number}.csv" for number in (1, 3, 4, 7)),
    "sia": tuple(f"pal/sia-sosp23/workload-{number}.csv" for number in (1, 3, 4, 7)),
    "shockwave": tuple(f"pal/traces-shockwave/poisson_trace_{name}.csv" for name in ("120+1.0", "120+3.0", "120+5.0")),
}
"""PAL's own, Sia's as first published, Shockwave's."""


@dataclass(frozen=True, slots=True)
class Family:
    """Machines of one kind with workloads of one kind."""

    name: str
    profile: str
    """One of `WAYS` to draw GPUs from measured runs, or one of `MAPS`."""
    kind: str = "flat"
    """What is asked of it: flat, leafpod, events, or nothing but a report (`also`)."""
    localities: Table | None = None
    """None: PAL's one penalty for any two nodes."""
    move_s: float = 0.0
    noise: float = 0.0
    """Relative error of the scores that policies believe."""
    weather: Weather | None = None
    backfill: bool = True
    traces: str = "philly"

    @property
    def leaves(self) -> int:
        return NODES_PER_LEAF if self.kind == "leafpod" else 0


@dataclass(frozen=True, slots=True)
class Case:
    """One of a family's pairs: a workload on a machine."""

    jobs: list[TraceJob]
    fleet: Fleet
    """With the scores that policies believe."""
    truth: dict[str, Floats]
    events: list[NodeEvent]


MAPS = {"artifact": "pal-sim-64gpu.csv", "frontera": "32gpu-variability.csv"}
"""GPUs whose scores of all classes are known: the artifact's own 64, and 32 of Frontera."""

_WORDS = {"one-run": "one-run samples", "median": "per-GPU medians", "nodes": "whole nodes"}
SLOW_NODES = Weather(days_between=2.0)
"""Events delay PAL's mean job 1.39 times (FIFO) and 1.29 times (SRSF) at this rate, as `make bench NAME=events`
measures; fail-slow in the field 1.34 times (arXiv 2410.12588)."""


def families() -> Iterator[Family]:
    """All of them."""
    yield Family("artifact's 64 GPUs", "artifact")
    for way in WAYS:
        yield Family(_WORDS[way], way)
    yield Family("Frontera, whole nodes", "frontera")
    for way in ("one-run", "nodes"):
        for cost in (30.0, 120.0):
            yield Family(f"{_WORDS[way]}, move {cost:.0f} s", way, move_s=cost)
    for across in (1.0, 1.3, 2.0, 3.0):
        yield Family(f"whole nodes, L {across:g}", "nodes", localities=pal_locality(across))
    yield Family("whole nodes, L by model", "nodes", localities=PUBLISHED)
    yield Family("one-run samples, noise 3 %", "one-run", noise=0.03)
    yield Family("whole nodes, noise 3 %", "nodes", noise=0.03)
    yield Family("whole nodes, no backfill", "nodes", backfill=False)
    for way in WAYS:
        for cost in (0.0, 30.0, 120.0):
            yield Family(f"leaf/pod, {_WORDS[way]}, move {cost:.0f} s", way, "leafpod", LEAF_AND_POD, move_s=cost)
    yield Family("slow-node events", "nodes", "events", weather=SLOW_NODES)
    yield Family("slow-node events, half as many", "nodes", "also", weather=replace(SLOW_NODES, days_between=4.0))
    yield Family("whole nodes, Sia's traces", "nodes", traces="sia")
    yield Family("whole nodes, Shockwave's traces", "nodes", traces="shockwave")


def available(family: Family) -> bool:
    """Whether this machine has what the family is made of; profiles and Philly's jobs can be made up."""
    return DATA.is_dir() or (family.profile in WAYS and family.traces == "philly")


def case(family: Family, trace: int, seed: int) -> Case:
    """The pair of that trace and seed."""
    jobs = list(_trace(family.traces, trace))
    if family.profile == "artifact":
        jobs = sorted(shifted(jobs, SHIFT_S, seed), key=lambda job: job.submit)
    jobs = [job for job in jobs if job.gpus <= NODES * GPUS_PER_NODE]
    truth = _scores(family.profile, seed)
    costs = CostModel(family.localities or pal_locality(ACROSS_NODES))
    fleet = build(Layout(NODES, GPUS_PER_NODE, family.leaves), truth, costs)
    if family.noise:
        fleet = replace(fleet, scores=noisy(truth, family.noise, seed))
    events: list[NodeEvent] = []
    if family.weather:
        # Three times what the cluster needs at the least, so that events go on as long as any job does.
        until = 3.0 * (max(job.submit for job in jobs) + sum(job.gpus * job.work for job in jobs) / fleet.size.sum())
        events = slow_nodes(NODES, family.weather, until, seed)
    return Case(jobs, fleet, truth, events)


def traces_of(family: Family) -> int:
    """How many traces it has."""
    return len(TRACES[family.traces])


@lru_cache(maxsize=16)
def _trace(name: str, number: int) -> tuple[TraceJob, ...]:
    path = DATA / TRACES[name][number]
    return tuple(read_traces([str(path)]).jobs if path.exists() else drawn_jobs(160, 5.0, number))


@lru_cache(maxsize=64)
def _scores(profile: str, seed: int) -> dict[str, Floats]:
    if profile in MAPS:
        table = load(str(DATA / "pal" / "variability" / MAPS[profile]))
        nodes = {name: row for row, name in enumerate(dict.fromkeys(one.node for one in table))}
        real: dict[str, Floats] = {}
        for one in table:
            grid = real.setdefault(one.app_class, np.ones((len(nodes), GPUS_PER_NODE)))
            grid[nodes[one.node], one.position] = one.score
        return real if len(nodes) == NODES else whole_nodes(real, NODES, seed)
    way = next(way for way in WAYS if way == profile)
    with tempfile.TemporaryDirectory() as folder:
        sources = []
        for app_class, name in PROFILES.items():
            path = DATA / "pal" / "variability" / name
            if not path.exists():
                path = Path(folder, f"{app_class}.csv")
                path.write_text("\n".join(measured_runs(app_class, seed)), encoding="utf-8")
            sources.append(f"{app_class}={path}")
        return grids(sources, NODES, GPUS_PER_NODE, way=way, seed=seed)
