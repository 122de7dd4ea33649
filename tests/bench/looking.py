# SPDX-License-Identifier: Apache-2.0
"""The processor time of the guard's looks at eight shared GPUs whose job has eight ranks, each with eight workers.

The processes are real, and so is their `/proc`; the driver is simulated. It runs in a process of its own, as a program
finds the driver's library at its start.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prolog_epilog.looks.gpu_use import GpuLooks, GpuPart, parts_of
from prolog_epilog.looks.signs import serves
from prolog_epilog.looks.still import StillLooks
from prolog_epilog.looks.watch import PERIOD
from prolog_epilog.node import cgroups, devices
from prolog_epilog.node.paths import Paths
from tests.fakes import nvml

GPUS, WORKERS = 8, 8
TURNS = 50


def cost() -> dict[str, float]:
    """Parts of a core: of a job that trains, and of a service without requests, whose sockets are looked for."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(GPUS * (1 + WORKERS))]
    try:
        with tempfile.TemporaryDirectory() as folder:
            machine = Path(folder, "machine")
            lines = [f"process {gpu} {children[gpu].pid} type=compute memory=500" for gpu in range(GPUS)]
            machine.write_text((nvml.MACHINES / "dgx-1v").read_text() + "\n" + "\n".join(lines) + "\n")
            done = subprocess.run(
                [sys.executable, "-m", "tests.bench.looking", folder, *[str(one.pid) for one in children]],
                env=nvml.environment(machine),
                capture_output=True,
                text=True,
                check=True,
            )
    finally:
        for child in children:
            child.kill()
            child.wait()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure(folder: str, pids: list[int]) -> dict[str, float]:
    job_of = cgroups.job_of
    # The real file is read, and names no job here.
    cgroups.job_of = lambda pid: job_of(pid) or 7
    paths = Paths(Path(folder, "run"))
    gpus, stills = GpuLooks(), StillLooks(paths, "n1", lambda _: pids)
    began = 0.0
    for turn in range(TURNS + 2):
        # The first two looks load the library.
        began = time.process_time() if turn == 2 else began
        with devices.driver() as driver:
            known = devices.gpus(paths)
            shares = [GpuPart(str(gpu.position), gpu.uuid, 7) for gpu in known]
            gpus.look(driver, known, turn * PERIOD, [*parts_of(paths, known), *shares])
        gpus.due(turn * PERIOD)
        stills.look(turn * PERIOD, gpus.seen)
    look_s = (time.process_time() - began) / TURNS
    began = time.process_time()
    for _ in range(TURNS):
        serves(pids)
    serves_s = (time.process_time() - began) / TURNS
    return {"look": look_s / PERIOD, "service": look_s / PERIOD + serves_s / 60.0}


if __name__ == "__main__":
    json.dump(_measure(sys.argv[1], [int(one) for one in sys.argv[2:]]), sys.stdout)
