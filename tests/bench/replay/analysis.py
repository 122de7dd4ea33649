# SPDX-License-Identifier: Apache-2.0
"""From runs to figures: means over the measured jobs of a run, and ratios between systems that ran the same jobs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Protocol

from .outcome import Outcome, Run
from .workload import CLUSTER_GPUS

WARM_UP, DRAIN = 0.15, 0.95
"""Measured are the jobs that come between these parts of the time of arrivals: before, the cluster is filling up, and
after, the queue empties without new jobs."""

LEAST_IN_CLASS = 30
LEAST_WAIT = 1.0
"""Seconds: Slurm's own clock. Shorter waits count as this in ratios of percentiles."""


class Arrival(Protocol):
    """What comes at a time: a job, or what became of it."""

    @property
    def at(self) -> float:
        """Seconds from the start of the replay."""


def measured(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The jobs that count, by their planned arrival: the same ones for every system."""
    first, last = window(outcomes)
    return [one for one in outcomes if first <= one.at < last]


def window(jobs: Sequence[Arrival]) -> tuple[float, float]:
    """Between which arrivals a job counts, in seconds from the start of the replay."""
    span = max(one.at for one in jobs)
    return WARM_UP * span, DRAIN * span


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which this share lies, between its neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def size_class(one: Outcome) -> str:
    """`4 GPUs`, or `CPU only`."""
    return f"{one.width} GPUs" if one.width else "CPU only"


@dataclass(frozen=True, slots=True)
class Summary:
    """A run, or several of one system, in numbers."""

    jobs: int
    jct: float
    gpu_jct: float
    wait: float
    gpu_wait: float
    stretch: float
    """Mean over GPU jobs, each counted with its GPU-seconds."""
    utilisation: float
    """Part of the cluster's GPUs that jobs held, between warm-up and drain."""
    makespan: float
    """Mean over the runs: from the first submission to the last end."""
    longest: float
    weighed_wait: float
    """Mean wait of GPU jobs, each counted with its GPUs: what one job on many waits less, many on few wait more."""
    by_class: dict[str, tuple[int, float, float, float]]
    """Jobs, mean, 95th percentile and longest wait."""


def summary(runs: Sequence[Run]) -> Summary:
    """Pool the measured jobs of runs of one system."""
    counted = [one for run in runs for one in measured(run.outcomes) if one.done]
    on_gpus = [one for one in counted if one.width]
    classes: dict[str, list[float]] = {}
    for one in sorted(counted, key=lambda one: one.width):
        classes.setdefault(size_class(one), []).append(one.wait)
    return Summary(
        jobs=len(counted),
        jct=statistics.fmean(one.jct for one in counted),
        gpu_jct=statistics.fmean(one.jct for one in on_gpus),
        wait=statistics.fmean(one.wait for one in counted),
        gpu_wait=statistics.fmean(one.wait for one in on_gpus),
        stretch=statistics.fmean(
            (one.stretch for one in on_gpus), weights=[one.width * one.seconds for one in on_gpus]
        ),
        utilisation=statistics.fmean(_utilisation(run) for run in runs),
        makespan=statistics.fmean(_makespan(run) for run in runs),
        longest=max(one.wait for one in counted),
        weighed_wait=statistics.fmean((one.wait for one in on_gpus), weights=[one.width for one in on_gpus]),
        by_class={
            name: (len(waits), statistics.fmean(waits), percentile(waits, 0.95), max(waits))
            for name, waits in classes.items()
        },
    )


def handovers(run: Run) -> list[float]:
    """Seconds for which a GPU stood idle between two jobs, the second of which was waiting already."""
    on_gpu: dict[tuple[str, int], list[Outcome]] = {}
    for one in sorted(run.outcomes, key=lambda one: one.started):
        for place in product(one.nodes, one.gpus) if one.done else ():
            on_gpu.setdefault(place, []).append(one)
    return [
        later.started - earlier.ended
        for jobs in on_gpu.values()
        for earlier, later in pairwise(jobs)
        if later.asked < earlier.ended
    ]


def _makespan(run: Run) -> float:
    asked = [one.asked for one in run.outcomes if one.asked]
    return max(one.ended for one in run.outcomes) - min(asked)


def _utilisation(run: Run) -> float:
    ran = [one for one in run.outcomes if one.width and one.done]
    zero = min(one.asked - one.at for one in ran)
    begin, end = (zero + moment for moment in window(run.outcomes))
    held = sum(one.width * max(0.0, min(one.ended, end) - max(one.started, begin)) for one in ran)
    return held / (CLUSTER_GPUS * (end - begin))


@dataclass(frozen=True, slots=True)
class Ratios:
    """One system over another, of the same jobs."""

    jct: float
    gpu_jct: float
    makespan: float
    wait: float
    gpu_wait: float
    weighed_wait: float
    p95_wait: float
    """Of the worst class."""
    worst_class: str
    longest_wait: float
    longest_in_class: float
    """Of the worst class."""


def ratios(ours: Sequence[Run], theirs: Sequence[Run]) -> Ratios:
    """Compare the pooled runs of two systems over the seeds that both have."""
    seeds = {run.seed for run in ours} & {run.seed for run in theirs}
    a = summary([run for run in ours if run.seed in seeds])
    b = summary([run for run in theirs if run.seed in seeds])
    big = [name for name, values in b.by_class.items() if min(values[0], a.by_class[name][0]) >= LEAST_IN_CLASS]

    def over(name: str, column: int) -> float:
        return max(a.by_class[name][column], LEAST_WAIT) / max(b.by_class[name][column], LEAST_WAIT)

    worst = max(big, key=lambda name: over(name, 2))
    return Ratios(
        jct=a.jct / b.jct,
        gpu_jct=a.gpu_jct / b.gpu_jct,
        makespan=a.makespan / b.makespan,
        wait=a.wait / b.wait,
        gpu_wait=a.gpu_wait / b.gpu_wait,
        weighed_wait=a.weighed_wait / b.weighed_wait,
        p95_wait=over(worst, 2),
        worst_class=worst,
        longest_wait=a.longest / b.longest,
        longest_in_class=max(over(name, 3) for name in big),
    )


@dataclass(frozen=True, slots=True)
class Faults:
    """What must not happen, over all jobs of the runs, warm-up and drain too."""

    unplanned: int
    lost: int
    """Refused, cancelled, failed, timed out, or killed with their node."""
    stuck: int
    """Never started, or never ended."""
    shrunk: int
    restarted: int


def faults(runs: Iterable[Run]) -> Faults:
    """Count them."""
    every = [one for run in runs for one in run.outcomes]

    def number(bad: Callable[[Outcome], bool]) -> int:
        return sum(map(bad, every))

    return Faults(
        unplanned=number(lambda one: one.planned is False and one.started > 0),
        lost=number(lambda one: one.state not in {"completed", "pending", "running", "unknown"}),
        stuck=number(lambda one: one.state in {"pending", "running", "unknown"}),
        shrunk=number(lambda one: one.shrunk),
        restarted=number(lambda one: one.starts > 1),
    )
