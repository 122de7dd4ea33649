# SPDX-License-Identifier: Apache-2.0
"""Counts what each account and each user held, waited for and lost."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from policy.report.counts.waits import DELAY_S
from policy.report.rows import JobRun


@dataclass(slots=True)
class _Owner:
    runs: int = 0
    held_s: float = 0.0
    delays: int = 0
    delayed_s: float = 0.0
    failed_s: float = 0.0
    measured_s: float = 0.0
    busy_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "gpu_hours": round(self.held_s / 3_600, 2),
            "delays": self.delays,
            "delay_hours": round(self.delayed_s / 3_600, 2),
            "failed_gpu_hours": round(self.failed_s / 3_600, 2),
            "busy": round(self.busy_s / self.measured_s, 4) if self.measured_s else None,
        }


class Owners:
    """Sums by account and by user; the memory grows with their number, not with that of the jobs."""

    def __init__(self) -> None:
        self._by: dict[str, defaultdict[str, _Owner]] = {
            "accounts": defaultdict(_Owner),
            "users": defaultdict(_Owner),
        }

    def add(self, run: JobRun, status: str) -> None:
        """Adds a finished run that started."""
        for by, name in (("accounts", run.account), ("users", run.user)):
            owner = self._by[by][name or "unknown"]
            owner.runs += 1
            owner.held_s += run.gpu_s
            if run.wait_s >= DELAY_S:
                owner.delays += 1
                owner.delayed_s += run.wait_s
            if status == "failed":
                owner.failed_s += run.gpu_s
            if run.used is not None:
                owner.measured_s += run.gpu_s
                owner.busy_s += run.gpu_s * run.used

    def figures(self) -> dict[str, Any]:
        """Returns the figures, those that held most GPU time first."""
        return {
            by: {
                name: owner.figures()
                for name, owner in sorted(owners.items(), key=lambda item: (-item[1].held_s, item[0]))
            }
            for by, owners in self._by.items()
        }
