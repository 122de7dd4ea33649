# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=plan`: how long a planning pass takes, what an Epilog's notice costs, at 8,192 and 100,000 GPUs.

A full cluster with waiting jobs behind it, as a busy site has it: some GPUs free in fragments, jobs of 1 to 64 GPUs,
a tenth without GPUs, some with conditions. The naive peer only sums up what is free on each node, in numpy.
"""

from __future__ import annotations

import argparse
import datetime
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from policy.cluster.fleet import Fleet, build_fleet
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, Memory, NodeFacts, PartitionFacts, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.changes import Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.plan.relocation.movable_jobs import Movers, gang_of
from policy.plan.relocation.worth import open_for
from policy.request.settings import RelocationRules, Settings
from topology import machines
from topology.network.fabric import Fabric

from .table import Figure, at_most, report

AT = 1_000_000.0
MACHINES = ("dgx-1v", "hgx-h100", "dgx-a100", "l40s")


class World:
    """A cluster on paper: its last reading, and jobs that end."""

    machines_of: tuple[str, ...] = MACHINES

    def __init__(self, nodes: int, waiting: int, seed: int = 1, *, whole_nodes: bool = False) -> None:
        """With `whole_nodes` each running job holds all GPUs of its node."""
        self.whole_nodes = whole_nodes
        self.random = random.Random(seed)
        self.names = [f"n{place}" for place in range(nodes)]
        self.machines = {
            name: machines.machine(self.machines_of[place * len(self.machines_of) // nodes], name)
            for place, name in enumerate(self.names)
        }
        self.jobs: dict[int, JobFacts] = {}
        self.used = dict.fromkeys(self.names, 0)
        self.nodes = {name: self._node(name) for name in self.names}
        self.at = AT
        self._fill()
        for _ in range(waiting):
            self._wait()

    def _node(self, name: str) -> NodeFacts:
        used = self.used[name]
        return NodeFacts(
            name=name, cpus=64, cpus_used=4 * used.bit_count(), mem=512_000, mem_used=30_000 * used.bit_count(),
            threads=1, up=True, completing=False, gpus=8, loose=0, seats=8, gpus_used=used, seats_used=used,
            features=frozenset({"fast" if int(name[1:]) % 2 else "slow"}), partitions=frozenset({"gpu"}),
        )  # fmt: skip

    def _job(self, **facts: object) -> JobFacts:
        number = len(self.jobs) + 1
        first = {
            "id": number, "partition": "gpu", "priority": 1_000_000 - number, "submitted": int(AT) - 9_000 + number,
            "limit": self.random.choice([1_800, 3_600, 14_400, 86_400]),
        }  # fmt: skip
        job = JobFacts(**{**first, **facts})  # type: ignore[arg-type]
        self.jobs[number] = job
        return job

    def _fill(self) -> None:
        for name in self.names:
            left = list(range(8))
            self.random.shuffle(left)
            while left and self.random.random() < 0.97:
                k = min(len(left), 8 if self.whole_nodes else self.random.choice([1, 1, 2, 4, 8]))
                mask = sum(1 << gpu for gpu in left[:k])
                del left[:k]
                ends = int(AT) + self.random.randrange(30, 80_000)
                self._job(
                    state="RUNNING", start=int(AT) - 60, end=ends, cpus=4 * k, nodes=(name,), required=(name,),
                    gpus=mask, holds=(mask,), mem=30_000 * k,
                )  # fmt: skip
                self.used[name] |= mask
        self.nodes = {name: self._node(name) for name in self.names}

    def _wait(self) -> None:
        common = {"state": "PENDING", "start": None, "end": None, "nodes": (), "reason": "Resources"}
        if self.random.random() < 0.1:
            self._job(**common, cpus=self.random.choice([1, 4, 16]), required=(), wants_gpus=False, mem=4_000)
            return
        k, n = self.random.choice([(1, 1)] * 8 + [(2, 1)] * 4 + [(4, 1)] * 3 + [(8, 1)] * 3 + [(8, 2), (8, 8)])
        first = self.random.randrange(len(self.names) - n)
        names = self.names[first : first + n]
        mask = (1 << k) - 1
        cpus = k * self.random.choice([1, 2, 4])
        segment = {
            "state": "waiting", "id": f"{len(self.jobs):016x}", "n": str(n), "k": str(k), "cpus": str(cpus),
            "mem": str(8_000 * k), "nodes": ",".join(names), "gpus": ",".join(map(str, range(k))), "level": "node",
        }  # fmt: skip
        self._job(
            **common, cpus=cpus * n, required=tuple(names), gpus=mask, plan=JobPlan(segment),
            features=self.random.choice(["", "", "", "fast", "slow"]),
        )  # fmt: skip

    def end_one(self) -> JobFacts:
        """A running job ends; what it was."""
        job = self.random.choice([job for job in self.jobs.values() if job.state == "RUNNING"])
        for name, mask in zip(job.nodes, job.holds, strict=True):
            self.used[name] &= ~mask
            self.nodes[name] = replace(self._node(name), completing=True)
        self.jobs[job.id] = replace(job, state="COMPLETING")
        return job

    def obey(self, changes: list[Move]) -> None:
        """Slurm takes the pins over and starts those jobs that can start."""
        for move in changes:
            job = self.jobs[move.job.id]
            names = move.berth.names
            self.jobs[job.id] = replace(job, required=names, gpus=move.berth.mask, plan=JobPlan({
                **job.known.texts, "nodes": ",".join(names),
            }))  # fmt: skip
            if move.start == 0.0:
                ends = int(self.at) + (job.limit or 0)
                self.jobs[job.id] = replace(
                    self.jobs[job.id], state="RUNNING", start=int(self.at), end=ends, nodes=names,
                    holds=(move.berth.mask,) * len(names),
                )  # fmt: skip
                for name in names:
                    self.used[name] |= move.berth.mask
                    self.nodes[name] = self._node(name)

    def reading(self) -> Reading:
        return Reading(
            at=self.at, nodes=tuple(self.nodes.values()), jobs=tuple(self.jobs.values()),
            partitions=(PartitionFacts("gpu", default=True, time_limit=3_600),), memory=Memory(per_cpu=100),
        )  # fmt: skip

    def fabric(self) -> Fabric:
        leaf = np.arange(len(self.names), dtype=np.int64) // 16
        return replace(Fabric.flat(self.names), leaf=leaf, pod=leaf // 8)

    def fleet(self) -> Fleet:
        made = build_fleet(
            list(self.nodes.values()), self.reading().partitions, self.machines, Memory(per_cpu=100),
            memory_counts=True, fabric=self.fabric(),
        )  # fmt: skip
        made.tables.warm()
        return made


def passes(
    world: World,
    fleet: Fleet,
    count: int,
    settings: Settings | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Milliseconds of whole passes, from a reading to the plan, each after one job has ended."""
    tracker, plan = Tracker(fleet), Plan(BerthPolicy(), settings or Settings())
    tracker.update(world.reading())
    taken = []
    for number in range(count + 1):
        world.end_one()
        world.at += 1
        reading = world.reading()
        began = clock()
        tracker.update(reading)
        changes = plan.replan(tracker.book(), reading.jobs)
        if number:  # the first one reads each segment for the first time
            taken.append(1_000 * (clock() - began))
        world.obey([change for change in changes if isinstance(change, Move)])
    return taken


