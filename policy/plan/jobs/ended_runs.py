# SPDX-License-Identifier: Apache-2.0
"""Learns how long jobs run, from reading to reading, by the jobs that ended while this process ran."""

from collections.abc import Collection
from math import inf

from policy.formats.plan_fields import MOVES
from policy.formats.slurm_facts import JobFacts
from policy.history.runtime import KnownAtSubmission, Prediction, RunTimes
from policy.plan.jobs.roll_out import still_to_run
from policy.request.demand import A_YEAR

LEARNED_FROM = 1.0
"""Seconds below which a run tells nothing of the next one."""

APART = 150.0
"""Seconds between two readings from which on nothing is learned of the runs that ended between them."""

_PROMISED = 0.8
"""Share of jobs that end between low and high where predictions are as good as they say."""


class EndedRuns:
    """The run times of the jobs that ended, and the jobs that ran at the last reading."""

    def __init__(self) -> None:
        self._times = RunTimes()
        self._predicted: dict[KnownAtSubmission, Prediction] = {}
        self.running: Collection[JobFacts] = ()
        self._seen_at = inf

    def see(self, running: Collection[JobFacts], present: Collection[int], at: float) -> None:
        """Learns from the jobs that ran before and are not `present` any more; one that waits again has not ended."""
        for job in self.running if at - self._seen_at < APART else ():
            # What a moved job has run since its move is only a part.
            whole = job.id not in present and not job.known.get(MOVES, ())
            if whole and job.start is not None and at - job.start >= LEARNED_FROM:
                self._times.learn(known_at_submission(job, number_of_gpus(job)), at - job.start)
                self._predicted.clear()
        self.running, self._seen_at = running, at

    def predict(self, job: JobFacts, gpus: int) -> Prediction:
        """Returns how long a job is expected to run."""
        known = known_at_submission(job, gpus)
        if known not in self._predicted:
            self._predicted[known] = self._times.predict(known)
        return self._predicted[known]

    def left(self, job: JobFacts, at: float, stretch: float) -> float:
        """Returns the seconds for which a running job is expected to run on."""
        limited = job.end is not None and job.limit is not None and job.limit < A_YEAR
        most = max(0.0, job.end - at) if limited and job.end is not None else inf
        ran = max(0.0, at - min(job.start or at, *job.known.get(MOVES, ()), at))
        return left_of(self.predict(job, number_of_gpus(job)), ran, stretch, most)


def left_of(prediction: Prediction, ran: float, stretch: float = 1.0, most: float = inf) -> float:
    """Returns the seconds for which a job is expected to run on, on GPUs that stretch its time.

    Its limit leaves `most`. Without a limit, the less predictions were right of late, the less is expected.

    >>> hours = Prediction(3_000.0, 3_600.0, 9_000.0, confidence=0.8)
    >>> left_of(hours, 600.0), left_of(hours, 3_700.0), left_of(hours, 9_100.0), left_of(hours, 9_100.0, most=100.0)
    (3000.0, 5300.0, 9100.0, 100.0)
    """
    median = prediction.median * stretch
    left = still_to_run(median if ran < median else prediction.high * stretch, ran)
    return left * min(1.0, prediction.confidence / _PROMISED) if most == inf else min(most, left)


def number_of_gpus(job: JobFacts) -> int:
    """Returns the number of GPUs that a running job holds."""
    return sum(mask.bit_count() for mask in job.holds) or (job.gpus or 0).bit_count() * len(job.nodes)


def known_at_submission(job: JobFacts, gpus: int) -> KnownAtSubmission:
    """Returns what run times are predicted from."""
    limit = inf if job.limit is None or job.limit >= A_YEAR else float(job.limit)
    return KnownAtSubmission(str(job.user), job.name, job.account, gpus, limit)
