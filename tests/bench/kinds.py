# SPDX-License-Identifier: Apache-2.0
"""What Berth brings on other kinds of nodes under Slurm's own rules, on three sets of traces, beside its bound.

`python -m tests.bench.kinds FILE [--kind NAME] [--limits tripled,drawn] [--draws 1,2] [--timed] [--fresh]`: the nodes
of `placement_kinds`, in leaves of four. A pair is a trace and a draw, which shifts each arrival by up to 600 s. FILE
gets a line for each pair that it lacks; then a table sums all its pairs up. `--draws ""` only sums up.

* Traces: *sia*, the eight of `placement_slurm`; *helios*, Sia's ten that arrive as on Helios' Saturn; *philly*, nine
  weeks of Philly's virtual clusters with their real run times. Time limits are three times the run time, or drawn, or
  there are none (`none`). With `--fresh` *sia* are four others of Sia's Philly traces and eight hours of four of its
  newer ones, and *philly* six other weeks: no rule was tried on them before 2026-11-30.
* On paper *without* is Berth where no job lets others go first, *bound* Berth where each GPU is as good as the best.
* With `--timed` berthd's own code plans, and all takes its time; *without* and *bound* are left out.
* *Plain* is the better plain Slurm of the row, topology/flat or topology/tree; *null* is that one over itself where
  arrivals are shifted otherwise: 1 in the mean, and as wide as chance is with so many pairs. Intervals are by bootstrap
  over traces.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np

from policy.placement.berth import BerthPolicy
from policy.placement.registry import create
from policy.simulate.inputs import read_traces
from policy.simulate.inputs.others import shifted
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.report.chance import resampled
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.slurm.world import SlurmWorld
from tests.bench import look_ahead, philly_data, placement_kinds, placement_slurm
from tests.bench.look_ahead import PLAIN, TREE, WITH, WITHOUT
from tests.bench.paper.rolled import RolledWorld
from tests.bench.paper.worlds import play
from tests.bench.placement_families import SHIFT_S
from tests.bench.placement_pairs import METRICS, Comparison, Pair

WORKLOADS = philly_data.FOLDER / "traces/sia-workloads"
WEEKS = (
    ("7f04ca", 7), ("7f04ca", 8), ("7f04ca", 9), ("7f04ca", 13), ("ee9e8c", 4), ("ee9e8c", 10), ("ee9e8c", 13),
    ("6c71a0", 3), ("0e4a51", 8),
)  # fmt: skip
"""Virtual clusters of Philly, and weeks of 75 to 180 jobs that need 46 to 65 GPUs in the mean."""
FRESH_WEEKS = (("b436b2", 12), ("ee9e8c", 11), ("b436b2", 3), ("7f04ca", 6), ("0e4a51", 7), ("103959", 8))
FRESH_SIA = (
    ("philly", "2"), ("philly", "5"), ("philly", "6"), ("philly", "8"),
    ("newtrace", "1"), ("newtrace", "2"), ("newtrace", "3"), ("newtrace", "4"),
)  # fmt: skip
A_WEEK, EIGHT_HOURS = 7 * 86_400.0, 8 * 3_600.0
SETS = {"sia": range(8), "helios": range(8, 18), "philly": range(18, 27)}
ALL = range(27)
BOUND = "bound"
AGAIN = ", again"
"""Ends the name of plain Slurm where arrivals are shifted otherwise."""
PAPER, TIMED = (PLAIN, TREE, WITHOUT, WITH, BOUND), (PLAIN, TREE, WITH)
OTHER = 10_000
"""Draws of plain Slurm beside itself count from here on."""
MEAN, P99 = METRICS[1:3]


@lru_cache(maxsize=32)
def trace_of(number: int, *, fresh: bool = False) -> Sequence[TraceJob]:
    """Returns the jobs of a trace."""
    if number in SETS["sia"]:
        return _workload(*FRESH_SIA[number]) if fresh else placement_slurm._trace(number)
    if number in SETS["helios"]:
        return _workload("saturn", str(number - SETS["helios"].start + 1))
    account, week = (FRESH_WEEKS if fresh else WEEKS)[number - SETS["philly"].start]
    draw, found = Random(number), list[TraceJob]()
    for job in philly_data.jobs(philly_data.ALL):
        if job.account == account and job.submit // A_WEEK == week:
            app_class = draw.choice(("compute", "mixed", "memory"))
            found.append(replace(job, submit=job.submit - week * A_WEEK, app_class=app_class))
    return found


def _workload(name: str, number: str) -> Sequence[TraceJob]:
    jobs = read_traces([str(WORKLOADS / f"sia_{name}.csv.gz")]).jobs
    return [job for job in jobs if (job.name or "").startswith(f"{number}/") and job.submit < EIGHT_HOURS]


def jobs_of(number: int, limits: str, draw: int, room: int, *, fresh: bool = False) -> list[TraceJob]:
    """Returns the jobs of a trace that fit the cluster, with shifted arrivals and time limits."""
    fitting = (job for job in trace_of(number, fresh=fresh) if job.gpus <= room)
    jobs = [replace(job, limit=placement_slurm.LIMIT_FACTOR * job.work) for job in fitting]
    jobs = sorted(shifted(jobs, SHIFT_S, draw), key=lambda job: job.submit)
    return look_ahead.limited(jobs, limits, number, draw)


def one_run(name: str, kind: str, jobs: list[TraceJob], draw: int, *, timed: bool) -> SimulationOutcome:
    """Plays the jobs on nodes of a kind by one of `PAPER` or `TIMED`."""
    _, fleet = look_ahead.cluster_of(kind)
    settings = SlurmSettings(order="fifo", tree=name != PLAIN, seed=draw, delays=Delays() if timed else None)
    if name in (PLAIN, TREE):
        return run(jobs, fleet, create("slurm" if name == PLAIN else "slurm-tree"), settings)
    if timed:
        return run(jobs, fleet, BerthPolicy(), replace(settings, berthd=True))
    machines = placement_slurm.best_everywhere(fleet) if name == BOUND else fleet
    world, settings = SlurmWorld if name == WITHOUT else RolledWorld, replace(settings, pinned=True)
    return play(world, jobs, machines, BerthPolicy(), settings)


def one_pair(kind: str, limits: str, trace: int, draw: int, *, timed: bool, fresh: bool = False) -> Pair:
    """Plays one trace and draw by all of `PAPER` or `TIMED`."""
    _, fleet = look_ahead.cluster_of(kind)
    room, found = int(fleet.size.sum()), {}
    jobs, others = (jobs_of(trace, limits, one, room, fresh=fresh) for one in (draw, draw + OTHER))
    for name in (*(TIMED if timed else PAPER), PLAIN + AGAIN, TREE + AGAIN):
        again = name.endswith(AGAIN)
        outcome = one_run(name.removesuffix(AGAIN), kind, others if again else jobs, draw, timed=timed)
        figures = outcome.figures()
        found[name] = {one: float(str(figures[one])) for one in METRICS} | look_ahead.waits_of(outcome)
        if name in (PLAIN, TREE, WITHOUT, WITH):
            found[name]["late"] = look_ahead.late(outcome, fleet) / len(jobs)
    return Pair(kind, limits, trace, draw, found)


def asked(
    kinds: Sequence[str], limits: Sequence[str], draws: Sequence[int], traces: Sequence[int] = ALL
) -> Iterator[tuple[str, str, int, int]]:
    """Yields all pairs, so that each beginning of them has all traces, and all kinds and limits, about alike often."""
    cells = list(itertools.product(kinds, limits))
    for draw in draws:
        for sweep in range(len(cells)):
            for trace in traces:
                yield *cells[(3 * trace + sweep) % len(cells)], trace, draw


def saved(file: Path) -> list[Pair]:
    """Returns the pairs that a file has."""
    if not file.exists():
        return []
    with file.open() as lines:
        return [Pair(*json.loads(line)) for line in lines]


def row(name: str, pairs: Sequence[Pair]) -> dict[str, str]:
    """Returns the figures of these pairs, by column."""
    here = Comparison(pairs)
    peer = min((PLAIN, TREE), key=lambda one: float(here.logs(one, MEAN).mean()))

    def over(policy: str, metric: str, other: str = peer) -> str:
        ratio = here.ratio(policy, metric, other)
        return f"{ratio.value:.3f} ({ratio.lower:.3f} to {ratio.upper:.3f})"

    def worst(policy: str, other: str) -> str:
        return f"{max(one.figures[policy][MEAN] / one.figures[other][MEAN] for one in pairs):.2f}"

    columns = {"": name, "pairs": str(len(pairs)), "plain": "tree" if peer == TREE else "flat"}
    columns |= {"null": over(peer, MEAN, peer + AGAIN), "Berth": over(WITH, MEAN)}
    columns |= {one: over(one, MEAN) for one in (WITHOUT, BOUND) if here.has(one)}
    late = (100 * float(np.mean([one.figures[by]["late"] for one in pairs])) for by in (WITH, peer))
    return columns | {
        "wait counted with GPUs": over(WITH, "gpu_wait_s"),
        "p99": over(WITH, P99),
        "longest wait": over(WITH, "longest_wait_s"),
        "late; plain": "; ".join(f"{one:.1f}" for one in late) + " %",
        "largest class, by chance": largest_class(pairs, peer),
        "worst pair; plain beside itself": f"{worst(WITH, peer)}; {worst(peer, peer + AGAIN)}",
    }


def largest_class(pairs: Sequence[Pair], peer: str) -> str:
    """Returns the class of jobs that waits longest beside the peer, and what the largest is by chance alone.

    Classes count that all policies have in at least half of the pairs, and only those pairs.
    """
    counts = Counter(key for pair in pairs for key in _classes(pair, peer))
    sizes = [key for key, count in counts.items() if 2 * count >= len(pairs)]
    here = Comparison([pair for pair in pairs if set(sizes) <= _classes(pair, peer)])
    if not here.pairs:
        return "no class of jobs"
    size, ratio = max(((one, here.ratio(WITH, one, peer)) for one in sizes), key=lambda found: found[1].value)
    nulls = np.stack([here.logs(peer, one) - here.logs(peer + AGAIN, one) for one in sizes], axis=1)
    largest = resampled(nulls - nulls.mean(axis=0), [pair.trace for pair in here.pairs]).max(axis=1)
    chance = float(np.exp(np.percentile(largest, 95.0)))
    return f"{size.removeprefix('wait of ')}: {ratio.value:.2f} ({ratio.lower:.2f} to {ratio.upper:.2f}), {chance:.2f}"


def _classes(pair: Pair, peer: str) -> set[str]:
    """Returns the names of the mean waits that a pair has of all that are compared."""
    three = (pair.figures[name] for name in (WITH, peer, peer + AGAIN))
    return set.intersection(*({key for key in one if key.startswith("wait of ")} for one in three))


def summed_up(pairs: Sequence[Pair]) -> Iterator[dict[str, str]]:
    """Yields a row for each kind and limits, each kind, each set of traces, and all together."""
    names = {
        **{f"{one.family}, {one.order}": (one.family, one.order) for one in pairs},
        **{one.family: (one.family,) for one in pairs},
    }
    for name, cell in names.items():
        yield row(name, [one for one in pairs if (one.family, one.order)[: len(cell)] == cell])
    for name, numbers in SETS.items():
        if some := [one for one in pairs if one.trace in numbers]:
            yield row(name, some)
    yield row("all", pairs)


def main() -> int:
    """Plays the pairs that a file lacks, and sums up all that it has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", action="append", help="only this kind; may be repeated")
    parser.add_argument("--limits", default="tripled,drawn")
    parser.add_argument("--draws", default="1,2")
    parser.add_argument("--timed", action="store_true")
    parser.add_argument("--fresh", action="store_true", help="other traces")
    options = parser.parse_args()
    if lacks := placement_slurm.missing():
        print(lacks, file=sys.stderr)
        return 0
    pairs = saved(options.file)
    known = {(one.family, one.order, one.trace, one.seed) for one in pairs}
    kinds = options.kind or [kind for kind, *_ in placement_kinds.KINDS]
    with options.file.open("a") as lines:
        draws = [int(draw) for draw in options.draws.split(",") if draw]
        traces = ALL[: SETS["philly"].start + len(FRESH_WEEKS)] if options.fresh else ALL
        for one in asked(kinds, options.limits.split(","), draws, traces):
            if one not in known:
                pairs.append(pair := one_pair(*one, timed=options.timed, fresh=options.fresh))
                lines.write(json.dumps([pair.family, pair.order, pair.trace, pair.seed, pair.figures]) + "\n")
                lines.flush()
    rows = sorted(summed_up(pairs), key=lambda one: -one[""].count(","))
    for cells in (list(rows[0]), ["---"] * len(rows[0]), *(list(one.values()) for one in rows)):
        print("|", " | ".join(cells), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
