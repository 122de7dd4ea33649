# SPDX-License-Identifier: Apache-2.0
"""The same arrivals in the simulator of berthd beside slurmctld: what a change of the plan would do, in seconds.

    python -m tests.bench.replay.simulated --seeds 1,2,3 --systems plain,berth

Jobs, scores and stretch are those of the replay; a run on paper is told in the same words as a real one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import permutations
from pathlib import Path

import numpy as np

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Floats
from policy.placement.registry import create
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run as simulate
from policy.simulate.slurm.settings import Delays, LocalityRule, Rate, SlurmSettings
from policy.simulate.world import Layout, build_of, fabric_of
from topology import files
from topology.model import Machine
from topology.network.blocks import Blocks
from topology.scores import Score
from topology.sets.wiring import positions

from ..table import Figure, at_most
from .analysis import summary
from .figures import BERTH, NOISE, PLAIN, by_system, details
from .outcome import Outcome, Run
from .stretch import GPUS, Stretch, linked, machine_of, table_path
from .systems import ORACLE, SYSTEMS, System
from .testbed import LEAF, NODES, POD, SLURM
from .testbed import kinds as machines_found
from .workload import Job, Shape, draw

CORES = 16
"""Of each node."""

TICK = 1.0
"""Seconds between two passes, as in `systems.System.berth_conf`."""

BACKFILL = 2.1
"""Seconds between two of slurmctld's backfill passes: bf_interval, and what a pass takes. Starts by backfill came
2.08 s after each other in real runs of plain Slurm, 2.18 s beside berthd."""

DEPTH = 2_000
"""Jobs tried in a main pass, and in backfill, on the real clusters too."""

PLAYS = 3
"""Times that a run is played for one figure: the end of a single run hangs on where its last long job landed."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all runs on paper stand on."""

    stretch: Stretch
    kinds: Mapping[str, Machine]
    lost_notices: float = 0.0
    """Part of the Epilogs' notices that never arrive."""
    topology: str = "tree"
    """Slurm's plugin."""
    slurm: str = SLURM
    nodes: int = NODES
    """The first ones of the replay's cluster."""


