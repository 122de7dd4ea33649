"""The summary of a run: small, plain, and enough for every output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from policy.simulate.result import SimulationOutcome

_POINTS = 200
"""Points of a curve; more would not be visible."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One run, in values that JSON can hold."""

    policy: str
    seed: int
    swept: Mapping[str, str]
    figures: Mapping[str, object]
    jct_s: Sequence[float] = ()
    """Quantiles of the job completion time, from the least to the greatest in equal steps."""
    wait_s: Sequence[float] = ()
    """The same for the time from submission to the first start."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """Seconds of waiting by reason."""
    wait_by_gpus: Mapping[str, float] = field(default_factory=dict)
    """Seconds of waiting of all jobs, by classes of their GPUs such as `9 to 16`."""

    def row(self) -> dict[str, object]:
        """Returns one object of `--json`."""
        return {"policy": self.policy, "seed": self.seed, **self.swept, **self.figures}


def summarise(outcome: SimulationOutcome, policy: str, seed: int, swept: Mapping[str, str]) -> Summary:
    """Summarises a run; `policy` is the name that was requested."""
    figures = outcome.figures()
    figures.pop("policy")
    jct = [outcome.ends[job.id] - job.submit for job in outcome.jobs]
    wait = [outcome.starts[job.id] - job.submit for job in outcome.jobs]
    return Summary(
        policy=policy,
        seed=seed,
        swept=dict(swept),
        figures=figures,
        jct_s=_quantiles(jct),
        wait_s=_quantiles(wait),
        waits=_waits(outcome.extra),
        wait_by_gpus=_by_gpus(outcome),
    )


def _by_gpus(outcome: SimulationOutcome) -> dict[str, float]:
    """Returns seconds of waiting by classes of GPUs that double, the smallest first."""
    found: dict[int, float] = {}
    for job in outcome.jobs:
        power = (job.gpus - 1).bit_length()
        found[power] = found.get(power, 0.0) + outcome.starts[job.id] - job.submit
    return {_gpu_class(power): found[power] for power in sorted(found)}


def _gpu_class(power: int) -> str:
    low, high = 2**power // 2 + 1, 2**power
    return f"{low} to {high}" if low < high else str(high)


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
