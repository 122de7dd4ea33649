# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=racks`: 278 racks of 18 trays with four GPUs, as topology/block and others fill them; minutes.

Jobs are drawn by what Meta's report on two research clusters says of sizes (Kokolis and others, HPCA 2025,
arXiv 2410.21680): more than 90 % of the jobs have at most eight GPUs, and less than 10 % of the GPU time; jobs of 256
GPUs and more have 66 % of it; 37.5 GPU hours are the mean of a job (150 million in 4 million jobs); 6.5 of 1,000 nodes
fail on a day. The shares of the sizes between, the spread of run times, a day for a repair and the size of groups (4,
8, 16, 32 or 64 GPUs, each as often) are ours: no report has them. NVIDIA's rule by size is that of its developer blog
(May 2026): segments of 16 trays from 128 GPUs on, of 4 from 32, of 1 below.

All rules play the same draws in Slurm's order (tests/bench/c/racks.c). The segments of `berth` are those of
policy/cluster/segments.py, for jobs that name their groups: `by_group` where there is little room, else longer ones.

`--only pass` measures berthd's pass with 2,000 waiting jobs on these racks, `--only lost` jobs that lost a tray.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from policy.cluster.segments import segment_of
from tests.bench.racks_pass import berthds_pass
from tests.bench.table import Figure, report
from topology.network.groups import Ints

RACKS, TRAYS, GPUS = 278, 18, 4
ALL = RACKS * TRAYS * GPUS
DAY = 86_400
SIZES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096])
OF_JOBS = np.array([0.4, 0.07, 0.09, 0.35, 0.03, 0.02, 0.015, 0.012, 0.008, 0.0035, 0.001, 0.0003, 0.0002])
OF_TIME = np.array([0.015, 0.006, 0.014, 0.065, 0.04, 0.05, 0.06, 0.09, 0.17, 0.16, 0.13, 0.08, 0.12])
MEAN = 37.5 * 3_600
SPREAD = 1.2
"""Of the logarithm of run times."""
FAILURES = 6.5 / 1_000
SOURCE = Path(__file__).parent / "c" / "racks.c"
PROGRAM = Path(__file__).resolve().parents[2] / "build" / "bench-c" / "racks"

Segments = Callable[[int, int], int]
"""Trays of a segment, by the GPUs of the job and of its groups; 0: none is asked for."""


def no_segments(_gpus: int, _group: int) -> int:
    return 0


