# SPDX-License-Identifier: Apache-2.0
"""Reading Slurm and pinning jobs at 1,024 nodes and 1,000 waiting jobs: each gateway beside Slurm's own commands."""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys

from containers.cluster import IMAGES, PREFIX

from .hook import AS_SLURM, CLUSTER, NODES, Controller, quantile
from .table import Figure, report

JOBS = 1_000
CHANGED = 20

# Runs beside slurmctld, as SlurmUser, with Berth's Python.
SCRIPT = """
import json, sys, time
from policy.formats.errors import BerthError
from policy.slurm.gateways import open_gateway
from policy.slurm.interface import Pin

rounds, changed = int(sys.argv[1]), int(sys.argv[2])

def timed(work, *words, **named):
    start = time.perf_counter()
    result = work(*words, **named)
    return (time.perf_counter() - start) * 1e3, result

answer = {}
for name in ("pyslurm", "libslurm", "command"):
    try:
        gateway = open_gateway(name)
    except BerthError as problem:
        print(problem, file=sys.stderr)
        continue
    cold, reading = timed(gateway.read, ended=False)
    same, first, pins, after = [], [], [], []
    for number in range(rounds):
        same.append(timed(gateway.read, ended=False)[0])
    # Slurm keeps its times in seconds: for a second or two after a change it sends everything again.
    time.sleep(3)
    idle = [timed(gateway.read, ended=False)[0] for _ in range(rounds)]
    jobs = [job.id for job in reading.jobs][:changed]
    for number in range(rounds):
        for job in jobs:
            place = Pin((f"g{number + 1}",), (0, number % 7 + 1), True, {"state": "placed", "pins": str(number)})
            (pins if number else first).append(timed(gateway.pin, job, place)[0])
        after.append(timed(gateway.read, ended=False)[0])
    gateway.close()
    answer[name] = {"seen": [len(reading.jobs), len(reading.nodes)], "read_cold": [cold], "read_same": same,
                    "read_idle": idle, "read_changed": after, "pin_first": first, "pin": pins}
json.dump(answer, sys.stdout)
"""


class Beside(Controller):
    """A lone slurmctld of the images that the checkout's own clusters use."""

    def __init__(self, version: str) -> None:
        super().__init__(version, "none")
        self.name = f"{PREFIX}-bench-gateway-{version.replace('.', '')}"
        self.image = f"{IMAGES}-cluster:{version}"


def measure(version: str, rounds: int) -> tuple[str, dict[str, dict[str, list[float]]]]:
    """Slurm's version, and the milliseconds of each gateway by what it did."""
    with Beside(version) as controller, controller.running():
        controller.submit(JOBS)
        slurm = controller.bash("sinfo --version").strip()
        printed = controller.bash(
            f"{AS_SLURM} /opt/berth/bin/python - {rounds} {CHANGED} <<'END'\n{SCRIPT}\nEND\n", timeout=600
        )
    found: dict[str, dict[str, list[float]]] = json.loads(printed)
    for name, times in found.items():
        seen = times.pop("seen")
        if seen != [JOBS, NODES]:
            raise RuntimeError(f"{name} read {seen[0]} jobs and {seen[1]} nodes, not {JOBS} and {NODES}")
    return slurm, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    subprocess.run([sys.executable, CLUSTER, "build", "--slurm", args.slurm], check=True)
    slurm, found = measure(args.slurm, args.rounds)
    figures = [
        Figure(
            f"{name}_{what}_{suffix}_ms",
            quantile(times, share),
            "ms",
            "" if name == "command" else "Slurm's own commands",
            None if name == "command" else quantile(found["command"][what], share),
        )
        for name, by_what in found.items()
        for what, times in by_what.items()
        for suffix, share in (("p50", 0.5), ("p99", 0.99))
        if len(times) > 1 or suffix == "p50"
    ]
    notes = {
        "slurm": slurm,
        "nodes": str(NODES),
        "jobs": str(JOBS),
        "changed": str(CHANGED),
        "rounds": str(args.rounds),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "pins_per_second": f"{1e3 / statistics.mean(found['libslurm']['pin']):.0f} (libslurm)",
    }
    report("gateway", f"reading {JOBS} waiting jobs and {NODES} nodes, and pinning, {slurm}", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
