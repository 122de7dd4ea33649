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

ANYBODY = -1
"""The party of a seat that takes every user's guests, and of a guest that shares with every user's owner."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight of a guest's work, by its age and by whether it moves."""

    hour: float = 0.5
    """Added to a guest's weight of 1 for each hour of waiting, for at most `most_hours`."""
    most_hours: float = 4.0
    stay: float = 0.1
    """Added if a guest keeps its seat, in parts of its weight: about what a move costs."""
    steps: int = 8
    """Steps of age within `most_hours`; guests of the same step have the same age weight."""


@dataclass(frozen=True, slots=True)
class Seats:
    """The GPUs that may take a guest, one entry each."""

    profile: Ints
    """Row of the owner in the tables."""
    memory: Floats
    """GiB that a guest may take."""
    party: Ints
    """The user or account whose guests it takes, as a number; ANYBODY for all."""
    open: Bools
    """Tells whether the state of the device allows a guest."""

    @classmethod
    def of(
        cls,
        profile: Sequence[int],
        memory: Sequence[float],
        party: Sequence[int] = (),
        open: Sequence[bool] = (),  # noqa: A002
    ) -> Self:
        """Builds the seats from plain sequences; by default all are open and take every user's guests."""
        count = len(profile)
        return cls(
            np.array(profile, dtype=np.int64),
            np.array(memory, dtype=np.float64),
            np.array(party, dtype=np.int64) if len(party) else np.full(count, ANYBODY),
            np.array(open, dtype=np.bool_) if len(open) else np.ones(count, dtype=np.bool_),
        )


@dataclass(frozen=True, slots=True)
class Guests:
    """The guests, waiting or running, one entry each."""

    profile: Ints
    """Column of the guest in the tables."""
    memory: Floats
    """GiB that it needs."""
    party: Ints
    age: Floats
    """Hours since the guest became eligible."""
    weight: Floats
    """The weight of its class."""
    at: Ints
    """The index of the seat that it has, or -1."""

    @classmethod
    def of(
        cls, profile: Sequence[int], memory: Sequence[float], age: Sequence[float], party: Sequence[int] = (),
        weight: Sequence[float] = (), at: Sequence[int] = (),
    ) -> Self:  # fmt: skip
        """Builds the guests from plain sequences; by default all wait, weigh the same and share with any owner."""
        count = len(profile)
        return cls(
            np.array(profile, dtype=np.int64),
            np.array(memory, dtype=np.float64),
            np.array(party, dtype=np.int64) if len(party) else np.full(count, ANYBODY),
            np.array(age, dtype=np.float64),
            np.array(weight, dtype=np.float64) if len(weight) else np.ones(count),
            np.array(at, dtype=np.int64) if len(at) else np.full(count, -1),
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
    party: Ints
    open: Bools
    count: Ints


@dataclass(frozen=True, slots=True)
class Matching:
    """The seat of each guest, -1 for none, and the dual price of a seat of each kind."""

    seat: Ints
    kinds: Kinds
    price: Floats
    value: float


def match(seats: Seats, guests: Guests, tables: Tables, weights: Weights | None = None) -> Matching:
    """Returns the best seats for all guests at once, running ones included; a move must gain more than `stay`."""
    weights = weights or Weights()
    kinds = kinds_of(seats)
    home = kind_at(kinds, guests.at)
    columns = np.column_stack([
        guests.profile, np.ceil(guests.memory / _MEMORY_STEP), guests.party, _aged(guests, weights), home,
    ])  # fmt: skip
    _, first, group, many = np.unique(columns, axis=0, return_index=True, return_inverse=True, return_counts=True)
    value = values(kinds, _chosen(guests, first), tables, weights, home[first])
    amounts, price = _transport(value, many, kinds.count)
    seat = _hand_out(amounts, group.ravel(), kinds, guests, home)
    return Matching(seat, kinds, price, float((amounts * np.maximum(value, 0)).sum()))


_MEMORY_STEP = 0.25
"""GiB; the memory of seats is rounded down to it and the need of guests up, so that there are few kinds."""


def kinds_of(seats: Seats) -> Kinds:
    """Groups seats by kind; closed seats are kinds of their own."""
    columns = np.column_stack([seats.profile, np.floor(seats.memory / _MEMORY_STEP), seats.party, seats.open])
    _, first, kind, count = np.unique(columns, axis=0, return_index=True, return_inverse=True, return_counts=True)
    return Kinds(
        kind.ravel(), seats.profile[first], np.floor(seats.memory[first] / _MEMORY_STEP) * _MEMORY_STEP,
        seats.party[first], seats.open[first], count,
    )  # fmt: skip


def kind_at(kinds: Kinds, seat: Ints) -> Ints:
    """Returns the kind of each guest's seat, -1 where it has none."""
    home = np.full(len(seat), -1)
    home[seat >= 0] = kinds.of[seat[seat >= 0]]
    return home


def weight_of(guests: Guests, weights: Weights) -> Floats:
    """Returns the factor on each guest's speed, from its class and its age in steps."""
    return np.asarray(_aged(guests, weights))


def values(kinds: Kinds, guests: Guests, tables: Tables, weights: Weights, home: Ints) -> Floats:
    """Returns the worth of each guest (rows) on each kind of seat (columns); 0 where it may not go."""
    rows, columns = np.ix_(guests.profile, kinds.profile)
    speed, allowed = tables.guest[columns, rows], tables.allowed[columns, rows]
    mixes = (kinds.party == guests.party[:, None]) | (kinds.party == ANYBODY) | (guests.party[:, None] == ANYBODY)
    fits = guests.memory[:, None] <= kinds.memory
    stays = np.arange(len(kinds.count)) == home[:, None]
    worth = (speed + weights.stay * stays) * weight_of(guests, weights)[:, None]
    return np.asarray(np.where(allowed & mixes & fits & kinds.open, worth, 0.0))


def _aged(guests: Guests, weights: Weights) -> Floats:
    step = weights.most_hours / weights.steps
    hours = np.round(np.minimum(guests.age, weights.most_hours) / step) * step
    return np.asarray(guests.weight * (1 + weights.hour * hours))


def _chosen(guests: Guests, rows: Ints) -> Guests:
    return Guests(guests.profile[rows], guests.memory[rows], guests.party[rows], guests.age[rows],
                  guests.weight[rows], guests.at[rows])  # fmt: skip


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


def _hand_out(amounts: Ints, group: Ints, kinds: Kinds, guests: Guests, home: Ints) -> Ints:
    """Assigns single seats to single guests; guests that stay in their kind keep their own seat."""
    seat = np.full(len(group), -1)
    by_group = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=len(amounts)))[:-1])
    used = np.zeros(len(kinds.of), dtype=np.bool_)
    others: list[tuple[Ints, int]] = []
    for row, kind in np.argwhere(amounts):
        members, amount = by_group[row], amounts[row, kind]
        chosen, by_group[row] = members[:amount], members[amount:]
        if home[chosen[0]] == kind:
            seat[chosen] = guests.at[chosen]
            used[guests.at[chosen]] = True
        else:
            others.append((chosen, int(kind)))
    order = np.argsort(kinds.of, kind="stable")
    order = order[~used[order]]
    start = np.searchsorted(kinds.of[order], np.arange(len(kinds.count)))
    for chosen, kind in others:
        seat[chosen] = order[start[kind] : start[kind] + len(chosen)]
        start[kind] += len(chosen)
    return seat
