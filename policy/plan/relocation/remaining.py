"""Expects how much longer a running job will run, from the jobs that ended and from how long it has run already.

The three predicted quantiles (policy/history/runtime.py) are read as a distribution: the logarithm of the run time is
normal, with one deviation below the median and one above. What is expected of a job that has run for some time is the
mean over all run times that are longer; so a wide prediction and a narrow one of the same median differ, and each
second that a job outlasts its prediction changes what is expected of it. Beyond the 95th percentile nothing was
predicted: of jobs that have run for so long, half run as long again (Harchol-Balter and Downey, 1997).

    >>> from policy.history.runtime import Prediction
    >>> round(left_of(Prediction(3_590.0, 3_600.0, 3_610.0, 0.8), ran=600.0))
    3180
    >>> round(left_of(Prediction(360.0, 3_600.0, 36_000.0, 0.8), ran=600.0))
    17026
"""

from collections.abc import Collection, Iterable
from math import erf, exp, inf, log, sqrt
from typing import TYPE_CHECKING

from policy.formats.plan_fields import MOVES
from policy.history.runtime import Prediction, RunTimes
from policy.plan.queue.ahead import LEARNED_FROM, known_at_submission, number_of_gpus
from topology.tables import positions

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.formats.slurm_facts import JobFacts

_TENTH = 1.2816
"""Deviations below the median at which the 10th percentile of a normal distribution stands."""
_MOST = 1.645
"""Deviations above the median at which the 95th percentile stands."""
_NARROWEST = 1e-3
_PROMISED = 0.8
"""Share of jobs that end between low and high where predictions are as good as they say."""


def left_of(prediction: Prediction, ran: float, stretch: float = 1.0) -> float:
    """Returns the seconds for which a job is expected to run on, after `ran` seconds on GPUs that stretch its time."""
    middle = log(max(prediction.median, 1.0) * stretch)
    below = max(_NARROWEST, (middle - log(max(prediction.low, 1.0) * stretch)) / _TENTH)
    above = max(_NARROWEST, (log(max(prediction.high, 1.0) * stretch) - middle) / _TENTH)
    so_far = log(max(ran, 1.0)) - middle
    begin = so_far / (below if so_far < 0 else above)
    if begin >= _MOST:
        return ran
    chance = 1 - _normal(_MOST)
    longer = chance * 2 * exp(middle + above * _MOST)
    if begin < 0:
        longer += _mean(middle, below, begin, 0.0)
        chance += _normal(0.0) - _normal(begin)
    from_here = max(begin, 0.0)
    longer += _mean(middle, above, from_here, _MOST)
    chance += _normal(_MOST) - _normal(from_here)
    return max(0.0, longer / chance - ran)


def slowest(fleet: "Fleet", app_class: str, nodes: Iterable[int], mask: int) -> float:
    """Returns the score of the slowest of some GPUs for a class of jobs; 1 where nothing was measured."""
    table = fleet.scores_of(app_class)
    if table is None:
        return 1.0
    return max(float(table[node, place]) for node in nodes for place in positions(mask))


def within(most: float, prediction: Prediction, ran: float, stretch: float) -> float:
    """Returns the seconds for which a job is expected to run on, at most those that its time limit leaves.

    Without a limit only as much of them counts as jobs of late ended as predicted.

    >>> within(100.0, Prediction(10.0, 3_600.0, 9_000.0, confidence=0.0), ran=60.0, stretch=1.0)
    100.0
    >>> within(inf, Prediction(10.0, 3_600.0, 9_000.0, confidence=0.0), ran=60.0, stretch=1.0)
    0.0
    """
    left = left_of(prediction, ran, stretch)
    return left * min(1.0, prediction.confidence / _PROMISED) if most == inf else min(most, left)


class EndedRuns:
    """Learns from reading to reading how long jobs run."""

    def __init__(self) -> None:
        self.times = RunTimes()
        self._running: dict[int, JobFacts] = {}

    def see(self, jobs: "Collection[JobFacts]", at: float) -> None:
        """Learns from the jobs that ran at the last reading and are gone by now; one that waits again has not ended."""
        there = {job.id for job in jobs}
        for job in self._running.values():
            # What a moved job has run since its move is only a part.
            whole = job.id not in there and not job.known.get(MOVES, ())
            if whole and job.start is not None and at - job.start >= LEARNED_FROM:
                self.times.learn(known_at_submission(job, number_of_gpus(job)), at - job.start)
        self._running = {job.id: job for job in _whole(jobs)}

    def left(self, job: "JobFacts", at: float, stretch: float) -> float:
        """Returns the seconds for which a running job is expected to run on."""
        known = known_at_submission(job, number_of_gpus(job))
        most = inf if job.end is None or known.limit == inf else max(0.0, job.end - at)
        ran = max(0.0, at - min(job.start or at, *job.known.get(MOVES, ()), at))
        return within(most, self.times.predict(known), ran, stretch)


def _whole(jobs: "Iterable[JobFacts]") -> "Iterable[JobFacts]":
    return (job for job in jobs if job.state == "RUNNING" and job.wants_gpus and job.start is not None)


def _normal(deviations: float) -> float:
    return 0.5 * (1.0 + erf(deviations / sqrt(2.0)))


def _mean(middle: float, deviation: float, begin: float, end: float) -> float:
    """Returns the integral of exp(middle + deviation z) over the normal density of z from begin to end."""
    return exp(middle + deviation * deviation / 2) * (_normal(end - deviation) - _normal(begin - deviation))
