"""MuxFlow's law for an owner that reports nothing: a share by complement, and launch control by the device's metrics.

The guest gets the SMs that the owner leaves when it runs alone. Within that share, launches are held back while the
device holds its clock down, or while it is busier than the set point. They are let go again while there is room. The
published text gives neither formula nor gains; both are a reconstruction.
"""

from __future__ import annotations

from prolog_epilog.guard.decide.law import GuardReading
from prolog_epilog.guard.settings import MuxflowSettings

__all__ = ["Muxflow", "complement"]


def complement(highest_activity: float, settings: MuxflowSettings) -> float:
    """Returns the guest's share of the SMs, if the owner alone has at most this activity."""
    return min(settings.largest, max(settings.smallest, 1.0 - highest_activity - settings.margin))


class Muxflow:
    """Launch control under a fixed share."""

    def __init__(self, settings: MuxflowSettings, share: float) -> None:
        self._set = settings
        self._share = share
        self._control = 1.0

    def duty(self, reading: GuardReading) -> float:
        """Returns the guest's duty from now on: its share, less what launch control holds back."""
        sample, tune = reading.device, self._set
        if sample is not None:
            if sample.held_back and sample.clock is not None and sample.clock < tune.clock:
                self._control *= tune.cut
            elif sample.utilisation is not None:
                self._control += tune.gain * (tune.utilisation - sample.utilisation)
            self._control = min(1.0, max(tune.floor, self._control))
        return self._share * self._control
