"""How much of their time limits jobs use, learned from those that end.

Limits tell when jobs end at the latest, and most end long before. Where that is so, a plan by limits keeps nodes open
to small jobs for too long, and the jobs on several nodes, whose nodes these are, wait for them. `policy.history.runtime` tells
how long one job will run by its owner's history; a plan of all nodes needs one number, and none that is too small.

    >>> used = Used()
    >>> used.part
    1.0
    >>> for _ in range(LEAST):
    ...     used.learn(ran=480.0, limit=600.0)
    >>> used.part
    0.8
"""

from collections import deque

MOST = 200
"""Jobs that ended last, which are looked at."""

LEAST = 30
"""Jobs that must have ended before they tell anything."""

NEARLY_ALL = 0.9
"""Part of the time that jobs ran in which they had not used up more of their limits than is taken to be usual. Who
counts time is not misled by a flood of jobs that fail at once."""

FLOOR = 0.7
"""Of what is left of a limit, jobs are never taken to use less: below that, gangs wait no shorter, others longer."""


class Used:
    """Starts from limits that are used up."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=MOST)
        """Part of its limit and seconds that each job ran."""
        self._part: float | None = 1.0

    def learn(self, ran: float, limit: float) -> None:
        """A job has ended after so many seconds."""
        if limit <= 0.0:
            return
        self._latest.append((min(1.0, max(0.0, ran) / limit), max(0.0, ran)))
        self._part = None

    @property
    def part(self) -> float:
        """What running jobs are taken to use of what is left of their limits."""
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
