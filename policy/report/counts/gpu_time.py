# SPDX-License-Identifier: Apache-2.0
"""The GPU time of runs that are counted together, and how far chance alone makes it differ from week to week."""

from dataclasses import dataclass
from math import sqrt
from typing import Any


@dataclass(slots=True)
class GpuTime:
    """Runs and their GPU time. Their number and their sizes are drawn anew each week, so few long runs say little."""

    runs: int = 0
    gpu_s: float = 0.0
    squares: float = 0.0

    def add(self, gpu_s: float) -> None:
        """Adds a run."""
        self.runs += 1
        self.gpu_s += gpu_s
        self.squares += gpu_s**2

    def figures(self) -> dict[str, Any]:
        """Returns the runs, the GPU hours, and their standard deviation, as of a compound Poisson process."""
        spread = round(sqrt(self.squares) / 3_600, 2)
        return {"runs": self.runs, "gpu_hours": round(self.gpu_s / 3_600, 2), "spread_hours": spread}
