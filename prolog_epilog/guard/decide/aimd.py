# SPDX-License-Identifier: Apache-2.0
"""The default law: feed-forward from the owner's slope, trimmed by additive increase and multiplicative decrease.

The slope is the share of its speed that the owner (host in names) loses at full duty of the guest. It starts as the
predictor's value and is learned from every beat: loss = slope x duty. The duty that spends the whole bound is then
bound / slope. The law subtracts three reserves: for the error of the slope, for the error of the baseline, and for a
burst of the owner. A burst costs the owner speed until the guard has seen it and cut. For that reserve the law
remembers the highest slope of this owner so far.

A test on the residuals tells a burst from noise within a few steps. The law then forgets the old slope, cuts the duty,
and keeps it at 0 until the mean loss of the bound's window is back within the bound.
"""

from math import exp, sqrt

from prolog_epilog.guard.decide.law import GuardReading
from prolog_epilog.guard.measure.baseline import ChangeDetector
from prolog_epilog.guard.measure.signals import HostBeat


class SlopeFit:
    """Least squares of loss = slope x duty over beats, each weighted by its certainty."""

    __slots__ = ("_product", "_square")

    def __init__(self, slope: float = 0.0, error: float = 10.0) -> None:
        """Starts from a first value and its standard error; with the default error the first beats decide."""
        self._square = 1.0 / (error * error)
        self._product = slope * self._square

    def add(self, duty: float, loss: float, error: float) -> None:
        """Learns from a beat: the owner lost this share of its speed, known to this error, at this duty."""
        weight = duty / (error * error)
        self._product += weight * loss
        self._square += weight * duty

    def fade(self, keep: float) -> None:
        """Multiplies the weight of what was learned by `keep`."""
        self._product *= keep
        self._square *= keep

    @property
    def slope(self) -> float:
        """Returns the share of its speed that the owner loses at full duty."""
        return max(0.0, self._product / self._square)

    @property
    def error(self) -> float:
        """Returns the standard error of `slope`."""
        return 1.0 / sqrt(self._square)


WINDOW_S = 10.0
"""The bound on slowdown holds for the mean of any window of this length."""
LATE_SHARE, LATE_MEMORY_S = 0.01, 600.0
"""For a service it holds for the p99 of its latency: this part of its requests may exceed it, over about this time."""
MARGIN = 0.08
"""Part of the bound that is never given to a guest: the guard's own delays and errors use it up."""
TAIL = 2.33
"""The 99th percentile of normal noise lies this many standard deviations above its mean."""

SLOPE_ERROR = 0.06
"""Standard error of the predictor's slope."""
CONFIDENCE, CAUTION = 1.0, 2.0
"""A slope counts as its estimate plus this many standard errors: when the guest climbs, and if it may jump at once."""
MEMORY_S = 60.0
"""Time after which a beat counts 1/e as much as a new one in the slope."""
RAISE_STEP, RAISE_FACTOR = 0.05, 1.5
"""Additive increase of the duty; the increase of slow start, used if it is the larger one."""
RAISE_EVERY_S, RAISE_AFTER = 1.0, 1.5
"""Time between increases; at least this many times the time until the owner's answer to the last one is heard."""
DEAD_BAND = 0.12
"""Relative change of duty below which nothing is done; it keeps actions few."""
CUT = 0.5
"""Multiplicative decrease at an alarm: the duty is multiplied by this, or by less."""
ALARM_SLACK = 0.9
"""Page's test for harm that grows: the excess of one beat that is allowed, in standard deviations."""
FALSE_ALARM_S = 110.0
"""The same test: mean time between false alarms. With how often the owner is heard, it sets the threshold."""
LONG_STEP_S, LONG_FALSE_ALARM_BEATS = 0.67, 60.0
"""An owner with longer steps has reported little when the guard has to react: its false alarms may come sooner."""
HARMLESS_ALARM_S = 14_400.0
"""The mean time between false alarms for an owner that its largest burst would not harm beyond the bound."""
CALM_SLACK, FALSE_CALM_BEATS = 0.35, 150.0
"""The same test for harm that falls: a mistake costs little here, so smaller changes are seen."""
LARGEST_RESIDUAL = 8.0
"""One stalled step counts no more than this many standard deviations."""
BURST_RESERVE = 2.5
"""The demand of an owner whose bursts are not known yet may grow by this factor at any moment."""
SMALLEST_BURST, LARGEST_BURST = 1.2, 4.0
"""An owner whose bursts are known may still grow by the first factor, and no burst above the second is expected."""
BURST_MEMORY_S = 600.0
"""Time after which a burst is forgotten to 1/e."""
CERTAIN, CERTAIN_BEATS = 0.3, 5
"""A slope enters that memory once its relative error is below this, and so many beats agree: one stall is no burst."""
LATE_RESERVE = 0.5
"""Part of a service's late requests after which bursts may cost nothing any more."""
LEAST_TARGET = 0.2
"""The part of the bound that the guest may spend however poor the baseline is: it must run to be learned from."""
REACTION_S = 0.4
"""The time that the guard adds to the owner's own step and the age of its heartbeat before a cut is felt."""


