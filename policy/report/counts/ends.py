# SPDX-License-Identifier: Apache-2.0
"""Counts how runs ended, why they failed, and how often they were tried again.

A run's failure class is the one that berthd found at its end (`fail` in the segment). Without it, the class is guessed
from state, exit code and signal, without a log. These often tell nothing; the class then says so.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from policy.report.counts.gpu_time import GpuTime
from policy.report.counts.spread import Spread
from policy.report.rows import JobRun
from policy.report.site import SIZES, size_of
from policy.retry.classes import CLASSES
from policy.retry.classify import Facts, classify
from policy.retry.rules import Rules

STATUS = {
    "COMPLETED": "passed",
    "CANCELLED": "killed",
    "TIMEOUT": "timed out",
    "DEADLINE": "timed out",
    "PREEMPTED": "preempted",
    "REQUEUED": "requeued",
    "REVOKED": "requeued",
    "FAILED": "failed",
    "OUT_OF_MEMORY": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "LAUNCH_FAILED": "failed",
}
"""Slurm's states of finished runs, as in Philly's table 6, with time limits and preemption kept apart."""
HELD_IDLE = "ended for idle GPUs"
"""The end by a partition's rule (`[berthd] end_idle`)."""
EARLY_S = 600.0
"""Seconds; a run of several GPUs that fails sooner would mostly have failed on one GPU as well."""
_SOON_S = 3_600.0
_REMEMBERED_S = 7 * 86_400.0
"""Seconds for which a failed run is remembered as one that may be tried again; this bounds the memory."""


@dataclass(slots=True)
class _Failures:
    """The failures of one class."""

    ran: Spread = field(default_factory=Spread)
    gpu_s: float = 0.0
    told: int = 0
    """The number of runs whose class berthd found."""
    users: set[str] = field(default_factory=set)


class Ends:
    """Counts finished runs by end, failure class and tries."""

    def __init__(self, rules: Rules) -> None:
        self._runs: Counter[tuple[str, str]] = Counter()
        self._gpu_s: Counter[tuple[str, str]] = Counter()
        self._classes: defaultdict[str, _Failures] = defaultdict(_Failures)
        self._tries = _Tries()
        self._early = GpuTime()

        @cache
        def guess(state: str, code: int, signal: int) -> str:
            return classify(b"", Facts(code, signal, state), rules).failure

        self._guess = guess

    def add(self, run: JobRun) -> None:
        """Adds a finished run."""
        status, size = _status(run), size_of(run.gpus)
        self._runs[size, status] += 1
        self._gpu_s[size, status] += round(run.gpu_s)
        failure = self._failure(run, status)
        if failure:
            one = self._classes[failure]
            one.ran.add(run.ran_s)
            one.gpu_s += run.gpu_s
            one.told += "fail" in run.said
            one.users.add(run.user)
            if run.gpus > 1 and run.ran_s < EARLY_S and not CLASSES[failure].suspect:
                self._early.add((run.gpus - 1) * run.ran_s)
        self._tries.add(run, failure, passed=status == "passed")

    def forget(self, before: float) -> None:
        """Drops failures that ended more than a week before this moment; no more tries of them are expected."""
        self._tries.forget(before - _REMEMBERED_S)

    def _failure(self, run: JobRun, status: str) -> str:
        if run.said.get("fail") in CLASSES:
            return run.said["fail"]
        # A job that failed and was requeued is listed as requeued, with the exit code of its failure.
        failed = status in ("failed", "preempted") or (status == "requeued" and (run.code or run.signal))
        if not failed or run.start is None:
            return ""
        return self._guess(run.state, run.code, run.signal)

    def figures(self) -> dict[str, Any]:
        """Returns runs and GPU hours by size and status, failure classes, and tries."""
        found = [
            status for status in dict.fromkeys((*STATUS.values(), HELD_IDLE, "other")) if self._of(self._runs, status)
        ]
        return {
            "status": {
                status: {
                    "runs": self._of(self._runs, status),
                    "gpu_hours": round(self._of(self._gpu_s, status) / 3_600, 2),
                    "runs_by_size": {size: self._runs[size, status] for size in SIZES if self._runs[size, status]},
                }
                for status in found
            },
            "failures": {
                name: {
                    "runs": one.ran.count,
                    "gpu_hours": round(one.gpu_s / 3_600, 2),
                    "told_by_berthd": one.told,
                    "passes_by_itself": CLASSES[name].transient,
                    "users": len(one.users),
                    "p50_s": round(one.ran.quantile(0.5), 1),
                    "p90_s": round(one.ran.quantile(0.9), 1),
                }
                for name, one in sorted(self._classes.items(), key=lambda item: -item[1].gpu_s)
            },
            "early": self._early.figures(),
            "tries": self._tries.figures(),
        }

    @staticmethod
    def _of(counter: Counter[tuple[str, str]], status: str) -> int:
        return sum(counter[size, status] for size in SIZES)


def _status(run: JobRun) -> str:
    by_rule = run.state == "CANCELLED" and run.said.get("idle_told", "").startswith("3,")
    return HELD_IDLE if by_rule else STATUS.get(run.state, "other")


class _Tries:
    """Runs that follow a failure: of the same job, or of a new job that looks like the failed one."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[str, float]] = {}
        """By job: the class of its last run, and the time at which that ended."""
        self._alike: dict[tuple[str, ...], tuple[str, float]] = {}
        self._held: defaultdict[str, GpuTime] = defaultdict(GpuTime)

    def add(self, run: JobRun, failure: str, *, passed: bool) -> None:
        if run.start is None or run.end is None:
            return
        before = self._failed.pop(run.id, None)
        if before:
            self._held["again"].add(run.gpu_s)
            if passed:
                self._held["passed_in_the_end"].add(run.gpu_s)
            elif failure == before[0] and not CLASSES[failure].transient:
                self._held["failed_alike"].add(run.gpu_s)
        if not failure:
            return
        self._failed[run.id] = failure, run.end
        key = (run.user, run.account, str(run.gpus), run.limit, failure, str(run.code))
        other, ended = self._alike.get(key, ("", 0.0))
        if other not in ("", run.id) and 0 <= run.submit - ended < _SOON_S and not CLASSES[failure].transient:
            self._held["resubmitted_alike"].add(run.gpu_s)
        self._alike[key] = run.id, run.end

    def forget(self, before: float) -> None:
        self._failed = {job: one for job, one in self._failed.items() if one[1] > before}
        self._alike = {key: one for key, one in self._alike.items() if one[1] > before}

    def figures(self) -> dict[str, Any]:
        """Returns runs and GPU hours of each kind."""
        names = ("again", "passed_in_the_end", "failed_alike", "resubmitted_alike")
        return {name: self._held[name].figures() for name in names}
