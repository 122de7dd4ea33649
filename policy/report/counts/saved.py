# SPDX-License-Identifier: Apache-2.0
"""Counts what tries, pre-flights and moves saved, from the jobs' segments alone."""

from collections import Counter
from typing import Any

from policy.formats.job_plan import JobPlan
from policy.report.rows import JobRun
from policy.retry import history
from policy.retry.classes import CLASSES
from policy.retry.decision import Limits

KINDS = ("tries_passed", "tries_not_made", "preflights", "moves")
_REMEMBERED_S = 7 * 86_400.0


class Saved:
    """Counts finished runs that requested or used these features."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._gpu_s: Counter[str] = Counter()
        self._preflights: dict[str, tuple[float, float]] = {}
        """The seconds after which each pre-flight failed, 0 if it did not, and its end."""
        self._moved: set[tuple[str, str]] = set()

    def add(self, run: JobRun, status: str) -> None:
        """Adds a finished run, also one on parts of GPUs, because a pre-flight may be a guest."""
        said = run.said
        if said.get("preflight") == "run":
            self._preflights[run.id] = run.ran_s if status == "failed" else 0.0, run.end or 0.0
        elif "preflight" in said:
            self._preflight(run, said["preflight"])
        if "f.retry" in said and run.start is not None:
            self._tries(run, status)
        if "f.movable" in said:
            self._asked["moves"] += 1
        for moment in filter(None, said.get("moves", "").split(",")):
            # Each later run of the job lists the move again.
            if (run.id, moment) not in self._moved:
                self._moved.add((run.id, moment))
                self._note("moves", 0.0)

    def _preflight(self, run: JobRun, before: str) -> None:
        """Counts a job that its pre-flight ended; without it, the job would have failed as late, on all of its GPUs."""
        self._asked["preflights"] += 1
        seconds, _ = self._preflights.get(before, (0.0, 0.0))
        if seconds and run.start is None:
            self._note("preflights", max(0, run.gpus - 1) * seconds)

    def _tries(self, run: JobRun, status: str) -> None:
        self._asked["tries_passed"] += 1
        self._asked["tries_not_made"] += 1
        failure = CLASSES.get(run.said.get("fail", ""))
        if status == "passed" and "retry_text" in run.said:
            self._note("tries_passed", run.gpu_s)
        elif status == "failed" and failure is not None and not failure.transient:
            retry = run.said["f.retry"]
            tries = int(retry) + 1 if retry.isascii() and retry.isdigit() else Limits().tries
            left = tries - len(history.trials(JobPlan(run.said)))
            if left > 0:
                self._note("tries_not_made", left * run.gpu_s)

    def _note(self, kind: str, gpu_s: float) -> None:
        self._runs[kind] += 1
        self._gpu_s[kind] += round(gpu_s)

    def forget(self, before: float) -> None:
        """Drops pre-flights and moves that ended a week before this moment; no later run refers to them."""
        since = before - _REMEMBERED_S
        self._preflights = {job: one for job, one in self._preflights.items() if one[1] > since}
        self._moved = {one for one in self._moved if not one[1].isdigit() or float(one[1]) > since}

    def figures(self) -> dict[str, Any]:
        """Returns by kind: runs of jobs that requested the feature, runs that profited, and GPU hours."""
        return {
            kind: {
                "asked": self._asked[kind],
                "runs": self._runs[kind],
                "gpu_hours": round(self._gpu_s[kind] / 3_600, 2),
            }
            for kind in KINDS
        }
