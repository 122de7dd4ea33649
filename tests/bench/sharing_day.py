# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=sharing-day`: a day of guests on 1,000 GPUs, by berthd's rule, parts of it, simpler ones, an oracle.

All rules have the same guard, seats and limits: a host that was busy in the last minute takes no guest, a guest leaves
its host's memory and 5 % free, and no guest moves. berthd's rule (`all`) is promises, a matching, and what pairs of
jobs reached beside each other before. The guard is a model: its bound, its reaction and the part of the best guest
throughput that it reaches are read from build/bench/guard.json, and `reaction` seconds of each rise of harm fall on the
host in full. Three fleets: GPUs with one published pod each (mostly idle), with four pods (about MuxFlow's 26 % of
utilisation, and guests as large as MuxFlow's), and with training jobs in spells as long as Philly's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policy.plan.opinions.guests.choosing import LOOKED_AT
from policy.sharing.matching import Guests, Seats
from tests.bench.guard import device
from tests.bench.sharing_rules import RULES, Known, Rule, rules
from tests.bench.sharing_world import (
    ACTIVITY,
    BANDWIDTH,
    CARD,
    DATA,
    MINUTES,
    OFFSET,
    Contention,
    Floats,
    Hosts,
    Ints,
    Jobs,
    hosts,
    jobs,
    trainers,
)
from tests.bench.table import FOLDER, Figure, at_most, report

WAITING = LOOKED_AT
"""The oldest of those who wait are looked at, no more: as many as berthd does."""
RECENT = 60
"""Minutes of a host's past that make its profile."""
STEP_BUSY, STEP_MEMORY = 0.05, 2.0
"""Hosts that differ by less are alike."""
MARGIN = 0.05
"""Part of each GPU's memory that no guest gets, beside what its host needs."""
MEANS = ("utilisation", "activity", "memory", "duty", "done", "work")
AHEAD = range(0, 60, 20)
"""Minutes from now on for which the oracle knows how busy the hosts will be."""
HEALTHY = 0.8
"""A host busier than this in its last minute takes no guest."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What is known of the guard."""

    bound: float = 0.05
    reaction_s: float = 1.7
    reached_harmed: float = 0.58
    """Part of the best possible guest throughput, where the guest must be held back ..."""
    reached_unharmed: float = 0.98
    """... and where it need not."""

    @property
    def allowed(self) -> float:
        """Part of its speed that a host may lose."""
        return self.bound / (1 + self.bound)

    @classmethod
    def measured(cls) -> Guard:
        """From the guard's own benchmark, where it ran."""
        try:
            found = json.loads((FOLDER / "guard.json").read_text(encoding="utf-8"))
        except OSError:
            return cls()
        names = ("reaction_s", "guest_share_harmed", "guest_share_unharmed")
        return cls(0.05, *(float(found[name]["value"]) for name in names))


@dataclass(frozen=True, slots=True)
class Minute:
    """One entry for each GPU, in a minute."""

    lost: Floats
    """Speed that the host loses."""
    duty: Floats
    """Part of the time that the guest may run."""
    speed: Floats
    """The guest's speed, duty included, over alone."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Hosts beside guests: the harm at a duty, and the duty at which a guard leaves the guest."""

    contention: Contention
    guard: Guard
    busy: Floats
    guest: tuple[Floats, Floats]
    """Kernel time and memory time alone."""
    factor: Floats

    def lost(self, duty: Floats) -> Floats:
        """Speed that hosts lose."""
        own, bandwidth = self.guest
        harm = self.contention.lost(self.busy, own * duty, bandwidth * duty, BANDWIDTH * self.busy)
        return np.asarray(np.minimum(0.9, self.factor * harm))

    def duty(self) -> Floats:
        """The part of the time that the guard leaves each guest."""
        full = np.ones(np.broadcast_shapes(self.busy.shape, self.guest[0].shape))
        harmed = self.lost(full) > self.guard.allowed
        low, high = np.zeros(full.shape), full
        for _ in range(12):
            middle = (low + high) / 2
            bears = self.lost(middle) <= self.guard.allowed
            low, high = np.where(bears, middle, low), np.where(bears, high, middle)
        return np.where(harmed, self.guard.reached_harmed * low, self.guard.reached_unharmed)

    def speed(self, duty: Floats) -> Floats:
        """The guests' speeds over alone."""
        own, bandwidth = self.guest
        return np.asarray(duty * (1.0 - self.contention.lost(own, self.busy, BANDWIDTH * self.busy, bandwidth)))


def beside(contention: Contention, guard: Guard, busy: Floats, guest: Floats, factor: Floats, before: Floats) -> Minute:
    """A minute of hosts (`busy`) beside guests (rows of profiles), at first with the guests' duty of before."""
    pairs = Pairs(contention, guard, busy, (guest[:, 0], guest[:, 1]), factor)
    duty, late = pairs.duty(), pairs.lost(before)
    part = np.where(late > guard.allowed, guard.reaction_s / 60, 0.0)
    return Minute(part * late + (1 - part) * pairs.lost(duty), duty, pairs.speed(duty))


@dataclass(slots=True)
class Day:
    """Sums over a day."""

    utilisation: float = 0.0
    activity: float = 0.0
    memory: float = 0.0
    duty: float = 0.0
    done: float = 0
    work: float = 0.0
    """Minutes of guests' work, as they would take alone."""
    slowdowns: Floats | None = None
    """Of every minute in which a host had work and a guest, as parts of 1."""

    @property
    def slowdown(self) -> tuple[float, float]:
        """Mean and p99."""
        some = np.zeros(1) if self.slowdowns is None or not len(self.slowdowns) else self.slowdowns
        return float(some.mean()), float(np.quantile(some, 0.99))


def run(fleet: Hosts, queue: Jobs, contention: Contention, guard: Guard, rule: str, seed: int) -> Day:
    """The day, minute by minute."""
    count = len(fleet.memory)
    owners = int(fleet.owner.max()) + 1
    factor = np.exp(np.random.default_rng(seed).normal(0.0, OFFSET, (owners, len(queue.kinds))))[fleet.owner]
    left, begun = queue.work.copy(), np.zeros(len(queue.work), dtype=np.bool_)
    at, duty = np.full(count, -1), np.zeros(count)
    day, slow = Day(), []
    steps = np.arange(0, 1 + STEP_BUSY / 2, STEP_BUSY)
    known = Known(steps, queue.kinds, owners)
    choose: Rule = rules(known, seed)[rule]
    room = np.floor((CARD * (1.0 - MARGIN) - fleet.memory) / STEP_MEMORY) * STEP_MEMORY
    for minute in range(MINUTES):
        busy = fleet.busy[:, minute]
        past = fleet.busy[:, max(0, minute - RECENT) : max(1, minute)]
        row = fleet.owner * len(steps) + np.round(past.mean(axis=1) / STEP_BUSY).astype(np.int64)
        free = np.flatnonzero((at < 0) & (past[:, -1] < HEALTHY))
        waiting = np.flatnonzero(~begun & (queue.arrives <= minute))[:WAITING]
        if len(free) and len(waiting):
            seats = Seats(row[free], room[free])
            age = (minute - queue.arrives[waiting]) / 60
            guests = Guests.of(queue.kind[waiting].tolist(), queue.memory[queue.kind[waiting]].tolist(), age.tolist())

            def truth(seat: Ints, kinds: Ints, minute: int = minute, free: Ints = free) -> Floats:
                places = free[seat]
                alone, of = queue.kinds[kinds].T[:, None, :], np.zeros((len(places), len(kinds)))
                for later in AHEAD:
                    now = fleet.busy[places, min(MINUTES - 1, minute + later), None]
                    pairs = Pairs(contention, guard, now, (alone[0], alone[1]), factor[np.ix_(places, kinds)])
                    of += pairs.speed(pairs.duty()) / len(AHEAD)
                return of

            seat = choose(minute, seats, guests, truth)
            seated = seat >= 0
            places = free[seat[seated]]
            at[places], begun[waiting[seated]], duty[places] = waiting[seated], True, 1.0
        here = np.flatnonzero(at >= 0)
        profiles = queue.kinds[queue.kind[at[here]]]
        now = beside(contention, guard, busy[here], profiles, factor[here, queue.kind[at[here]]], duty[here])
        duty[here] = now.duty
        at_work = busy[here] > 0
        known.note(row[here][at_work], queue.kind[at[here]][at_work], now.duty[at_work])
        kernels = np.zeros(count)
        kernels[here] = profiles[:, 0] * now.duty
        held = fleet.memory.copy()
        held[here] += queue.memory[queue.kind[at[here]]]
        day.utilisation += float((1 - (1 - busy) * (1 - kernels)).mean()) / MINUTES
        day.activity += float(np.minimum(1.0, ACTIVITY * (busy + kernels)).mean()) / MINUTES
        day.memory += float(held.mean()) / CARD / MINUTES
        day.duty += float(now.duty.sum()) / count / MINUTES
        worked = np.minimum(now.speed, left[at[here]])
        day.work += float(worked.sum())
        left[at[here]] -= worked
        slow.append(1 / (1 - now.lost[at_work]) - 1)
        gone = here[left[at[here]] <= 1e-9]
        day.done += len(gone)
        at[gone], duty[gone] = -1, 0.0
    day.slowdowns = np.concatenate(slow)
    return day


def _alone(fleet: Hosts) -> Day:
    busy = float(fleet.busy.mean())
    return Day(utilisation=busy, activity=ACTIVITY * busy, memory=float(fleet.memory.mean()) / CARD)


def _mean(days: Sequence[Day]) -> Day:
    """The mean of some days; the slowdowns of all."""
    found = Day(*(np.mean([getattr(day, name) for day in days]) for name in MEANS))
    slow = [day.slowdowns for day in days if day.slowdowns is not None]
    found.slowdowns = np.concatenate(slow) if slow else None
    return found


def _figures(fleet: str, before: Day, days: dict[str, Day], offered: float) -> list[Figure]:
    """Percent; MuxFlow's and AntMan's values are those that their authors published."""
    ours, simple = days["all"], days["least_loaded"]
    mean, late = ours.slowdown
    muxflow = {"utilisation": (26, 76), "activity": (16, 33), "memory": (42, 48)}
    found = []
    for name, (then, now) in muxflow.items():
        found += [
            Figure(f"{fleet}_{name}_before", 100 * float(getattr(before, name)), "%", "MuxFlow", then),
            Figure(f"{fleet}_{name}_after", 100 * float(getattr(ours, name)), "%", "MuxFlow", now),
        ]
    found += [
        Figure(f"{fleet}_memory_gain", 100 * (ours.memory - before.memory), "points", "AntMan, up to", 42),
        Figure(f"{fleet}_compute_gain", 100 * (ours.utilisation - before.utilisation), "points", "AntMan, up to", 34),
        Figure(f"{fleet}_oversold", 100 * ours.duty, "% of GPU time", "MuxFlow, up to", 86.42),
        at_most(f"{fleet}_host_slowdown_mean", 100 * mean, 5, "%", "least loaded", 100 * simple.slowdown[0]),
        at_most(f"{fleet}_host_slowdown_p99", 100 * late, 20, "% of minutes", "least loaded", 100 * simple.slowdown[1]),
    ]
    for rule, day in days.items():
        peer = ("", None) if rule == "least_loaded" else ("least loaded", 100 * simple.work / offered)
        found.append(Figure(f"{fleet}_work_{rule}", 100 * day.work / offered, "% of all submitted", *peer))
    for rule, day in days.items():
        peer = ("", None) if rule == "least_loaded" else ("least loaded", 100 * simple.utilisation)
        found.append(Figure(f"{fleet}_use_{rule}", 100 * day.utilisation, "% of GPU time", *peer))
    return found


def _fleet(name: str, gpus: int, seed: int) -> Hosts:
    return trainers(gpus, seed) if name == "philly" else hosts(gpus, 4 if name == "muxflow" else 1, seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--gpus", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=1, help="so many draws of each fleet; figures are their means")
    parser.add_argument("--fleets", default="idle,muxflow,philly")
    parser.add_argument("--rules", default=",".join(RULES))
    arguments = parser.parse_args()
    if not (DATA / "colocation").exists():
        print(f"left out: {DATA} is not there; BERTH_DATA names the folder that holds traces/", file=sys.stderr)
        return 0
    guard = Guard.measured()
    contention = Contention(np.array(device.fitted(DATA / "colocation").contention))
    figures = []
    seeds = range(1, 1 + arguments.seeds)
    for name in arguments.fleets.split(","):
        # As many guests for each GPU, however many GPUs there are.
        every = max(1, 1_000 // arguments.gpus)
        queues = [jobs(seed, large=name == "muxflow").every(every) for seed in seeds]
        offered = float(np.mean([queue.work.sum() for queue in queues]))
        fleets = [_fleet(name, arguments.gpus, seed) for seed in seeds]
        days = {}
        for rule in arguments.rules.split(","):
            run_days = [
                run(fleet, queue, contention, guard, rule, seed)
                for fleet, queue, seed in zip(fleets, queues, seeds, strict=True)
            ]
            days[rule] = day = _mean(run_days)
            print(
                f"{name}, {rule}: {day.utilisation:.1%} busy, {day.done:.0f} done, {day.work / offered:.1%}", flush=True
            )
        figures += _figures(name, _mean([_alone(fleet) for fleet in fleets]), days, offered)
    notes = {
        "gpus": str(arguments.gpus), "seeds": str(arguments.seeds),
        "guests": str(len(queues[0].work)), "guest hours": f"{offered / 60:.0f}",
        "fleets": "idle: one published pod on each GPU; muxflow: four, guests that train on ImageNet; philly: training "
        "jobs in spells as long as Philly's",
        "guard": str(guard),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }  # fmt: skip
    report("sharing-day", "a day of services with guests", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
