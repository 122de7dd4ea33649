# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=topology`: a cluster of 12,500 nodes loaded, its node sets, and the best GPUs of one node of 16.

The best GPUs stand beside the plain way of finding them, which looks at every set.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, islice
from pathlib import Path

import numpy as np

from policy.placement.nodesets import NodeSets
from topology import files
from topology.model import Discovered, Gpu, Link, Machine
from topology.network.fabric import LEVELS, Fabric
from topology.providers.slurm_layout import Leaf, SlurmFabric
from topology.sets.subsets import SubsetTable

from .table import Figure, at_most, report

NODES = 12_500
LEAF, POD = 32, 16
"""Nodes on a leaf, leaves in a pod."""
DEMANDS: tuple[tuple[int, int | None], ...] = ((1, None), (4, None), (8, 8), (64, 8), (1024, None))


def cube_mesh() -> dict[tuple[int, int], float]:
    """NVLinks of a DGX-1V: two quads, joined GPU by GPU."""
    pairs = [*combinations(range(4), 2), *combinations(range(4, 8), 2), (0, 4), (1, 5), (2, 6), (3, 7)]
    return dict.fromkeys(pairs, 25.781)


KINDS: dict[str, dict[tuple[int, int], float]] = {
    "h100": dict.fromkeys(combinations(range(8), 2), 450.0),
    "v100": cube_mesh(),
    "a6000": dict.fromkeys([(0, 1), (2, 3), (4, 5), (6, 7)], 56.248),
    "l40s": {},
}


def machine(number: int, chance: random.Random) -> Machine:
    """One of four kinds of nodes with 8 GPUs; every fiftieth has lost a link."""
    model = list(KINDS)[number // 3125 % 4]
    links = dict(KINDS[model])
    if links and number % 50 == 0:
        del links[chance.choice(list(links))]
    return Machine(
        node=f"n{number:05}",
        model=model,
        gpus=tuple(
            Gpu(i, i, f"GPU-{chance.getrandbits(128):032x}", model.upper(), f"0000:{16 + i:02x}:00.0", i // 4, "0-55")
            for i in range(8)
        ),
        links=tuple(Link(a, b, 1, gbps) for (a, b), gbps in links.items()),
        paths=tuple(
            tuple("SELF" if a == b else "SYS" if a // 4 != b // 4 else "NODE" for b in range(8)) for a in range(8)
        ),
        discovered=Discovered("2026-11-20T21:00:00Z", "nvml", "550.54.15"),
    )


def tree(names: Sequence[str]) -> SlurmFabric:
    """Leaves of 32 nodes, pods of 16 leaves."""
    leaves = [
        Leaf(f"leaf{i // LEAF}", tuple(names[i : i + LEAF]), f"pod{i // LEAF // POD}")
        for i in range(0, len(names), LEAF)
    ]
    return SlurmFabric("topology.conf", "tree", tuple(leaves))


def plain_best(machine: Machine, free: Sequence[int], k: int) -> tuple[int, ...]:
    """The best k GPUs by the weakest pair, then all pairs, looking at every set."""
    speeds = machine.gbps

    def merit(gpus: tuple[int, ...]) -> tuple[float, float]:
        pairs = [speeds[a][b] for a, b in combinations(gpus, 2)]
        return min(pairs), sum(pairs)

    return max(combinations(free, k), key=merit)


def median_ms(work: Callable[[], object], times: int) -> float:
    """Median time of some runs."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(taken)


# VmHWM, because a child's ru_maxrss begins with its parent's.
LOAD = """
import sys, time
from topology import {module}
begin = time.process_time()
whole = {call}
seconds = time.process_time() - begin
(peak,) = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(seconds, peak / 1024)
"""


def load(module: str, call: str, *words: str) -> tuple[float, float]:
    """Processor seconds of a load in a fresh process, median of five, and its peak memory in MB."""
    runs = []
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", LOAD.format(module=module, call=call), *words],
            capture_output=True,
            text=True,
            check=True,
        )
        runs.append([float(word) for word in done.stdout.split()])
    return statistics.median(run[0] for run in runs), max(run[1] for run in runs)


def loads(machines: Sequence[Machine]) -> list[Figure]:
    """Reads all topology files, warm in the file cache."""
    with tempfile.TemporaryDirectory() as folder:
        for one in machines:
            Path(folder, f"{one.node}.json").write_text(files.encode(one), encoding="ascii")
        seconds, rss = load("files", "files.load_directory(sys.argv[1])", folder)
    return [at_most("load_12500_s", seconds, 2.0, "CPU s"), at_most("load_rss_mb", rss, 500.0, "MB")]


def node_sets(machines: Sequence[Machine], fabric: Fabric) -> list[Figure]:
    """The first ten node sets of all levels, for the slowest of several demands."""
    free = np.random.default_rng(7).integers(0, 256, len(machines)).tolist()
    sets = NodeSets(machines, fabric, free)

    def first_ten(gpus: int, per_node: int | None) -> None:
        for level in LEVELS:
            list(islice(sets.at(level, gpus, per_node), 10))

    for demand in DEMANDS:
        first_ten(*demand)
    return [
        at_most("node_sets_ms", max(median_ms(partial(first_ten, *demand), 5) for demand in DEMANDS), 1000.0, "ms"),
        Figure("node_sets_make_ms", median_ms(partial(NodeSets, machines, fabric, free), 3), "ms"),
    ]


def best_of_16(graphs: int) -> list[Figure]:
    """Random link graphs of 16 GPUs and k = 8, which has the most sets; every question is new."""
    chance = random.Random(7)
    cold: list[float] = []
    warm: dict[int, list[float]] = {k: [] for k in range(2, 16)}
    plain = 0.0
    for number in range(graphs):
        links = tuple(
            Link(a, b, count, count * 25.781) for a, b in combinations(range(16), 2) if (count := chance.randrange(3))
        )
        one = Machine("n1", "x", tuple(Gpu(i, i, f"GPU-{i}") for i in range(16)), links)
        table = SubsetTable(one)
        everything = (1 << 16) - 1
        cold.append(median_ms(partial(table.best, everything, 8), 1))
        for k, taken in warm.items():
            table.best(everything, k)
            questions = chance.sample([mask for mask in range(everything) if mask.bit_count() >= k], 15)
            taken += [median_ms(partial(table.best, mask, k), 1) for mask in questions]
        if not number:
            plain = median_ms(partial(plain_best, one, range(16), 8), 1)
    worst = max(warm.values(), key=statistics.median)
    every_set = "every set, itertools"
    return [
        at_most("best_of_16_ms", statistics.median(worst), 2.0, "ms", every_set, plain),
        Figure("best_of_16_p99_ms", sorted(worst)[int(0.99 * len(worst))], "ms", every_set, plain),
        Figure("ranking_of_16_ms", statistics.median(cold), "ms", every_set, plain),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--graphs", type=int, default=10, help="random link graphs of 16 GPUs")
    args = parser.parse_args()
    chance = random.Random(7)
    machines = [machine(number, chance) for number in range(args.nodes)]
    fabric = Fabric.of(machines, tree([one.node for one in machines]))
    figures = [*loads(machines), *node_sets(machines, fabric), *best_of_16(args.graphs)]
    notes = {
        "nodes": str(args.nodes),
        "kinds": ", ".join(KINDS),
        "demands": ", ".join(f"{gpus}" + (f" ({each} a node)" if each else "") for gpus, each in DEMANDS),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    report("topology", f"{args.nodes} nodes x 8 GPUs, leaves of {LEAF}, pods of {LEAF * POD}", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
