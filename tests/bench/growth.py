# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=growth`: how each cost grows with GPUs, with waiting jobs, and with the jobs of a simulation.

berthd's costs are those of its own code on one made-up cluster of each size, as in plan.py, each in a process of its
own. There are two rows of sizes: GPUs up to 100,000 with 1,000 waiting jobs, and waiting jobs up to a million on as
many GPUs. The simulator plays 10,000 and 100,000 jobs on 100,000 GPUs, with `--simulated 1000000` also a million, which
takes half an hour; 100,000 are submitted in an hour.

All times are of a processor, so other work beside a run changes little.

`*_exponent` is the slope between the least and the greatest size on logarithmic axes: with 1 the cost grows as the size
does, with 0 not at all.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from policy.daemon.answer.answerer import Answerer
from policy.daemon.passes.handover import Receiver, Sender, Snapshot
from policy.formats import wire
from policy.placement.berth import BerthPolicy
from policy.placement.registry import create
from policy.plan.ledger.changes import Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from policy.simulate.play import run as run_slurm
from policy.simulate.slurm.settings import SlurmSettings
from policy.simulate.world import build
from policy.site.config import Config
from tests.bench.plan import World
from tests.bench.simulate import BIG, BURST_S, many_jobs
from tests.bench.table import Figure, report

ROOT = Path(__file__).resolve().parents[2]
GPUS = (1_024, 8_192, 32_768, 100_000)
JOBS = (1_000, 10_000, 100_000, 1_000_000)
SIMULATED = (10_000, 100_000, 1_000_000)
COSTS = ("look_ms", "pass_ms", "notice_ms", "picture_ms", "answer_ms", "rss_mb")
WARM, PASSES, NOTICES, ANSWERS = 10, 11, 40, 200
"""The first passes move many jobs, and read all of them anew: they are not counted."""


def berthd(gpus: int, jobs: int) -> dict[str, float]:
    """Returns the middle costs of berthd's steps on one cluster, and the memory of a process with all of it."""
    world = World(gpus // 8, jobs)
    fleet = world.fleet()
    tracker, plan = Tracker(fleet), Plan(BerthPolicy(), Settings())
    looks, passes, notices = [], [], []
    for _ in range(WARM + PASSES):
        world.end_one()
        world.at += 1
        reading = world.reading()
        began = time.process_time()
        tracker.update(reading)
        looked = time.process_time()
        changes = plan.replan(tracker.book(), reading.jobs)
        looks.append(1_000 * (looked - began))
        passes.append(1_000 * (time.process_time() - looked))
        world.obey([change for change in changes if isinstance(change, Move)])
    world.at += 1
    reading = world.reading()
    tracker.update(reading)
    plan.replan(tracker.book(), reading.jobs)
    plan.expect_notices()
    for _ in range(NOTICES):
        job = world.end_one()
        began = time.process_time()
        for name in job.nodes:
            tracker.end(job.id, name)
        plan.freed(tracker, {fleet.index[name] for name in job.nodes}, reading.jobs)
        notices.append(1_000 * (time.process_time() - began))
    seen = frozenset(job.known.texts["id"] for job in reading.jobs if job.plan)
    handed, answers = _answering(tracker, seen, reading.at)
    found = [statistics.median(one) for one in (looks[WARM:], passes[WARM:], notices)]
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    return dict(zip(COSTS, [*found, handed, answers, rss], strict=True))


def _answering(tracker: Tracker, seen: frozenset[str], at: float) -> tuple[float, float]:
    """Returns what a snapshot costs on its way to the answering process, and what an answer costs it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sender, receiver = Sender(ours), Receiver(theirs)
    answerer = Answerer(Config(), "growth", 1)
    cluster, handed = tracker.book().cluster, []
    with ours, theirs:
        for _ in range(PASSES + 1):
            began = time.process_time()
            sender.send(Snapshot(cluster, seen, "26.05", "bench", ""))
            snapshot = receiver.receive()
            if snapshot is None:
                raise RuntimeError("no snapshot came")
            answerer.take(snapshot, at)
            handed.append(1_000 * (time.process_time() - began))
    answers = []
    for number in range(ANSWERS):
        request = wire.encode("submit", {
            "nonce": f"{number + (1 << 40):016x}", "uid": "1500", "client": "batch", "time_limit": "60",
            "name": "job", "tres_per_job": "gres/gpu:2", "num_tasks": "1", "min_nodes": "1", "max_nodes": "1",
            "gpus": "2",
        })  # fmt: skip
        began = time.process_time()
        if answerer.answer(request, at) is None:
            raise RuntimeError("no answer came")
        answers.append(1_000 * (time.process_time() - began))
        answerer.settle()
    return statistics.median(handed[1:]), statistics.median(answers)


def simulated(count: int) -> dict[str, float]:
    """Returns the seconds of a simulation, and the memory of its process."""
    trace = many_jobs(count, burst_s=BURST_S * count / 100_000)
    began = time.process_time()
    run_slurm(trace, build(BIG), create("berth"), SlurmSettings(pinned=True))
    took = time.process_time() - began
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    return {"simulation_s": took, "simulation_rss_mb": rss}


def alone(*words: str) -> dict[str, float]:
    """Runs one size in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.growth", "--one", *words], cwd=ROOT, check=True, capture_output=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    sys.stdout.write(f"bench-growth: {' '.join(words)}: {json.dumps(found)}\n")
    sys.stdout.flush()
    return found


def rows(label: str, sizes: Sequence[int], found: Sequence[dict[str, float]]) -> list[Figure]:
    """Returns the figures of one row of sizes, and the exponent of each cost."""
    made = []
    for cost in found[0]:
        unit = {"ms": "ms", "mb": "MB"}.get(cost.rpartition("_")[2], "s")
        values = [one[cost] for one in found]
        for size, value in zip(sizes, values, strict=True):
            made.append(Figure(f"{label}_{size}_{cost}", value, unit))
        if len(sizes) > 1:
            slope = math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])
            made.append(Figure(f"{label}_{cost}_exponent", slope, ""))
    return made


def main() -> int:
    """Measures all sizes up to the greatest that are asked for."""
    parser = argparse.ArgumentParser(prog="make bench NAME=growth", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--gpus", type=int, default=GPUS[-1], help="at most")
    parser.add_argument("--jobs", type=int, default=JOBS[-1], help="waiting jobs at most")
    parser.add_argument("--simulated", type=int, default=SIMULATED[-2], help="jobs of a simulation at most")
    parser.add_argument("--one", nargs="+", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(json.dumps(simulated(*options.one) if len(options.one) == 1 else berthd(*options.one)))
        return 0
    gpus = [one for one in GPUS if one <= options.gpus]
    jobs = [one for one in JOBS if one <= options.jobs]
    plays = [one for one in SIMULATED if one <= options.simulated]
    figures = [
        *rows("gpus", gpus, [alone(str(one), str(JOBS[0])) for one in gpus]),
        *rows("jobs", jobs, [alone(str(gpus[-1]), str(one)) for one in jobs]),
        *rows("simulated", plays, [alone(str(one)) for one in plays]),
    ]
    notes = {"gpus": str(gpus[-1]), "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    report("growth", "What each cost is at each size", figures, notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
