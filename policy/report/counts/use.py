# SPDX-License-Identifier: Apache-2.0
"""Measures how busy the GPUs were that jobs held, where Slurm has it (gres/gpuutil, by jobacct_gather and NVML)."""

from collections import defaultdict
from typing import Any

from policy.report.counts.gpu_time import GpuTime
from policy.report.counts.places import width
from policy.report.rows import JobRun
from policy.report.site import SIZES, size_of

LOW = 0.4
"""Below this part of time with busy GPUs, a job has room for a guest."""
_BY = ("size", "nodes", "status")


class Use:
    """Means of the use, weighted by GPU time."""

    def __init__(self) -> None:
        self._held: dict[str, defaultdict[str, float]] = {by: defaultdict(float) for by in _BY}
        self._busy: dict[str, defaultdict[str, float]] = {by: defaultdict(float) for by in _BY}
        self._all = self._measured = 0.0
        self._low = GpuTime()

    def add(self, run: JobRun, status: str) -> None:
        """Adds a finished run."""
        self._all += run.gpu_s
        if run.used is None:
            return
        self._measured += run.gpu_s
        if run.used < LOW:
            self._low.add(run.gpu_s)
        for by, key in (("size", size_of(run.gpus)), ("nodes", width(len(run.nodes))), ("status", status)):
            self._held[by][key] += run.gpu_s
            self._busy[by][key] += run.gpu_s * run.used

    def figures(self, capacity: int, seconds: float) -> dict[str, Any]:
        """Returns the figures; shares are parts of 1."""
        order = {"size": SIZES, "nodes": sorted(self._held["nodes"], key=lambda on: (len(on), on))}
        return {
            "gpu_hours": round(self._all / 3_600, 2),
            "held": round(self._all / (capacity * seconds), 4) if capacity and seconds else None,
            "measured_gpu_hours": round(self._measured / 3_600, 2),
            **{f"low_{key}": value for key, value in self._low.figures().items()},
            "busy": {
                by: {key: round(self._busy[by][key] / held[key], 4) for key in order.get(by, sorted(held)) if held[key]}
                for by, held in self._held.items()
            },
        }
