# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=racks-day`: a day of jobs on a real slurmctld, five racks of twelve trays below topology/block.

Jobs are those of `make bench NAME=racks` up to 256 GPUs, on 60 trays of eight GPUs: 37.5 GPU hours in the mean, groups
of 8, 16, 32 or 64 GPUs. A second stands for `SCALE` of them. Each draw runs three times on one cluster: in a partition
without Berth, whose users write no segments, in Berth's with `--group`, and again in the first, for the null. The first
fifth is not counted, but with `--at-once`, where all jobs come at the start. Figures are means over the draws.

`--on-paper 60` plays so many draws by tests/bench/c/racks.c instead: what the rules alone do, and how far one draw may
be from the mean of all.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from typing import NamedTuple

import numpy as np

from policy.cluster.segments import segment_of
from policy.formats.hostlist import expand
from tests.bench.racks import DAY, MEAN, OF_JOBS, OF_TIME, PROGRAM, SIZES, SOURCE, SPREAD
from tests.bench.table import Figure, report
from tests.hard.test_profiles import started
from tests.hard.test_racks import RACKS, TRAYS, TURN_ON
from tests.slurm.harness import Slurm, until

SCALE = 400
GPUS = 8
FROM = 0.2
"""The part of the time that is not counted."""
MOST = 256
KINDS = {"below 8": (0, 8), "8 to 32": (8, 64), "64 to 256": (64, MOST + 1)}
ALIKE = f"""
cd /etc/slurm/berth/topology
cp n17.json /tmp/tray.json
for node in $(seq {RACKS * TRAYS}); do
    sed "s/n17/n$node/; s/GPU-00000011/GPU-$(printf %08x $node)/" /tmp/tray.json > n$node.json
done
svc berthd restart
"""
"""The cluster's machines are of four kinds, which no rack has: all get the topology of one, an HGX H100."""
SUBMIT = r"""
began=$EPOCHREALTIME; rm -f /home/alice/day.log
while read -r at name limit asked; do
    sleep "$(awk "BEGIN {left = $began + $at - $EPOCHREALTIME; print (left > 0 ? left : 0)}")"
    echo "asked $name $EPOCHREALTIME" >> /home/alice/day.log
    sbatch --quiet -J "$name" -t "$limit" -o /dev/null $asked /home/alice/day.job > /dev/null || echo "refused $name"
done
"""
"""Reads jobs: seconds from the start, name, minutes and options."""
JOB = r"""#!/bin/bash
echo "began $SLURM_JOB_NAME $EPOCHREALTIME $SLURM_JOB_NODELIST" >> /home/alice/day.log
sleep "${SLURM_JOB_NAME#*-}"
echo "ended $SLURM_JOB_NAME $EPOCHREALTIME" >> /home/alice/day.log
"""


