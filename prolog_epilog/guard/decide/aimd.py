"""The default law: feed-forward from the owner's slope, trimmed by additive increase and multiplicative decrease.

The slope is the share of its speed that the owner (host in names) loses at full duty of the guest. It starts as the
predictor's value and is learned from every beat: loss = slope x duty. The duty that spends the whole bound is then
bound / slope. The law subtracts three reserves: for the error of the slope, for the error of the baseline, and for a
burst of the owner. A burst costs the owner speed until the guard has seen it and cut. For that reserve the law
remembers the highest slope of this owner so far.

A test on the residuals tells a burst from noise within a few steps. The law then forgets the old slope, cuts the duty,
and keeps it at 0 until the mean loss of the bound's window is back within the bound.
"""

from __future__ import annotations

from math import exp, sqrt

from prolog_epilog.guard.decide.fit import SlopeFit
from prolog_epilog.guard.decide.law import GuardReading
from prolog_epilog.guard.measure.baseline import ChangeDetector
from prolog_epilog.guard.measure.signals import HostBeat
from prolog_epilog.guard.settings import AimdSettings, BoundSettings

__all__ = ["FeedForwardAimd"]

TAIL = 2.33
"""The 99th percentile of normal noise lies this many standard deviations above its mean."""


class FeedForwardAimd:
    """The law for one pair; `slope` is the predicted share of its speed that the owner loses at full duty, 0 to 1.

    For a service the bound applies to the p99 of its latency, for a training job to the mean of each window.
    """

    def __init__(self, bound: BoundSettings, settings: AimdSettings, slope: float, *, service: bool = False) -> None:
        self._bound = bound
        self._set = settings
        self._service = service
        self._allowed = (1.0 - bound.margin) * bound.slowdown / (1.0 + bound.slowdown)
        self._fit = SlopeFit(slope, settings.slope_error)
        self._beats = 0  # beats in the fit
        self._rising = SlopeFit()  # beats since the newest suspicion of more harm ...
        self._falling = SlopeFit()  # ... and of less
        self._rising_since = 0.0
        self._harm = ChangeDetector(settings.alarm_slack, settings.largest_residual)
        self._calm = ChangeDetector(settings.calm_slack, settings.largest_residual)
        self._calm.alarm_once_in(settings.false_calm_beats)
        self._peak = 0.0
        self._late = 0.0  # seconds of requests beyond the bound's p99; old ones count less and less
        self._began: float | None = None
        self._pace = 1.0  # seconds from beat to beat
        self._reaction = settings.reaction_s
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
        self._reaction = reading.now - beat.at + max(1.5 * step, beat.took) + self._set.reaction_s
        if self._service and reading.slowdown > self._bound.slowdown + TAIL * noise:
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
        elif self._beats >= self._set.certain_beats and self._fit.error < self._set.certain * self._fit.slope:
            self._peak = max(self._peak, self._fit.slope)

    def _age(self, now: float, step: float) -> None:
        """Lets what was learned earlier count less as time passes, and sets the threshold of the harm test."""
        passed, tune = now - self._learned, self._set
        if passed <= 0.0:
            return
        self._learned = now
        self._pace += 0.1 * (passed - self._pace)
        worst = min(1.0, tune.largest_burst * (self._fit.slope + tune.caution * self._fit.error)) * self._duty
        harms = worst > self._allowed
        # A false alarm is not worth it for an owner that no burst can harm: only what goes beyond a burst raises its
        # alarm.
        beats = (tune.false_alarm_s if harms else tune.harmless_alarm_s) / self._pace
        if harms and step > tune.long_step_s:
            beats = min(beats, tune.long_false_alarm_beats)
        self._harm.alarm_once_in(beats)
        self._fit.fade(exp(-passed / tune.memory_s))
        self._peak *= exp(-passed / tune.burst_memory_s)
        self._late *= exp(-passed / self._bound.late_memory_s)

    def _restart(self, fit: SlopeFit) -> None:
        self._fit, self._beats = fit, 0
        self._harm.reset()
        self._calm.reset()

    def _cut(self, reading: GuardReading) -> None:
        """Handles an alarm: cuts the duty at once, and to 0 until the window of the bound has made up for its loss."""
        lost, target, window = self._fit.slope * self._duty, self._target(reading), self._bound.window_s
        if lost <= target:
            return
        lasted = min(window, reading.now - self._rising_since + self._set.reaction_s)
        over = lasted * lost + (window - lasted) * target - window * self._allowed
        if over > 0.0:
            self._closed_until = reading.now + min(window - lasted, over / target)
        self._duty *= self._set.cut
        self._raise_at = reading.now

    def _growth(self, now: float) -> float:
        """Returns the factor by which the slope may jump up at any moment: up to the highest slope seen lately."""
        tune, slope = self._set, self._fit.slope
        if not self._peak:  # no peak yet: the setting's reserve, which fades as time passes
            since = now if self._began is None else self._began
            return 1.0 + (tune.burst_reserve - 1.0) * exp((since - now) / tune.burst_memory_s)
        return min(tune.largest_burst, max(tune.smallest_burst, self._peak / slope if slope else tune.largest_burst))

    def _target(self, reading: GuardReading) -> float:
        """Returns the loss that the guest may cause now, so that a burst keeps the bound until the guard has cut."""
        window = self._bound.window_s
        at_risk = min(window, self._reaction)
        if self._service:
            # For a service each request counts, not the mean of a window: the fewer requests may still be late, the
            # less a burst may cost.
            used = self._late / (self._set.late_reserve * self._bound.late_share * self._bound.late_memory_s)
            at_risk += min(1.0, used) * (window - at_risk)
        allowed = max(self._set.least_target * self._allowed, self._allowed - reading.base_error)
        return allowed * window / (window + (self._growth(reading.now) - 1.0) * at_risk)

    def _trimmed(self, reading: GuardReading) -> float:
        """Returns the feed-forward duty: lowered at once, raised in steps, changed only if it is worth an action."""
        tune, fit, target, now = self._set, self._fit, self._target(reading), reading.now
        wanted = _spending(target, fit.slope + tune.confidence * fit.error)
        chosen = self._duty
        if wanted < self._duty * (1.0 - tune.dead_band):
            chosen = wanted
        elif wanted > self._duty and now >= self._raise_at:
            climbed = max(self._duty + tune.raise_step, self._duty * tune.raise_factor)
            safe = _spending(target, fit.slope + tune.caution * fit.error)
            raised = min(wanted, max(climbed, safe))
            if raised > self._duty * (1.0 + tune.dead_band) or raised == 1.0:
                chosen = raised
        if chosen != self._duty:
            self._duty = chosen
            self._raise_at = now + max(tune.raise_every_s, tune.raise_after * self._reaction)
        return chosen


def _spending(loss: float, slope: float) -> float:
    """Returns the duty at which this slope costs the owner this loss."""
    return 1.0 if slope <= loss else loss / slope
