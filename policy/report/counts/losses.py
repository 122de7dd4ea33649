"""Counts the GPU time after the best loss, of runs that report losses: the most that early stopping could save."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from policy.report.rows import JobRun


@dataclass(slots=True)
class _After:
    runs: int = 0
    gpu_s: float = 0.0
    after_s: float = 0.0


class LostRuns:
    """Counts finished runs that report losses."""

    def __init__(self) -> None:
        self._ends: defaultdict[str, _After] = defaultdict(_After)

    def add(self, run: JobRun, status: str) -> None:
        """Adds a finished run."""
        best = _best_at(run)
        if best is None or run.end is None:
            return
        one = self._ends[status]
        one.runs += 1
        one.gpu_s += run.gpu_s
        one.after_s += min(run.gpus * (run.end - best), run.gpu_s)

    def figures(self) -> dict[str, Any]:
        """Returns runs and GPU hours by how the runs ended."""
        return {
            status: {
                "runs": one.runs,
                "gpu_hours": round(one.gpu_s / 3_600, 2),
                "after_best_gpu_hours": round(one.after_s / 3_600, 2),
            }
            for status, one in sorted(self._ends.items())
        }


def _best_at(run: JobRun) -> float | None:
    """Returns the time of the run's best loss, None where it is outside the run.

    A requeued job may still report the best loss of its run before.
    """
    said = run.said.get("best_at", "")
    if not (said.isascii() and said.isdigit()) or run.start is None or run.end is None:
        return None
    best = float(said)
    return best if run.start <= best <= run.end else None
