# SPDX-License-Identifier: Apache-2.0
"""The baseline: how long an owner's step takes when no guest runs, how much that varies, and when it changed."""

from math import exp, log, sqrt

from prolog_epilog.guard.measure.signals import HostBeat

STEPS = 8
"""Number of steps without a guest that make a baseline; with 3 % of noise they leave an error of 1 %."""
WAIT_S, FEW_STEPS = 30.0, 3
"""An owner that is not heard for so long has no heartbeat; the baseline of one with long steps needs so many then."""
MEMORY_S = 900.0
"""Time after which a step counts 1/e as much as a new one."""
NOISE_FLOOR, NOISE_GUESS = 0.003, 0.03
"""No noise is taken to be smaller than the first; the second is the noise of a step before it is measured."""
OUTLIER = 6.0
"""Steps this many standard deviations above the baseline do not enter it."""
FEW = 4
"""Fewer beats than this say nothing about noise."""


class Baseline:
    """An owner's step time alone, learned from the steps that ran while its guest stood still.

    Old steps count less and less, so that the baseline follows an owner whose step time drifts.
    """

    def __init__(self) -> None:
        self._first = self._at = 0.0
        self._steps = 0  # steps since the start, or since `forget`
        self._weight = 0.0  # the number of steps that the mean stands for
        self._mean = 0.0
        self._spread = 0.0  # weighted sum of squared distances from the mean
        self._noise = self._error = NOISE_GUESS
        self._strange = 0  # steps in a row that were far too long
        self._beats = 0.0  # beats in _spread, less the one that the mean takes

    @property
    def known(self) -> bool:
        """Tells whether there were enough steps to judge anything by them."""
        if self._steps >= STEPS:
            return True
        return self._steps >= FEW_STEPS and self._at - self._first >= WAIT_S

    @property
    def step(self) -> float:
        """Returns the seconds a step takes alone."""
        return self._mean

    @property
    def noise(self) -> float:
        """Returns the relative standard deviation of one step alone, never below the configured floor."""
        return self._noise

    @property
    def error(self) -> float:
        """Returns the relative standard error of `step`."""
        return self._error

    @property
    def measured_at(self) -> float:
        """Returns the time at which the last step without a guest ended."""
        return self._at

    def add(self, beat: HostBeat) -> None:
        """Learns from steps that ran without a guest."""
        mean = beat.took / beat.steps
        if not self._weight:
            self._first = beat.at - beat.took
        if self.known and mean > self._mean * (1.0 + OUTLIER * self.noise / sqrt(beat.steps)):
            # One stalled step (a checkpoint, a validation batch) must not lift the baseline and hide harm; if all steps
            # are so long, the owner itself has changed.
            self._strange += beat.steps
            if self._strange < STEPS:
                return
            self.forget()
        self._strange = 0
        if self._weight:
            # A beat that is older than the last one must not raise any weight.
            keep = exp(min(0.0, self._at - beat.at) / MEMORY_S)
            self._weight *= keep
            self._spread *= keep
            self._beats *= keep
        distance = mean - self._mean
        share = beat.steps / (self._weight + beat.steps)
        if self._weight:
            self._spread += beat.steps * (1.0 - share) * distance * distance
            self._beats += 1.0
        # Step times are divided by the mean, so rounding must not make it 0.
        self._mean = max(self._mean + share * distance, min(self._mean, mean))
        self._steps += beat.steps
        self._weight += beat.steps
        self._at = beat.at
        if self._beats >= FEW:
            self._noise = max(NOISE_FLOOR, sqrt(self._spread / self._beats) / self._mean)
        self._error = self._noise / sqrt(max(1.0, self._weight))

    def forget(self) -> None:
        """Starts over: the owner's program changed its step (another phase, batch size or owner)."""
        self._steps = 0
        self._weight = self._spread = self._beats = self._mean = 0.0


class ChangeDetector:
    """Page's test: adds up how far beats lie beyond the expected, and alarms when chance no longer explains the sum.

    It watches one direction; feed it residuals in standard deviations, with the sign turned to watch for falls. `slack`
    is what one beat may exceed; `largest` is what one beat counts at most.
    """

    def __init__(self, slack: float, largest: float, beats: float = 1e4) -> None:
        self._slack = slack
        self._largest = largest
        self._sum = 0.0
        self._threshold = 0.0
        self.alarm_once_in(beats)

    @property
    def quiet(self) -> bool:
        """Tells whether nothing has added up: whatever comes next is a new suspicion."""
        return self._sum == 0.0

    def alarm_once_in(self, beats: float) -> None:
        """Sets the threshold so that chance alone raises an alarm once in so many beats, on average."""
        # Siegmund's approximation of the average run length, without its small terms.
        slack = self._slack
        self._threshold = max(1.0, log(2.0 * slack * slack * max(beats, 1.0)) / (2.0 * slack) - 1.166)

    def alarm(self, residual: float) -> bool:
        """Adds one residual; returns true if what added up since the last quiet moment is a change."""
        self._sum = max(0.0, self._sum + min(residual, self._largest) - self._slack)
        return self._sum > self._threshold

    def reset(self) -> None:
        """Forgets all suspicion."""
        self._sum = 0.0
