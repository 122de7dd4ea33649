# SPDX-License-Identifier: Apache-2.0
"""Placement under Slurm's own rules, for `make bench NAME=placement`: Berth beside PAL, PM-First, Slurm and a bound.

No job moves once it runs. A job on several nodes gets the same GPUs on each, as a pin in Slurm can say. Jobs start in
the order of the queue, and by backfill. All policies but plain Slurm have berthd's freedom: a job that waits bars only
the nodes that are planned for it (`pinned`), and all of them know the same time limits.

A pair is one of eight traces and one draw, which shifts each arrival by up to 600 s and stays the same for all
policies. One run says little: a gang that starts a minute later may get other nodes, and all behind it wait. PAL's
traces have no time limits: `no limits` leaves them so, and backfill can plan nothing; else each job's limit is three
times its run time. `bound` is Berth's policy where every GPU is as good as the best of its class. It bounds what any
choice of GPUs can gain, but its packing is Berth's, so it is no bound on that. Where a name ends in `roll-out`, jobs
may let others go first, as berthd does with `look_ahead`; PAL gets it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context

import numpy as np

from policy.cluster.cost import CostModel, Table, one_factor, pal_locality
from policy.cluster.fleet import Fleet
from policy.formats.arrays import Floats
from policy.placement.base import Policy
from policy.placement.registry import create
from policy.request.settings import RelocationRules, Settings
from policy.simulate.inputs import read_traces
from policy.simulate.inputs.others import shifted
from policy.simulate.inputs.scores import grids
from policy.simulate.jobs import TraceJob
from policy.simulate.slurm.settings import SlurmSettings
from policy.simulate.slurm.world import SlurmWorld
from policy.simulate.world import Layout, build
from tests.bench.paper.moved import MovingSettings, MovingWorld
from tests.bench.paper.rolled import RolledWorld
from tests.bench.paper.worlds import play
from tests.bench.placement_families import DATA, GPUS_PER_NODE, LEAF_AND_POD, MAPS, NODES, NODES_PER_LEAF, SHIFT_S
from tests.bench.placement_pairs import METRICS, Comparison, Gain, Pair
from topology.machines import machine

DRAWS, QUICK_DRAWS = 10, 2
"""Draws of each trace."""
MACHINE = "a100-4"
LIMIT_FACTOR = 3.0
LEAVES_PER_POD = 2

TRACES = (
    *(f"pal/traces-sia-philly/workload-{number}.csv" for number in (1, 3, 4, 7)),
    *(f"pal/sia-sosp23/workload-{number}.csv" for number in (1, 3, 4, 7)),
)
"""The Sia-Philly workloads, as in PAL's artifact and as first published, with other models and widths."""

SCORES = f"pal/variability/{MAPS['artifact']}"
ROLLED = ", roll-out"
"""Ends the name of a policy whose jobs may let others go first (policy/plan/jobs/roll_out.py)."""
MOVING = ", moves"
"""Ends the name of a policy whose running jobs may be moved, by berthd's rules and at their usual cost."""
POLICIES = (
    "berth", "pal", "pm-first", "slurm", "packed", "pinned-random", "bound", f"berth{ROLLED}", f"pal{ROLLED}",
)  # fmt: skip
NEEDED = (*TRACES, SCORES)

_PODS: Table = {"*": one_factor(leaf=1.17, pod=1.3, any=1.7)}


@dataclass(frozen=True, slots=True)
class SlurmFamily:
    """A network, and what is known of run times."""

    name: str
    nodes_per_leaf: int = 0
    leaves_per_pod: int = 0
    localities: Table | None = None
    """None: PAL's one penalty for any two nodes."""
    limit_factor: float | None = None
    """Time limits over run times; None: the jobs have no limits."""


def families() -> Iterator[SlurmFamily]:
    """All of them: three networks, with and without time limits."""
    for limits, factor in (("no limits", None), ("limits x 3", LIMIT_FACTOR)):
        yield SlurmFamily(f"slurm, flat, {limits}", limit_factor=factor)
        yield SlurmFamily(f"slurm, leaves, {limits}", NODES_PER_LEAF, 0, LEAF_AND_POD, factor)
        yield SlurmFamily(f"slurm, pods, {limits}", NODES_PER_LEAF, LEAVES_PER_POD, _PODS, factor)


def missing() -> str:
    """Returns one sentence on what is missing; empty where all traces and scores are at hand."""
    lacks = [name for name in NEEDED if not (DATA / name).exists()]
    if not lacks:
        return ""
    return f"left out under Slurm's rules: {DATA} lacks {', '.join(lacks)}; BERTH_DATA names the folder that has pal/"


