# SPDX-License-Identifier: Apache-2.0
"""Rules of matching that benchmarks compare: tables by promise and by chance, seats between matchings, and trials."""

from __future__ import annotations

from dataclasses import replace

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


def trials(
    last: Matching, guests: Guests, tables: Tables, unsure: Bools, most: int, weights: Weights | None = None
) -> Ints:
    """Returns at most `most` guests' trial seats, where the effect is unsure; a trial is watched for a minute.

    A trial that harms the owner is undone.

    `unsure` marks the pairs that may be tried. The matching's prices tell which of them would improve it if the
    prediction came true. Each pair is tried once, the greatest gain first. A free seat is taken before one whose guest
    must pause. The answer has the trial seats alone, and -1 for all other guests.
    """
    weights = weights or Weights()
    kinds = last.kinds
    nowhere = np.full(len(guests.profile), -1)
    home = matching.kind_at(kinds, last.seat)
    worth = values(kinds, guests, tables, weights, nowhere)
    has = np.where(home >= 0, worth[np.arange(len(home)), home] - last.price[home], 0.0)
    gain = values(kinds, guests, replace(tables, allowed=unsure), weights, nowhere)
    gain = np.where(gain > 0, gain - last.price - has[:, None], 0.0)
    busy = np.zeros(len(kinds.of), dtype=np.bool_)
    busy[last.seat[last.seat >= 0]] = True
    touched = np.zeros(len(kinds.of), dtype=np.bool_)
    seat = nowhere
    tried: set[tuple[int, int]] = set()
    rows, columns = np.nonzero(gain > 0)
    for edge in np.argsort(-gain[rows, columns], kind="stable"):
        guest, kind = int(rows[edge]), int(columns[edge])
        pair = int(guests.profile[guest]), int(kinds.profile[kind])
        if pair in tried or seat[guest] >= 0:
            continue
        spare = np.flatnonzero((kinds.of == kind) & ~touched)
        if len(spare):
            seat[guest] = spare[busy[spare].argmin()]
            touched[seat[guest]] = True
            tried.add(pair)
        if len(tried) >= most:
            break
    return seat
