"""What every control law is given, and what it answers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from prolog_epilog.guard.measure.signals import DeviceSample, HostBeat

__all__ = ["Law", "Reading"]


class Reading(NamedTuple):
    """One moment as the guard sees it; a law needs nothing else and keeps its own memory."""

    now: float
    beat: HostBeat | None
    """The host's newest steps, None if none ended since the last reading."""
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
        """By how much the steps of the beat took longer than alone: 0.05 is 5 %; 0 without a beat."""
        return self.beat.took / (self.beat.steps * self.base) - 1.0 if self.beat else 0.0

    @property
    def loss(self) -> float:
        """The share of its speed that the host lost: 1 - 1 / (1 + slowdown); 0 without a beat."""
        return 1.0 - self.beat.steps * self.base / self.beat.took if self.beat else 0.0


class Law(Protocol):
    """A control law."""

    def duty(self, reading: Reading) -> float:
        """The share of time, 0 to 1, that the guest may launch work in from now on."""
        ...
