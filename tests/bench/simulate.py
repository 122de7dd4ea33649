# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=simulate`: how long simulated weeks take.

`sia_s` is PAL on the first Sia-Philly trace, 160 jobs and their repeats on 64 GPUs, beside PAL's artifact, which took
85 s on another machine. It needs the published data: the folder named by BERTH_DATA, or `../shared/data` beside the
repository. Without it a drawn trace of the same size stands in.

`philly_week_s` is Philly's busiest week, 14,185 jobs on 640 GPUs, under Slurm's rules and placed by Berth's own policy;
it is left out without the published data.

`timed_s` is that Sia-Philly trace with limits of three times the run time on eight DGX A100 in leaves of four, with
berthd's own code and timing (`--mode berthd`), in processor time; it is left out without the published data.

`jobs_100k_s` is a drawn trace of 100,000 jobs on 100,000 GPUs, likewise, all submitted within an hour, so that
thousands wait; `--jobs` takes fewer. `rss_mb` is the most memory that this process had by then.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from policy.cluster.cost import CostModel, pal_locality
from policy.cluster.fleet import Fleet
from policy.placement.registry import create
from policy.simulate.inputs import read_traces
from policy.simulate.inputs.scores import grids
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.rounds import RoundsSettings, run
from policy.simulate.play import run as run_slurm
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.world import Layout, build
from tests.bench import philly, philly_data
from tests.bench.placement_speed import SHARES, WIDTHS, fleet_of
from tests.bench.table import Figure, at_most, report
from topology.machines import machine

SIA_NODES, SIA_GPUS = 16, 4
SIA_MUST_S = 0.5
ARTIFACT_S = 85.0
REPEATS = 3
WEEK_MUST_S = 60.0
TIMED_MUST_S = 20.0
BIG = Layout(12_500, 8, nodes_per_leaf=8, leaves_per_pod=4)
BURST_S = 3600.0


def data_folder() -> Path | None:
    """Where the published data is, if it is at hand."""
    named = os.environ.get("BERTH_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"
    return folder if (folder / "pal").is_dir() else None


def sia_fleet(data: Path, across: float = 1.7) -> Fleet:
    """The 64 GPUs of PAL's published simulations."""
    scores = grids([str(data / "pal" / "variability" / "pal-sim-64gpu.csv")], SIA_NODES, SIA_GPUS)
    return build(Layout(SIA_NODES, SIA_GPUS), scores, CostModel(pal_locality(across)))


def sia_trace(data: Path, number: int) -> Sequence[TraceJob]:
    """One of the eight Sia-Philly traces."""
    return read_traces([str(data / "pal" / "traces-sia-philly" / f"workload-{number}.csv")]).jobs


def drawn_trace(jobs: int = 160, hours: float = 5.0, seed: int = 5) -> list[TraceJob]:
    """A trace of the same size and widths."""
    draw = np.random.default_rng(seed)
    submits = np.sort(draw.uniform(0.0, hours * 3600, jobs))
    widths = draw.choice(WIDTHS, jobs, p=np.array(SHARES) / sum(SHARES))
    works = 60.0 * 10 ** draw.uniform(0.5, 3.0, jobs)
    return [
        TraceJob(str(number), int(width), float(submit), float(work), "", "ABCD"[number % 4])
        for number, (width, submit, work) in enumerate(zip(widths, submits, works, strict=True))
    ]


def seconds(work: Callable[[], object]) -> float:
    """The least wall time of some runs: what else the machine does only adds."""
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def sia() -> tuple[Figure, str]:
    """PAL on the published trace, or on a drawn one."""
    data = data_folder()
    fleet = sia_fleet(data) if data else fleet_of(SIA_NODES * SIA_GPUS)
    jobs = sia_trace(data, 1) if data else drawn_trace()
    # A new policy each time, so that putting scores into bins counts.
    taken = seconds(lambda: run(jobs, fleet, create("pal"), RoundsSettings(repeat=2.0)))
    peer, peer_s = ("PAL's artifact, documented, another machine", ARTIFACT_S) if data else ("", None)
    figure = at_most("sia_s", taken, SIA_MUST_S, "s", peer, peer_s)
    return figure, "workload-1 of the Sia-Philly traces" if data else "drawn: the published data is not at hand"


def timed() -> list[Figure]:
    """The first Sia-Philly trace with berthd's own timing, once."""
    data = data_folder()
    if data is None:
        return []
    jobs = [replace(job, limit=3.0 * job.work) for job in sia_trace(data, 1)]
    fleet = build(Layout(8, 8, nodes_per_leaf=4), machine=machine("dgx-a100", "n0"))
    began = time.process_time()
    run_slurm(jobs, fleet, create("berth"), SlurmSettings(berthd=True, delays=Delays()))
    return [at_most("timed_s", time.process_time() - began, TIMED_MUST_S, "s")]


def many_jobs(count: int, seed: int = 3, *, burst_s: float = BURST_S) -> list[TraceJob]:
    """Jobs of 1 to 8 GPUs and minutes to hours; 100,000 in an hour are twice what the big cluster can hold."""
    draw = np.random.default_rng(seed)
    widths = draw.choice((1, 2, 4, 8), count, p=(0.7, 0.1, 0.15, 0.05))
    works = 60.0 * 10 ** draw.uniform(0.5, 3.0, count)
    submits = np.sort(draw.uniform(0.0, burst_s, count))
    return [
        TraceJob(str(number), int(width), float(submit), float(work), limit=2.0 * float(work))
        for number, (width, submit, work) in enumerate(zip(widths, submits, works, strict=True))
    ]


def week() -> list[Figure]:
    """Philly's week, once; its figures of quality are those of `make bench NAME=philly`."""
    if not (philly_data.PHILLY / philly_data.WEEK).exists():
        return []
    jobs, fleet = philly.drawn(philly_data.jobs(philly_data.WEEK), 0), philly.cluster(80, 0)
    outcome = run_slurm(jobs, fleet, create("berth"), SlurmSettings())
    return [at_most("philly_week_s", outcome.wall_s, WEEK_MUST_S, "s")]


def big(count: int) -> tuple[Figure, str]:
    """Many jobs on a big cluster, once."""
    outcome = run_slurm(many_jobs(count), build(BIG), create("berth"), SlurmSettings(pinned=True))
    waited = sum(outcome.starts[job.id] > job.submit for job in outcome.jobs)
    return Figure(
        f"jobs_{count // 1000}k_s", outcome.wall_s, "s"
    ), f"{BIG.nodes} nodes of {BIG.gpus_per_node}; {waited} waited"


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="How long simulations take.")
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs of the big simulation (default: 100000)")
    arguments = parser.parse_args()
    first, trace = sia()
    second, cluster = big(arguments.jobs)
    figures = [first, *week(), *timed(), second]
    # Linux counts in KiB, macOS in bytes.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    figures.append(Figure("rss_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, "MiB"))
    report("simulate", "Simulations", figures, {"trace": trace, "big": cluster})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