class FeedForwardAimd:
    """The law for one pair; `slope` is the predicted share of its speed that the owner loses at full duty, 0 to 1.

    `slowdown` is the bound. For a service it applies to the p99 of its latency, for a training job to the mean of each
    window.
    """

    def __init__(self, slowdown: float, slope: float, *, service: bool = False) -> None:
        self._bound = slowdown
        self._service = service
        self._allowed = (1.0 - MARGIN) * slowdown / (1.0 + slowdown)
        self._fit = SlopeFit(slope, SLOPE_ERROR)
        self._beats = 0  # beats in the fit
        self._rising = SlopeFit()  # beats since the newest suspicion of more harm ...
        self._falling = SlopeFit()  # ... and of less
        self._rising_since = 0.0
        self._harm = ChangeDetector(ALARM_SLACK, LARGEST_RESIDUAL)
        self._calm = ChangeDetector(CALM_SLACK, LARGEST_RESIDUAL)
        self._calm.alarm_once_in(FALSE_CALM_BEATS)
        self._peak = 0.0
        self._late = 0.0  # seconds of requests beyond the bound's p99; old ones count less and less
        self._began: float | None = None
        self._pace = 1.0  # seconds from beat to beat
        self._reaction = REACTION_S
        self._duty = 0.0
        self._raise_at = 0.0
        self._closed_until = 0.0

    def duty(self, reading: GuardReading) -> float:
        """Returns the guest's duty from now on."""
        if self._began is None:
            self._began = self._learned = reading.now
        if reading.beat is not None and reading.duty > 0.0:
            self._learn(reading, reading.beat)
        return 0.0 if reading.now < self._closed_until else self._trimmed(reading)

    def _learn(self, reading: GuardReading, beat: HostBeat) -> None:
        duty, loss, step = reading.duty, reading.loss, beat.took / beat.steps
        noise = reading.noise / sqrt(beat.steps)
        error = sqrt(noise * noise + reading.base_error * reading.base_error)
        residual = (loss - self._fit.slope * duty) / error
        self._age(reading.now, step)
        # What began with a beat is heard at its end; a beat of counted launches is as long as many steps.
        self._reaction = reading.now - beat.at + max(1.5 * step, beat.took) + REACTION_S
        if self._service and reading.slowdown > self._bound + TAIL * noise:
            self._late += beat.took
        if self._harm.quiet:
            self._rising, self._rising_since = SlopeFit(), beat.at - beat.took
        if self._calm.quiet:
            self._falling = SlopeFit()
        self._beats += 1
        for fit in (self._fit, self._rising, self._falling):
            fit.add(duty, loss, error)
        if self._harm.alarm(residual):
            # The beat in which a burst began is partly calm, so the newest beat may show more than their mean.
            self._restart(SlopeFit(max(self._rising.slope, min(1.0, loss / duty)), self._rising.error))
            self._cut(reading)
        elif self._calm.alarm(-residual):
            self._restart(self._falling)
        elif self._beats >= CERTAIN_BEATS and self._fit.error < CERTAIN * self._fit.slope:
            self._peak = max(self._peak, self._fit.slope)

    def _age(self, now: float, step: float) -> None:
        """Lets what was learned earlier count less as time passes, and sets the threshold of the harm test."""
        passed = now - self._learned
        if passed <= 0.0:
            return
        self._learned = now
        self._pace += 0.1 * (passed - self._pace)
        worst = min(1.0, LARGEST_BURST * (self._fit.slope + CAUTION * self._fit.error)) * self._duty
        harms = worst > self._allowed
        # A false alarm is not worth it for an owner that no burst can harm: only what goes beyond a burst raises its
        # alarm.
        beats = (FALSE_ALARM_S if harms else HARMLESS_ALARM_S) / self._pace
        if harms and step > LONG_STEP_S:
            beats = min(beats, LONG_FALSE_ALARM_BEATS)
        self._harm.alarm_once_in(beats)
        self._fit.fade(exp(-passed / MEMORY_S))
        self._peak *= exp(-passed / BURST_MEMORY_S)
        self._late *= exp(-passed / LATE_MEMORY_S)

    def _restart(self, fit: SlopeFit) -> None:
        self._fit, self._beats = fit, 0
        self._harm.reset()
        self._calm.reset()

    def _cut(self, reading: GuardReading) -> None:
        """Handles an alarm: cuts the duty at once, and to 0 until the window of the bound has made up for its loss."""
        lost, target, window = self._fit.slope * self._duty, self._target(reading), WINDOW_S
        if lost <= target:
            return
        lasted = min(window, reading.now - self._rising_since + REACTION_S)
        over = lasted * lost + (window - lasted) * target - window * self._allowed
        if over > 0.0:
            self._closed_until = reading.now + min(window - lasted, over / target)
        self._duty *= CUT
        self._raise_at = reading.now

    def _growth(self, now: float) -> float:
        """Returns the factor by which the slope may jump up at any moment: up to the highest slope seen lately."""
        slope = self._fit.slope
        if not self._peak:  # no peak yet: the setting's reserve, which fades as time passes
            since = now if self._began is None else self._began
            return 1.0 + (BURST_RESERVE - 1.0) * exp((since - now) / BURST_MEMORY_S)
        return min(LARGEST_BURST, max(SMALLEST_BURST, self._peak / slope if slope else LARGEST_BURST))

    def _target(self, reading: GuardReading) -> float:
        """Returns the loss that the guest may cause now, so that a burst keeps the bound until the guard has cut."""
        window = WINDOW_S
        at_risk = min(window, self._reaction)
        if self._service:
            # For a service each request counts, not the mean of a window: the fewer requests may still be late, the
            # less a burst may cost.
            used = self._late / (LATE_RESERVE * LATE_SHARE * LATE_MEMORY_S)
            at_risk += min(1.0, used) * (window - at_risk)
        allowed = max(LEAST_TARGET * self._allowed, self._allowed - reading.base_error)
        return allowed * window / (window + (self._growth(reading.now) - 1.0) * at_risk)

    def _trimmed(self, reading: GuardReading) -> float:
        """Returns the feed-forward duty: lowered at once, raised in steps, changed only if it is worth an action."""
        fit, target, now = self._fit, self._target(reading), reading.now
        wanted = _spending(target, fit.slope + CONFIDENCE * fit.error)
        chosen = self._duty
        if wanted < self._duty * (1.0 - DEAD_BAND):
            chosen = wanted
        elif wanted > self._duty and now >= self._raise_at:
            climbed = max(self._duty + RAISE_STEP, self._duty * RAISE_FACTOR)
            safe = _spending(target, fit.slope + CAUTION * fit.error)
            raised = min(wanted, max(climbed, safe))
            if raised > self._duty * (1.0 + DEAD_BAND) or raised == 1.0:
                chosen = raised
        if chosen != self._duty:
            self._duty = chosen
            self._raise_at = now + max(RAISE_EVERY_S, RAISE_AFTER * self._reaction)
        return chosen


def _spending(loss: float, slope: float) -> float:
    """Returns the duty at which this slope costs the owner this loss."""
    return 1.0 if slope <= loss else loss / slope
