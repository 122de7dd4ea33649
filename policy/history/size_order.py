"""A site's order by size: jobs that are predicted to take less GPU time get more points from Slurm's `site_factor`.

Points reach from half the weight below zero to half of it above, by the share of recent jobs that took more. So a site
chooses with one number how much size counts beside age and fair share, which stay Slurm's own.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from policy.formats.slurm_facts import JobFacts
from policy.formats.wire import number
from policy.history.runtime import KnownAtSubmission, RunTimes

_COMPARED = 500
"""Jobs that ended last, whose GPU time is compared with."""

_HOLDING = ("RUNNING", "SUSPENDED", "STOPPED")
_ENDED_AFTER = 1.0
"""Seconds below which a run tells nothing of the next one."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that is over: what it asked for and how long it ran."""

    asked: KnownAtSubmission
    seconds: float


class SizeOrder:
    """Learns from jobs that end; without any, all jobs get the same points."""

    def __init__(self, weight: int) -> None:
        """`weight` is the distance, in points of priority, between the smallest and the largest jobs."""
        self._weight = weight
        self._times = RunTimes()
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def learn(self, ended: Iterable[EndedJob]) -> None:
        """Jobs have ended."""
        for one in ended:
            self._times.learn(one.asked, one.seconds)
            if len(self._latest) == _COMPARED:
                del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
            self._latest.append(one.asked.gpus * one.seconds)
            insort(self._sorted, one.asked.gpus * one.seconds)

    def points(self, asked: KnownAtSubmission) -> int:
        """Returns what Slurm is to add to a job's priority."""
        if not self._sorted:
            return 0
        work = asked.gpus * self._times.predict(asked).median
        # Equal ones count half on each side.
        smaller = (bisect_left(self._sorted, work) + bisect_right(self._sorted, work)) / 2
        return round(self._weight * (0.5 - smaller / len(self._sorted)))


def asked_in(fields: Mapping[str, str]) -> KnownAtSubmission:
    """Returns what a submit request says of a job's size and owner."""
    minutes = number(fields, "time_limit")
    limit = 60.0 * minutes if minutes else inf
    return KnownAtSubmission(fields.get("uid", ""), "", fields.get("account", ""), number(fields, "gpus") or 0, limit)


class Runs:
    """Finds the jobs that ended between two readings; their accounts are not in a reading, so users stand for them."""

    def __init__(self) -> None:
        self._running: dict[int, JobFacts] = {}

    def ended(self, jobs: Iterable[JobFacts], at: float) -> list[EndedJob]:
        """The GPU jobs that ran at the last reading and run no more."""
        running = {job.id: job for job in jobs if job.state in _HOLDING and job.wants_gpus and job.start}
        over = [job for job_id, job in self._running.items() if job_id not in running]
        self._running = running
        return [
            EndedJob(_asked(job), at - job.start)
            for job in over
            if job.start is not None and at - job.start >= _ENDED_AFTER and job.gpus
        ]


def _asked(job: JobFacts) -> KnownAtSubmission:
    gpus = len(job.nodes) * (job.gpus or 0).bit_count()
    return KnownAtSubmission(str(job.user), "", "", gpus, inf if job.limit is None else float(job.limit))
