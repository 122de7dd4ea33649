# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=harm`: what a job pays for Berth that asks nothing of it, beside plain Slurm in the same run.

Both clusters are up; each command runs on one and then on the other, in turn, so that what else the machine does meets
both alike. Of each command the median counts. Prolog and Epilog of a job without GPUs are also timed alone, on a node.
At the end plain Slurm gets as many scripts that do nothing: what slurmd needs to start any script is not Berth's.
"""

from __future__ import annotations

import argparse
import datetime
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from containers.cluster import PREFIX
from tests.slurm.target import Container, Target

from .table import Figure, at_most, report

CLUSTER = Path(__file__).resolve().parents[2] / "containers" / "cluster.py"
COMMANDS = {
    "n1": "srun -Q -N1 true",
    "n2": "srun -Q -N2 true",
    "n4": "srun -Q -N4 true",
    "gpu": "srun -Q --gpus=1 true",
}
MOST_CPU, MOST_GPU = 1.05, 1.25
SCRIPTS = {"prolog": "/opt/berth/bin/berth-prolog", "epilog": "/opt/berth/bin/berth-epilog"}
MOST_SCRIPTS_MS = 5.0
"""Of a job without GPUs, as slurmd calls them."""

AS_SLURMD = (
    "export SLURMD_NODENAME=n1 SLURM_CONF=/etc/slurm/slurm.conf SLURM_JOB_ID=999999 SLURM_JOB_UID=1000"
    " SLURM_JOB_EXIT_CODE2=0:0 SLURM_SCRIPT_CONTEXT={context}_slurmd"
)
EMPTY_SCRIPTS = r"printf 'Prolog=/bin/true\nEpilog=/bin/true\n' >>/etc/slurm/slurm.conf"
IN_A_ROW = 5
TIMED = """
for i in $(seq {count}); do
    before=${{EPOCHREALTIME/./}}; {command} || exit; after=${{EPOCHREALTIME/./}}
    echo $((after - before)); sleep {pause}
done
"""


def times(target: Target, command: str, count: int, pause: float, user: str = "alice", first: str = "") -> list[float]:
    """Milliseconds of each of so many runs."""
    script = first + TIMED.format(count=count, command=command, pause=pause)
    return [int(line) / 1_000 for line in target.bash(script, user=user, timeout=300).out.split()]


def scripts(node: Target, count: int) -> dict[str, float]:
    """Milliseconds of a node's Prolog and Epilog of a job without GPUs."""
    found = {}
    for context, command in SCRIPTS.items():
        took = times(node, command, count, 0.1, "root", AS_SLURMD.format(context=context))
        found[context] = statistics.median(took)
    return found


def measure(plain: Target, berth: Target, turns: int, pause: float) -> dict[str, tuple[float, float]]:
    """The median of each command, on plain Slurm and with Berth."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in COMMANDS}
    for turn in range(turns):
        for name, command in COMMANDS.items():
            for place, target in ((0, plain), (1, berth)) if turn % 2 else ((1, berth), (0, plain)):
                found[name][place].extend(times(target, command, IN_A_ROW if pause == 0 else 1, pause))
    return {name: (statistics.median(one), statistics.median(other)) for name, (one, other) in found.items()}


def main() -> int:
    """Bring both up, measure, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    name = f"{PREFIX}{args.slurm.replace('.', '')}"
    both: tuple[list[str], ...] = (["--without-berth"], [])
    try:
        for words in both:
            subprocess.run([sys.executable, CLUSTER, "up", "--slurm", args.slurm, *words], check=True)
        plain, berth = Container(f"{name}-plain-ctl"), Container(f"{name}-ctl")
        time.sleep(3)
        alone = scripts(Container(f"{name}-n1"), 5 * args.turns)
        figures = [at_most(f"{what}_ms", took, MOST_SCRIPTS_MS, "ms") for what, took in alone.items()]
        for way, pause in (("row", 0.0), ("apart", 3.0)):
            print(f"bench-harm: {'back to back' if way == 'row' else '3 s apart'}", flush=True)
            found = measure(plain, berth, args.turns, pause)
            for what, (one, other) in found.items():
                most = MOST_GPU if what == "gpu" else MOST_CPU
                figures.append(Figure(f"{what}_{way}_ms", other, "ms", "plain Slurm", one))
                figures.append(at_most(f"{what}_{way}_ratio", other / one, most, ""))
        plain.bash(f"{EMPTY_SCRIPTS}; scontrol reconfigure", user="root")
        time.sleep(3)
        print("bench-harm: beside scripts that do nothing", flush=True)
        for what, (one, other) in measure(plain, berth, args.turns, 0.0).items():
            figures.append(Figure(f"{what}_scripts_ms", other, "ms", "plain Slurm, empty scripts", one))
        version = re.findall(r"[\d.]+", plain.run(["sinfo", "--version"]).out)[0]
        notes = {"slurm": version, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
        report("harm", f"one job, with Berth and without, Slurm {version}", figures, notes)
    finally:
        for words in both:
            subprocess.run([sys.executable, CLUSTER, "down", "--slurm", args.slurm, *words], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
