"""Rules of matching that benchmarks compare: tables by promise and by chance, and seats between two matchings."""

from __future__ import annotations

import numpy as np

from policy.sharing import matching
from policy.sharing.matching import Bools, Floats, Guests, Ints, Matching, Seats, Tables, Weights, values, weight_of
from policy.sharing.predictor import Speeds

LEAST_CHANCE = 0.7
"""Pairs are left to trials where the owner keeps its speed with less than this probability."""


def bearable(speeds: Speeds, least: float = 0.95) -> Bools:
    """Marks the pairs whose owner is promised to keep `least` of its speed."""
    return np.asarray(speeds.host_least >= least)


def likely(guest: Floats, keeps: Floats, least: float = LEAST_CHANCE) -> Tables:
    """Builds tables of expected work: a guest's speed times the probability (`keeps`) that its owner keeps its speed.

    They are for owners that a guard watches. A guest that harms its owner is taken away and its work is lost, so a
    doubtful pair is worth what it yields on average. `bearable` is for owners without a guard.
    """
    return Tables(guest * keeps, np.asarray(keeps >= least))


def match_between(last: Matching, seats: Seats, guests: Guests, tables: Tables, weights: Weights | None = None) -> Ints:
    """Gives free seats to guests without one, the highest weight first, at the last full matching's prices.

    No guest moves. `seats` are those of the last matching, of which some may be closed since; `guests` may have
    changed.
    """
    weights = weights or Weights()
    kinds = last.kinds
    free = seats.open.copy()
    free[guests.at[guests.at >= 0]] = False
    left = np.bincount(kinds.of[free], minlength=len(kinds.count))
    seat = guests.at.copy()
    waiting = np.flatnonzero(seat < 0)
    value = values(kinds, matching._chosen(guests, waiting), tables, weights, np.full(len(waiting), -1))
    gain = np.where(value > 0, value - last.price, -np.inf)
    spare: dict[int, list[int]] = {}
    for place in np.argsort(-weight_of(guests, weights)[waiting], kind="stable"):
        # A seat stays idle if nobody takes it, so it is given away even at a loss against its price.
        offers = np.where(left > 0, gain[place], -np.inf)
        kind = int(offers.argmax())
        if offers[kind] == -np.inf:
            continue
        if kind not in spare:
            spare[kind] = np.flatnonzero(free & (kinds.of == kind)).tolist()
        seat[waiting[place]] = spare[kind].pop()
        left[kind] -= 1
    return seat