def one_pair(family: SlurmFamily, trace: int, draw: int, policies: Sequence[str] = POLICIES) -> Pair:
    """Runs these policies on one trace and draw."""
    jobs, fleet = jobs_of(family, trace, draw), fleet_of(family)
    found = {}
    for name in policies:
        machines = best_everywhere(fleet) if name == "bound" else fleet
        settings = SlurmSettings(order="fifo", pinned=name != "slurm")
        world: type[SlurmWorld] = RolledWorld if name.endswith(ROLLED) else SlurmWorld
        if name.endswith(MOVING):
            world = MovingWorld
            rules = RelocationRules(enabled=True)
            movable = {job.id: float(rules.cost) for job in jobs}
            settings = MovingSettings("fifo", pinned=settings.pinned, site=Settings(moving=rules), movable=movable)
        policy = policy_of(name.removesuffix(ROLLED).removesuffix(MOVING), draw)
        outcome = play(world, jobs, machines, policy, settings).figures()
        found[name] = {figure: float(str(outcome[figure])) for figure in (*METRICS, "moves", "jobs", "wall_s")}
        found[name]["moved"] = float(str(outcome.get("moved", 0)))
    return Pair(family.name, "fifo", trace, draw, found)


def policy_of(name: str, draw: int) -> Policy:
    """Returns the policy of a name; `bound` places as Berth does."""
    if name == "pinned-random":
        return create(name, seed=draw)
    return create("berth" if name == "bound" else name)


def jobs_of(family: SlurmFamily, trace: int, draw: int) -> list[TraceJob]:
    """Returns the jobs of a trace that fit the cluster, with shifted arrivals and the family's limits."""
    jobs = [job for job in _trace(trace) if job.gpus <= NODES * GPUS_PER_NODE]
    if family.limit_factor is not None:
        jobs = [replace(job, limit=family.limit_factor * job.work) for job in jobs]
    return sorted(shifted(jobs, SHIFT_S, draw), key=lambda job: job.submit)


@lru_cache(maxsize=len(TRACES))
def _trace(number: int) -> tuple[TraceJob, ...]:
    return tuple(read_traces([str(DATA / TRACES[number])]).jobs)


@lru_cache(maxsize=8)
def _scores() -> dict[str, Floats]:
    return grids([str(DATA / SCORES)], NODES, GPUS_PER_NODE)


def fleet_of(family: SlurmFamily) -> Fleet:
    """Returns the cluster: the 64 GPUs of PAL's published simulations in nodes of four A100."""
    layout = Layout(NODES, GPUS_PER_NODE, family.nodes_per_leaf, family.leaves_per_pod)
    return build(layout, dict(_scores()), costs_of(family), machine(MACHINE, "n0"))


def costs_of(family: SlurmFamily) -> CostModel:
    """Returns what distance costs in a family's network."""
    return CostModel(family.localities or pal_locality())


def best_everywhere(fleet: Fleet) -> Fleet:
    """Returns the same cluster where every GPU is as fast as the fastest of its class."""
    return replace(fleet, scores={name: np.full_like(table, table.min()) for name, table in fleet.scores.items()})


def all_pairs(
    chosen: Sequence[SlurmFamily], draws: int, workers: int, tick: Callable[[int, int], None]
) -> dict[str, list[Pair]]:
    """Runs all policies on all traces and draws of these families."""
    asked = [(family, trace, draw) for family in chosen for draw in range(1, draws + 1) for trace in range(len(TRACES))]
    found: dict[str, list[Pair]] = {family.name: [] for family in chosen}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        futures = [pool.submit(one_pair, *one) for one in asked]
        for done, future in enumerate(as_completed(futures), 1):
            pair = future.result()
            found[pair.family].append(pair)
            tick(done, len(asked))
    return {name: sorted(some, key=lambda one: (one.trace, one.seed)) for name, some in found.items()}


@dataclass(frozen=True, slots=True)
class SlurmRow:
    """Sums up all pairs of a family; ratios are geometric means over pairs, with 95 % intervals."""

    family: str
    pairs: int
    over_pal: dict[str, Gain]
    """Mean JCT of each policy over PAL's."""
    over_slurm: dict[str, Gain]
    """The same over plain Slurm's."""
    p99_over_pal: Gain
    makespan_over_pal: Gain
    gap_closed: Gain | None
    """(PAL - Berth) / (PAL - bound), in mean JCT."""


def row_of(family: str, pairs: Sequence[Pair]) -> SlurmRow:
    """Returns the figures of a family."""
    here = Comparison(pairs)
    mean, p99, makespan = METRICS[1:]
    known = pairs[0].figures
    return SlurmRow(
        family=family,
        pairs=len(pairs),
        over_pal={name: here.ratio(name, mean) for name in known if name != "pal"},
        over_slurm={name: here.ratio(name, mean, "slurm") for name in known if name != "slurm"},
        p99_over_pal=here.ratio("berth", p99),
        makespan_over_pal=here.ratio("berth", makespan),
        gap_closed=here.gap_closed("bound", mean),
    )
