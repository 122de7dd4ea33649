# SPDX-License-Identifier: Apache-2.0
"""Rules that give waiting guests their seats, for a simulated day: berthd's, parts of it, simple ones and an oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from policy.plan.opinions.guests.choosing import FEWEST_GUESTS, MOST_GUESTS
from policy.sharing import predictor
from policy.sharing.companions import HELD_HARD, LEAST, LEVEL
from policy.sharing.matching import Guests, Seats, Tables, Weights, _chosen, weight_of
from tests.bench.measured_pairs import shipped
from tests.bench.paper import baselines
from tests.bench.sharing_world import BANDWIDTH, Floats, Ints

Truth = Callable[[Ints, Ints], Floats]
"""The throughput that these kinds of guests (columns) would really have in the next hour on these seats (rows)."""

Rule = Callable[[int, Seats, Guests, Truth], Ints]
"""From the minute, the seats and those who wait: a seat for each, or -1."""


class Known:
    """What profiles say of hosts, by how busy they are, and of kinds of guests; and what both did beside each other.

    A row of seats is an owner's job and how busy its GPU was: `owner * len(hosts) + host`.
    """

    def __init__(self, hosts: Floats, kinds: Floats, owners: int) -> None:
        """`hosts` has the kernel time of each step of load; `owners` is how many jobs own GPUs."""
        self.hosts, self.kinds = hosts, kinds
        # Memory is no part of a service's harm; its room is the matching's own question.
        profiles = np.column_stack([hosts, BANDWIDTH * hosts, np.full(len(hosts), 2.0)])
        self._said = predictor.predict(shipped(), profiles, kinds, LEVEL)
        self._chance = np.clip(predictor.chances(shipped(), profiles, kinds, LEAST), 0.0, 1.0)
        self._speeds, self._minutes = np.zeros((owners, len(kinds))), np.zeros((owners, len(kinds)))

    def promised(self) -> Floats:
        """berthd's worth of a seat: a host that is promised its speed before all others, else by its chance."""
        guest = np.clip(self._said.guest, 0.0, 1.0)
        return np.asarray(np.maximum(np.where(self._said.host_least >= LEAST, guest + 1.0, guest * self._chance), 0.01))

    def load(self) -> Floats:
        """The less busy a GPU is, the better for each guest alike."""
        return np.repeat(1.01 - self.hosts[:, None], len(self.kinds), axis=1)

    def overlap(self) -> Floats:
        """What is known without a predictor: how often both want the GPU."""
        return np.asarray(1.01 - np.outer(self.hosts, np.minimum(self.kinds[:, 0], 1.0)))

    def note(self, rows: Ints, kinds: Ints, duty: Floats) -> None:
        """A minute of guests beside owners at work: each guard tells how long its guest was let."""
        owner, host = np.divmod(rows, len(self.hosts))
        np.add.at(self._speeds, (owner, kinds), duty * np.clip(self._said.guest[host, kinds], 0.0, 1.0))
        np.add.at(self._minutes, (owner, kinds), 1.0)

    def remembered(self, worth: Floats, added: float) -> Tables:
        """A worth of seats, and in place of it what guests reached; `added` where they were not held hard."""
        met, rows = self._minutes > 0, self.hosts > 0
        speed = np.maximum(self._speeds / np.maximum(self._minutes, 1.0), 0.005)
        found = np.where(speed >= HELD_HARD, speed + added, speed)[:, None, :]
        return tables(np.where(met[:, None, :] & rows[:, None], found, worth).reshape(-1, len(self.kinds)))


def tables(worth: Floats) -> Tables:
    """A worth of seats, all of them allowed."""
    return Tables(worth, np.ones(worth.shape, dtype=np.bool_))


