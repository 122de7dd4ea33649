# SPDX-License-Identifier: Apache-2.0
"""Tells how much of a difference between two policies is chance.

Under one policy too the same jobs wait longer or shorter if they arrive some minutes sooner or later. So policies are
compared by pairs of the same trace and draw. The geometric mean of their ratios has a 95 % interval by bootstrap over
traces, or over draws where there is one trace. Plain Slurm beside its own next draw tells what chance alone does.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from policy.formats.arrays import Floats
from policy.simulate.report.summary import Line, Summary
from policy.simulate.study import PLAIN_SLURM

RESAMPLES = 2_000
LEAST_S = 1.0
"""Seconds; a shorter mean time counts as this long, because a ratio to nearly 0 says nothing."""

Measure = Callable[[Summary], float]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One policy's figure over another's: the geometric mean over pairs, and its 95 % interval."""

    value: float
    lower: float
    upper: float
    null: float
    """The factor by which plain Slurm's own draws differ in as many pairs."""
    pairs: int

    @property
    def is_chance(self) -> bool:
        """Tells whether chance alone may have made the difference; of one pair that is not known."""
        return self.lower <= 1.0 <= self.upper or 1.0 / self.null <= self.value <= self.null


def figure(name: str) -> Measure:
    """Returns a measure: one of the figures of a run."""
    return lambda run: float(str(run.figures.get(name, 0.0)))


def wait_of(size: str) -> Measure:
    """Returns a measure: the mean wait of the jobs of one class of GPUs."""
    return lambda run: run.wait_by_gpus.get(size, 0.0) / max(1, run.jobs_by_gpus.get(size, 0))


def better_plain(lines: Iterable[Line]) -> Line | None:
    """Returns the row of plain Slurm, or of its better topology plugin where both were played."""
    plain = [line for line in lines if line.policy in PLAIN_SLURM]
    return min(plain, key=lambda line: line.mean("avg_jct_s") or 0.0, default=None)


def ratio(ours: Line, other: Line, measure: Measure) -> Ratio:
    """Compares two rows by their pairs."""
    logs, traces = _paired(ours, other, measure)
    if len(logs) < 2:
        return Ratio(float(np.exp(logs.sum())), 0.0, inf, inf, len(logs))
    lower, upper = np.exp(np.percentile(resampled(logs, traces), (2.5, 97.5)))
    nulls = np.abs(resampled(_beside_itself(other, [measure])))
    null = float(np.exp(np.percentile(nulls, 95.0))) if nulls.size else 1.0
    return Ratio(float(np.exp(logs.mean())), float(lower), float(upper), null, len(logs))


def largest_by_chance(plain: Line, measures: Sequence[Measure]) -> float:
    """Returns the factor that the largest of these ratios of plain Slurm to itself exceeds in one of 20 cases."""
    means = resampled(_beside_itself(plain, measures))
    return float(np.exp(np.percentile(means.max(axis=1), 95.0))) if means.size else 1.0


def resampled(logs: Floats, traces: Sequence[Hashable] = ()) -> Floats:
    """Returns means of logarithms, one for each draw of as many traces; of single pairs if there is only one."""
    names = list(traces) if len(set(traces)) > 1 else list(range(len(logs)))
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    of = np.array([places[name] for name in names], np.int64)
    sums = np.zeros((len(places), *logs.shape[1:]))
    np.add.at(sums, of, logs)
    counts = np.bincount(of, minlength=len(places))
    drawn = np.random.default_rng(1).integers(0, max(1, len(places)), (RESAMPLES if places else 0, len(places)))
    weights = counts[drawn].sum(axis=1)
    means: Floats = sums[drawn].sum(axis=1) / (weights[:, None] if logs.ndim > 1 else weights)
    return means


def _paired(ours: Line, other: Line, measure: Measure) -> tuple[Floats, list[Hashable]]:
    theirs = {(run.trace, run.seed): run for run in other.runs}
    both = [(run, theirs[run.trace, run.seed]) for run in ours.runs if (run.trace, run.seed) in theirs]
    return np.array([_log(measure, one, peer) for one, peer in both]), [one.trace for one, _ in both]


def _beside_itself(line: Line, measures: Sequence[Measure]) -> Floats:
    """Compares each run of a row with the next draw of its trace, the last one with the first.

    In the mean over a trace these logarithms are 0, so they are drawn one by one.
    """
    draws: dict[str, list[Summary]] = {}
    for run in line.runs:
        draws.setdefault(run.trace, []).append(run)
    both = [(runs[at - 1], run) for runs in draws.values() if len(runs) > 1 for at, run in enumerate(runs)]
    logs = np.array([[_log(measure, *pair) for measure in measures] for pair in both])
    return logs.reshape(len(both), len(measures))


def _log(measure: Measure, ours: Summary, other: Summary) -> float:
    return float(np.log(max(LEAST_S, measure(ours)) / max(LEAST_S, measure(other))))
