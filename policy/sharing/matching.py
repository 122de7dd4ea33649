# SPDX-License-Identifier: Apache-2.0
"""Matches guests to seats so that the most predicted work is done, weighted by age and class, without harm to owners.

A seat is a GPU that may take a guest. Seats that no guest could tell apart are one *kind*, and so are such guests. The
matching is a transport problem between kinds, so thousands of both take well under a second. Its dual prices tell what
one more seat of a kind would be worth. Between full matchings a new guest takes the free seat with the greatest gain
over its price.

    >>> seats = Seats.of(profile=[0, 0], memory=[8.0, 8.0])
    >>> guests = Guests.of(profile=[0, 1, 1], memory=[4.0, 4.0, 20.0], age=[0.0, 0.0, 0.0])
    >>> tables = Tables(guest=np.array([[0.6, 0.9]]), allowed=np.array([[True, True]]))
    >>> (match(seats, guests, tables).seat >= 0).tolist()
    [True, True, False]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight of a guest's work by its age."""

    hour: float = 0.5
    """Added to a guest's weight of 1 for each hour of waiting, for at most `most_hours`."""
    most_hours: float = 4.0
    steps: int = 8
    """Steps of age within `most_hours`; guests of the same step have the same age weight."""


@dataclass(frozen=True, slots=True)
class Seats:
    """The GPUs that may take a guest, one entry each."""

    profile: Ints
    """Row of the owner in the tables."""
    memory: Floats
    """GiB that a guest may take."""

    @classmethod
    def of(cls, profile: Sequence[int], memory: Sequence[float]) -> Self:
        """Builds the seats from plain sequences."""
        return cls(np.array(profile, dtype=np.int64), np.array(memory, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Guests:
    """The guests that wait, one entry each."""

    profile: Ints
    """Column of the guest in the tables."""
    memory: Floats
    """GiB that it needs."""
    age: Floats
    """Hours since the guest became eligible."""
    weight: Floats
    """The weight of its class."""

    @classmethod
    def of(
        cls, profile: Sequence[int], memory: Sequence[float], age: Sequence[float], weight: Sequence[float] = ()
    ) -> Self:
        """Builds the guests from plain sequences; by default all weigh the same."""
        return cls(
            np.array(profile, dtype=np.int64),
            np.array(memory, dtype=np.float64),
            np.array(age, dtype=np.float64),
            np.array(weight, dtype=np.float64) if len(weight) else np.ones(len(profile)),
        )


@dataclass(frozen=True, slots=True)
class Tables:
    """A guest's speed, and whether the pair is allowed, by the profiles of owner (rows) and guest (columns)."""

    guest: Floats
    allowed: Bools


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of seats: seats that no guest can tell apart."""

    of: Ints
    """Kind of each seat."""
    profile: Ints
    memory: Floats
    count: Ints


@dataclass(frozen=True, slots=True)
class Matching:
    """The seat of each guest, -1 for none, and the dual price of a seat of each kind."""

    seat: Ints
    kinds: Kinds
    price: Floats
    value: float


def match(seats: Seats, guests: Guests, tables: Tables, weights: Weights | None = None) -> Matching:
    """Returns the best seats for all guests at once."""
    weights = weights or Weights()
    kinds = kinds_of(seats)
    columns = np.column_stack([guests.profile, np.ceil(guests.memory / _MEMORY_STEP), weight_of(guests, weights)])
    _, first, group, many = np.unique(columns, axis=0, return_index=True, return_inverse=True, return_counts=True)
    value = values(kinds, _chosen(guests, first), tables, weights)
    amounts, price = _transport(value, many, kinds.count)
    seat = _hand_out(amounts, group.ravel(), kinds)
    return Matching(seat, kinds, price, float((amounts * value).sum()))


_MEMORY_STEP = 0.25
"""GiB; the memory of seats is rounded down to it and the need of guests up, so that there are few kinds."""


def kinds_of(seats: Seats) -> Kinds:
    """Groups seats by kind."""
    columns = np.column_stack([seats.profile, np.floor(seats.memory / _MEMORY_STEP)])
    _, first, kind, count = np.unique(columns, axis=0, return_index=True, return_inverse=True, return_counts=True)
    memory = np.floor(seats.memory[first] / _MEMORY_STEP) * _MEMORY_STEP
    return Kinds(kind.ravel(), seats.profile[first], memory, count)


def weight_of(guests: Guests, weights: Weights) -> Floats:
    """Returns the factor on each guest's speed, from its class and its age in steps."""
    step = weights.most_hours / weights.steps
    hours = np.round(np.minimum(guests.age, weights.most_hours) / step) * step
    return np.asarray(guests.weight * (1 + weights.hour * hours))


def values(kinds: Kinds, guests: Guests, tables: Tables, weights: Weights) -> Floats:
    """Returns the worth of each guest (rows) on each kind of seat (columns); 0 where it may not go."""
    rows, columns = np.ix_(guests.profile, kinds.profile)
    fits = guests.memory[:, None] <= kinds.memory
    worth = tables.guest[columns, rows] * weight_of(guests, weights)[:, None]
    return np.asarray(np.where(tables.allowed[columns, rows] & fits, worth, 0.0))


def _chosen(guests: Guests, rows: Ints) -> Guests:
    return Guests(guests.profile[rows], guests.memory[rows], guests.age[rows], guests.weight[rows])


def _transport(value: Floats, many: Ints, count: Ints) -> tuple[Ints, Floats]:
    """Returns how many guests of each row go to each kind, and the kinds' prices.

    The solution is exact. It has whole numbers, because a transport problem has a whole-numbered optimal vertex.
    """
    # berthd's planner uses this module's classes only; another process solves, so that the planner never loads scipy.
    from scipy.optimize import linprog  # noqa: PLC0415
    from scipy.sparse import coo_array  # noqa: PLC0415

    rows, columns = np.nonzero(value > 0)
    if not len(rows):
        return np.zeros(value.shape, dtype=np.int64), np.zeros(len(count))
    edges = np.arange(len(rows))
    sums = coo_array(
        (np.ones(2 * len(rows)), (np.concatenate([rows, len(many) + columns]), np.concatenate([edges, edges])))
    )
    limits = np.concatenate([many, count])[: sums.shape[0]]
    # The type stubs lack sparse matrices, which linprog accepts.
    found = linprog(-value[rows, columns], A_ub=sums.tocsr(), b_ub=limits, method="highs-ds")  # type: ignore[call-overload]
    amounts = np.zeros(value.shape, dtype=np.int64)
    amounts[rows, columns] = np.rint(found.x).astype(np.int64)
    price = np.zeros(len(count))
    dual = -found.ineqlin.marginals[len(many) :]
    price[: len(dual)] = dual
    return amounts, price


def _hand_out(amounts: Ints, group: Ints, kinds: Kinds) -> Ints:
    """Assigns single seats to single guests."""
    seat = np.full(len(group), -1)
    by_group = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=len(amounts)))[:-1])
    order = np.argsort(kinds.of, kind="stable")
    start = np.concatenate([[0], np.cumsum(kinds.count)])
    for row, kind in np.argwhere(amounts):
        amount = int(amounts[row, kind])
        seat[by_group[row][:amount]] = order[start[kind] : start[kind] + amount]
        by_group[row] = by_group[row][amount:]
        start[kind] += amount
    return seat
