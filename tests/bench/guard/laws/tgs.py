# SPDX-License-Identifier: Apache-2.0
"""TGS's law (NSDI'23) with the constants of its code: slow start and congestion avoidance on the owner's rate of work.

TGS has no baseline: it profiles the owner while the guest nearly stands still, and keeps the highest rate it saw. It
counts launched CUDA blocks; here the owner's steps a second stand for them. The guest's limit, in blocks in 50 ms, is
turned into a duty by the rate that the guest has at full duty.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from prolog_epilog.guard.decide.law import GuardReading


@dataclass(frozen=True, slots=True)
class TgsSettings:
    """TGS's law with the constants of its code."""

    window_s: float = 5.0
    """The time over which the owner's rate of work is taken; one such window is a round."""
    profile_rounds: int = 5
    """Rounds with the guest at rest before it may begin."""
    tolerance: float = 0.03
    """Relative fall of the owner's rate that counts as none."""
    full_rate: float = 100_000.0
    """Blocks in 50 ms that a guest launches at full duty: TGS counts blocks, the gate knows duty."""
    start_limit: float = 20_000.0
    """The guest's first limit, in blocks in 50 ms; ..."""
    smallest_step: float = 1_000.0
    """... no change of it is smaller than this."""
    raise_share: float = 0.00025
    """Additive increase, as a share of the owner's highest rate."""
    lower_share: float = 0.08
    """Decrease, as a share of the limit."""
    slow_start: float = 1.5
    """Factor of increase in slow start."""
    collapse: float = 10.0
    """Divisor of the limit when the owner's rate fell by three tolerances; slow start then begins anew."""
    lost_tolerance: float = 0.12
    """If the rate stays this far from the highest ..."""
    lost_rounds: int = 20
    """... for this many rounds, the highest is no longer believed."""


class Tgs:
    """TGS's adaptive rate control."""

    def __init__(self, settings: TgsSettings) -> None:
        self._set = settings
        self._rates: deque[float] = deque(maxlen=5)
        self._steps = 0
        self._took = 0.0
        self._highest = 0.0
        self._limit = 0.0
        self._slow_start = True
        self._rounds = 0
        self._lost = 0
        self._next: float | None = None

    def duty(self, reading: GuardReading) -> float:
        """Returns the limit of this round of five seconds as a duty."""
        if reading.beat is not None:
            self._steps += reading.beat.steps
            self._took += reading.beat.took
        if self._next is None:
            self._next = reading.now + self._set.window_s
        # A window without a step says nothing yet: it lasts until the step ends.
        if reading.now >= self._next and self._steps:
            self._round(self._steps / self._took)
            self._steps, self._took = 0, 0.0
            self._next = reading.now + self._set.window_s
        return min(1.0, self._limit / self._set.full_rate)

    def _round(self, rate: float) -> None:
        tune = self._set
        self._rates.append(rate)
        self._rounds += 1
        highest = max(((one + other) / 2.0 for one, other in pairwise(self._rates)), default=rate)
        changed = abs(highest - self._highest) / self._highest if self._highest else 1.0
        self._highest = max(self._highest, highest) if changed <= 0.2 else highest
        if self._rounds < tune.profile_rounds:
            return
        if self._rounds == tune.profile_rounds:
            self._limit = tune.start_limit
            return
        delta = abs(rate - self._highest) / self._highest
        self._lost = self._lost + 1 if delta >= tune.lost_tolerance else 0
        if self._lost >= tune.lost_rounds:
            self._highest *= 0.8
            self._limit /= 2.0
            self._slow_start, self._lost = True, 0
        elif self._slow_start:
            self._start(delta)
        else:
            self._avoid(delta)
        self._limit = min(max(self._limit, tune.smallest_step), tune.full_rate)

    def _start(self, delta: float) -> None:
        if delta <= self._set.tolerance:
            self._limit = self._limit * self._set.slow_start + 1.0
        else:
            self._limit /= self._set.slow_start
            self._slow_start = False

    def _avoid(self, delta: float) -> None:
        tune = self._set
        if delta <= tune.tolerance:
            # TGS adds a share of the owner's rate; in steps a second that share is always below the smallest step.
            self._limit += max(tune.raise_share * self._highest, tune.smallest_step)
        elif delta >= 3.0 * tune.tolerance:
            self._limit /= tune.collapse
            self._slow_start = True
        else:
            self._limit -= max(tune.lower_share * self._limit, tune.smallest_step)
