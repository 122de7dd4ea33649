# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=links`: the sets of GPUs that Berth takes, beside what NCCL's own search makes of them.

`BERTH_DATA/nccl-tables/MACHINE.json` has NCCL's figures for all sets of a machine: mask of GPUs -> `ring`, its channels
x their bandwidth. Without that folder rings are estimated by the narrowest cut.

* A state is a mask of free GPUs. It is worse where another free set of as many GPUs has a faster ring.
* Kinds: idle nodes of two kinds are in the wrong order where the one with the slower ring is taken.
* Over time: jobs on 1, 2, 4 and 8 GPUs of one DGX-1V, first come, first served; the mean ring over the best one.
* Slurm: the first free GPU, those of its socket before others, then by their links to it, ascending as it is coded; on
  a DGX-1V this model gives the counts of docs/results/request-forms.md but for one of 20. *Turned* is descending.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

from tests.bench.table import Figure, at_most, report
from topology.machines import machine, names
from topology.model import Machine
from topology.sets.subsets import SubsetTable
from topology.sets.wiring import positions

SIZES, JOBS, LOADS, SEEDS = (1, 2, 4, 8), 4_000, (0.5, 0.8), 5
SPLIT_BY_NCCL = {("a6000-pairs", 6)}
"""NCCL splits exactly two NVLink domains, and so prefers other sets: an artefact that is not followed."""

Rings = Mapping[int, float]
Choose = Callable[[int, int], int]


def tables_folder() -> Path | None:
    """Returns the folder with NCCL's figures, None where it is not at hand."""
    folder = Path(os.environ.get("BERTH_DATA", "")) / "nccl-tables"
    return folder if "BERTH_DATA" in os.environ and folder.is_dir() else None


def rings_of(folder: Path | None, name: str) -> Rings:
    """Returns the ring's GB/s of each set of a machine: NCCL's, or estimated by the narrowest cut."""
    if folder is not None:
        sets = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["sets"]
        return {int(mask): float(found["ring"]) for mask, found in sets.items()}
    node = machine(name, "n1")
    table = SubsetTable(node)
    every = (mask for mask in range(1 << node.size) if mask.bit_count() > 1)
    return {mask: best.cut_gbps for mask in every if (best := table.best(mask, mask.bit_count()))}


def berth(node: Machine) -> Choose:
    """Returns Berth's choice on a machine."""
    table = SubsetTable(node)

    def choose(free: int, k: int) -> int:
        best = table.best(free, k)
        assert best is not None
        return best.mask

    return choose


def weakest_pair_first(node: Machine) -> Choose:
    """Returns the choice by the weakest pair, then by the sum over pairs, then by the fewest islands cut into."""
    table = SubsetTable(node)
    gbps = table.wiring.gbps

    def choose(free: int, k: int) -> int:
        def merit(mask: int) -> tuple[float, float, int]:
            pairs = [gbps[a][b] for a, b in combinations(positions(mask), 2)] or [0.0]
            alive = [island & free for island in table.islands if (island & free).bit_count() > 1]
            return round(min(pairs), 6), round(sum(pairs), 6), -sum(0 < mask & one < one for one in alive)

        return max((sum(1 << gpu for gpu in gpus) for gpus in combinations(positions(free), k)), key=merit)

    return choose


def slurm(node: Machine, order: int) -> Choose:
    """Returns plain Slurm's choice; `order` is 1 as it is coded, -1 turned round."""
    counts = {(link.a, link.b): link.count for link in node.links}

    def choose(free: int, k: int) -> int:
        first, *others = positions(free)

        def rank(gpu: int) -> tuple[bool, int, int]:
            return node.gpus[gpu].numa != node.gpus[first].numa, order * counts.get((first, gpu), 0), gpu

        return sum(1 << gpu for gpu in [first, *sorted(others, key=rank)][:k])

    return choose


def worse_states(rings: Rings, size: int, k: int, choose: Choose) -> list[int]:
    """Returns the masks of free GPUs in which another free set of k has a faster ring than the one that is chosen."""
    sets = [mask for mask in rings if mask.bit_count() == k]
    states = [free for free in range(1 << size) if free.bit_count() > k]
    return [free for free in states if rings[choose(free, k)] < max(rings[one] for one in sets if one & free == one)]


