# SPDX-License-Identifier: Apache-2.0
"""`make demo`: the same submissions to Slurm alone and to Berth, on a real Slurm, side by side."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from containers.cluster import PREFIX
from policy.formats.plan_fields import ALL_REDUCE
from topology.files import decode
from topology.model import Machine
from topology.sets.tables import joined
from topology.sets.wiring import wiring

CLUSTER = Path(__file__).with_name("cluster.py")
REQUESTS = ("--gres=gpu:2", "--gpus=2", "--gres=gpu:4")
# In use already on every node, so that not every good set is left.
TAKEN = (0, 5)
TITLES = {
    "n1": "n1: DGX-1V, hybrid cube mesh",
    "n2": "n2: HGX H100, NVSwitch",
    "n3": "n3: RTX A6000, bridged pairs",
    "n4": "n4: L40S, PCIe only",
}
# A job is nothing but a look at which GPU device files open: its device cgroup decides, not an environment variable.
JOB = r"""#!/bin/bash
open=
for k in 0 1 2 3 4 5 6 7; do
    case "$( ( : < /dev/nvidia$k ) 2>&1 )" in *"No such device or address"*) open=$open,$k ;; esac
done
echo "OPEN ${open#,}"
"""
DRIVER = r"""
d=$(mktemp -d -p /home/alice); chmod 755 $d; cat > $d/job.sh <<'END'
{job}
END
for partition in plain gpu; do for request in {requests}; do
    id=$(sbatch --parsable -p $partition -C {model} -N1 -t 5 --mem=100 $request -o $d/%j $d/job.sh 2>$d/said)
    for i in $(seq 400); do grep -q OPEN $d/$id 2>/dev/null && break; sleep 0.05; done
    echo "JOB $partition $request $(sed -n 's/^OPEN //p' $d/$id)"
    [ $partition = plain ] || echo "WHY $(berth why -v $id | sed -n 's/^reason *//p')"
    while [ -n "$(squeue -h -j $id 2>/dev/null)" ]; do sleep 0.05; done
    sleep 0.6  # two of berthd's ticks: the GPUs must be seen free again
done; done; rm -rf $d
"""


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs that one request got."""

    request: str
    plain: tuple[int, ...]
    berth: tuple[int, ...]
    why: str


def bandwidth(machine: Machine, gpus: Iterable[int]) -> float:
    """GB/s of an all-reduce on these GPUs."""
    return ALL_REDUCE * joined(wiring(machine), tuple(sorted(gpus))).cut


def inside(container: str, script: str, user: str) -> subprocess.Popen[str]:
    """Start a script in a container and go on."""
    process = subprocess.Popen(
        ["docker", "exec", "-i", "-u", user, container, "bash", "-s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None  # noqa: S101 - it is a pipe, as asked for above
    process.stdin.write(script)
    process.stdin.close()
    process.stdin = None
    return process


def read(container: str, script: str, user: str = "root") -> str:
    """Run a script in a container; what it wrote."""
    return inside(container, script, user).communicate(timeout=120)[0]


def place(controller: str, machines: dict[str, Machine]) -> dict[str, list[Placement]]:
    """Submit every request to every node, first past Berth, then through it; the nodes work side by side."""
    running = {
        node: inside(controller, DRIVER.format(job=JOB, requests=" ".join(REQUESTS), model=machine.model), "alice")
        for node, machine in machines.items()
    }
    placements = {}
    for node, process in running.items():
        output = process.communicate(timeout=120)[0]
        got = {
            (partition, request): tuple(int(gpu) for gpu in gpus.split(",") if gpu)
            for partition, request, gpus in re.findall(r"^JOB (\S+) (\S+) ?(\S*)$", output, re.MULTILINE)
        }
        whys = re.findall(r"^WHY (.*)$", output, re.MULTILINE)
        placements[node] = [
            Placement(request, got["plain", request], got["gpu", request], why)
            for request, why in zip(REQUESTS, whys, strict=True)
        ]
    return placements


def show(console: Console, machines: dict[str, Machine], placements: dict[str, list[Placement]]) -> None:
    """The table, the reasons, and a closing count."""
    table = Table(title="The GPUs that each job could open, and GB/s of an all-reduce on them")
    for column in ("node (GPUs 0 and 5 in use)", "request", "Slurm alone", "GB/s", "Berth", "GB/s", "Berth's gain"):
        table.add_column(column, no_wrap=True)
    better = worse = total = 0
    for node, rows in placements.items():
        machine = machines[node]
        for number, row in enumerate(rows):
            plain, berth = bandwidth(machine, row.plain), bandwidth(machine, row.berth)
            total += 1
            better += berth > plain
            worse += berth < plain
            table.add_row(
                TITLES.get(node, node) if number == 0 else "",
                row.request,
                ",".join(map(str, row.plain)),
                f"{plain:.0f}",
                ",".join(map(str, row.berth)),
                f"{berth:.0f}",
                "the same" if plain == berth else f"{berth / plain:.2g}x",
                end_section=number == len(rows) - 1,
            )
    console.print(table)
    console.print("Why (`berth why JOBID` tells all of it):")
    for node, rows in placements.items():
        for row in rows:
            console.print(f"  {node} {row.request}: GPUs {','.join(map(str, row.berth))}: {row.why}", highlight=False)
    console.print(
        f"\nOf {total} submissions, Berth gave better linked GPUs in {better} and worse linked ones in {worse}."
    )


def main() -> int:
    """Bring the cluster up, show, take it down whatever happens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slurm", default="24.11", help="Slurm version, 24.11 or 26.05 (default %(default)s)")
    version = parser.parse_args().slurm
    console = Console(width=None if sys.stdout.isatty() else 118)
    began = time.monotonic()
    controller = f"{PREFIX}{version.replace('.', '')}-ctl"
    try:
        subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version], check=True)
        files = read(controller, "for f in /etc/slurm/berth/topology/*.json; do cat $f; echo; echo ---; done")
        machines = {m.node: m for m in (decode(json.loads(text)) for text in files.split("\n---\n") if text.strip())}
        typed = ",".join(f"gpu:g{gpu}:1" for gpu in TAKEN)
        console.print("demo: submitting the same jobs to the partitions 'plain' (Slurm alone) and 'gpu' (Berth)")
        read(
            controller,
            "\n".join(
                f"sbatch -Q -p plain -w {node} -n1 --mem=10 --gres={typed} -o /dev/null --wrap 'exec sleep 600'"
                for node in machines
            )
            + "\nwhile [ $(squeue -h -t R | wc -l) -lt 4 ]; do sleep 0.1; done",
        )
        show(console, machines, place(controller, machines))
    finally:
        subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version], check=False)
    console.print(f"demo: {time.monotonic() - began:.0f} s in all; try it by hand with `make cluster-up`")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