def events(
    world: World, fleet: Fleet, count: int, settings: Settings | None = None, *, between: int = 10
) -> list[float]:
    """Milliseconds from a notice to its plan; readings and whole passes, after so many notices, do not count."""
    tracker, plan = Tracker(fleet), Plan(BerthPolicy(), settings or Settings())
    reading = world.reading()
    tracker.update(reading)
    plan.replan(tracker.book(), reading.jobs)
    taken = []
    for number in range(count):
        if number % between == 0:
            world.at += 1
            reading = world.reading()
            tracker.update(reading)
            world.obey([change for change in plan.replan(tracker.book(), reading.jobs) if isinstance(change, Move)])
            reading = world.reading()
            tracker.update(reading)
            plan.replan(tracker.book(), reading.jobs)
            plan.expect_notices()
        job = world.end_one()
        began = time.perf_counter()
        known = [tracker.end(job.id, name) for name in job.nodes]
        changes = plan.freed(tracker, {fleet.index[name] for name in job.nodes}, reading.jobs)
        taken.append(1_000 * (time.perf_counter() - began))
        if not all(known) or changes is None:
            raise RuntimeError("a notice was not planned by itself")
        world.obey([change for change in changes if isinstance(change, Move)])
    return taken


def looks(world: World, fleet: Fleet) -> list[float]:
    """Milliseconds of each look for running jobs that are worth moving, in between passes; half of them may move."""
    for job in list(world.jobs.values()):
        if job.state == "RUNNING" and world.random.random() < 0.5 and job.gpus:
            k = job.gpus.bit_count()
            values = {"state": "placed", "n": "1", "k": str(k), "cpus": str(4 * k), "mem": "30000", "f.movable": "5"}
            world.jobs[job.id] = replace(job, plan=JobPlan(values))
    policy, rules = BerthPolicy(), RelocationRules(enabled=True, after=0)
    tracker, plan, movers = Tracker(fleet), Plan(policy, Settings()), Movers(rules)
    reading = world.reading()
    tracker.update(reading)
    plan.replan(tracker.book(), reading.jobs)
    taken = []
    for entry in [entry for entry in plan.queue if entry.demand.gpus > 1 and entry.last.start][:20]:
        began = time.perf_counter()
        gang, book = gang_of(entry, plan, tracker, policy)
        if gang is not None:
            open_for(gang, book, movers.of(reading, fleet), policy, rules)
        taken.append(1_000 * (time.perf_counter() - began))
    return taken


