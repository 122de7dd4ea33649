# SPDX-License-Identifier: Apache-2.0
"""The summary of a run: small, plain, and enough for every output."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from policy.simulate.result import SimulationOutcome

_JOBS = 30
"""The fewest jobs of a class of GPUs, except the last class: the mean wait of fewer jobs is chance."""

_POINTS = 200
"""The number of points of a curve; more would not be visible."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One run, in values that JSON can hold."""

    policy: str
    seed: int
    figures: Mapping[str, object]
    jct_s: Sequence[float] = ()
    """Quantiles of the job completion time, from the least to the greatest in equal steps."""
    wait_s: Sequence[float] = ()
    """The same for the time from submission to the first start."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """Seconds of waiting by reason."""
    wait_by_gpus: Mapping[str, float] = field(default_factory=dict)
    """Seconds of waiting of all jobs, by classes of their GPUs such as `9 to 16`; small classes are joined."""
    jobs_by_gpus: Mapping[str, int] = field(default_factory=dict)
    """Jobs of each of these classes."""
    trace: str = ""
    """The trace, where each is played by itself."""

    def row(self) -> dict[str, object]:
        """Returns one object of `--json`."""
        trace = {"trace": self.trace} if self.trace else {}
        return {"policy": self.policy, "seed": self.seed, **trace, **self.figures}


@dataclass(frozen=True, slots=True)
class Line:
    """Runs that differ only in their seed."""

    policy: str
    runs: tuple[Summary, ...]

    def mean(self, figure: str) -> float | None:
        """Returns the mean over the seeds; None if the simulator does not have this figure."""
        values = [value for run in self.runs if isinstance(value := run.figures.get(figure), int | float)]
        return fmean(values) if values else None


def lines(rows: Iterable[Summary]) -> list[Line]:
    """Groups runs that differ only in their seed."""
    groups: dict[str, list[Summary]] = {}
    for one in rows:
        groups.setdefault(one.policy, []).append(one)
    return [Line(policy, tuple(runs)) for policy, runs in groups.items()]


def summarise(outcome: SimulationOutcome, policy: str, seed: int, trace: str = "") -> Summary:
    """Summarises a run; `policy` is the name that was requested."""
    figures = outcome.figures()
    figures.pop("policy")
    jct = [outcome.ends[job.id] - job.submit for job in outcome.jobs]
    wait = [outcome.starts[job.id] - job.submit for job in outcome.jobs]
    by_gpus = _by_gpus(outcome)
    return Summary(
        policy=policy,
        seed=seed,
        figures=figures,
        jct_s=_quantiles(jct),
        wait_s=_quantiles(wait),
        waits=_waits(outcome.extra),
        wait_by_gpus={name: sum(some) for name, some in by_gpus.items()},
        jobs_by_gpus={name: len(some) for name, some in by_gpus.items()},
        trace=trace,
    )


def _by_gpus(outcome: SimulationOutcome) -> dict[str, list[float]]:
    """Returns the waits by classes of GPUs that double, the smallest first; one of few jobs is joined to the next."""
    classes: dict[int, list[float]] = {}
    for job in outcome.jobs:
        classes.setdefault((job.gpus - 1).bit_length(), []).append(outcome.starts[job.id] - job.submit)
    found: dict[str, list[float]] = {}
    least, waits = 0, list[float]()
    for power in sorted(classes):
        least, waits = least if waits else 2**power // 2 + 1, waits + classes[power]
        if len(waits) >= _JOBS or power == max(classes):
            found[f"{least} to {2**power}" if least < 2**power else str(least)] = waits
            waits = []
    return found


def _quantiles(values: Sequence[float]) -> list[float]:
    found: list[float] = np.quantile(values, np.linspace(0, 1, _POINTS + 1)).tolist()
    return found


def _waits(extra: Mapping[str, Any]) -> dict[str, float]:
    """Returns seconds by reason over jobs of all sizes."""
    together: dict[str, float] = {}
    for reasons in extra.get("waits", {}).get("seconds", {}).values():
        for reason, seconds in reasons.items():
            together[reason] = together.get(reason, 0.0) + seconds
    return together
