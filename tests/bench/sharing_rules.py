"""Rules that give waiting guests their seats, for a simulated day: berthd's, parts of it, simple ones and an oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from policy.plan.opinions.guests.choosing import FEWEST_GUESTS, MOST_GUESTS
from policy.sharing import predictor
from policy.sharing.companions import LEAST, LEVEL
from policy.sharing.matching import Guests, Seats, Tables, Weights, _chosen, match, weight_of
from tests.bench.measured_pairs import shipped
from tests.bench.paper import baselines
from tests.bench.sharing_world import BANDWIDTH, Floats, Ints

Truth = Callable[[Ints, Ints], Floats]
"""The throughput that these kinds of guests (columns) would really have in the next hour on these seats (rows)."""

Rule = Callable[[int, Seats, Guests, Truth], Ints]
"""From the minute, the seats and those who wait: a seat for each, or -1."""


@dataclass(frozen=True, slots=True)
class Known:
    """What profiles say: hosts by how busy they are, and kinds of guests."""

    hosts: Floats
    """Kernel time of each row of seats."""
    kinds: Floats

    def promised(self) -> Tables:
        """berthd's worth of a seat: a host that is promised its speed before all others, else by its chance."""
        fit = shipped()
        # Memory is no part of a service's harm; its room is the matching's own question.
        hosts = np.column_stack([self.hosts, BANDWIDTH * self.hosts, np.full(len(self.hosts), 2.0)])
        said = predictor.predict(fit, hosts, self.kinds, LEVEL)
        guest, chance = np.clip(said.guest, 0.0, 1.0), predictor.chances(fit, hosts, self.kinds, LEAST)
        worth = np.where(said.host_least >= LEAST, guest + 1.0, guest * np.clip(chance, 0.0, 1.0))
        return self._all(np.maximum(worth, 0.01))

    def load(self) -> Tables:
        """The less busy a GPU is, the better for each guest alike."""
        return self._all(np.repeat(1.01 - self.hosts[:, None], len(self.kinds), axis=1))

    def overlap(self) -> Tables:
        """What is known without a predictor: how often both want the GPU."""
        return self._all(1.01 - np.outer(self.hosts, np.minimum(self.kinds[:, 0], 1.0)))

    def _all(self, worth: Floats) -> Tables:
        return Tables(worth, np.ones(worth.shape, dtype=np.bool_))


def matched(tables: Tables) -> Rule:
    """Those that wait are matched anew each minute, as berthd does."""
    return in_line(lambda _minute, seats, guests, _truth: match(seats, guests, tables).seat)


def in_line(rule: Rule) -> Rule:
    """A rule that chooses seats, and not who gets one: about as many guests at once as there are seats, in their order.

    Without that a rule gains by leaving the guests in the queue that do not suit it.
    """

    def choose(minute: int, seats: Seats, guests: Guests, truth: Truth) -> Ints:
        seat, left = np.full(len(guests.profile), -1), seats
        while left.open.any() and (begin := _first(seat)) < len(seat):
            upto = begin + max(FEWEST_GUESTS, min(MOST_GUESTS, int(left.open.sum())))
            rows = np.arange(begin, min(upto, len(seat)))
            got = rule(minute, left, _chosen(guests, rows), truth)
            seat[rows] = np.where((got >= 0) & left.open[got], got, _NONE)
            still = left.open.copy()
            still[seat[rows][seat[rows] >= 0]] = False
            left = replace(left, open=still)
        return np.asarray(np.maximum(seat, -1))

    return choose


_NONE = -2
"""Stands for a guest that was looked at and got no seat."""


def _first(seat: Ints) -> int:
    return int(np.argmax(seat == -1)) if (seat == -1).any() else len(seat)


def one_by_one(tables: Tables) -> Rule:
    """The guest that waited longest takes the best seat."""
    return lambda _minute, seats, guests, _truth: baselines.greedy(seats, guests, tables)


def at_random(known: Known, seed: int) -> Rule:
    """Any seat that has the memory."""
    tables = known.overlap()
    return lambda minute, seats, guests, _truth: baselines.at_random(seats, guests, tables, seed + minute)


def oracle(_minute: int, seats: Seats, guests: Guests, truth: Truth) -> Ints:
    """The most work by the true slowdowns, which nobody can know."""
    free = np.flatnonzero(seats.open)
    fits = guests.memory[:, None] <= seats.memory[free]
    kinds, column = np.unique(guests.profile, return_inverse=True)
    worth = truth(free, kinds).T[column] * weight_of(guests, Weights())[:, None]
    rows, columns = linear_sum_assignment(np.where(fits, worth, 0.0), maximize=True)
    seat = np.full(len(guests.profile), -1)
    good = fits[rows, columns]
    seat[rows[good]] = free[columns[good]]
    return seat


def rules(known: Known, seed: int) -> dict[str, Rule]:
    """All that are compared, the simplest first."""
    return {
        "least_loaded": one_by_one(known.load()),
        "random": at_random(known, seed),
        "matching_alone": matched(known.overlap()),
        "predictor_alone": one_by_one(known.promised()),
        "all": matched(known.promised()),
        "oracle": in_line(oracle),
    }
