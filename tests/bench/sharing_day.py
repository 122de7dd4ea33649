"""`make bench NAME=sharing-day`: a day of services with guests on 1,000 GPUs, before and after, beside others' figures.

Every minute newcomers get seats at the last matching's prices, every quarter of an hour all that wait are matched
anew; nobody moves. A guest's worth on a seat is the throughput that the guard would leave it: its predicted speed times
the duty at which the host, as predicted, keeps the guard's bound. The guard is a model: its bound, its reaction and the
part of the best guest throughput that it reaches are read from build/bench/guard.json, and `reaction` seconds of each
rise of harm fall on the host in full. Two fleets: GPUs with one published pod each (mostly idle) and guests of all
sizes; and with four pods, about MuxFlow's 26 % of utilisation, and guests as large as MuxFlow's. AntMan's placement
(least loaded below 80 %) without a guard stands beside.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policy.sharing import predictor
from policy.sharing.matching import Guests, Matching, Seats, Tables, match
from tests.bench.guard import device
from tests.bench.measured_pairs import shipped
from tests.bench.paper import baselines
from tests.bench.paper.seats import match_between
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
)
from tests.bench.table import FOLDER, Figure, at_most, report

EVERY = 15
"""Minutes between full matchings, as in MuxFlow."""
WAITING = 2_000
"""The oldest of those who wait are looked at, no more."""
RECENT = 60
"""Minutes of a host's past that make its profile."""
STEP_BUSY, STEP_MEMORY = 0.05, 2.0
"""Hosts that differ by less are alike."""
RESERVE = 1.0
"""GiB of each GPU that nobody gets."""
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


def beside(
    contention: Contention, guard: Guard | None, busy: Floats, guest: Floats, factor: Floats, before: Floats
) -> Minute:
    """A minute of hosts (`busy`) beside guests (rows of profiles), at first with the guests' duty of before."""
    own, bandwidth = guest[:, 0], guest[:, 1]

    def lost(duty: Floats) -> Floats:
        harm = contention.lost(busy, own * duty, bandwidth * duty, BANDWIDTH * busy)
        return np.asarray(np.minimum(0.9, factor * harm))

    full = np.ones(len(busy))
    slowed = contention.lost(own, busy, BANDWIDTH * busy, bandwidth)
    if guard is None:
        return Minute(lost(full), full, 1.0 - slowed)
    low, high = np.zeros(len(busy)), full
    harmed = lost(full) > guard.allowed
    for _ in range(12):
        middle = (low + high) / 2
        bears = lost(middle) <= guard.allowed
        low, high = np.where(bears, middle, low), np.where(bears, high, middle)
    duty = np.where(harmed, guard.reached_harmed * low, guard.reached_unharmed)
    part = np.where(lost(before) > guard.allowed, guard.reaction_s / 60, 0.0)
    return Minute(part * lost(before) + (1 - part) * lost(duty), duty, duty * (1.0 - slowed))


@dataclass(slots=True)
class Day:
    """Sums over a day."""

    utilisation: float = 0.0
    activity: float = 0.0
    memory: float = 0.0
    duty: float = 0.0
    done: int = 0
    work: float = 0.0
    """Minutes of guests' work, as they would take alone."""
    slowdowns: Floats | None = None
    """Of every minute in which a host had work and a guest, as parts of 1."""

    @property
    def slowdown(self) -> tuple[float, float]:
        """Mean and p99."""
        some = np.zeros(1) if self.slowdowns is None or not len(self.slowdowns) else self.slowdowns
        return float(some.mean()), float(np.quantile(some, 0.99))


Chooser = Callable[[int, Seats, Guests, Floats], Ints]
"""From the minute, the seats, those who wait, and the hosts' recent kernel time: a seat for each, or -1."""


class Matched:
    """Berth: matching by predicted throughput under the guard."""

    def __init__(self, kinds: Floats, guard: Guard) -> None:
        self._fit, self._kinds, self._guard = shipped(), kinds, guard
        self._last: Matching | None = None

    def __call__(self, minute: int, seats: Seats, guests: Guests, recent: Floats) -> Ints:
        tables = self._tables(recent)
        if minute % EVERY == 0 or self._last is None:
            self._last = match(seats, guests, tables)
            return self._last.seat
        # Hosts change little in a quarter of an hour: the kinds of then are taken for those of now.
        return match_between(self._last, seats, guests, tables)

    def _tables(self, busy: Floats) -> Tables:
        # Memory is no part of a service's harm; its room is the matching's own question.
        profiles = np.column_stack([busy, BANDWIDTH * busy, np.full(len(busy), 2.0)])
        said = predictor.predict(self._fit, profiles, self._kinds, 0.85)
        harm = np.maximum(1 - said.host, 1e-6)
        duty = np.minimum(1.0, self._guard.allowed / harm)
        return Tables(np.clip(said.guest, 0.05, 1.0) * duty, np.ones(duty.shape, dtype=np.bool_))


class LeastLoaded:
    """AntMan's placement."""

    def __call__(self, minute: int, seats: Seats, guests: Guests, recent: Floats) -> Ints:  # noqa: ARG002
        return baselines.least_loaded(seats, guests, recent)


