# SPDX-License-Identifier: Apache-2.0
"""The check whether a guest obeys its gate. The guest's own report is no proof; the owner's speed is.

An honest guest cannot take more of the owner's speed than the share of time that its gate allows. Suppose the owner is
slower than that whenever the guest runs, and as fast as alone each time the freezer holds the guest. Then the guest
takes more than it was given.
"""

_CLEARLY = 4.0
"""More standard deviations than this beyond what the duty explains are not noise."""
_TIMES = 3
"""An owner may stall by itself right before the guest is frozen, but not this many times in a row."""
_FORGIVEN = 0.5
"""The part of one such time that a beat takes away which speaks for the guest: a liar may obey now and then."""


class Trust:
    """The evidence for or against one guest."""

    def __init__(self) -> None:
        self._exceeded = False
        self._times = 0.0

    @property
    def lost(self) -> bool:
        """Tells whether the freezer has to hold the guest because its gate does not."""
        return self._times >= _TIMES

    @property
    def asks(self) -> bool:
        """Tells whether the owner's speed alone has to be measured to decide."""
        return self._exceeded

    def beside(self, excess: float) -> None:
        """Notes a beat of the owner beside the guest, this many standard deviations slower than the duty explains."""
        if excess > _CLEARLY:
            self._exceeded = True
        elif excess <= 0.0:
            self._exceeded, self._times = False, max(0.0, self._times - _FORGIVEN)

    def alone(self, *, as_ever: bool) -> None:
        """Notes that the owner ran while the freezer held the guest: as fast as ever (`as_ever`), or slow by itself."""
        self._times += self._exceeded and as_ever
        self._exceeded = False