def by_size(gpus: int, _group: int) -> int:
    least = 16 if gpus >= 128 else 4 if gpus >= 32 else 1
    return min(least, gpus // GPUS)


def by_group(gpus: int, group: int) -> int:
    return segment_of(group, GPUS) if group < gpus else gpus // GPUS


class Rule(NamedTuple):
    """How trays are chosen, and by which segments."""

    program: str
    segments: Segments = no_segments


RULES = {
    "bound": Rule("fluid"),
    "blind": Rule("blind"),
    "block": Rule("block"),
    "block, by size": Rule("block", by_size),
    "block, by hand": Rule("block", by_group),
    "best fit": Rule("fit", by_group),
    "berth": Rule("berth", by_group),
}


@dataclass(frozen=True)
class Draw:
    """Jobs and failed trays of some days."""

    at: Ints
    gpus: Ints
    group: Ints
    lines: Sequence[tuple[int, str]]

    def text(self, segments: Segments) -> str:
        jobs = [
            (at, f"{said} {segments(gpus, group) if gpus >= GPUS else 0} {max(1, group // GPUS)}")
            for (at, said), gpus, group in zip(self.lines, self.gpus.tolist(), self.group.tolist(), strict=False)
        ]
        return "\n".join(said for _, said in sorted([*jobs, *self.lines[len(jobs) :]])) + "\n"


def draw(seed: int, load: float, days: float) -> Draw:
    """The demand of all jobs is `load` times the GPU time of all trays."""
    chance = np.random.default_rng(seed)
    count = int(load * ALL / MEAN * days * DAY)
    at = np.sort(chance.integers(0, int(days * DAY), count))
    which = chance.choice(SIZES.size, count, p=OF_JOBS / OF_JOBS.sum())
    mean = MEAN * OF_TIME[which] / OF_JOBS[which] / SIZES[which]
    seconds = np.minimum(chance.lognormal(np.log(mean) - SPREAD**2 / 2, SPREAD), 2 * DAY)
    seconds *= load * ALL * days * DAY / (seconds * SIZES[which]).sum()
    limits = seconds * chance.uniform(1, 3, count)
    group = chance.choice(np.array([4, 8, 16, 32, 64]), count)
    lines = [
        (a, f"job {a} {g} {s:.0f} {limit:.0f}")
        for a, g, s, limit in zip(at.tolist(), SIZES[which].tolist(), seconds + 1, limits + 1, strict=True)
    ]
    failed = np.sort(chance.integers(0, int(days * DAY), chance.poisson(RACKS * TRAYS * FAILURES * days))).tolist()
    for when in failed:
        rack, tray = chance.integers(RACKS), chance.integers(TRAYS)
        lines.append((when, f"down {when} {rack} {tray} {chance.exponential(DAY):.0f}"))
    return Draw(at, SIZES[which], group, lines)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rule did with one draw."""

    busy: float
    broken: float = 0.0
    """Mean number of trays of which jobs have a part."""
    waits: Sequence[float] = ()
    """Mean minutes: of jobs below 64 GPUs, from 64, from 64 below 1,024, from 1,024."""
    crossing: float = 0.0
    """Part of the groups that lie in several racks."""
    widest: int = 0
    restarts: Sequence[float] = ()
    """Of jobs that lost a tray and began again: their number, the mean of their seconds until then, GPU hours."""


def play(rule: Rule, drawn: Draw, days: float, delay: int = 0) -> Outcome:
    words = [str(PROGRAM), rule.program, str(DAY), str(int(days * DAY)), str(delay)]
    said = subprocess.run(words, input=drawn.text(rule.segments), text=True, capture_output=True, check=True).stdout
    rows = [line.split() for line in said.splitlines()]
    busy, *more = map(float, rows.pop()[1:])
    if not rows:
        return Outcome(busy)
    broken, *restarts = more
    jobs = np.array(rows, np.float64)
    # A job that never began has waited until the end.
    waits = np.where(jobs[:, 0] < 0, days * DAY - drawn.at, jobs[:, 0]) / 60
    inside, gpus = drawn.at >= DAY, drawn.gpus
    kinds = (gpus < 64, gpus >= 64, (gpus >= 64) & (gpus < 1024), gpus >= 1024)
    means = [float(waits[inside & kind].mean()) for kind in kinds]
    crossing = float(jobs[:, 2].sum() / jobs[:, 3].sum())
    return Outcome(busy, broken, means, crossing, int(jobs[:, 1].max()), tuple(restarts))


def figures(load: float, found: dict[str, list[Outcome]]) -> list[Figure]:
    """Means over the draws."""
    rows = []
    blind = found["blind"]

    def lost(name: str) -> float:
        return 100 * statistics.mean(a.busy - b.busy for a, b in zip(blind, found[name], strict=True))

    def mean(name: str, kind: int) -> float:
        return statistics.mean(one.waits[kind] for one in found[name])

    for name, outcomes in found.items():
        at = f"{load:g}: {name}"
        rows.append(Figure(f"{at}: GPU time in use", 100 * statistics.mean(one.busy for one in outcomes), "%"))
        if name == "bound":
            continue
        must, good = "", None
        if name == "berth":
            most = min(0.5, lost("block, by size") / 2)
            must, good = f"at most {most:.2f}", lost(name) <= most
        rows.append(Figure(f"{at}: lost of blind's", lost(name), "points", must=must, good=good))
        for kind, said in enumerate(("below 64", "64 and more", "64 to 512", "1,024 and more")):
            rows.append(
                Figure(
                    f"{at}: wait, {said} GPUs", mean(name, kind), "min", "block, by size", mean("block, by size", kind)
                )
            )
        rows.append(Figure(f"{at}: broken trays", statistics.mean(one.broken for one in outcomes), ""))
        rows.append(Figure(f"{at}: groups in several racks", 100 * statistics.mean(o.crossing for o in outcomes), "%"))
        rows.append(Figure(f"{at}: racks of the widest group", max(one.widest for one in outcomes), ""))
    return rows


def lost_trays(load: float, draws: Sequence[Draw], days: float) -> list[Figure]:
    """When jobs that lost a tray begin again, under `berth`, if Slurm lets them at once and two minutes later."""
    rows = []
    for delay in (0, 120):
        found = [play(RULES["berth"], one, days, delay).restarts for one in draws]
        _, seconds, hours = (statistics.mean(one[place] for one in found) for place in range(3))
        at = f"{load:g}: jobs that lost a tray, {delay} s"
        rows.append(Figure(f"{at}: begin again after", seconds / 60, "min"))
        rows.append(Figure(f"{at}: GPU time waited", hours, "h"))
    return rows


def main() -> None:
    """Play all rules on all draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=float, default=3, help="of which the first is not counted")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=("rules", "pass", "lost"), help="measure one part")
    parser.add_argument("--loads", default="0.8,0.95,1.1")
    chosen = parser.parse_args()
    if chosen.only == "pass":
        report("racks", "berthd on these racks", [berthds_pass()], {})
        return
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-std=gnu11", "-O3", "-o", str(PROGRAM), str(SOURCE), "-lm"], check=True)
    rows = [] if chosen.only else [berthds_pass()]
    for load in map(float, chosen.loads.split(",")):
        draws = [draw(seed, load, chosen.days) for seed in range(chosen.seeds)]
        if chosen.only != "rules":
            rows += lost_trays(load, draws, chosen.days)
        if chosen.only == "lost":
            continue
        found = {}
        for name, rule in RULES.items():
            with ThreadPoolExecutor(2) as pool:
                found[name] = list(pool.map(lambda one, rule=rule: play(rule, one, chosen.days), draws))
        rows += figures(load, found)
    report("racks", f"{RACKS} racks of {TRAYS} trays, {chosen.seeds} draws of {chosen.days:g} days", rows, {})


if __name__ == "__main__":
    main()
