# SPDX-License-Identifier: Apache-2.0
"""Counts how often plain Slurm gives a job the best linked GPUs of a node, by the form of its request.

    python -m tests.bench.request_forms [--slurm 24.11] [--draws 20]

Runs on the test cluster without Berth, whose gres.conf has the Links that AutoDetect=nvml would find. In each draw
some random GPUs of a node are busy; then each form is submitted once and its GPUs are read from Slurm. A set counts as
the best where no other free one is wider across its narrowest cut, by which NCCL's rings go (docs/research/links.md).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence

from containers.cluster import Cluster
from tests.bench.links import slurm
from tests.hard.untouched import described
from tests.slurm.conftest import cluster
from tests.slurm.target import Container
from topology.files import decode
from topology.model import Machine
from topology.sets.subsets import SubsetTable
from topology.sets.tables import joined
from topology.sets.wiring import positions, wiring

NODES = {"n1": "DGX-1V", "n3": "A6000 pairs"}
FORMS = (
    ("--gres=gpu:{k}",),
    ("--gpus-per-node={k}",),
    ("-n1", "--gpus-per-task={k}"),
    ("-n{k}", "--gpus-per-task=1"),
    ("--gpus={k}",),
    ("-N1", "--gpus={k}"),
    ("-N1", "-n{k}", "--gpus={k}"),
)
CASES = ((2, 0), (2, 2), (2, 4), (4, 0), (4, 2))
"""GPUs asked for, and GPUs that are busy."""

DRIVER = r"""
import json, random, re, subprocess, sys, threading, time

NODES, FORMS, CASES, DRAWS = json.loads(sys.argv[1])

def run(*words):
    return subprocess.run(words, capture_output=True, text=True).stdout

def submit(node, *options):
    words = ["sbatch", "--parsable", "-w", node, "-t", "9", "--mem=10", "-o", "/dev/null", *options]
    job = run(*words, "--wrap", "exec sleep 900").strip()
    for _ in range(1200):
        text = run("scontrol", "show", "job", "-d", job)
        if "JobState=RUNNING" in text:
            listed = re.search(r"GRES=gpu\S*?\(IDX:([\d,-]+)\)", text)[1]
            parts = (part.partition("-") for part in listed.split(","))
            return job, [gpu for a, _, b in parts for gpu in range(int(a), int(b or a) + 1)]
        time.sleep(0.05)
    raise SystemExit(f"{node} {options}: {text}")

def cancel(*jobs):
    run("scancel", *jobs)
    while run("squeue", "-h", "-j", ",".join(jobs), "-t", "PD,R,CG", "-o", "%T").strip():
        time.sleep(0.05)

rows = []

def work(node):
    for k, busy in CASES:
        for draw in range(DRAWS if busy else 1):
            taken = random.Random(f"{k} {busy} {draw}").sample(range(8), busy)
            # Only so do exact GPUs stay busy: each is held by a job, and those of the others end.
            holders = {}
            for _ in range(8 if busy else 0):
                job, (gpu,) = submit(node, "-n1", "--gres=gpu:1")
                holders[gpu] = job
            if busy:
                cancel(*(job for gpu, job in holders.items() if gpu not in taken))
            for form in FORMS:
                job, gpus = submit(node, *(word.format(k=k) for word in form))
                cancel(job)
                rows.append([node, k, sorted(taken), " ".join(form), gpus])
            if busy:
                cancel(*(holders[gpu] for gpu in taken))

threads = [threading.Thread(target=work, args=(node,)) for node in NODES]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(rows))
"""

EXACT = "Berth, exact layout"
MODELS = {"model of --gres=gpu:K": 1, "its order turned round": -1}
"""What would be left if Slurm took the GPUs with most links first, as its comment says."""

Row = tuple[str, int, list[int], str, list[int]]


def bandwidth(machine: Machine, gpus: Iterable[int]) -> float:
    """Returns GB/s across the narrowest cut."""
    return joined(wiring(machine), tuple(sorted(gpus))).cut


def is_best(machine: Machine, busy: Sequence[int], gpus: Sequence[int]) -> bool:
    """Tells whether no other set of as many free GPUs has more bandwidth."""
    free = [gpu for gpu in range(machine.size) if gpu not in busy]
    best = max(bandwidth(machine, one) for one in itertools.combinations(free, len(gpus)))
    return bandwidth(machine, gpus) == best


def table(rows: Sequence[Row], machines: dict[str, Machine]) -> list[str]:
    """Returns the lines of a table in Markdown: a column for each form, and one for Berth's own choice."""
    counts: defaultdict[tuple[str, str, int, int], list[bool]] = defaultdict(list)
    for node, k, busy, form, gpus in rows:
        machine = machines[node]
        counts[form, node, k, len(busy)].append(is_best(machine, busy, gpus))
        if form == rows[0][3]:
            choice = SubsetTable(machine).best(0xFF & ~sum(1 << gpu for gpu in busy), k)
            assert choice is not None
            counts[EXACT, node, k, len(busy)].append(is_best(machine, busy, choice.gpus))
            for name, order in MODELS.items():
                modelled = positions(slurm(machine, order)(0xFF & ~sum(1 << gpu for gpu in busy), k))
                counts[name, node, k, len(busy)].append(is_best(machine, busy, modelled))
    forms = [*(" ".join(form) for form in FORMS), *MODELS, EXACT]
    lines = [f"| GPUs | {' | '.join(forms).replace('{k}', 'K')} |", f"|---|{'---|' * len(forms)}"]
    for node, (k, taken) in itertools.product(NODES, CASES):
        cells = (counts[form, node, k, taken] for form in forms)
        shown = " | ".join(f"{sum(found)}/{len(found)}" for found in cells)
        lines.append(f"| {NODES[node]}, {k} of {8 - taken} free | {shown} |")
    return lines


def main() -> int:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description="How often plain Slurm gives the best linked GPUs, by form.")
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--draws", type=int, default=20)
    args = parser.parse_args()
    one = Cluster(args.slurm, berth=False)
    there = one.containers()
    try:
        cluster("build", "--slurm", args.slurm)
        cluster("up", "--slurm", args.slurm, "--without-berth")
        target = Container(f"{one.project}-ctl")
        target.run(["tee", "/home/forms.py"], user="root", stdin=DRIVER)
        asked = json.dumps([list(NODES), FORMS, CASES, args.draws])
        rows = json.loads(target.run(["python3", "/home/forms.py", asked], timeout=7_200).out)
    finally:
        if not there:
            cluster("down", "--slurm", args.slurm, "--without-berth")
    machines = {node: decode(json.loads(text)) for node, text in described(args.slurm).items()}
    print("\n".join(table(rows, machines)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
