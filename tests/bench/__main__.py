# SPDX-License-Identifier: Apache-2.0
"""`make bench`: every benchmark, or one of them with its own options: `make bench NAME=hook ARGS="--turns 6"`.

`make bench NAME=list` lists them. Each prints its tables and keeps its figures in build/bench/*.json.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from policy.formats.errors import nearest

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = str(ROOT / "containers" / "bootstrap")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""For small matrices, where more threads only wait for each other."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """How one of them is run, and what it needs."""

    says: str
    module: str = ""
    """Below tests.bench, where it is not the benchmark's own name."""
    words: tuple[str, ...] = ()
    engine: bool = False
    """Runs a Slurm, of the version SLURM, and so needs a Docker engine."""
    one_thread: bool = False
    alone: bool = False
    """Is no part of all benchmarks."""


BENCHMARKS = {
    "hook": Benchmark("latency of job_submit and submissions a second: no plugin, a bare echo, Berth", engine=True),
    "flood": Benchmark("one user sends a thousand of the dearest requests a second; another's hook", engine=True),
    "passes": Benchmark("slurmctld with jobs that start and jobs that wait on 1,024 nodes", engine=True),
    "gateway": Benchmark("reading Slurm and pinning a job: the program on libslurm, pyslurm, commands", engine=True),
    "plan": Benchmark("planning passes and Epilog notices at 8,192 and 100,000 GPUs"),
    "scrape": Benchmark("a scrape of berthd's metrics, and what it costs berthd's other processes"),
    "topology": Benchmark("a cluster of 12,500 nodes loaded, its node sets, the best of 16 GPUs"),
    "links": Benchmark("sets of GPUs beside NCCL's search (its figures in BERTH_DATA/nccl-tables)"),
    "placement": Benchmark("the policy beside PAL on the honest set, and under Slurm's own rules; an hour"),
    "events": Benchmark("slow nodes: Berth and PAL told by the detector, and by an oracle", "events_bound"),
    "placement-speed": Benchmark("one round of each policy; beside PAL's own code (BERTH_PAL_ARTIFACT)"),
    "published": Benchmark("PAL's published simulations, other orders, and a load sweep"),
    "simulate": Benchmark("how long simulations take: PAL's published one, Philly's week, 100,000 jobs"),
    "philly": Benchmark("Philly under Slurm's rules: waits by reason, levels, times"),
    "runtime": Benchmark("run times predicted from history beside limits and simple rules"),
    "node": Benchmark("Prolog, Epilog and guard on one node, with a simulated driver and MPS"),
    "guard": Benchmark("the guard in a closed loop beside TGS, AntMan, PI, MuxFlow and an oracle (CASES=file)"),
    "owner-memory": Benchmark("owners that allocate beside guests that take all they can (root)"),
    "injob": Benchmark("launches, gate and hooks inside the job (BERTH_TORCH_PYTHON: a Python with torch)"),
    "packing": Benchmark("shares of GPUs fed to Alibaba's cluster until one finds no place"),
    "racks": Benchmark("278 racks of NVL72: topology/block with and without segments, beside no topology", alone=True),
    "racks-day": Benchmark("a day of jobs on a real slurmctld, on racks by topology/block", engine=True, alone=True),
    "company": Benchmark("packed jobs put together by room, and by what they would lose", one_thread=True),
    "predictor": Benchmark("the speed of two jobs on one GPU, predicted", words=("--nested", "12"), one_thread=True),
    "matching": Benchmark("guests to hosts, beside an oracle and a greedy rule", one_thread=True),
    "sharing-day": Benchmark("a day of services with guests on a thousand GPUs", one_thread=True),
    "scores": Benchmark("scores of simulated fleets with known truth, and what PAL gains by them"),
    "app-classes": Benchmark("application classes by thresholds, and by K-Means as PAL makes them", one_thread=True),
    "stragglers": Benchmark("how often `berth why --slow` names the right cause and rank"),
    "hangs": Benchmark("jobs that hang, and a thousand hours of jobs that do not"),
    "classify": Benchmark("failure classes on real logs, of programs seen and never seen"),
    "classify-public": Benchmark("failure classes on logs of public issues, where BERTH_DATA has them", alone=True),
    "retry": Benchmark("GPU time lost to failed trials: fixed and adaptive retries, pre-flight"),
    "harm": Benchmark("a job that asks nothing of Berth, beside plain Slurm in the same run", engine=True, alone=True),
    "forms": Benchmark("how often plain Slurm gives the best linked GPUs", "request_forms", engine=True, alone=True),
    "replay": Benchmark("Berth beside plain Slurm on a real Slurm of 64 nodes; hours", engine=True, alone=True),
    "growth": Benchmark("how each cost grows, up to 100,000 GPUs and a million jobs", one_thread=True, alone=True),
    "load": Benchmark("berthd's processes under a workload of tests/load", one_thread=True, alone=True),
    "gate": Benchmark("a fast part of each against the last release's figures", one_thread=True, alone=True),
    "web": Benchmark("the page in a real browser: first paint, bytes, axe-core's findings", "web_page", alone=True),
    "gpu-mps": Benchmark("MPS on a real GPU: limits, escapes, faults, shares", "tests/gpu/test_mps_gpu.py", alone=True),
    "gpu-guard": Benchmark("a host and its guest on a real GPU", "tests/gpu/test_guard_gpu.py", alone=True),
}
"""By name, in the order in which `make bench` runs them."""


def command(name: str, more: Sequence[str]) -> list[str]:
    """Returns what runs a benchmark."""
    one = BENCHMARKS[name]
    if one.module.endswith(".py"):
        return [sys.executable, "-m", "pytest", one.module, "-q", *more]
    version = ("--slurm", os.environ.get("SLURM", "24.11")) if one.engine else ()
    module = one.module or name.replace("-", "_")
    return [sys.executable, "-m", f"tests.bench.{module}", *version, *one.words, *more]


def run(name: str, more: Sequence[str]) -> int:
    """Runs a benchmark, with a Docker engine where it needs one, and stops an engine that it started."""
    one = BENCHMARKS[name]
    env = os.environ | {"BERTH_RERUN": f"make bench NAME={name}"} | (ONE_THREAD if one.one_thread else {})
    engine = one.engine or name == "gate"
    if engine:
        # The gate alone goes on without clusters.
        missing = name == "gate" and subprocess.run([BOOTSTRAP, "cluster-packages"], env=env, check=False).returncode
        if missing or subprocess.run([BOOTSTRAP, "engine-start"], env=env, check=False).returncode:
            if name != "gate":
                return 1
            engine, more = False, ("--without-clusters", *more)
    try:
        return subprocess.run(command(name, more), cwd=ROOT, env=env, check=False).returncode
    finally:
        if engine:
            subprocess.run([BOOTSTRAP, "engine-stop"], env=env, check=False)


def main(words: Sequence[str]) -> int:
    """Runs the named one, or all until one fails."""
    if words[:1] == ["list"]:
        sys.stdout.writelines(f"{name:<16} {one.says}\n" for name, one in BENCHMARKS.items())
        return 0
    if words and words[0] not in BENCHMARKS:
        sys.stderr.write(f"make bench: there is no benchmark {words[0]}{nearest(words[0], BENCHMARKS)}; NAME=list\n")
        return 2
    if words:
        return run(words[0], words[1:])
    return next((code for name, one in BENCHMARKS.items() if not one.alone and (code := run(name, ()))), 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
