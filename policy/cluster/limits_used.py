"""Learns, from jobs that end, how much of their time limits jobs use.

Limits tell the latest end of jobs, and most end long before. Then a plan by limits leaves nodes open to small jobs for
too long, and the jobs on several nodes, which need these nodes, wait. `policy.history.runtime` predicts how long one
job will run from its user's history; a plan of all nodes needs one number, which must not be too small.

    >>> used = LimitsUsed()
    >>> used.part
    1.0
    >>> for _ in range(LEAST):
    ...     used.learn(ran=480.0, limit=600.0)
    >>> used.part
    0.8
"""

from collections import deque

MOST = 200
"""Number of jobs, the last that ended, from which the part is learned."""

LEAST = 30
"""Number of jobs that must have ended before anything is learned."""

NEARLY_ALL = 0.9
"""Quantile of the part of their limits that jobs used, weighted by the time that they ran.

The weight keeps many jobs that fail at once from changing the result."""

FLOOR = 0.7
"""Least part of the rest of a limit that jobs are assumed to use.

Below it, jobs on several nodes do not start earlier, and others wait longer."""


class LimitsUsed:
    """Learns the part of their limits that jobs use; it is 1.0 until enough jobs have ended."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=MOST)
        """For each job, the part of its limit that it used, and the seconds that it ran."""
        self._part: float | None = 1.0

    def learn(self, ran: float, limit: float) -> None:
        """Notes a job that has ended after `ran` seconds."""
        if limit <= 0.0:
            return
        self._latest.append((min(1.0, max(0.0, ran) / limit), max(0.0, ran)))
        self._part = None

    @property
    def part(self) -> float:
        """Returns the part of the rest of their limits that running jobs are assumed to use."""
        if self._part is None:
            self._part = max(FLOOR, self._quantile()) if len(self._latest) >= LEAST else 1.0
        return self._part

    def _quantile(self) -> float:
        most = NEARLY_ALL * sum(ran for _, ran in self._latest)
        for part, ran in sorted(self._latest):
            most -= ran
            if most <= 0.0:
                return part
        return 1.0
