# SPDX-License-Identifier: Apache-2.0
"""`make demo` where no Docker engine runs: the same jobs under Slurm's rules and under Berth, in the simulator."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS, HOURS, NODES = 1000, 24.0, 16
MACHINES = ("a6000-pairs", "hgx-h100")
WIDTHS, SHARES = (1, 2, 4, 8, 16), (40, 20, 20, 14, 6)
MODELS = ("resnet50", "BERT", "vgg19", "PointNet")
#: As tests/all.py: what was run is well, but not all of it could be run.
NOT_ALL = 3


def trace(seed: int = 1) -> str:
    """A day of made-up jobs; half of them need less than an hour of one GPU."""
    draw = random.Random(seed)  # noqa: S311 - made-up jobs, the same ones each time
    lines = ["job_id,num_gpus,submit_time,duration,model"]
    for job, submit in enumerate(sorted(draw.uniform(0, HOURS * 3600) for _ in range(JOBS))):
        [gpus] = draw.choices(WIDTHS, SHARES)
        gpu_seconds = 300 * 200 ** (draw.random() ** 1.3)
        lines.append(f"{job},{gpus},{submit:.0f},{gpu_seconds / gpus:.0f},{draw.choice(MODELS)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Play the day on two kinds of machines."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.csv"
        file.write_text(trace())
        for machine in MACHINES:
            print(f"demo: {JOBS} made-up jobs in {HOURS:.0f} h on {NODES} simulated nodes ({machine})", flush=True)
            command = [sys.executable, "-m", "policy.cli.main", "simulate", str(file), "--duration-unit", "seconds"]
            cluster = ["--nodes", str(NODES), "--machine", machine, "--nodes-per-leaf", "4"]
            done = subprocess.run([*command, *cluster, "--policy", "slurm", "--policy", "berth"], check=False)
            if done.returncode:
                return 1
    print(
        f"demo: {time.monotonic() - began:.0f} s in all; not run: the jobs on a real Slurm, for which Docker is needed"
        f" (status {NOT_ALL})"
    )
    return NOT_ALL


if __name__ == "__main__":
    raise SystemExit(main())
