# SPDX-License-Identifier: Apache-2.0
"""MuxFlow's law for an owner that reports nothing: a share by complement, and launch control by the device's metrics.

The guest gets the SMs that the owner leaves when it runs alone. Within that share, launches are held back while the
device holds its clock down, or while it is busier than the set point. They are let go again while there is room. The
published text gives neither formula nor gains; both are a reconstruction.
"""

from __future__ import annotations

from prolog_epilog.guard.decide.law import GuardReading

MARGIN, SMALLEST, LARGEST = 0.10, 0.10, 0.90
"""The guest's share: what the owner's highest SM activity and the margin leave, kept between the other two."""
UTILISATION = 0.95
"""Set point of launch control: more launches below it, fewer above it."""
CLOCK = 0.85
"""Launches are cut while the device holds its clock below this share of the highest."""
GAIN = 0.2
"""Change per second in the share of launches that is let through, per unit of utilisation that is missing."""
CUT = 0.5
"""Factor on the launches while the clock is held down."""
FLOOR = 0.05
"""The least control factor: launches are never held back below this."""


def complement(highest_activity: float) -> float:
    """Returns the guest's share of the SMs, if the owner alone has at most this activity."""
    return min(LARGEST, max(SMALLEST, 1.0 - highest_activity - MARGIN))


def blind_law(highest_activity: float, *, held: bool = False) -> Muxflow:
    """Returns the law for an owner without a heartbeat; `highest_activity` is its highest SM activity alone, 0 to 1.

    If MPS already holds the guest to a share of the SMs (`held`), the law does not cut it by that share again.
    """
    return Muxflow(1.0 if held else complement(highest_activity))


class Muxflow:
    """Launch control under a fixed share."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._control = 1.0

    def duty(self, reading: GuardReading) -> float:
        """Returns the guest's duty from now on: its share, less what launch control holds back."""
        sample = reading.device
        if sample is not None:
            if sample.held_back and sample.clock is not None and sample.clock < CLOCK:
                self._control *= CUT
            elif sample.utilisation is not None:
                self._control += GAIN * (UTILISATION - sample.utilisation)
            self._control = min(1.0, max(FLOOR, self._control))
        return self._share * self._control
