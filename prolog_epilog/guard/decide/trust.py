"""The check whether a guest obeys its gate. The guest's own report is no proof; the owner's speed is.

An honest guest cannot take more of the owner's speed than the share of time that its gate allows. Suppose the owner is
slower than that whenever the guest runs, and as fast as alone each time the freezer holds the guest. Then the guest
takes more than it was given.

A liar may obey now and then. So a beat or a freeze that speaks for the guest takes away one that spoke against it, and
no more.
"""

from __future__ import annotations

__all__ = ["Trust"]

_CLEARLY = 4.0
"""More standard deviations than this beyond what the duty explains are not noise."""
_TIMES = 3
"""An owner may stall by itself right before the guest is frozen, but not this many times more than not."""


class Trust:
    """The evidence for or against one guest."""

    def __init__(self) -> None:
        self._beats = 0
        self._times = 0

    @property
    def lost(self) -> bool:
        """Tells whether the freezer has to hold the guest because its gate does not."""
        return self._times >= _TIMES

    @property
    def asks(self) -> bool:
        """Tells whether the owner's speed alone has to be measured to decide."""
        return self._beats > 0

    def beside(self, excess: float) -> None:
        """Notes a beat of the owner beside the guest, this many standard deviations slower than the duty explains."""
        if excess > _CLEARLY:
            self._beats += 1
        elif excess <= 0.0:
            self._beats = max(0, self._beats - 1)

    def alone(self, *, as_ever: bool) -> None:
        """Notes that the owner ran while the freezer held the guest: as fast as ever (`as_ever`), or slow by itself."""
        if not self._beats:
            self._times = max(0, self._times - 1)
        elif as_ever:
            self._times += 1
        self._beats = 0
