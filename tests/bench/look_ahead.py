# SPDX-License-Identifier: Apache-2.0
"""Berth's daemon with `look_ahead` beside the same without it, in the simulated Slurm: how much sooner jobs end.

A pair is one of the eight traces of `make bench NAME=placement` and one draw of its arrivals. The daemon's own code
plans. Nothing takes time, or with `--timed` all takes as long as on a test cluster: then Slurm starts a pinned job by
itself as soon as its GPUs are free, and berthd learns of an end by the Epilog's notice. Plain Slurm plays the same
jobs, with topology/flat and with topology/tree; the better one is the peer.

*Worst size* is the class of jobs, by GPUs, whose mean wait is the longest beside the peer's; *by chance* is what the
largest such ratio of the peer to its own next draws exceeds in one of 20 cases. *Late* are the jobs that
start more than a minute after what `policy/plan/jobs/promise.py` allows by the state at their submission, in each
system's own run. Intervals are by bootstrap over traces; *null* is the factor by which the peer differs from itself on
other draws.

usage: python -m tests.bench.look_ahead [--timed] [--network {flat,leaves,pods} | --kind NAME]
                                        [--limits {tripled,drawn,alike,none}] [--traces 0,1,...] [--draws 42,43]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log

import numpy as np

from policy.cluster.fleet import Fleet
from policy.plan.jobs.promise import PlainJob, Promise, plain_starts
from policy.request.settings import Settings
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.report.chance import resampled
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.queue.waits import size_class
from policy.simulate.slurm.settings import Delays, SlurmSettings
from tests.bench import placement_kinds as kinds
from tests.bench import placement_pairs as pairwise
from tests.bench import placement_slurm as slurm
from tests.bench.placement_pairs import Comparison, Pair

FAMILIES = {one.name.split(", ")[1]: one for one in slurm.families() if one.limit_factor is not None}
"""By network."""
FOUR_DAYS = 4 * 86_400.0
FOR_EVER = 365 * 86_400.0
WITH, WITHOUT, PLAIN, TREE = "look_ahead", "without", "plain Slurm", "plain Slurm, tree"
METRICS = (*pairwise.METRICS, "longest_wait_s")
A_MINUTE = 60.0


def limited(jobs: list[TraceJob], limits: str, trace: int, draw: int) -> list[TraceJob]:
    """Returns the jobs with time limits that overstate: each by three, each by a drawn factor, or four days for all."""
    if limits == "drawn":
        factors = np.exp(np.random.default_rng(1_000 * trace + draw).uniform(log(1.2), log(10.0), len(jobs)))
        return [replace(job, limit=job.work * float(factor)) for job, factor in zip(jobs, factors, strict=True)]
    if limits == "alike":
        return [replace(job, limit=max(FOUR_DAYS, 1.5 * job.work)) for job in jobs]
    return [replace(job, limit=None) for job in jobs] if limits == "none" else jobs


@lru_cache
def cluster_of(name: str) -> tuple[slurm.SlurmFamily, Fleet]:
    """Returns the family and the machines of a network, or of a kind of nodes in leaves of four."""
    if name in FAMILIES:
        return FAMILIES[name], slurm.fleet_of(FAMILIES[name])
    limited_ones = ((one, fleet) for one, fleet in kinds.families() if one.limit_factor is not None)
    return next((one, fleet) for one, fleet in limited_ones if name in one.name)


def one_pair(cluster: str, limits: str, trace: int, draw: int, delays: Delays | None = None) -> Pair:
    """Plays one trace and draw, without it, with it, and on plain Slurm."""
    family, fleet = cluster_of(cluster)
    room = int(fleet.size.sum())
    jobs = [job for job in slurm.jobs_of(family, trace, draw) if job.gpus <= room]
    jobs = limited(jobs, limits, trace, draw)
    found = {}
    for name in (WITHOUT, WITH, PLAIN, *([TREE] if family.nodes_per_leaf else [])):
        policy = slurm.policy_of({PLAIN: "slurm", TREE: "slurm-tree"}.get(name, "berth"), draw)
        site, berthd = Settings(look_ahead=name == WITH), name in (WITHOUT, WITH)
        settings = SlurmSettings(order="fifo", berthd=berthd, site=site, delays=delays, tree=name != PLAIN, seed=draw)
        outcome = run(jobs, fleet, policy, settings)
        figures = outcome.figures()
        found[name] = {figure: float(str(figures[figure])) for figure in pairwise.METRICS} | waits_of(outcome)
        found[name]["late"] = late(outcome, fleet) / len(jobs)
    return Pair(family.name, "fifo", trace, draw, found)


def waits_of(outcome: SimulationOutcome) -> dict[str, float]:
    """Returns the longest wait, the mean wait counted with GPUs, and that of each size; a minute at least."""
    waits = [(job.gpus, outcome.starts[job.id] - job.submit) for job in outcome.jobs]
    by_size = defaultdict[str, list[float]](list)
    for gpus, wait in waits:
        by_size[size_class(gpus)].append(wait)
    with_gpus = sum(gpus * wait for gpus, wait in waits) / sum(gpus for gpus, _ in waits)
    sizes = {f"wait of {size}": max(A_MINUTE, float(np.mean(some))) for size, some in by_size.items()}
    return {"longest_wait_s": max(wait for _, wait in waits), "gpu_wait_s": max(A_MINUTE, with_gpus), **sizes}


def late(outcome: SimulationOutcome, fleet: Fleet) -> int:
    """Counts the jobs that started later than promised by the state of the run at their submission."""
    return sum(outcome.starts[job.id] > one.latest + A_MINUTE for job, one in promised(outcome, fleet))


def promised(outcome: SimulationOutcome, fleet: Fleet) -> Iterator[tuple[TraceJob, Promise]]:
    """Yields each job that waited for more than a minute, and its promise by the state at its submission."""
    jobs = sorted((job for job in outcome.jobs if job.gpus), key=lambda job: job.submit)
    planned = Planned(outcome, fleet)
    for place, job in enumerate(jobs):
        if outcome.starts[job.id] <= job.submit + A_MINUTE:
            continue
        line = [one for one in jobs[: place + 1] if outcome.starts[one.id] > job.submit or one is job]
        start = planned.starts(job.submit, line).get(len(line) - 1)
        if start is not None:
            yield job, Promise.made(job.submit, start, job.work)


class Planned:
    """The starts that plain Slurm's backfill would plan by time limits, from the state of a run at some moment."""

    def __init__(self, outcome: SimulationOutcome, fleet: Fleet) -> None:
        self._size, self._per_node = fleet.size.astype(np.int64), int(fleet.size.max())
        self._limits = {job.id: job.limit or FOR_EVER for job in outcome.jobs}
        self._held = [
            (one.start, one.end, one.start + self._limits[one.job], *self._counted(one.gpus))
            for one in outcome.stretches
            if one.gpus
        ]

    def _counted(self, gpus: Sequence[int]) -> tuple[list[int], list[int]]:
        nodes, counts = np.unique(np.array(gpus) // self._per_node, return_counts=True)
        return nodes.tolist(), counts.tolist()

    def starts(self, at: float, line: Sequence[TraceJob]) -> dict[int, float]:
        """Returns the planned starts of the jobs that wait at a moment, by their places in the line."""
        free, ends = self._size.copy(), list[tuple[float, Sequence[int], int]]()
        for start, end, limit, nodes, gpus in self._held:
            if start <= at < end:
                free[nodes] -= gpus
                ends += [(limit, [node], taken) for node, taken in zip(nodes, gpus, strict=True)]
        queue = [_plain(number, one, self._limits[one.id], self._per_node) for number, one in enumerate(line)]
        return plain_starts(at, free.tolist(), ends, queue)


def _plain(number: int, job: TraceJob, limit: float, per_node: int) -> PlainJob:
    nodes = job.nodes or -(-job.gpus // per_node)
    return PlainJob(number, nodes, -(-job.gpus // nodes), limit)


def lines_of(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yields a line for each figure: with over without, and both over the better plain Slurm."""
    here = Comparison(pairs)
    plain = [name for name in (PLAIN, TREE) if here.has(name)]
    peer = min(plain, key=lambda name: float(here.logs(name, METRICS[1]).mean()))
    yield f"peer: {peer}; null of its mean JCT: {here.null(peer, METRICS[1]):.3f}"
    for name, other in ((WITH, WITHOUT), (WITHOUT, peer), (WITH, peer)):
        for one in (*METRICS, "gpu_wait_s"):
            ratio = here.ratio(name, one, other)
            shown = f"{ratio.value:.3f} ({ratio.lower:.3f} to {ratio.upper:.3f})"
            yield f"{name} over {other}, {one}: {shown}, {len(pairs)} pairs"
    for name in (WITHOUT, WITH):
        yield f"{name}, worst size: {_worst(pairs, name, peer)}"
    for name in (WITHOUT, WITH, *plain):
        yield f"{name}, late: {100 * float(np.mean([pair.figures[name]['late'] for pair in pairs])):.1f} %"
    worst = max(pairs, key=lambda pair: _over(pair.figures, WITH, peer))
    yield f"worst pair: trace {worst.trace}, draw {worst.seed}, {_over(worst.figures, WITH, peer):.2f}"


def _over(figures: Mapping[str, Mapping[str, float]], name: str, peer: str) -> float:
    return figures[name][METRICS[1]] / figures[peer][METRICS[1]]


def _worst(pairs: Sequence[Pair], name: str, peer: str) -> str:
    """Returns the class of jobs with the largest ratio of mean waits, and what the largest is by chance."""
    sizes = [key for key in pairs[0].figures[peer] if key.startswith("wait of ")]
    sizes = [size for size in sizes if all(size in one for pair in pairs for one in pair.figures.values())]
    here = Comparison(pairs)
    size, ratio = max(((one, here.ratio(name, one, peer)) for one in sizes), key=lambda found: found[1].value)
    logs, traces = np.stack([here.logs(peer, one) for one in sizes], axis=1), np.array([one.trace for one in pairs])
    drawn = [logs[traces == one] for one in np.unique(traces)]
    beside = [some - np.roll(some, 1, axis=0) for some in drawn if len(some) > 1]
    null = float(np.exp(np.percentile(resampled(np.concatenate(beside)).max(axis=1), 95.0))) if beside else np.inf
    return f"{size} GPUs {ratio.value:.3f} ({ratio.lower:.3f} to {ratio.upper:.3f}), by chance {null:.3f}"


def main(arguments: list[str]) -> int:
    """Plays the pairs, and prints each of them and the figures of all."""
    if lacks := slurm.missing():
        print(lacks, file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser(prog="look_ahead", description="berthd with look_ahead over the same without it.")
    parser.add_argument("--network", choices=list(FAMILIES), default="flat")
    parser.add_argument("--kind", default="", help="nodes of this kind, in leaves of four")
    parser.add_argument("--limits", choices=("tripled", "drawn", "alike", "none"), default="tripled")
    parser.add_argument("--traces", default=",".join(map(str, range(len(slurm.TRACES)))))
    parser.add_argument("--draws", default="42,43")
    parser.add_argument("--timed", action="store_true", help="all takes its time, and Slurm starts pinned jobs itself")
    options = parser.parse_args(arguments)
    delays = Delays() if options.timed else None
    pairs = []
    for draw in map(int, options.draws.split(",")):
        for trace in map(int, options.traces.split(",")):
            pairs.append(one_pair(options.kind or options.network, options.limits, trace, draw, delays))
            over = {name: f"{_over(pairs[-1].figures, name, PLAIN):.3f}" for name in pairs[-1].figures}
            print(f"trace {trace}, draw {draw}, mean JCT over {PLAIN}: {over}", flush=True)
    print("\n".join(lines_of(pairs)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
