# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=matching`: guests to hosts by predicted speeds, judged by the measured ones.

Hosts and guests are the measured configurations of Lucid's table, drawn at random. Each pair's speed is predicted by a
fit that never saw the pair; the truth is the measurement. Pairs that nobody measured are barred to all. Work counts
while the host in truth keeps 0.95; else the minute is lost, the guest goes, and the pair is known from then on. An hour
of matchings, one a minute, each with trials on 1 % of the GPUs; the oracle knows the true speeds from the start, and
greedy is given each minute's predictions as they are. `realised_first` is the first minute, by predictions alone, and
`realised_first_expected` the same by expected work instead of promises. Its one constant, LEAST_CHANCE, was chosen with
draws 100 and 101, which are not among those reported. The bound beside it knows the truth but for noise of the size of
the predictor's error.
"""

from __future__ import annotations

import argparse
import datetime
import time
from dataclasses import dataclass, replace

import numpy as np

from policy.sharing.matching import (
    Bools,
    Floats,
    Guests,
    Ints,
    Seats,
    Tables,
    Weights,
    match,
    weight_of,
)
from policy.sharing.predictor import Speeds
from tests.bench import training
from tests.bench.paper import baselines
from tests.bench.paper.seats import LEAST_CHANCE, bearable, likely, trials
from tests.bench.predictor import measured
from tests.bench.table import Figure, at_least, at_most, report

CARD = 24.0
"""GiB of the GPUs that the table was measured on."""
HOST = 0.95
LEVEL = 0.85
MINUTES = 60
TRIED = 0.9
"""The least predicted speed of a host for a trial."""


@dataclass(frozen=True, slots=True)
class World:
    """Configurations by number: what was measured, and what a fit that did not see it says."""

    profiles: Floats
    truth: Floats
    """Speed of the row beside the column; NaN where nobody measured."""
    said: Speeds

    keeps: Floats
    """How likely the row keeps HOST of its speed beside the column."""

    @property
    def known(self) -> Bools:
        return ~np.isnan(self.truth)

    @property
    def memory(self) -> Floats:
        return np.asarray(2.0 ** (self.profiles[:, 2] + 1))

    def tables(self, seen: Bools) -> Tables:
        """Hosts in rows, guests in columns: the truth of the pairs seen, predictions of all others."""
        truth = np.nan_to_num(self.truth)
        allowed = np.where(seen, truth >= HOST, bearable(self.said)) & self.known
        return Tables(np.where(seen, truth.T, self.said.guest), np.asarray(allowed))

    def likely(self, seen: Bools, least: float = LEAST_CHANCE) -> Tables:
        """The same by expected work: what was seen is certain, all else as likely as the predictor says."""
        truth = np.nan_to_num(self.truth)
        keeps = np.where(seen, truth >= HOST, self.keeps) * self.known
        return likely(np.where(seen, truth.T, self.said.guest), np.nan_to_num(keeps), least)


def world() -> World:
    pairs = measured()
    profiles, places = np.unique(np.concatenate([pairs.first, pairs.second]), axis=0, return_inverse=True)
    first, second = places.reshape(2, -1)
    size = (len(profiles), len(profiles))
    truth, speed, least, keeps = (np.full(size, np.nan) for _ in range(4))
    for _, test in training.folds_by_pair(pairs):
        fit = training.train(pairs.part(~test), "bench")
        said = training.guess(fit, pairs.part(test), LEVEL)
        chance = fit.margins.chance((said.speeds - HOST) / said.spread, said.familiar[:, None])
        for table, values in ((truth, pairs.speeds[test]), (speed, said.speeds), (least, said.least), (keeps, chance)):
            table[first[test], second[test]] = values[:, 0]
            table[second[test], first[test]] = values[:, 1]
    speeds = Speeds(speed, speed.T, least, least.T, np.ones(size, dtype=np.bool_))
    return World(profiles, truth, speeds, keeps)


def draw(here: World, hosts: int, guests: int, seed: int) -> tuple[Seats, Guests]:
    random = np.random.default_rng(seed)
    host, guest = (random.integers(len(here.profiles), size=count) for count in (hosts, guests))
    seats = Seats.of(host.tolist(), (CARD - here.memory[host]).tolist())
    waited = np.minimum(random.exponential(1.5, guests), 8.0)
    return seats, Guests.of(guest.tolist(), here.memory[guest].tolist(), waited.tolist())


def outcome(here: World, seats: Seats, guests: Guests, seat: Ints) -> tuple[float, float]:
    """True work of guests whose host keeps 0.95, weighed by age; the part of the hosts below 0.90."""
    placed = seat >= 0
    host, guest = seats.profile[seat[placed]], guests.profile[placed]
    keeps, speed = here.truth[host, guest], here.truth[guest, host]
    work = (speed * weight_of(guests, Weights())[placed])[keeps >= HOST].sum()
    return float(work), float((keeps < 0.90).sum() / len(seats.profile))


def noisy(here: World, seed: int) -> World:
    """The same world with the best use of measurements whose only flaw is noise, as large as the predictor's error.

    Both speeds of each pair are the truth and Gaussian noise; what is likely then follows from Bayes' rule with all
    true speeds as the prior. It is what any predictor with such errors could reach that knows nothing else.
    """
    speeds = here.truth[here.known]
    error = float(np.sqrt(np.pi / 2) * np.abs(here.said.host[here.known] - speeds).mean())
    seen = here.truth + np.random.default_rng(seed).normal(0.0, error, here.truth.shape)
    weight = np.exp(-0.5 * np.square((seen[here.known][:, None] - speeds) / error))
    weight /= weight.sum(axis=1, keepdims=True)
    keeps, mean = np.zeros(here.truth.shape), np.full(here.truth.shape, np.nan)
    keeps[here.known], mean[here.known] = weight @ (speeds >= HOST), weight @ speeds
    return replace(here, said=replace(here.said, host=mean, guest=mean.T), keeps=keeps)


@dataclass(frozen=True, slots=True)
class Hour:
    """Means over an hour, and the first minute."""

    work: float
    first: float
    greedy: float
    harmed: float
    harmed_at_most: float


def hour(here: World, seats: Seats, guests: Guests) -> Hour:
    seen = np.zeros(here.truth.shape, dtype=np.bool_)
    work, greedy, harmed = [], [], []
    for _ in range(MINUTES):
        tables = here.tables(seen)
        found = match(seats, guests, tables)
        unsure = ~seen & here.known & ~tables.allowed & (here.said.host >= TRIED)
        tried = trials(found, guests, tables, unsure, len(seats.profile) // 100)
        seat = found.seat.copy()
        seat[np.isin(seat, tried[tried >= 0])] = -1
        seat = np.where(tried >= 0, tried, seat)
        now, below = outcome(here, seats, guests, seat)
        work.append(now)
        harmed.append(below)
        greedy.append(outcome(here, seats, guests, baselines.greedy(seats, guests, tables))[0])
        pairs = seats.profile[seat[seat >= 0]], guests.profile[seat >= 0]
        if seen[pairs].all():  # nothing new: the rest of the hour is like this minute
            break
        seen[pairs] = True
    for minutes in (work, greedy, harmed):
        minutes.extend(minutes[-1:] * (MINUTES - len(minutes)))
    return Hour(float(np.mean(work)), work[0], float(np.mean(greedy)), float(np.mean(harmed)), max(harmed))


def timed(here: World, count: int) -> float:
    """Seconds for a full matching."""
    seats, guests = draw(here, count, count, 99)
    tables = here.tables(np.zeros(here.truth.shape, dtype=np.bool_))
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        match(seats, guests, tables)
        best = min(best, time.perf_counter() - began)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=1_000)
    parser.add_argument("--guests", type=int, default=1_000)
    arguments = parser.parse_args()
    here = world()
    nothing = np.zeros(here.truth.shape, dtype=np.bool_)
    rows = []
    for seed in range(arguments.seeds):
        seats, guests = draw(here, arguments.hosts, arguments.guests, seed)
        oracle = outcome(here, seats, guests, match(seats, guests, here.tables(~nothing)).seat)[0]
        had = hour(here, seats, guests)
        expected = outcome(here, seats, guests, match(seats, guests, here.likely(nothing)).seat)
        promised = outcome(here, seats, guests, match(seats, guests, here.tables(nothing)).seat)
        bound = outcome(here, seats, guests, match(seats, guests, noisy(here, seed).likely(nothing)).seat)[0]
        chance = outcome(here, seats, guests, baselines.at_random(seats, guests, here.tables(nothing), seed))
        least = outcome(here, seats, guests, baselines.least_loaded(seats, guests, here.profiles[:, 0]))
        rows.append(
            [had.work / oracle, had.first / oracle, had.work / had.greedy, had.harmed, had.harmed_at_most,
             chance[0] / oracle, least[0] / oracle, least[1],
             expected[0] / oracle, expected[1], promised[1], bound / oracle]
        )  # fmt: skip
        print(f"bench-matching: seed {seed}: " + " ".join(f"{value:.3f}" for value in rows[-1]), flush=True)
    realised, first, over, harmed, worst, chance_part, least_part, least_harmed, *rest = np.mean(rows, axis=0).tolist()
    expected_part, expected_harmed, promised_harmed, bound_part = rest
    small = draw(here, 300, 300, 7)
    whole = outcome(here, *small, baselines.exact(*small, here.tables(~nothing)))[0]
    grouped = outcome(here, *small, match(*small, here.tables(~nothing)).seat)[0]
    figures = [
        at_most("n5000_s", timed(here, 5_000), 1.0, "s"),
        at_least("realised", realised, 0.93, "of the oracle's", "least loaded (AntMan)", least_part),
        Figure("realised_first", first, "of the oracle's", "random, same predictions", chance_part),
        Figure("realised_first_expected", expected_part, "of the oracle's", "known but for noise", bound_part),
        at_most("hosts_below_090_expected", expected_harmed, 0.02, "of hosts", "promises, no trials", promised_harmed),
        at_least("over_greedy", over, 1.10, ""),
        at_most("hosts_below_090", harmed, 0.02, "of hosts", "least loaded (AntMan)", least_harmed),
        Figure("hosts_below_090_worst_minute", worst, "of hosts"),
        Figure("kinds_over_exact", grouped, "work, 300 x 300", "seat by seat", whole),
    ]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    size = f"{arguments.hosts} x {arguments.guests}"
    notes = {"seeds": str(arguments.seeds), "hosts x guests": size, "date": today}
    report("matching", "guests to hosts, an hour of matchings", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
