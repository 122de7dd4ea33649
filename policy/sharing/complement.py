# SPDX-License-Identifier: Apache-2.0
"""Computes the share of a GPU's SMs that a guest may have: what the owner leaves at its busiest forecast moment.

The load of an owner changes slowly over minutes and is similar from day to day. The forecast is therefore the greatest
activity of the last minutes, of the same time yesterday and of the same time a week ago.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor


@dataclass(frozen=True, slots=True)
class Complement:
    """The settings for the size of a guest's share."""

    recent: float = 300.0
    """Length of the last minutes, in seconds."""
    ahead: float = 900.0
    """Seconds that a share must last; the samples of yesterday and of last week are read that far ahead."""
    margin: float = 10.0
    """Percent of the SMs that stay free above the forecast."""
    step: float = 10.0
    """Percent; shares are multiples of it, rounded down. A GPU's own step is at least 100 divided by its SMs."""
    least: float = 10.0
    """Least share in percent; below it no guest starts."""
    most: float = 90.0


@dataclass(frozen=True, slots=True)
class Sample:
    """SM activity of an owner, in percent, at a time in seconds."""

    at: float
    activity: float


_DAY = 86_400.0
_WEEK = 7 * _DAY


def forecast(samples: Sequence[Sample], now: float, rules: Complement | None = None) -> float | None:
    """Returns the activity in percent to expect until `ahead`; None without a sample of the last minutes."""
    rules = rules or Complement()
    latest = [sample.activity for sample in samples if now - rules.recent <= sample.at <= now]
    if not latest:
        return None
    for before in (_DAY, _WEEK):
        begins, ends = now - before - rules.recent, now - before + rules.ahead
        latest += [sample.activity for sample in samples if begins <= sample.at <= min(ends, now)]
    return max(latest)


def share(expected: float | None, sms: int, rules: Complement | None = None) -> float:
    """Returns the percent of the SMs for a guest beside an owner with that activity.

    It is 0 where the activity is unknown or too little is left. MPS rounds a percentage down to whole SMs, so the
    answer is a share that this GPU can give.
    """
    rules = rules or Complement()
    if expected is None:
        return 0.0
    left = 100.0 - expected - rules.margin
    cut = min(rules.most, floor(left / rules.step) * rules.step)
    given = floor(cut * sms / 100) * 100 / sms
    return given if cut >= rules.least and given > 0 else 0.0


def under_share(busy: float, bandwidth: float, percent: float) -> tuple[float, float, float]:
    """Returns kernel time, memory time and greatest speed of a job held to a share of the SMs, all in parts of 1.

    This is a rule, not a measurement. A job that would use more SMs than its share is slowed in proportion; its
    load on the other jobs falls by the same factor.
    """
    speed = min(1.0, percent / 100 / busy) if busy > 0 else 1.0
    return busy * speed, bandwidth * speed, speed
