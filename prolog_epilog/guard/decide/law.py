# SPDX-License-Identifier: Apache-2.0
"""The interface of all control laws: the reading that a law gets, and the duty that it returns."""

from typing import NamedTuple, Protocol

from prolog_epilog.guard.measure.signals import DeviceSample, HostBeat


class GuardReading(NamedTuple):
    """One reading of the guard; a law needs no other input, and keeps its own state."""

    now: float
    beat: HostBeat | None
    """The owner's newest steps; None if none ended since the last reading."""
    base: float
    """Seconds a step while no guest runs."""
    base_error: float
    """Relative standard error of `base`."""
    noise: float
    """Relative standard deviation of a single step while no guest runs."""
    duty: float
    """Mean duty that the guest had while the steps of `beat` ran; without a beat, its duty now."""
    device: DeviceSample | None = None

    @property
    def slowdown(self) -> float:
        """Returns how much longer than alone the steps of the beat took: 0.05 is 5 %; 0 without a beat."""
        return self.beat.took / (self.beat.steps * self.base) - 1.0 if self.beat else 0.0

    @property
    def loss(self) -> float:
        """Returns the share of its speed that the owner lost: 1 - 1 / (1 + slowdown); 0 without a beat."""
        return 1.0 - self.beat.steps * self.base / self.beat.took if self.beat else 0.0


class Law(Protocol):
    """A control law: turns readings into the guest's duty."""

    def duty(self, reading: GuardReading) -> float:
        """Returns the share of time, 0 to 1, in which the guest may launch work from now on."""