class Job(NamedTuple):
    at: float
    """Seconds of the day."""
    gpus: int
    group: int
    seconds: float

    def line(self, number: int, partition: str) -> str:
        nodes = max(1, self.gpus // GPUS)
        asked = f"-p {partition} -N{nodes} --gpus-per-node={self.gpus // nodes}"
        if partition != "plain" and self.group < self.gpus:
            asked += f" --group={self.group}"
        return f"{self.at / SCALE:.2f} {number}-{self.seconds / SCALE:.2f} {self.minutes} {asked}\n"

    def on_paper(self, *, in_segments: bool, at_once: bool) -> str:
        """A line of tests/bench/c/racks.c's input."""
        segment = segment_of(min(self.group, self.gpus), GPUS) if in_segments and self.gpus >= GPUS else 0
        limit = self.minutes * 60 * SCALE
        at = 0 if at_once else int(self.at)
        return f"job {at} {self.gpus} {self.seconds:.0f} {limit} {segment} {max(1, self.group // GPUS)}\n"

    @property
    def minutes(self) -> int:
        """The time limit that its user writes: twice its time there, and whole minutes."""
        return int(2 * self.seconds / SCALE / 60) + 1


class Ran(NamedTuple):
    waits: dict[str, float]
    """Minutes of the day, by size."""
    used: float
    """Part of the GPU time in the time that is counted, to the last submission; to the last start with `--at-once`."""
    crossing: float
    """Part of the groups that lie in several racks."""


def draw(seed: int, load: float, hours: float) -> list[Job]:
    chance = np.random.default_rng(seed)
    span, every = hours * 3_600, RACKS * TRAYS * GPUS
    few = SIZES <= MOST
    count = int(load * every / MEAN * span)
    which = chance.choice(int(few.sum()), count, p=OF_JOBS[few] / OF_JOBS[few].sum())
    mean = MEAN * OF_TIME[which] / OF_JOBS[which] / SIZES[which]
    seconds = np.minimum(chance.lognormal(np.log(mean) - SPREAD**2 / 2, SPREAD), min(DAY, span) / 2)
    seconds *= load * every * span / (seconds * SIZES[which]).sum()
    at, groups = np.sort(chance.uniform(0, span, count)), chance.choice(np.array([8, 16, 32, 64]), count)
    return [
        Job(*job) for job in zip(at.tolist(), SIZES[which].tolist(), groups.tolist(), seconds.tolist(), strict=True)
    ]


def play(slurm: Slurm, jobs: list[Job], partition: str) -> Ran:
    slurm.clear()
    lines = "".join(job.line(number, partition) for number, job in enumerate(jobs))
    refused = slurm.target.run(["bash", "-c", SUBMIT], user="alice", stdin=lines, timeout=1200).out
    assert not refused, refused
    until("all jobs to end", lambda: not slurm.target.run(["squeue", "-h"]).out.strip() or None, 600)
    said = slurm.target.run(["cat", "/home/alice/day.log"], user="alice").out
    rows = [line.split() for line in said.splitlines()]
    found = {(row[0], int(row[1].split("-")[0])): row[2:] for row in rows}
    asked, began, ended = (
        [float(found[word, number][0]) for number in range(len(jobs))] for word in ("asked", "began", "ended")
    )
    counted = [number for number, job in enumerate(jobs) if job.at >= FROM * jobs[-1].at]
    waits = by_size(jobs, [(b - a) * SCALE / 60 for a, b in zip(asked, began, strict=True)], counted)
    first, last = asked[counted[0]], asked[-1] if jobs[-1].at else max(began)
    busy = sum(job.gpus * max(0.0, min(ended[n], last) - max(began[n], first)) for n, job in enumerate(jobs)) / (
        last - first
    )
    torn = [
        len({(int(name[1:]) - 1) // TRAYS for name in names[begin : begin + job.group // GPUS]}) > 1
        for number, job in enumerate(jobs)
        if GPUS < job.group < job.gpus
        for names in [sorted(expand(found["began", number][1]), key=lambda name: int(name[1:]))]
        for begin in range(0, len(names), job.group // GPUS)
    ]
    return Ran(waits, busy / (RACKS * TRAYS * GPUS), sum(torn) / len(torn))


def main() -> None:
    """Run some draws on both partitions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slurm", default="26.05")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--hours", type=float, default=30)
    parser.add_argument("--at-once", action="store_true", help="submit all jobs at the start")
    parser.add_argument("--on-paper", type=int, metavar="DRAWS", help="play so many draws without Slurm")
    chosen = parser.parse_args()
    if chosen.on_paper:
        paper = [draw(seed, chosen.load, chosen.hours) for seed in range(chosen.on_paper)]
        title = f"{chosen.on_paper} draws of {chosen.hours:g} hours on paper"
        report("racks-day-paper", title, on_paper(paper, at_once=chosen.at_once), {})
        return
    found: dict[str, list[Ran]] = {"plain": [], "berth": [], "again": []}
    draws = [draw(int(seed), chosen.load, chosen.hours) for seed in chosen.seeds.split(",")]
    for slurm in started(chosen.slurm, "scale"):
        slurm.target.bash(ALIKE + TURN_ON, user="root")
        slurm.target.bash(f"install -m 755 /dev/stdin /home/alice/day.job <<'END'\n{JOB}END\n", user="alice")
        for partition in ("plain", "gpu"):
            # The others are in no rack.
            words = ["scontrol", "update", f"PartitionName={partition}", f"Nodes=n[1-{RACKS * TRAYS}]"]
            slurm.target.run(words, user="root")
        for jobs in draws:
            all_jobs = [job._replace(at=0.0) for job in jobs] if chosen.at_once else jobs
            for name, partition in (("plain", "plain"), ("berth", "gpu"), ("again", "plain")):
                found[name].append(play(slurm, all_jobs, partition))
                print(name, found[name][-1], flush=True)
    rows = [*figures("", found["berth"], found["plain"]), *figures("null: ", found["again"], found["plain"])]
    title = f"{sum(map(len, draws))} jobs of {chosen.hours:g} hours on {chosen.slurm}, load {chosen.load:g}"
    report("racks-day", title, rows, {})


def on_paper(draws: list[list[Job]], *, at_once: bool) -> list[Figure]:
    """Play draws by the rules of topology/block without segments, and with those of groups."""
    program = PROGRAM.with_name("racks-day")
    program.parent.mkdir(parents=True, exist_ok=True)
    sizes = [f"-DRACKS={RACKS}", f"-DTRAYS={TRAYS}", f"-DGPUS={GPUS}"]
    subprocess.run(["gcc", "-std=gnu11", "-O3", *sizes, "-o", str(program), str(SOURCE), "-lm"], check=True)
    found: dict[str, list[dict[str, float]]] = {"block": [], "berth": []}
    for jobs in draws:
        counted = [number for number, job in enumerate(jobs) if at_once or job.at >= FROM * jobs[-1].at]
        for rule, waits in found.items():
            lines = "".join(job.on_paper(in_segments=rule == "berth", at_once=at_once) for job in jobs)
            words = [str(program), rule, "0", str(30 * DAY), "0"]
            said = subprocess.run(words, input=lines, text=True, capture_output=True, check=True).stdout.splitlines()
            waits.append(by_size(jobs, [float(line.split()[0]) / 60 for line in said[: len(jobs)]], counted))
    rows = []
    for kind in KINDS:
        block, berth = (np.array([one[kind] for one in found[rule]]) for rule in ("block", "berth"))
        rows.append(Figure(f"wait, {kind} GPUs", np.nanmean(berth), "min", "topology/block", np.nanmean(block)))
        ratios = (berth + 1) / (block + 1)
        rows += [
            Figure(f"{kind} GPUs: {part} of the draws are below", np.nanquantile(ratios, share), "of block's")
            for part, share in (("a tenth", 0.1), ("nine tenths", 0.9))
        ]
    return rows


def by_size(jobs: list[Job], waits: list[float], counted: list[int]) -> dict[str, float]:
    """The mean waits of some jobs."""
    some = {kind: [waits[n] for n in counted if least <= jobs[n].gpus < most] for kind, (least, most) in KINDS.items()}
    return {kind: statistics.mean(found) if found else np.nan for kind, found in some.items()}


def figures(before: str, some: list[Ran], others: list[Ran]) -> list[Figure]:
    rows = []
    for kind in KINDS:
        value, beside = (statistics.mean(ran.waits[kind] for ran in runs) for runs in (some, others))
        rows.append(Figure(f"{before}wait, {kind} GPUs", value, "min", "topology/block", beside))
    for name, field in (("GPU time in use", "used"), ("groups in several racks", "crossing")):
        value, beside = (100 * statistics.mean(getattr(ran, field) for ran in runs) for runs in (some, others))
        rows.append(Figure(f"{before}{name}", value, "%", "topology/block", beside))
    return rows


if __name__ == "__main__":
    main()
