# SPDX-License-Identifier: Apache-2.0
"""Watches whether the planner lives, and decides whether to start it again.

Pins that no process moves may keep jobs waiting for ever. While there is no planner that works they are undone at best,
and it takes the end of berthd for that: its unit gives waiting jobs back to Slurm.
"""

from collections import deque

SILENT_FOR = 60.0
"""Seconds without a sign of life after which a planner counts as hung. A sign comes before each wait for Slurm, which
takes 20 s at most, and with each step of a pass, which takes a tenth of a second for 100,000 GPUs."""

MOST_ENDS, WITHIN = 5, 300.0
"""Planners that may end within so many seconds: the last of them was not the first by chance."""

_LAG = 5.0
"""Seconds between two looks beyond which it is this process that stood still, and cannot judge another."""


class PlannerWatchdog:
    """Watches one planner after another; all moments are of the monotonic clock."""

    def __init__(self, silent_for: float = SILENT_FOR, most_ends: int = MOST_ENDS, within: float = WITHIN) -> None:
        self.silent_for = silent_for
        self._most_ends = most_ends
        self._within = within
        self._heard = self._looked = 0.0
        self._ends: deque[float] = deque(maxlen=most_ends)
        self._silences: deque[float] = deque(maxlen=2)

    def hear(self, now: float) -> None:
        """The planner begins, or has given a sign of life."""
        self._heard = now

    def end(self, now: float) -> None:
        """A planner has ended, by itself or not."""
        self._ends.append(now)

    def is_silent(self, now: float) -> bool:
        """Tells whether the planner is to be given up; it then has as long again to end, or to be replaced."""
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
        """Returns why another planner would fare no better; empty where it may."""
        if _all_within(self._silences, 10 * self.silent_for):
            return f"the planner was silent for {self.silent_for:g} s once more"
        if _all_within(self._ends, self._within):
            return f"the planner ended {self._most_ends} times within {self._within:g} s"
        return ""


def _all_within(moments: deque[float], seconds: float) -> bool:
    """Tells whether as many as are remembered came so close together."""
    return len(moments) == moments.maxlen and moments[-1] - moments[0] <= seconds