def part_of_best(rings: Rings, size: int, k: int, choose: Choose) -> float:
    """Returns the ring that is chosen over the best free one, the mean over all states."""
    sets = [mask for mask in rings if mask.bit_count() == k]
    states = [free for free in range(1 << size) if free.bit_count() > k]
    parts = [rings[choose(free, k)] / max(rings[one] for one in sets if one & free == one) for free in states]
    return sum(parts) / len(parts)


def wrong_kinds(of: Mapping[str, Rings], merit: Callable[[str, int], float], k: int) -> list[tuple[str, str]]:
    """Returns the pairs of kinds whose idle nodes `merit` puts in the wrong order."""
    of_size = {name: [ring for mask, ring in rings.items() if mask.bit_count() == k] for name, rings in of.items()}
    best = {name: max(rings) for name, rings in of_size.items() if rings}
    return [
        (a, b)
        for a, b in combinations(best, 2)
        if best[a] != best[b] and (best[a] - best[b]) * (merit(a, k) - merit(b, k)) <= 0
    ]


def over_time(rings: Rings, choose: Choose, load: float, seed: int, jobs: int = JOBS) -> float:
    """Returns the mean ring of jobs on several GPUs over the best ring of as many, first come, first served."""
    chance = random.Random(f"{load} {seed}")
    best = {k: max(ring for mask, ring in rings.items() if mask.bit_count() == k) for k in SIZES[1:]}
    free, now, begin, parts = 0xFF, 0.0, 0.0, []
    running: list[tuple[float, int]] = []
    for _ in range(jobs):
        now += chance.expovariate(load * 8 * len(SIZES) / sum(SIZES))
        k, lasts = chance.choice(SIZES), chance.expovariate(1.0)
        begin = max(begin, now)
        running.sort()
        while running and (running[0][0] <= begin or free.bit_count() < k):
            end, mask = running.pop(0)
            free, begin = free | mask, max(begin, end)
        taken = choose(free, k)
        free &= ~taken
        running.append((begin + lasts, taken))
        if k > 1:
            parts.append(rings[taken] / best[k])
    return sum(parts) / len(parts)


def figures(folder: Path | None) -> list[Figure]:
    """Returns all figures."""
    known = {name: rings_of(folder, name) for name in names()}
    chooser, former = ({name: of(machine(name, "n1")) for name in known} for of in (berth, weakest_pair_first))
    found = []
    for name, rings in known.items():
        size = machine(name, "n1").size
        ks = [k for k in range(2, size) if (name, k) not in SPLIT_BY_NCCL]
        worse, before = (sum(len(worse_states(rings, size, k, of[name])) for k in ks) for of in (chooser, former))
        found.append(at_most(f"worse_states_{name}", worse, 1, "", "weakest pair, sum, islands", before))
    tables = {name: SubsetTable(machine(name, "n1")) for name in known}

    def merit(name: str, k: int) -> float:
        best = tables[name].best((1 << tables[name].wiring.size) - 1, k)
        return best.cut_gbps if best else 0.0

    found += [Figure(f"wrong_kinds_k{k}", len(wrong_kinds(known, merit, k)), "pairs") for k in (2, 4, 6, 8)]
    for load in LOADS:
        ours, theirs = (
            sum(over_time(known["dgx-1v"], of["dgx-1v"], load, seed) for seed in range(SEEDS)) / SEEDS
            for of in (chooser, former)
        )
        found.append(Figure(f"over_time_{load}", ours, "of the best", "weakest pair, sum, islands", theirs))
    node, rings = machine("dgx-1v", "n1"), known["dgx-1v"]
    for k in SIZES[1:-1]:
        coded, turned = (part_of_best(rings, 8, k, slurm(node, order)) for order in (1, -1))
        found.append(Figure(f"slurm_turned_k{k}", turned, "of the best", "as coded", coded))
    return found


def main() -> int:
    """Measures and reports."""
    folder = tables_folder()
    report("links", "Sets of GPUs beside NCCL's search", figures(folder), {"rings": "NCCL" if folder else "estimated"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
