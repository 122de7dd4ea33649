# SPDX-License-Identifier: Apache-2.0
"""The scene of links: the same submissions to Slurm alone and to Berth, and the GPUs that each job could open."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from containers.demo.site import Site, inside
from policy.formats.plan_fields import ALL_REDUCE
from topology.model import Machine
from topology.sets.tables import joined
from topology.sets.wiring import wiring

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


def place(controller: str, machines: dict[str, Machine]) -> dict[str, list[Placement]]:
    """Submit every request to every node, first past Berth, then through it; the nodes work side by side."""
    running = {
        node: inside(controller, DRIVER.format(job=JOB, requests=" ".join(REQUESTS), model=machine.model), "alice")
        for node, machine in machines.items()
    }
    placements = {}
    for node, process in running.items():
        output = process.communicate(timeout=300)[0]
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
    console.print(
        f"Of {total} submissions, Berth gave better linked GPUs in {better} and worse linked ones in {worse}."
    )


def play(site: Site) -> None:
    """Takes two GPUs of each node, and submits the requests."""
    site.scene("The best linked GPUs: which device files each job could open, as Slurm's device cgroup has it")
    typed = ",".join(f"gpu:g{gpu}:1" for gpu in TAKEN)
    for node in site.machines:
        site.read(f"sbatch -Q -p plain -w {node} -n1 --mem=10 --gres={typed} -o /dev/null --wrap 'exec sleep 600'")
    site.until("the GPUs to be taken", lambda: site.read("squeue -h -t R").count("\n") == len(site.machines) or None)
    show(site.console, site.machines, place(site.controller, site.machines))
