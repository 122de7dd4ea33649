# SPDX-License-Identifier: Apache-2.0
"""AntMan's law: a job at duty p idles 1/p - 1 times as long as it works. Arithmetic only; the caller sleeps.

The idle time that a step will owe is estimated from the step before, and spread over the step's boundaries. Time still
owed at its end is idled there; too much idling is credited to the next step.
"""

SHORTEST_NAP_S = 0.005
"""Shorter naps are saved up: before each, the GPU finishes what is queued, and then waits for the next launch."""
LEAST_PATIENCE_S = 1.0
"""A program that ends no step settles after so many seconds, or after three times its last step."""


class DutyLaw:
    """The account of one process's working and idling.

    Ranks that wait for each other cannot tell their own work from waiting for another rank's nap. Each would idle for
    the others' naps too, and all would soon idle all the time. They have in common how long a step takes, naps
    included. So such a rank idles 1 - p of that: the same duty, and the same naps for all. Only when the duty changes
    does a rank count its own work, so that the new duty holds at once.
    """

    def __init__(self, *, ranks: int = 1) -> None:
        self._together = ranks > 1
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """Starts anew: nothing is owed."""
        self._duty = self._charged = 1.0  # the duty in force now; the duty when the last step ended
        self._work = self._sure = 0.0  # work in seconds: of the last step; of the shorter of the last two
        self._owed = 0.0  # idle seconds owed by all work so far; negative: idled too much
        self._share = self._left = self._due = 0.0  # the planned naps: at each boundary, in all, saved up
        self._boundaries = 0
        self._began = self._mark = now  # the begin of the step
        self._idled = self._napped = 0.0  # idle seconds in the step: with the nap at its begin; at its boundaries only
        self._within = False

    def boundary(self, now: float, duty: float) -> float:
        """Returns how long to idle at a boundary within a step."""
        self._boundaries += 1
        if now - self._began - self._idled > max(LEAST_PATIENCE_S, 3 * self._work):
            return self.step(now, duty)
        if duty != self._duty:
            scale = (1 / duty - 1) / (1 / self._duty - 1) if self._duty < 1 else 0.0
            self._share, self._left, self._duty = self._share * scale, self._left * scale, duty
        self._within = True
        self._due = min(self._due + self._share, self._left)
        # The plan may come from an unusually long step: only the work that both of the last two steps did is idled
        # ahead.
        work = max(now - self._began - self._idled, self._sure, 0.0)
        nap = min(self._due, self._owed + work * (1 / duty - 1))
        return nap if nap >= SHORTEST_NAP_S else 0.0

    def step(self, now: float, duty: float) -> float:
        """Returns how long to idle at the end of a step."""
        before, self._work = self._work, max(now - self._began - self._idled, 0.0)
        self._sure = min(before, self._work)
        owed = self._work * (1 / duty - 1)
        # Count as if all naps were at the ends of steps: otherwise ranks that spread them differently would see other
        # times.
        mark = now - self._napped
        if self._together and duty == self._charged:
            owed = max(mark - self._mark, 0.0) * (1 - duty)
        self._owed += owed
        self._left = max(owed + min(self._owed, 0.0), 0.0)
        self._share = self._left / self._boundaries if self._boundaries else 0.0
        self._boundaries, self._due, self._within = 0, 0.0, False
        self._began, self._mark, self._idled, self._napped = now, mark, 0.0, 0.0
        self._duty = self._charged = duty
        return max(self._owed, 0.0)

    def idled(self, seconds: float) -> None:
        """Takes how long the nap really was."""
        self._owed -= seconds
        self._idled += seconds
        if self._within:
            self._napped += seconds
            self._left = max(self._left - seconds, 0.0)
            self._due = max(self._due - seconds, 0.0)

    def shut(self, seconds: float) -> None:
        """Leaves out a time in which the gate was shut: it counts neither as work nor as owed idle time."""
        self._began += seconds
        self._mark += seconds
