"""Berth's daemon with `look_ahead` beside the same without it, in the simulated Slurm: how much sooner jobs end.

A pair is one of the eight traces of `make bench NAME=placement` and one draw of its arrivals. The daemon's own code
plans. Nothing takes time, or with `--timed` all takes as long as on a test cluster: then Slurm starts a pinned job by
itself as soon as its GPUs are free, and berthd learns of an end by the Epilog's notice. Plain Slurm plays the
same jobs.

usage: python -m tests.bench.look_ahead [--timed] [--network {flat,leaves,pods}] [--limits {tripled,drawn,alike}]
                                        [--traces 0,1,...] [--draws 42,43]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from math import log

import numpy as np

from policy.request.settings import Settings
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.slurm.settings import Delays, SlurmSettings
from tests.bench import placement_pairs as pairwise
from tests.bench import placement_slurm as slurm
from tests.bench.placement_pairs import Comparison, Pair

FAMILIES = {one.name.split(", ")[1]: one for one in slurm.families() if one.limit_factor is not None}
"""By network."""
FOUR_DAYS = 4 * 86_400.0
WITH, WITHOUT, PLAIN = "look_ahead", "without", "plain Slurm"
METRICS = (*pairwise.METRICS, "longest_wait_s")


def limited(jobs: list[TraceJob], limits: str, trace: int, draw: int) -> list[TraceJob]:
    """Returns the jobs with time limits that overstate: each by three, each by a drawn factor, or four days for all."""
    if limits == "drawn":
        factors = np.exp(np.random.default_rng(1_000 * trace + draw).uniform(log(1.2), log(10.0), len(jobs)))
        return [replace(job, limit=job.work * float(factor)) for job, factor in zip(jobs, factors, strict=True)]
    if limits == "alike":
        return [replace(job, limit=max(FOUR_DAYS, 1.5 * job.work)) for job in jobs]
    return jobs


def one_pair(network: str, limits: str, trace: int, draw: int, delays: Delays | None = None) -> Pair:
    """Plays one trace and draw, without it, with it, and on plain Slurm."""
    family = FAMILIES[network]
    jobs = limited(slurm.jobs_of(family, trace, draw), limits, trace, draw)
    found = {}
    for name in (WITHOUT, WITH, PLAIN):
        policy = slurm.policy_of("slurm" if name == PLAIN else "berth", draw)
        site = Settings(look_ahead=name == WITH)
        settings = SlurmSettings(order="fifo", berthd=name != PLAIN, site=site, delays=delays)
        outcome = run(jobs, slurm.fleet_of(family), policy, settings)
        figures = outcome.figures()
        found[name] = {figure: float(str(figures[figure])) for figure in pairwise.METRICS}
        found[name]["longest_wait_s"] = max(outcome.starts[job.id] - job.submit for job in jobs)
    return Pair(family.name, "fifo", trace, draw, found)


def main(arguments: list[str]) -> int:
    """Plays the pairs, and prints with over without, and both over plain Slurm."""
    if lacks := slurm.missing():
        print(lacks, file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser(prog="look_ahead", description="berthd with look_ahead over the same without it.")
    parser.add_argument("--network", choices=list(FAMILIES), default="flat")
    parser.add_argument("--limits", choices=("tripled", "drawn", "alike"), default="tripled")
    parser.add_argument("--traces", default=",".join(map(str, range(len(slurm.TRACES)))))
    parser.add_argument("--draws", default="42,43")
    parser.add_argument("--timed", action="store_true", help="all takes its time, and Slurm starts pinned jobs itself")
    options = parser.parse_args(arguments)
    delays = Delays() if options.timed else None
    pairs = []
    for draw in map(int, options.draws.split(",")):
        for trace in map(int, options.traces.split(",")):
            pairs.append(one_pair(options.network, options.limits, trace, draw, delays))
            figures = pairs[-1].figures
            ratios = ", ".join(f"{one} {figures[WITH][one] / figures[WITHOUT][one]:.3f}" for one in METRICS)
            print(f"trace {trace}, draw {draw}: {ratios}", flush=True)
    together = Comparison(pairs)
    for name, peer in ((WITH, WITHOUT), (WITHOUT, PLAIN), (WITH, PLAIN)):
        for one in METRICS:
            ratio = together.ratio(name, one, peer)
            shown = f"{ratio.value:.3f} ({ratio.lower:.3f} to {ratio.upper:.3f})"
            print(f"{name} over {peer}, {one}: {shown}, {len(pairs)} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
