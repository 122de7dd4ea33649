# SPDX-License-Identifier: Apache-2.0
"""The outcome of a simulation: stretches of running, and the figures made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from policy.simulate.jobs import TraceJob

EPOCH = 1_000_000
"""The simulation's first moment, as Slurm writes times: whole seconds."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which a job ran on the same GPUs without a break."""

    job: str
    start: float
    end: float
    gpus: tuple[int, ...]
    """Global GPU numbers: node x GPUs of a node + position."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The outcome of one policy on one trace."""

    policy: str
    jobs: Sequence[TraceJob]
    """The measured jobs, which need not be all that ran."""
    starts: Mapping[str, float]
    """First start of each job."""
    ends: Mapping[str, float]
    stretches: Sequence[Stretch]
    gpus: int
    """GPUs of the cluster."""
    gpu_seconds_held: float
    """GPU seconds held by any job between the first submission and the last end of a measured one."""
    wall_s: float
    moves: int = 0
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further figures of one simulator: waits by reason, levels at start."""
    written: Sequence[tuple[float, str, Mapping[str, str]]] = ()
    """Segments in the order in which they were written: time, job and values; empty unless they were asked for."""

    def figures(self) -> dict[str, object]:
        """Returns the figures that every table shows; times are in seconds, shares between 0 and 1."""
        jct = np.array([self.ends[job.id] - job.submit for job in self.jobs])
        wait = np.array([self.starts[job.id] - job.submit for job in self.jobs])
        first = min(job.submit for job in self.jobs)
        makespan = max(self.ends[job.id] for job in self.jobs) - first
        ideal = sum(job.gpus * job.work for job in self.jobs)
        offered = self.gpus * makespan
        return {
            "policy": self.policy,
            "jobs": len(self.jobs),
            "avg_jct_s": float(jct.mean()),
            "geomean_jct_s": float(np.exp(np.log(np.maximum(jct, 1e-9)).mean())),
            "p99_jct_s": float(np.percentile(jct, 99)),
            "avg_wait_s": float(wait.mean()),
            "makespan_s": float(makespan),
            "gpu_util_allocated": self.gpu_seconds_held / offered if offered else 0.0,
            "gpu_util_useful": ideal / offered if offered else 0.0,
            "moves": self.moves,
            "wall_s": self.wall_s,
            **self.extra,
        }
