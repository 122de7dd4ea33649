# SPDX-License-Identifier: Apache-2.0
"""Watches the planner, and decides if it is started again.

Pins that no process moves may keep jobs waiting for ever. If no planner works, it is best to undo them. For that berthd
ends: its unit then gives waiting jobs back to Slurm.
"""

from collections import deque

SILENT_FOR = 60.0
"""Seconds without a sign of life after which a planner counts as hung. A sign comes before each wait for Slurm, of 20 s
at most, and with each step of a pass, of a tenth of a second for 100,000 GPUs."""

MOST_ENDS, WITHIN = 5, 300.0
"""berthd gives up if `MOST_ENDS` planners end within so many seconds: that is no chance."""

_LAG = 5.0
"""Seconds between two checks beyond which this process itself stood still, and cannot judge the planner."""


class PlannerWatchdog:
    """Watches one planner after another; all times are of the monotonic clock."""

    def __init__(self, silent_for: float = SILENT_FOR, most_ends: int = MOST_ENDS, within: float = WITHIN) -> None:
        self.silent_for = silent_for
        self._most_ends = most_ends
        self._within = within
        self._heard = self._looked = 0.0
        self._ends: deque[float] = deque(maxlen=most_ends)
        self._silences: deque[float] = deque(maxlen=2)

    def hear(self, now: float) -> None:
        """Notes the planner's start, or a sign of life."""
        self._heard = now

    def end(self, now: float) -> None:
        """Notes that a planner has ended, by itself or not."""
        self._ends.append(now)

    def is_silent(self, now: float) -> bool:
        """Tells whether the planner must be killed; it then has as long again to end, or to be replaced."""
        if now - self._looked > _LAG:
            self._heard = max(self._heard, now)
        self._looked = now
        if now - self._heard < self.silent_for:
            return False
        self._silences.append(now)
        self._heard = now
        return True

    @property
    def hopeless(self) -> str:
        """Returns why another planner would fail too; empty if it may work."""
        if _all_within(self._silences, 10 * self.silent_for):
            return f"the planner was silent for {self.silent_for:g} s once more"
        if _all_within(self._ends, self._within):
            return f"the planner ended {self._most_ends} times within {self._within:g} s"
        return ""


def _all_within(moments: deque[float], seconds: float) -> bool:
    """Tells whether the deque is full, and all of its times lie within these seconds."""
    return len(moments) == moments.maxlen and moments[-1] - moments[0] <= seconds