def plain(known: Known, worth: Floats, rule: Callable[[Tables], Rule]) -> Rule:
    """A rule by how busy hosts are; whose jobs own the GPUs tells it nothing."""
    choose = rule(tables(worth))

    def chosen(minute: int, seats: Seats, guests: Guests, truth: Truth) -> Ints:
        return choose(minute, replace(seats, profile=seats.profile % len(known.hosts)), guests, truth)

    return chosen


def remembering(known: Known, worth: Floats, added: float, rule: Callable[[Tables], Rule]) -> Rule:
    """A rule by what was remembered of jobs beside each other, else by how busy hosts are."""

    def chosen(minute: int, seats: Seats, guests: Guests, truth: Truth) -> Ints:
        return rule(known.remembered(worth, added))(minute, seats, guests, truth)

    return chosen


def matched(tables: Tables) -> Rule:
    """Those that wait are matched anew each minute, as berthd does; seat by seat, which few seats allow."""
    return in_line(lambda _minute, seats, guests, _truth: baselines.exact(seats, guests, tables))


def in_line(rule: Rule) -> Rule:
    """A rule that chooses seats, and not who gets one: about as many guests at once as there are seats, in their order.

    Without that a rule gains by leaving the guests in the queue that do not suit it.
    """

    def choose(minute: int, seats: Seats, guests: Guests, truth: Truth) -> Ints:
        seat, left = np.full(len(guests.profile), -1), np.arange(len(seats.profile))
        while len(left) and (begin := _first(seat)) < len(seat):
            upto = begin + max(FEWEST_GUESTS, min(MOST_GUESTS, len(left)))
            rows = np.arange(begin, min(upto, len(seat)))
            here = Seats(seats.profile[left], seats.memory[left])

            def of_left(places: Ints, kinds: Ints, left: Ints = left) -> Floats:
                return truth(left[places], kinds)

            got = rule(minute, here, _chosen(guests, rows), of_left)
            seat[rows] = np.where(got >= 0, left[got], _NONE)
            left = np.setdiff1d(left, seat[rows])
        return np.asarray(np.maximum(seat, -1))

    return choose


_NONE = -2
"""Stands for a guest that was looked at and got no seat."""


def _first(seat: Ints) -> int:
    return int(np.argmax(seat == -1)) if (seat == -1).any() else len(seat)


def one_by_one(tables: Tables) -> Rule:
    """The guest that waited longest takes the best seat."""
    return lambda _minute, seats, guests, _truth: baselines.greedy(seats, guests, tables)


def at_random(tables: Tables, seed: int) -> Rule:
    """Any seat that has the memory."""
    return lambda minute, seats, guests, _truth: baselines.at_random(seats, guests, tables, seed + minute)


def oracle(_minute: int, seats: Seats, guests: Guests, truth: Truth) -> Ints:
    """The most work by the true slowdowns, which nobody can know."""
    fits = guests.memory[:, None] <= seats.memory
    kinds, column = np.unique(guests.profile, return_inverse=True)
    worth = truth(np.arange(len(seats.profile)), kinds).T[column] * weight_of(guests, Weights())[:, None]
    rows, columns = linear_sum_assignment(np.where(fits, worth, 0.0), maximize=True)
    seat = np.full(len(guests.profile), -1)
    good = fits[rows, columns]
    seat[rows[good]] = columns[good]
    return seat


RULES = ("least_loaded", "random", "without_predictor", "without_matching", "without_memory", "all", "oracle")


def rules(known: Known, seed: int) -> dict[str, Rule]:
    """All that are compared, the simplest first."""
    return {
        "least_loaded": plain(known, known.load(), one_by_one),
        "random": plain(known, known.overlap(), lambda tables: at_random(tables, seed)),
        "without_predictor": remembering(known, known.overlap(), 0.0, matched),
        "without_matching": remembering(known, known.promised(), 1.0, one_by_one),
        "without_memory": plain(known, known.promised(), matched),
        "all": remembering(known, known.promised(), 1.0, matched),
        "oracle": in_line(oracle),
    }
