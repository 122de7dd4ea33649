"""The share of a GPU's SMs that a guest may have: what the host, at its coming busiest, leaves.

A host's load is smooth over minutes and alike over days, so its coming activity is forecast as the greatest of the last
minutes, of the same time yesterday and of the same time a week ago.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor


@dataclass(frozen=True, slots=True)
class Complement:
    """How shares are cut."""

    recent: float = 300.0
    """Seconds that count as the last minutes."""
    ahead: float = 900.0
    """Seconds that a share must last; yesterday and last week are read that far ahead."""
    margin: float = 10.0
    """Percent of the SMs kept free beside the forecast."""
    step: float = 10.0
    """Shares are multiples of it, rounded down; a GPU's own step is 100 over its SMs at least."""
    least: float = 10.0
    """Below it no guest comes."""
    most: float = 90.0
    change: float = 20.0
    """A running guest keeps its share until the new one differs by this: a new share costs it a restart."""


@dataclass(frozen=True, slots=True)
class Sample:
    """SM activity of a host, in percent, at a time in seconds."""

    at: float
    activity: float


_DAY = 86_400.0
_WEEK = 7 * _DAY


def forecast(samples: Sequence[Sample], now: float, rules: Complement | None = None) -> float | None:
    """The activity to expect until `ahead`, or None without a sample of the last minutes."""
    rules = rules or Complement()
    latest = [sample.activity for sample in samples if now - rules.recent <= sample.at <= now]
    if not latest:
        return None
    for before in (_DAY, _WEEK):
        begins, ends = now - before - rules.recent, now - before + rules.ahead
        latest += [sample.activity for sample in samples if begins <= sample.at <= min(ends, now)]
    return max(latest)


def share(expected: float | None, sms: int, rules: Complement | None = None) -> float:
    """Percent of the SMs for a guest beside a host with that activity; 0 where nothing is known or too little is left.

    MPS rounds a percentage down to whole SMs, so the share is one that the hardware really has.
    """
    rules = rules or Complement()
    if expected is None:
        return 0.0
    left = 100.0 - expected - rules.margin
    cut = min(rules.most, floor(left / rules.step) * rules.step)
    given = floor(cut * sms / 100) * 100 / sms
    return given if cut >= rules.least and given > 0 else 0.0


def keep(current: float, new: float, rules: Complement | None = None) -> float:
    """The share that a running guest goes on with: its own, unless the new one is less by far, more by far, or 0."""
    rules = rules or Complement()
    return new if new == 0 or abs(new - current) >= rules.change else current


def under_share(busy: float, bandwidth: float, percent: float) -> tuple[float, float, float]:
    """Kernel time, memory time and greatest speed of a job held to a share of the SMs, all in parts of 1.

    A rule, not a measurement: a job that would keep more SMs busy than it gets is slowed in proportion, and presses on
    its neighbour that much less.
    """
    speed = min(1.0, percent / 100 / busy) if busy > 0 else 1.0
    return busy * speed, bandwidth * speed, speed