def run(fleet: Hosts, queue: Jobs, contention: Contention, guard: Guard | None, choose: Chooser, seed: int) -> Day:
    """The day, minute by minute."""
    count = len(fleet.memory)
    factor = np.exp(np.random.default_rng(seed).normal(0.0, OFFSET, (count, len(queue.kinds))))
    left, begun = queue.work.copy(), np.zeros(len(queue.work), dtype=np.bool_)
    at, duty = np.full(count, -1), np.zeros(count)
    day, slow = Day(), []
    steps = np.arange(0, 1 + STEP_BUSY / 2, STEP_BUSY)
    room = np.floor((CARD - fleet.memory - RESERVE) / STEP_MEMORY) * STEP_MEMORY
    for minute in range(MINUTES):
        busy = fleet.busy[:, minute]
        past = fleet.busy[:, max(0, minute - RECENT) : max(1, minute)]
        kind = np.round(past.mean(axis=1) / STEP_BUSY).astype(np.int64)
        free = (at < 0) & (past[:, -1] < HEALTHY)
        waiting = np.flatnonzero(~begun & (queue.arrives <= minute))[:WAITING]
        if free.any() and len(waiting):
            seats = Seats(kind, room, np.full(count, -1), free)
            age = (minute - queue.arrives[waiting]) / 60
            guests = Guests.of(queue.kind[waiting].tolist(), queue.memory[queue.kind[waiting]].tolist(), age.tolist())
            seat = choose(minute, seats, guests, steps)
            seated = (seat >= 0) & free[seat]
            at[seat[seated]], begun[waiting[seated]], duty[seat[seated]] = waiting[seated], True, 1.0
        here = np.flatnonzero(at >= 0)
        profiles = queue.kinds[queue.kind[at[here]]]
        now = beside(contention, guard, busy[here], profiles, factor[here, queue.kind[at[here]]], duty[here])
        duty[here] = now.duty
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
        at_work = busy[here] > 0
        slow.append(1 / (1 - now.lost[at_work]) - 1)
        gone = here[left[at[here]] <= 1e-9]
        day.done += len(gone)
        at[gone], duty[gone] = -1, 0.0
    day.slowdowns = np.concatenate(slow)
    return day


def _alone(fleet: Hosts) -> Day:
    busy = float(fleet.busy.mean())
    return Day(utilisation=busy, activity=ACTIVITY * busy, memory=float(fleet.memory.mean()) / CARD)


def _figures(fleet: str, before: Day, ours: Day, theirs: Day, offered: float) -> list[Figure]:
    """Percent; the peers' values are those that MuxFlow's and AntMan's authors published."""
    mean, late = ours.slowdown
    muxflow = {"utilisation": (26, 76), "activity": (16, 33), "memory": (42, 48)}
    rows = []
    for name, (then, now) in muxflow.items():
        values = [100 * float(getattr(day, name)) for day in (before, ours, theirs)]
        rows += [
            Figure(f"{fleet}_{name}_before", values[0], "%", "MuxFlow", then),
            Figure(f"{fleet}_{name}_after", values[1], "%", "MuxFlow", now),
            Figure(f"{fleet}_{name}_after_least_loaded", values[2], "%"),
        ]
    return [
        *rows,
        Figure(f"{fleet}_memory_gain", 100 * (ours.memory - before.memory), "points", "AntMan, up to", 42),
        Figure(f"{fleet}_compute_gain", 100 * (ours.utilisation - before.utilisation), "points", "AntMan, up to", 34),
        at_most(f"{fleet}_host_slowdown_mean", 100 * mean, 5, "%", "least loaded, no guard", 100 * theirs.slowdown[0]),
        at_most(f"{fleet}_host_slowdown_p99", 100 * late, 20, "% of minutes", "least loaded, no guard",
                100 * theirs.slowdown[1]),
        Figure(f"{fleet}_oversold", 100 * ours.duty, "% of GPU time", "MuxFlow, up to", 86.42),
        Figure(f"{fleet}_guest_work", 100 * ours.work / offered, "% of all submitted", "least loaded, no guard",
               100 * theirs.work / offered),
        Figure(f"{fleet}_guests_done", ours.done, "jobs", "least loaded, no guard", theirs.done),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--gpus", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if not (DATA / "colocation").exists():
        print(f"left out: {DATA} is not there; BERTH_DATA names the folder that holds traces/", file=sys.stderr)
        return 0
    guard = Guard.measured()
    contention = Contention(np.array(device.fitted(DATA / "colocation").contention))
    figures = []
    for name, pods in (("idle", 1), ("muxflow", 4)):
        queue = jobs(arguments.seed, large=name == "muxflow")
        offered = float(queue.work.sum())
        fleet = hosts(arguments.gpus, pods, arguments.seed)
        ours = run(fleet, queue, contention, guard, Matched(queue.kinds, guard), arguments.seed)
        theirs = run(fleet, queue, contention, None, LeastLoaded(), arguments.seed)
        figures += _figures(name, _alone(fleet), ours, theirs, offered)
        print(f"bench-sharing-day: {name}: {ours.utilisation:.0%} busy, {ours.done} guests done", flush=True)
    notes = {
        "gpus": str(arguments.gpus), "guests": str(len(queue.work)), "guest hours": f"{offered / 60:.0f}",
        "fleets": "idle: one published pod on each GPU; muxflow: four, guests that train on ImageNet",
        "guard": str(guard),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }  # fmt: skip
    report("sharing-day", "a day of services with guests", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
