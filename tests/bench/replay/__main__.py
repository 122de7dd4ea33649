# SPDX-License-Identifier: Apache-2.0
"""Berth beside plain Slurm: the same jobs on a real Slurm of 64 nodes, each stretched by the GPUs that it got.

Five seeds of four systems take about two and a half hours; what is done already is not run again (build/replay).
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from functools import partial
from pathlib import Path

from containers import cluster as clusters
from containers.cluster import ClusterError

from ..table import Figure, report
from .execute import run, write_json
from .figures import BLIND, NOISE, PLAIN, PUBLISHED, adversary_figures, chaos_figures, details, figures
from .limits import limit_figures
from .outcome import Run
from .passes import pass_figures
from .simulated import Ground, sim_figures
from .stretch import NoTableError, Stretch, table_path
from .systems import SYSTEMS, System
from .testbed import BUILD, PROFILE, SLURM, Testbed, TestbedError, kinds
from .workload import Shape

TOPOLOGY = "block"
PAPER = "paper"
PLAYS = 2
"""Of each seed on paper: what differs is chance alone."""


def main() -> int:
    """Turn a failure into one sentence and an exit status."""
    try:
        return _perform(_parser().parse_args())
    except (ClusterError, NoTableError, TestbedError) as problem:
        print(f"bench-replay: {problem}", file=sys.stderr)
        return 1


def _perform(args: argparse.Namespace) -> int:
    """Run what is missing, then print the table."""
    shape = Shape(jobs=args.jobs, mean=args.mean, load=args.load)
    testbed = Testbed(args.slurm, args.topology, rebuild=not args.no_build)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    if args.mode == PAPER:
        return _play_on_paper(args, seeds, shape)
    # System by system: each change between plain Slurm and Berth is a new cluster.
    wanted = [(SYSTEMS[name], seed) for name in args.systems.split(",") for seed in seeds]
    missing = [pair for pair in wanted if args.again or not (BUILD / f"{_name(args, *pair)}.json").exists()]
    began = time.monotonic()
    try:
        for number, (system, seed) in enumerate(missing):
            name = _name(args, system, seed)
            done = run(testbed, system, seed, shape, args.mode, BUILD / name)
            write_json(BUILD / f"{name}.json", done.as_json())
            spent = time.monotonic() - began
            left = spent / (number + 1) * (len(missing) - number - 1)
            print(f"bench-replay: {number + 1} of {len(missing)} runs, {left / 60:.0f} minutes left", flush=True)
    finally:
        if missing and not args.keep:
            testbed.remove()
    paths = [BUILD / f"{_name(args, *pair)}.json" for pair in wanted + _again(args, wanted)]
    runs = [Run.load(path) for path in paths]
    print(details(runs))
    title = f"{args.mode}: {args.jobs} jobs on 64 nodes x 8 GPUs, Slurm {args.slurm}"
    report(_table(args), title, _figures(args, runs), _notes(args, runs))
    return 0


def _again(args: argparse.Namespace, wanted: list[tuple[System, int]]) -> list[tuple[System, int]]:
    """The second runs of plain Slurm that there are of these seeds: what chance does stands beside what Berth does."""
    twins = [(SYSTEMS[NOISE], seed) for system, seed in wanted if system.name == PLAIN]
    return [one for one in twins if one not in wanted and (BUILD / f"{_name(args, *one)}.json").exists()]


def _play_on_paper(args: argparse.Namespace, seeds: list[int], shape: Shape) -> int:
    wanted = clusters.Cluster(args.slurm, berth=True)
    if not args.no_build:
        clusters.build(wanted, PROFILE)
    ground = Ground(Stretch.load(table_path()), kinds(wanted.image), topology=args.topology, slurm=args.slurm)
    found = limit_figures(seeds, shape, ground, PLAYS)
    notes = {key: text for key, text in _notes(args, []).items() if key != "processors"}
    report(_table(args), f"on paper: {args.jobs} jobs on 64 nodes x 8 GPUs", found, {**notes, "plays": str(PLAYS)})
    return 0


def _table(args: argparse.Namespace) -> str:
    """The name under which the figures are kept: each mode, each Slurm, each topology plugin, with the peers."""
    systems = {*args.systems.split(",")}
    beside = "scores" if BLIND in systems else "published" if systems & {*PUBLISHED} else ""
    usual = ((args.mode, "replay"), (args.slurm, SLURM), (args.topology, TOPOLOGY), (beside, ""))
    return "-".join(["replay", *(word for word, default in usual if word != default)])


def _figures(args: argparse.Namespace, runs: list[Run]) -> list[Figure]:
    if args.mode == "adversary":
        return adversary_figures(runs)
    if args.mode == "chaos":
        calm = [BUILD / f"{_name(args, SYSTEMS[run.system], run.seed, 'replay')}.json" for run in runs]
        return chaos_figures(runs, [Run.load(path) for path in calm if path.exists()])
    folder = partial(_folder, args)
    return figures(runs) + sim_figures(runs) + pass_figures(runs, folder)


def _folder(args: argparse.Namespace, run: Run) -> Path:
    """Where the logs of a run lie."""
    return BUILD / _name(args, SYSTEMS[run.system], run.seed)


def _notes(args: argparse.Namespace, runs: list[Run]) -> dict[str, str]:
    return {
        "seeds": args.seeds,
        "jobs": str(args.jobs),
        "mean": f"{args.mean:g} s on ideal GPUs",
        "load": f"{args.load:g}",
        "topology": f"topology/{args.topology}",
        "processors": f"{max((run.cpu_share for run in runs), default=0):.0%} at most",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _name(args: argparse.Namespace, system: System, seed: int, mode: str = "") -> str:
    load = "" if args.load == Shape().load else f"-load{args.load:g}"
    return f"{mode or args.mode}-{args.slurm}-{args.topology}-{args.jobs}x{args.mean:g}s{load}-{system.name}-{seed}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--slurm", default=SLURM)
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--systems", default="plain,plain2,berth,random", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--mode", default="replay", choices=("replay", "adversary", "chaos", PAPER))
    parser.add_argument("--jobs", type=int, default=Shape().jobs)
    parser.add_argument("--mean", type=float, default=Shape().mean, help="seconds of a job on ideal GPUs")
    parser.add_argument("--load", type=float, default=Shape().load)
    parser.add_argument("--topology", default=TOPOLOGY, choices=("block", "tree"))
    parser.add_argument("--again", action="store_true", help="run what has been run already")
    parser.add_argument("--no-build", action="store_true", help="take the images as they are")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    return parser


if __name__ == "__main__":
    sys.exit(main())
