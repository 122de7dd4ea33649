# SPDX-License-Identifier: Apache-2.0
"""AntMan's duty cycle (OSDI'20): halves the duty when the owner's mini-batch time shows harm, else raises it slowly.

AntMan's coordinator was never published; steps and thresholds are a reconstruction from what is known of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from prolog_epilog.guard.decide.law import GuardReading


@dataclass(frozen=True, slots=True)
class AntmanSettings:
    """AntMan's duty cycle as a coordinator would set it."""

    every_s: float = 5.0
    """The length of a period."""
    harm: float = 0.05
    """Slowdown above which the duty is halved ..."""
    calm: float = 0.02
    """... and below which, for `calm_periods` periods, ..."""
    calm_periods: int = 3
    raise_step: float = 0.05
    """... the duty grows by this."""
    start: float = 0.10
    """The guest's first duty."""
    floor: float = 0.05
    """Its smallest duty above 0."""
    bad_periods: int = 3
    """Number of bad periods at the floor after which the guest is suspended."""


class Antman:
    """The coordinator's trial and error: it tries a duty for a period, and judges it by the median slowdown."""

    def __init__(self, settings: AntmanSettings) -> None:
        self._set = settings
        self._duty = settings.start
        self._seen: list[float] = []
        self._calm = 0
        self._bad_at_floor = 0
        self._next: float | None = None

    def duty(self, reading: GuardReading) -> float:
        """Returns the guest's duty from now on."""
        tune = self._set
        if reading.beat is not None:
            self._seen.append(reading.slowdown)
        if self._next is None:
            self._next = reading.now + tune.every_s
        if reading.now >= self._next and self._seen:
            self._judge(median(self._seen))
            self._seen.clear()
            self._next = reading.now + tune.every_s
        return self._duty

    def _judge(self, slowdown: float) -> None:
        tune = self._set
        self._calm = self._calm + 1 if slowdown <= tune.calm else 0
        if slowdown > tune.harm:
            self._bad_at_floor = self._bad_at_floor + 1 if self._duty <= tune.floor else 0
            self._duty = max(tune.floor, self._duty / 2.0)
            if self._bad_at_floor >= tune.bad_periods:
                self._duty = 0.0
        else:
            self._bad_at_floor = 0
            if self._calm >= tune.calm_periods:
                self._duty = min(1.0, self._duty + tune.raise_step)
                self._calm = 0
