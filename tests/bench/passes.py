# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=passes`: what slurmctld has to do for jobs on many nodes, where each that Berth pins requires one.

A lone slurmctld, three times: plain, with GPUs named by their model as is usual; with Berth; and with Berth whose
pinned jobs do not exclude the other nodes. Each gets as many whole-node jobs as fill the cluster, then some that wait;
then it is left alone for a while.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import time
from dataclasses import dataclass

from .hook import CLUSTER, NODES, Controller, quantile
from .table import Figure, at_most, report

SUBMIT = "/usr/libexec/berth-bench/submit -g 8 -p gpu"
CONF = "/etc/slurm/slurm.conf"
DEEP = "default_queue_depth=2000,bf_max_job_test=2000"
WAIT_S = 900.0
LOOK_S = 20.0
SYSTEMS = {
    "plain": ("none", "by-model", ""),
    "berth": ("berth", "by-position", "exclude_others = 1"),
    "everywhere": ("berth", "by-position", "exclude_others = 0"),
}
"""The plugin, how GPUs are named, and lines for berth.conf."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one slurmctld needed."""

    fill_ms: float
    """For each job that fills a node, until all of them have started."""
    wait_ms: float
    """For the submission of each job that then has to wait."""
    wait_p99_ms: float
    main_ms: float
    """A main pass, in the mean; 0 where there was none."""
    backfill_ms: float
    tested: float
    """Jobs that a backfill pass gets to."""
    version: str


def measure(controller: Controller, nodes: int, waiting: int) -> Found:
    """Fill the cluster, let some wait, look at the passes."""
    began = time.monotonic()
    controller.bash(f"{SUBMIT} -n {nodes}", timeout=WAIT_S)
    until_empty(controller)
    fill_ms = 1_000 * (time.monotonic() - began) / nodes
    output = controller.bash(f"{SUBMIT} -n {waiting}", timeout=WAIT_S)
    each = [float(line) / 1_000 for line in output.splitlines()[:-1]]
    time.sleep(2)
    controller.bash("sdiag -r")
    time.sleep(LOOK_S)
    said = controller.bash("sdiag")
    main, backfill = said.split("Backfilling stats")
    return Found(
        fill_ms=fill_ms,
        wait_ms=sum(each) / len(each),
        wait_p99_ms=quantile(each, 0.99),
        main_ms=number(main, "Mean cycle") / 1_000,
        backfill_ms=number(backfill, "Mean cycle") / 1_000,
        tested=number(backfill, "Depth Mean (try depth)"),
        version=controller.bash("sinfo --version").strip(),
    )


def until_empty(controller: Controller) -> None:
    """Until nobody waits."""
    due = time.monotonic() + WAIT_S
    while controller.bash("squeue -h -t PD | wc -l").strip() != "0":
        if time.monotonic() > due:
            raise RuntimeError(f"jobs still wait after {WAIT_S:.0f} s; see slurmctld.log in {controller.name}")
        time.sleep(0.1)


def number(text: str, label: str) -> float:
    """What sdiag says of something; 0 where it says nothing."""
    match = re.search(rf"{re.escape(label)}:\s*([0-9]+)", text)
    return float(match[1]) if match else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--waiting", type=int, default=200)
    args = parser.parse_args()
    subprocess.run([sys.executable, CLUSTER, "build", "--slurm", args.slurm], check=True)
    found = {}
    for name, (plugin, layout, lines) in SYSTEMS.items():
        print(f"bench-passes: {name}", flush=True)
        with Controller(args.slurm, plugin, layout, args.nodes) as controller:
            controller.bash(
                f"sed -i 's/,bf_continue/,bf_continue,{DEEP}/' {CONF}; echo '[berthd]' >>/etc/slurm/berth.conf\n"
                f"echo '{lines}' >>/etc/slurm/berth.conf"
            )
            with controller.running():
                found[name] = measure(controller, args.nodes, args.waiting)
    figures_of(found, args.nodes, args.waiting)
    return 0


def figures_of(found: dict[str, Found], nodes: int, waiting: int) -> None:
    """The table."""
    plain, berth, everywhere = (found[name] for name in SYSTEMS)
    alone, before = "plain Slurm", "no excluded nodes"
    # Of plain Slurm a pass ends when its time is up, or at the first job that waits.
    each = {name: one.backfill_ms / max(1.0, one.tested) for name, one in found.items()}
    figures = [
        at_most("fill_over_plain", berth.fill_ms / plain.fill_ms, 1.0, ""),
        at_most("wait_over_plain", berth.wait_ms / plain.wait_ms, 1.0, ""),
        at_most("test_over_plain", each["berth"] / each["plain"], 1.0, ""),
        Figure("plain_fill_ms", plain.fill_ms, "ms a job"),
        Figure("berth_fill_ms", berth.fill_ms, "ms a job", before, everywhere.fill_ms),
        Figure("plain_wait_ms", plain.wait_ms, "ms a job"),
        Figure("berth_wait_ms", berth.wait_ms, "ms a job", before, everywhere.wait_ms),
        Figure("berth_wait_p99_ms", berth.wait_p99_ms, "ms", alone, plain.wait_p99_ms),
        Figure("berth_main_ms", berth.main_ms, "ms a pass", before, everywhere.main_ms),
        Figure("plain_backfill_ms", plain.backfill_ms, "ms a pass"),
        Figure("berth_backfill_ms", berth.backfill_ms, "ms a pass", before, everywhere.backfill_ms),
        Figure("plain_tested", plain.tested, f"of {waiting} jobs in a pass"),
        Figure("berth_tested", berth.tested, f"of {waiting} jobs in a pass", before, everywhere.tested),
    ]
    notes = {
        "slurm": berth.version,
        "nodes": str(nodes),
        "waiting": str(waiting),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    report(
        "passes" if nodes == NODES else f"passes-{nodes}",
        f"jobs of 8 GPUs on {nodes} nodes, {berth.version}, {waiting} wait",
        figures,
        notes,
    )


if __name__ == "__main__":
    raise SystemExit(main())