def ahead(count: int) -> dict[bool, float]:
    """Milliseconds of a median pass with and without `look_ahead`, in turns, where it works most.

    The most jobs run that it looks at, each on a node of its own, and 1,000 wait.
    """
    found: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(3):
        for on in (True, False):
            world = World(256, 1_000, seed, whole_nodes=True)
            found[on] += passes(world, world.fleet(), count, Settings(look_ahead=on))
    return {on: statistics.median(taken) for on, taken in found.items()}


def events_ahead(count: int) -> dict[bool, list[float]]:
    """Milliseconds of notices with and without `look_ahead`, in turns, on the same nodes; 300 jobs wait."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(3):
        for on in (True, False):
            world = World(256, 300, seed, whole_nodes=True)
            found[on] += events(world, world.fleet(), count, Settings(look_ahead=on), between=1)
    return found


def middle_and_end(taken: list[float]) -> tuple[float, float]:
    """Returns the median and the 99th percentile."""
    in_order = sorted(taken)
    return in_order[len(in_order) // 2], in_order[int(0.99 * len(in_order))]


def naive(world: World) -> float:
    """Milliseconds to rebuild what is free on each node, with nothing planned."""
    sizes = np.full(len(world.names), 255)
    began = time.perf_counter()
    free = sizes & ~np.array([node.gpus_used for node in world.nodes.values()])
    counts = np.bitwise_count(free)
    for job in world.jobs.values():
        if job.state == "PENDING" and job.gpus:
            int((counts >= job.gpus.bit_count()).argmax())
    return 1_000 * (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--events", type=int, default=300)
    arguments = parser.parse_args()
    figures = []
    medians = {}
    for label, nodes in (("8192", 1_024), ("100k", 12_500)):
        world = World(nodes, 1_000)
        fleet = world.fleet()
        medians[label] = statistics.median(passes(world, fleet, arguments.passes))
        print(f"bench-plan: {nodes} nodes, median pass {medians[label]:.1f} ms", flush=True)
        limit = 50.0 if label == "8192" else 400.0
        figures.append(at_most(f"pass_{label}_ms", medians[label], limit, "ms", "naive numpy", naive(world)))
        p50, p99 = middle_and_end(events(world, fleet, arguments.events))
        if label == "8192":
            figures += [Figure("event_8192_p50_ms", p50, "ms"), at_most("event_8192_ms", p99, 5.0, "ms")]
            figures.append(at_most("moving_look_8192_ms", max(looks(world, fleet)), 50.0, "ms"))
        else:
            figures += [Figure("event_100k_p50_ms", p50, "ms"), Figure("event_100k_ms", p99, "ms")]
    with_it = ahead(arguments.passes)
    figures.append(Figure("pass_2048_ms", with_it[False], "ms"))
    figures.append(at_most("pass_2048_ahead_ms", with_it[True], 50.0, "ms"))
    for on, taken in events_ahead(arguments.passes * 3).items():
        p50, p99 = middle_and_end(taken)
        label = "2048_ahead" if on else "2048"
        figures += [Figure(f"event_{label}_p50_ms", p50, "ms"), at_most(f"event_{label}_ms", p99, 20.0, "ms")]
    growth = (medians["100k"] / medians["8192"]) / (12_500 / 1_024)
    figures.append(at_most("growth_over_linear", growth, 1.0, ""))
    world = World(1_024, 10_000)
    fleet = world.fleet()
    took = statistics.median(passes(world, fleet, 3))
    figures.append(Figure("pass_8192_10k_jobs_ms", took, "ms"))
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    figures.append(at_most("rss_mb", rss, 300.0, "MB"))
    world = World(2_048, 30_000)
    p50, p99 = middle_and_end(events(world, world.fleet(), arguments.events // 5))
    figures += [Figure("event_30k_jobs_p50_ms", p50, "ms"), Figure("event_30k_jobs_ms", p99, "ms")]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    notes = {"passes": str(arguments.passes), "events": str(arguments.events), "waiting": "1000", "date": today}
    report("plan", "planning passes with 1,000 waiting jobs; p99 of one notice", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
