"""Whether a guest keeps to its gate. What it says of that is no proof: its host shows it.

An honest guest cannot take more of its host's speed than the share of time that its gate lets it. A host that is slower
than that whenever the guest runs, and as fast as alone each time that the freezer holds the guest, has a guest that
takes what it was not given.
"""

from __future__ import annotations

__all__ = ["Trust"]

_CLEARLY = 4.0
"""So many standard deviations beyond what the duty explains are not noise."""
_TIMES = 3
"""A host may stall by itself right before the guest is frozen, but not so many times in a row."""


class Trust:
    """In one guest."""

    def __init__(self) -> None:
        self._exceeded = False
        self._times = 0

    @property
    def lost(self) -> bool:
        """Whether the freezer has to do what the gate does not."""
        return self._times >= _TIMES

    @property
    def asks(self) -> bool:
        """Whether it has to be seen how fast the host is alone."""
        return self._exceeded

    def beside(self, excess: float) -> None:
        """The host ran beside the guest, so many standard deviations slower than the guest's duty explains."""
        if excess > _CLEARLY:
            self._exceeded = True
        elif excess <= 0.0:
            self._exceeded, self._times = False, 0

    def alone(self, *, as_ever: bool) -> None:
        """The host ran while the freezer held the guest: `as_ever`, or it was slow by itself."""
        self._times += self._exceeded and as_ever
        self._exceeded = False
