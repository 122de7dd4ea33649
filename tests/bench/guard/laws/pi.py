# SPDX-License-Identifier: Apache-2.0
"""A proportional-integral law on the owner's slowdown, the textbook controller."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from prolog_epilog.guard.decide.law import GuardReading


@dataclass(frozen=True, slots=True)
class PiSettings:
    """A proportional-integral law on the slowdown."""

    every_s: float = 1.0
    """Time between changes of the duty."""
    target: float = 0.03
    """The slowdown that the law keeps."""
    proportional: float = 2.0
    """Duty per unit of error."""
    integral: float = 0.8
    """Duty per unit of error and second."""
    smoothing_s: float = 2.0
    """Time constant of the smoothed slowdown."""


class ProportionalIntegral:
    """Keeps the smoothed slowdown at a target; the integral is limited to the range of the duty (anti-windup)."""

    def __init__(self, settings: PiSettings) -> None:
        self._set = settings
        self._smooth = 0.0
        self._integral = 0.0
        self._duty = 0.0
        self._heard: float | None = None
        self._set_at: float | None = None

    def duty(self, reading: GuardReading) -> float:
        """Returns the guest's duty from now on."""
        tune = self._set
        if reading.beat is not None:
            passed = tune.smoothing_s if self._heard is None else reading.now - self._heard
            self._smooth += (1.0 - exp(-passed / tune.smoothing_s)) * (reading.slowdown - self._smooth)
            self._heard = reading.now
        if self._set_at is None:
            self._set_at = reading.now
        passed = reading.now - self._set_at
        # Without a new step there is no new error to add up.
        if passed >= tune.every_s and self._heard is not None and self._heard >= self._set_at:
            error = tune.target - self._smooth
            self._integral = min(1.0, max(0.0, self._integral + tune.integral * error * passed))
            self._duty = min(1.0, max(0.0, self._integral + tune.proportional * error))
            self._set_at = reading.now
        return self._duty
