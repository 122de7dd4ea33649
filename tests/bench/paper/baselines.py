# SPDX-License-Identifier: Apache-2.0
"""What a matching is measured against: greedy, random, AntMan's least loaded GPU, and, for small cases, the optimum."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from policy.sharing.matching import Floats, Guests, Ints, Seats, Tables, Weights, kinds_of, values, weight_of

_BUSY = 0.8
"""AntMan's limit: GPUs above this utilisation take no guest."""


def greedy(seats: Seats, guests: Guests, tables: Tables, weights: Weights | None = None) -> Ints:
    """Each guest, the weightiest first, takes the free seat that is best for it."""
    weights = weights or Weights()
    kinds = kinds_of(seats)
    value = values(kinds, guests, tables, weights)
    order = np.argsort(-weight_of(guests, weights), kind="stable")
    return _one_by_one(value, order, kinds.of, kinds.count)


def at_random(seats: Seats, guests: Guests, tables: Tables, seed: int) -> Ints:
    """Each guest, in random order, takes any free seat that it may take."""
    random = np.random.default_rng(seed)
    kinds = kinds_of(seats)
    may = values(kinds, guests, tables, Weights()) > 0
    value = np.where(may, random.random(may.shape) + 0.01, 0.0)
    return _one_by_one(value, random.permutation(len(guests.profile)), kinds.of, kinds.count)


def least_loaded(seats: Seats, guests: Guests, busy: Floats) -> Ints:
    """AntMan's rule: the least busy GPU below 80 % that has the memory; nobody predicts a speed.

    `busy` holds the kernel time of each host profile.
    """
    kinds = kinds_of(seats)
    columns = int(guests.profile.max(initial=0)) + 1
    tables = Tables(np.ones((len(busy), columns)), np.repeat((busy < _BUSY)[:, None], columns, axis=1))
    may = values(kinds, guests, tables, Weights()) > 0
    value = np.where(may, 1.01 - busy[kinds.profile], 0.0)
    return _one_by_one(value, np.argsort(-guests.age, kind="stable"), kinds.of, kinds.count)


def exact(seats: Seats, guests: Guests, tables: Tables, weights: Weights | None = None) -> Ints:
    """The assignment of greatest weight, seat by seat; cubic in time, so for small cases."""
    kinds = kinds_of(seats)
    value = values(kinds, guests, tables, weights or Weights())[:, kinds.of]
    rows, columns = linear_sum_assignment(value, maximize=True)
    seat = np.full(len(guests.profile), -1)
    good = value[rows, columns] > 0
    seat[rows[good]] = columns[good]
    return seat


def _one_by_one(value: Floats, order: Ints, kind_of: Ints, count: Ints) -> Ints:
    seat = np.full(len(order), -1)
    left = count.copy()
    seats = np.split(np.argsort(kind_of, kind="stable"), np.cumsum(count)[:-1])
    for guest in order:
        offers = np.where(left > 0, value[guest], 0.0)
        kind = int(offers.argmax())
        if offers[kind] > 0:
            left[kind] -= 1
            seat[guest] = seats[kind][left[kind]]
    return seat
