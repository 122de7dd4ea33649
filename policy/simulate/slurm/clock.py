# SPDX-License-Identifier: Apache-2.0
"""Simulated time: scheduled events, and loops that sleep while there is nothing to do."""

import heapq
from collections.abc import Callable
from itertools import count
from math import floor


class Clock:
    """The present moment of the simulation, and all events to come."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._serial = count()

    def at(self, moment: float, act: Callable[[], None], rank: int = 0) -> None:
        """Schedules an action; at one moment the lowest rank runs first, then the first scheduled."""
        heapq.heappush(self._events, (max(moment, self.now), rank, next(self._serial), act))

    def next(self) -> float | None:
        """Returns the moment of the next action; None if none is left."""
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """Runs the next action; returns False if none is left."""
        if not self._events:
            return False
        self.now, _, _, act = heapq.heappop(self._events)
        act()
        return True


class Loop:
    """An action that is repeated at regular moments, as long as it is woken."""

    def __init__(
        self, clock: Clock, every: float, act: Callable[[], None], *, began: float | None = None, rank: int = 0
    ) -> None:
        """Takes the time of its first moment, `began`, and its place among the actions of one moment."""
        self._clock = clock
        self._every = every
        self._act = act
        self._began = clock.now if began is None else began
        self._rank = rank
        self._awake = False
        self.not_before = clock.now

    def wake(self) -> None:
        """Schedules the action for its next regular moment."""
        if self._awake:
            return
        self._awake = True
        now, turns = self._clock.now, floor((self._clock.now - self._began) / self._every) + 1
        # Rounding may give this very moment again, and then without end.
        turns += self._began + turns * self._every <= now
        self._clock.at(max(self._began + turns * self._every, self.not_before), self._turn, self._rank)

    def _turn(self) -> None:
        self._awake = False
        self._act()
