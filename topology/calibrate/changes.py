# SPDX-License-Identifier: Apache-2.0
"""Finds steps and drifts in the times of a GPU or a node over its visits."""

import warnings
from dataclasses import dataclass

import numpy as np

from topology.calibrate.posterior import Floats

_SURE = 4.5
"""Standard errors from which on a change is announced: among thousands of GPUs about none is announced by chance."""
_WORTH = 0.02
"""Smaller changes, in logarithms, are not reported."""
_MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean."""
_LEAST_BEFORE = 3
"""Least number of runs before a step, so that one disturbed run does not decide the median."""
_LEAST_FOR_DRIFT = 5


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps by row; the first run of the new state is 0 if there is no step."""

    first: np.ndarray[tuple[int], np.dtype[np.int64]]
    size: Floats


@dataclass(frozen=True, slots=True)
class Drifts:
    """Drifts by row; 0 if there is none."""

    per_day: Floats
    total: Floats
    """From the first to the last run."""


def steps(values: Floats, variance: float, least_after: int) -> Steps:
    """Finds rows that changed to another level and stayed there for at least `least_after` runs.

    One run that was disturbed makes no step: all but a quarter of the runs after it lie beyond all but a quarter of
    those before. Medians are compared, for the same reason.
    """
    rows, runs = values.shape
    first = np.zeros(rows, np.int64)
    size, best = np.zeros(rows), np.full(rows, _SURE)
    for split in range(_LEAST_BEFORE, runs - least_after + 1):
        before, after = values[:, :split], values[:, split:]
        count_before, count_after = np.isfinite(before).sum(axis=1), np.isfinite(after).sum(axis=1)
        enough = (count_before >= _LEAST_BEFORE) & (count_after >= least_after)
        gap = np.nan_to_num(_median(after) - _median(before))
        slower, faster = _quarter(after) > -_quarter(-before), -_quarter(-after) < _quarter(before)
        counts = 1.0 / np.maximum(count_before, 1) + 1.0 / np.maximum(count_after, 1)
        sure = np.abs(gap) / (_MEDIAN_ERROR * np.sqrt(variance * counts))
        apart = np.where(gap > 0, slower, faster)
        better = enough & apart & (sure > best) & (np.abs(gap) > _WORTH)
        first[better], size[better], best[better] = split, gap[better], sure[better]
    return Steps(first, size)


def drifts(values: Floats, days: Floats, variance: float) -> Drifts:
    """Finds rows that rise or fall steadily, by their least-squares line."""
    there = np.isfinite(values) & np.isfinite(days)
    count = there.sum(axis=1)
    enough = count >= _LEAST_FOR_DRIFT
    some = np.maximum(count, 1)
    at = np.where(there, days, 0.0)
    middle = at.sum(axis=1) / some
    apart = np.where(there, days - middle[:, None], 0.0)
    square = np.maximum((apart**2).sum(axis=1), 1e-12)
    slope = np.where(there, apart * np.nan_to_num(values), 0.0).sum(axis=1) / square
    span = np.where(there, days, -np.inf).max(axis=1, initial=-np.inf) - np.where(there, days, np.inf).min(
        axis=1, initial=np.inf
    )
    span = np.where(np.isfinite(span), span, 0.0)
    sure = enough & (np.abs(slope) * np.sqrt(square / variance) > _SURE) & (np.abs(slope) * span > _WORTH)
    return Drifts(np.where(sure, slope, 0.0), np.where(sure, slope * span, 0.0))


def changes_in(values: Floats, days: Floats, variance: float, least_after: int) -> tuple[Steps, Drifts]:
    """Returns a step or a drift for each row, whichever fits the data better, or neither."""
    stepped, drifted = steps(values, variance, least_after), drifts(values, days, variance)
    after = np.arange(values.shape[1]) >= stepped.first[:, None]
    by_step = _left(np.where(after, values, np.nan)) + _left(np.where(after, np.nan, values))
    by_line = _left(values - drifted.per_day[:, None] * days)
    is_step = (stepped.first > 0) & ((drifted.total == 0) | (by_step <= by_line))
    is_drift = (drifted.total != 0) & ~is_step
    return (
        Steps(np.where(is_step, stepped.first, 0), np.where(is_step, stepped.size, 0.0)),
        Drifts(np.where(is_drift, drifted.per_day, 0.0), np.where(is_drift, drifted.total, 0.0)),
    )


def _left(values: Floats) -> Floats:
    """Returns the sum of squares about each row's mean."""
    there = np.isfinite(values)
    filled = np.where(there, values, 0.0)
    count = np.maximum(there.sum(axis=1), 1)
    found: Floats = (filled**2).sum(axis=1) - filled.sum(axis=1) ** 2 / count
    return found


def _median(values: Floats) -> Floats:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Rows without any run.
        found: Floats = np.nanmedian(values, axis=1)
    return found


def _quarter(values: Floats) -> Floats:
    """Returns the value that at most a quarter of the row lies below."""
    ordered = np.sort(values, axis=1)
    place = np.maximum(np.isfinite(values).sum(axis=1) - 1, 0) // 4
    found: Floats = np.take_along_axis(ordered, place[:, None], axis=1)[:, 0]
    return found
