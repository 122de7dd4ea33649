# SPDX-License-Identifier: Apache-2.0
"""Compares what two revisions simulate: `python -m tests.bench.same_answers REVISION REVISION`.

Each plays the same traces by its own `berth simulate`: where every job was placed and when, in each mode, policy and
kind of cluster below. A rearrangement of the code must not change one line of it. The published traces are played too
where they are at hand (BERTH_DATA).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tests.bench.house import ROOT
from tests.bench.simulate import data_folder

JOBS = 400
WIDTHS = (1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 24)
MODELS = ("resnet50", "vgg19", "BERT", "GPT2", "DCGAN", "PointNet")
SMALL = ("--nodes", "16", "--gpus-per-node", "4", "--seed", "5")
LEAVES = ("--nodes", "12", "--machine", "dgx-1v", "--nodes-per-leaf", "4", "--leaves-per-pod", "2", "--seed", "5")
PUBLISHED = [word for name in ("slurm", "packed", "pm-first", "pal", "random") for word in ("--policy", name)]
POLICIES = ["--policy", "berth", *PUBLISHED]
CASES: dict[str, tuple[str, ...]] = {
    "Slurm's rules": (*SMALL, *POLICIES, "--limits", "trace"),
    "Slurm's rules, drawn limits": (*SMALL, *POLICIES, "--limits", "drawn"),
    "Slurm's rules, leaves of NVLink nodes": (*LEAVES, *POLICIES, "--limits", "2"),
    "Slurm's rules, a wait for one leaf": (*LEAVES, "--policy", "berth", "--locality", "leaf@600"),
    "PAL's rounds": (*SMALL, *PUBLISHED, "--mode", "pal-rounds"),
    "berthd": (*SMALL, "--mode", "berthd", "--limits", "2"),
    "berthd, leaves of NVLink nodes": (*LEAVES, "--mode", "berthd", "--limits", "drawn"),
}


def main() -> int:
    """Prints a table of all cases, and returns 1 where a line differs."""
    parser = argparse.ArgumentParser(description="Whether two revisions simulate the same.")
    parser.add_argument("revisions", nargs=2, help="git revisions")
    args = parser.parse_args()
    differing = 0
    sys.stdout.write("| trace | case | lines | that differ |\n|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder:
        trees = [unpacked(revision, Path(folder) / str(number)) for number, revision in enumerate(args.revisions)]
        for trace, scores in traces(Path(folder)):
            for name, options in CASES.items():
                words = (*options, *(scores if options[: len(SMALL)] == SMALL else ()))
                one, other = (placed(tree, trace, words) for tree in trees)
                differ = sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))
                differing += differ
                sys.stdout.write(f"| {trace.stem} | {name} | {len(one):,} | {differ} |\n")
                sys.stdout.flush()
    return int(differing > 0)


def unpacked(revision: str, tree: Path) -> Path:
    """Puts the files of a revision into a folder."""
    tree.mkdir()
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    return tree


def traces(folder: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yields a drawn trace, and a published one with published scores where they are at hand."""
    yield drawn(folder / "drawn.csv"), ()
    if data := data_folder():
        scores = data / "pal" / "variability" / "pal-sim-64gpu.csv"
        yield data / "pal" / "traces-sia-philly" / "workload-1.csv", ("--scores", str(scores))


def drawn(path: Path) -> Path:
    """Writes jobs of many widths, arrivals and run times."""
    chance, at = random.Random(14), 0.0
    with path.open("w") as trace:
        trace.write("job_id,num_gpus,submit_time,duration,model\n")
        for job in range(JOBS):
            at += chance.expovariate(1 / 180)
            width, seconds = chance.choice(WIDTHS), int(chance.lognormvariate(7.5, 1.2)) + 60
            trace.write(f"{job},{width},{int(at)},{seconds},{chance.choice(MODELS)}\n")
    return path


def placed(tree: Path, trace: Path, options: tuple[str, ...]) -> list[str]:
    """Returns when and where a revision started each job, and what it printed; without its own time."""
    placements = tree / "placements"
    shutil.rmtree(placements, ignore_errors=True)
    placements.mkdir()
    words = [sys.executable, "-P", "-m", "policy.cli.main", "simulate", str(trace), *options, "--json"]
    done = subprocess.run(
        [*words, "--duration-unit", "seconds", "--placements", str(placements / "of.csv")],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"same_answers: {tree.name}: {' '.join(options)}: {done.stderr.strip()[-400:]}")
    printed = [line for line in done.stdout.splitlines() if '"wall_s"' not in line]
    lists = [path.read_text().splitlines() for path in sorted(placements.iterdir())]
    return [*printed, *chain.from_iterable(lists)]


if __name__ == "__main__":
    sys.exit(main())
