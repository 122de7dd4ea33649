# SPDX-License-Identifier: Apache-2.0
"""Rules of matching that benchmarks compare: tables by promise and by chance, and trials."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policy.sharing.matching import Bools, Floats, Guests, Ints, Matching, Tables, Weights, values
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
    seated = last.seat >= 0
    home = kinds.of[last.seat[seated]]
    has = np.zeros(len(guests.profile))
    has[seated] = values(kinds, guests, tables, weights)[seated, home] - last.price[home]
    gain = values(kinds, guests, replace(tables, allowed=unsure), weights)
    gain = np.where(gain > 0, gain - last.price - has[:, None], 0.0)
    busy = np.zeros(len(kinds.of), dtype=np.bool_)
    busy[last.seat[last.seat >= 0]] = True
    touched = np.zeros(len(kinds.of), dtype=np.bool_)
    seat = np.full(len(guests.profile), -1)
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
