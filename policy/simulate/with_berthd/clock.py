"""Simulated time: what is to happen when, and loops that sleep while there is nothing to do."""

import heapq
from collections.abc import Callable
from itertools import count
from math import floor


class Clock:
    """The moment that is played, and all that is still to come."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()

    def at(self, moment: float, act: Callable[[], None]) -> None:
        """Do something at a moment; what was asked for first comes first."""
        heapq.heappush(self._events, (max(moment, self.now), next(self._serial), act))

    def step(self) -> bool:
        """Let the next thing happen; False where nothing is left."""
        if not self._events:
            return False
        self.now, _, act = heapq.heappop(self._events)
        act()
        return True


class Loop:
    """Something that is done at regular moments, as long as it is woken."""

    def __init__(self, clock: Clock, every: float, act: Callable[[], None]) -> None:
        self._clock = clock
        self._every = every
        self._act = act
        self._began = clock.now
        self._awake = False
        self.not_before = clock.now

    def wake(self) -> None:
        """Do it at its next moment."""
        if self._awake:
            return
        self._awake = True
        now, turns = self._clock.now, floor((self._clock.now - self._began) / self._every) + 1
        # Rounding may hit this very moment again, and then for ever.
        turns += self._began + turns * self._every <= now
        self._clock.at(max(self._began + turns * self._every, self.not_before), self._turn)

    def _turn(self) -> None:
        self._awake = False
        self._act()