def play(jobs: Sequence[Job], seed: int, system: System, ground: Ground, chance: int = 0) -> Run:
    """A run of these jobs on paper; another `chance` is a run of the same jobs at another time of day."""
    machines = _machines(ground)
    known = _tables(ground.stretch.scores(machines, seed), len(machines)) if system.berth and system.scores else {}
    settings = SlurmSettings(
        berthd=system.berth,
        delays=Delays(tick=TICK, epilogs=system.epilog, lost_notices=ground.lost_notices),
        bf_interval_s=BACKFILL,
        default_queue_depth=DEPTH,
        bf_max_job_test=DEPTH,
        durations="true" if system.foresees else "limit",
        rate=rate_of(ground.stretch, machines),
        localities={job.name: LocalityRule("leaf", wait) for job in jobs if (wait := leaf_wait(job, ground.topology))},
        kill=False,
        slurm=ground.slurm,
        seed=PLAYS * seed + chance,
    )
    own = fleet(machines, known, ground.topology)
    policy = create(system.policy if system.berth else "slurm")
    done = simulate([as_traced(job) for job in jobs], own, policy, settings)
    rate = settings.rate
    assert rate is not None, "it was given above"
    outcomes = []
    where = {one.job: one.gpus for one in done.stretches}
    for job, played in zip(jobs, done.jobs, strict=True):
        nodes = sorted({gpu // GPUS for gpu in where[job.name]})
        masks = [sum(1 << gpu % GPUS for gpu in where[job.name] if gpu // GPUS == node) for node in nodes]
        outcomes.append(
            Outcome(
                name=job.name,
                width=job.width,
                app_class=job.app_class,
                at=job.at,
                seconds=job.seconds,
                limit=job.limit,
                asked=job.at,
                started=done.starts[job.name],
                ended=done.ends[job.name],
                stretch=rate(played, nodes, masks) if job.gpus else 1.0,
                level=level_of(own, machines, nodes, masks) if job.gpus else "none",
                nodes=tuple(own.names[node] for node in nodes),
                gpus=positions(masks[0]) if masks else (),
                state="completed",
                starts=1,
            )
        )
    updates, denied = done.extra["updates"], done.extra["denied"]
    assert isinstance(updates, int), "it is counted"
    assert isinstance(denied, int), "it is counted"
    notes = {"reasons": done.extra["reasons"]}
    return Run(system.name, seed, "on paper", {}, tuple(outcomes), (), updates, denied, notes=notes)


def rate_of(stretch: Stretch, machines: Mapping[str, Machine]) -> Rate:
    """The stretch table as the simulator asks for it."""
    names = list(machines)
    slow = [[stretch.gpu[f"{name}:{gpu}"] for gpu in range(GPUS)] for name in names]
    plain = build_of(machines, fabric_of(Layout(len(machines), GPUS, LEAF, POD // LEAF), names))

    def rate(job: TraceJob, nodes: Sequence[int], masks: Sequence[int]) -> float:
        slowest = max(slow[node][gpu] for node, mask in zip(nodes, masks, strict=True) for gpu in positions(mask))
        level = level_of(plain, machines, nodes, masks)
        return (1 + stretch.sensitivity[job.app_class] * (slowest - 1)) * stretch.level[level]

    return rate


def level_of(fleet: Fleet, machines: Mapping[str, Machine], nodes: Sequence[int], masks: Sequence[int]) -> str:
    """How near to each other a job's GPUs really are."""
    if len(nodes) > 1:
        return fleet.fabric.level(nodes)
    joined = linked(machines[fleet.names[nodes[0]]])
    together = all(masks[0] & ~joined[gpu] == 1 << gpu for gpu in positions(masks[0]))
    return "nvlink" if together else "node"


def fleet_of(ground: Ground) -> Fleet:
    """The cluster of a run on paper, without scores."""
    return fleet(_machines(ground), {}, ground.topology)


def fleet(machines: Mapping[str, Machine], scores: Mapping[str, Floats], topology: str = "tree") -> Fleet:
    """The replay's cluster on paper."""
    fabric = fabric_of(Layout(len(machines), GPUS, LEAF, POD // LEAF), list(machines))
    if topology == "block":
        fabric = replace(fabric, blocks=Blocks((LEAF, POD), fabric.leaf))
    # What levels cost berthd does not know either: it has what its own cost model says.
    made = build_of(machines, fabric, scores)
    return replace(made, cpus=np.full(len(machines), CORES, np.int64))


def _machines(ground: Ground) -> dict[str, Machine]:
    return {f"n{node}": ground.kinds[machine_of(node)] for node in range(1, ground.nodes + 1)}


def _tables(scores: Sequence[Score], nodes: int) -> dict[str, Floats]:
    tables: dict[str, Floats] = {}
    for one in scores:
        table = tables.setdefault(one.app_class, np.ones((nodes, GPUS)))
        table[int(one.node[1:]) - 1, one.position] = one.score
    return tables


def leaf_wait(job: Job, topology: str) -> int:
    """The seconds for which a job waits for one leaf: topology/block reads no --switches, and Berth's flag is alike."""
    return job.leaf_wait if topology == "tree" else 0


def as_traced(job: Job) -> TraceJob:
    """A job as its user submits it on paper."""
    return TraceJob(
        id=job.name,
        gpus=job.width,
        submit=job.at,
        work=job.seconds,
        app_class=job.app_class,
        limit=60.0 * job.limit,
        nodes=job.nodes,
        cpus=job.cpus,
    )


# Beside real runs


def ground_of(run: Run) -> Ground:
    """What a real run stood on."""
    table, kinds = Stretch.load(table_path()), machines_found()
    return Ground(table, kinds, topology=run.settings["topology"], slurm=run.slurm)


def play_again(runs: Sequence[Run]) -> list[Run]:
    """The jobs of real runs on paper, each a few times."""
    return [
        play(
            draw(run.seed, shape_of(run)),
            run.seed,
            SYSTEMS[run.system],
            ground,
            chance,
        )
        for run in runs
        for ground in [ground_of(run)]
        for chance in range(PLAYS)
    ]


def shape_of(run: Run) -> Shape:
    """How the jobs of a real run were drawn."""
    values = {key: value for key, value in run.settings.items() if key in asdict(Shape())}
    return Shape(**{**values, "widths": {int(width): share for width, share in values["widths"].items()}})


def sim_figures(runs: Sequence[Run]) -> list[Figure]:
    """How far the simulator is from the real runs; beside it how far two real runs are from each other."""
    systems = by_system(runs)
    played = {name: play_again(systems[name]) for name in (PLAIN, BERTH) if name in systems}
    if not played:
        return []
    errors = {name: error(own, systems[name]) for name, own in played.items()}
    both = len(systems.get(NOISE, ())) == len(systems.get(PLAIN, ())) > 0
    noise = error(systems[NOISE], systems[PLAIN]) if both else None
    peer = "plain beside plain" if both else ""
    each = [Figure(f"sim_error_{name}", value, "", peer, noise) for name, value in errors.items()]
    each += [Figure(f"sim_weighed_error_{name}", weighed_error(own, systems[name]), "") for name, own in played.items()]
    each += [Figure(f"sim_chance_{name}", chance_alone(own), "") for name, own in played.items()]
    return [*each, at_most("sim_error", max(errors.values()), 0.10, "", peer, noise)]


def error(ours: Sequence[Run], found: Sequence[Run]) -> float:
    """The greater of the relative errors in mean wait and mean makespan."""
    a, b = summary(ours), summary(found)
    return max(abs(a.wait / b.wait - 1), abs(a.makespan / b.makespan - 1))


def chance_alone(played: Sequence[Run]) -> float:
    """How far two plays of all seeds are from each other at most, by `error`: as far as two real runs may be."""
    plays = [played[chance::PLAYS] for chance in range(PLAYS)]
    return max(error(one, other) for one, other in permutations(plays, 2))


def weighed_error(ours: Sequence[Run], found: Sequence[Run]) -> float:
    """The relative error in the GPUs that wait on the average: who of them waits is another question."""
    return abs(summary(ours).weighed_wait / summary(found).weighed_wait - 1)


def change(text: str) -> None:
    """Give a constant of the plan another value, to see what it does."""
    name, _, value = text.partition("=")
    module, _, constant = name.rpartition(".")
    where = import_module(module)
    setattr(where, constant, type(getattr(where, constant))(float(value)))


def main() -> int:
    """Play seeds of some systems and print what came of them."""
    systems = {**SYSTEMS, ORACLE.name: ORACLE}
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay.simulated", description=__doc__)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--systems", default="plain,berth,random", help=f"of {', '.join(systems)}")
    parser.add_argument("--jobs", type=int, default=Shape().jobs)
    parser.add_argument("--mean", type=float, default=Shape().mean)
    parser.add_argument("--load", type=float, default=Shape().load)
    parser.add_argument("--plays", type=int, default=1, help="of each seed: what differs is chance alone")
    parser.add_argument("--lost-notices", type=float, default=0.0, help="part of the Epilogs' notices")
    parser.add_argument("--topology", default="tree", choices=("tree", "block"))
    parser.add_argument("--slurm", default=SLURM)
    parser.add_argument("--nodes", type=int, default=NODES, help="whole pods of 16; the load is for these")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="a constant, such as policy.plan.queue.outlook.FIRST=0",
    )
    parser.add_argument("--machines", type=Path, help="a folder of topology files of the four kinds of machines")
    args = parser.parse_args()
    for one in args.set:
        change(one)
    kinds = files.load_directory(args.machines) if args.machines else machines_found()
    table = Stretch.load(table_path())
    ground = Ground(table, kinds, args.lost_notices, args.topology, args.slurm, args.nodes)
    shape = Shape(jobs=args.jobs, mean=args.mean, load=args.load * args.nodes / NODES)
    runs = [
        play(draw(seed, shape), seed, systems[name], ground, chance)
        for name in args.systems.split(",")
        for seed in map(int, args.seeds.split(","))
        for chance in range(args.plays)
    ]
    print(details(runs))
    for name, own in by_system(runs).items():
        one = summary(own)
        gpu_jobs = sum(outcome.width > 0 for run in own for outcome in run.outcomes)
        print(
            f"{name:8} JCT {one.jct:.2f} s (GPU jobs {one.gpu_jct:.2f}), wait {one.wait:.2f} s "
            f"(GPU jobs {one.gpu_wait:.2f}), makespan {one.makespan:.1f} s, longest wait {one.longest:.1f} s, "
            f"stretch {one.stretch:.4f}, updates per GPU job {sum(run.updates for run in own) / gpu_jobs:.2f}"
        )
        for reason, number in sum((Counter(run.notes["reasons"]) for run in own), Counter[str]()).most_common():
            print(f"  {number / gpu_jobs:6.2f} updates per GPU job: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
