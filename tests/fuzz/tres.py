# SPDX-License-Identifier: Apache-2.0
"""`make fuzz-tres`: random TRES requests, read by the plugin's parser and by each tested Slurm's own function.

The program (`tres_as_slurm.c`) is part of the test cluster's image and loads that Slurm's library; no cluster runs.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from containers.cluster import PREFIX
from tests.bench.table import Figure, report

VERSIONS = ("24.11", "26.05")
PART = 10_000_000
"""Texts of one seed: how far a find is from its start."""
START = "exec nice -n 10 /usr/libexec/berth-test/tres-as-slurm /usr/lib/*/slurm-wlm/libslurmfull.so"
DONE = re.compile(r"texts=(\d+) gpus_agreed=(\d+) refused=(\d+) refused_by_slurm=(\d+) differences=0")


def part(version: str, size: int, seed: int) -> tuple[int, ...]:
    """Counts of one seed's texts: in all, GPUs read alike, refused by us, refused by Slurm."""
    image = f"{PREFIX}-cluster:{version}"
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c"]
    done = subprocess.run([*command, f"{START} {size} {seed}"], capture_output=True, text=True, check=False)
    counts = DONE.search(done.stdout)
    if done.returncode or not counts:
        sys.exit(f"fuzz-tres: Slurm {version}, seed {seed}: {done.stdout}{done.stderr}")
    return tuple(map(int, counts.groups()))


def figures_of(version: str, count: int, seed: int, at_once: int) -> list[Figure]:
    """Read `count` texts with one Slurm."""
    sizes = [min(PART, count - start) for start in range(0, count, PART)]
    started = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        parts = list(pool.map(partial(part, version), sizes, range(seed, seed + len(sizes))))
    seconds = time.monotonic() - started
    texts, agreed, refused, by_slurm = (sum(column) for column in zip(*parts, strict=True))
    return [
        Figure(f"texts_{version}", texts, "texts"),
        Figure(f"differences_{version}", 0, "texts", must="0", good=True),
        Figure(f"gpus_agreed_{version}", agreed, "texts with GPUs, read alike"),
        Figure(f"refused_{version}", refused, "texts, by Berth"),
        Figure(f"refused_by_slurm_{version}", by_slurm, "texts, by Slurm's function"),
        Figure(f"seconds_{version}", seconds, "s"),
    ]


def main() -> int:
    """Build the images and compare."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=100_000_000, help="texts for each Slurm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for version in VERSIONS:
        command = [sys.executable, "containers/cluster.py", "build", "--slurm", version]
        if subprocess.run(command, check=False).returncode:
            return 1
        figures += figures_of(version, arguments.count, arguments.seed, arguments.at_once)
    notes = {"seeds": f"from {arguments.seed}, {PART} texts each", "processes": str(arguments.at_once)}
    report(
        "fuzz-tres",
        "TRES requests as Slurm reads them",
        figures,
        {**notes, "date": f"{datetime.datetime.now(datetime.UTC):%F}"},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
