"""Keeps an exception about one job from costing others their plan: that job is left to Slurm, logged and counted."""

import traceback
from collections.abc import Callable
from typing import TypeVar

from policy.formats.slurm_facts import JobFacts
from policy.plan.changes import Change, Release

LEFT_FOR = 600.0
"""Seconds for which a job whose planning failed is left alone; a defect that depends on the moment may be over then."""

T = TypeVar("T")


class Isolation:
    """Runs the steps of a pass; what one of them throws ends that step alone."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """`tell` gets one line for each fault."""
        self._tell = tell or (lambda _: None)
        self._left: dict[int, float] = {}
        self._failed: dict[int, JobFacts] = {}
        self._told: dict[str, float] = {}
        self.count = 0
        """Exceptions so far."""

    @property
    def told(self) -> dict[str, str]:
        """For `berth status`."""
        return {"plan_faults": str(self.count)} if self.count else {}

    def begin(self, at: float) -> None:
        """A pass begins."""
        self._failed.clear()
        self._left = {job_id: until for job_id, until in self._left.items() if until > at}
        self._told = {text: until for text, until in self._told.items() if until > at}

    def leaves(self, job: JobFacts) -> bool:
        """Whether a job is left to Slurm for a while."""
        return job.id in self._left

    def job(self, job: JobFacts, at: float, step: Callable[..., T], *arguments: object) -> T | None:
        """One step about one job; None where it fails."""
        if job.id in self._left:
            return None
        try:
            return step(*arguments)
        except Exception as fault:  # noqa: BLE001 - whatever it is, the other jobs are not to blame
            self.count += 1
            self._left[job.id], self._failed[job.id] = at + LEFT_FOR, job
            self._tell(f"JobId={job.id} is left to Slurm for {LEFT_FOR:.0f} s, planning it failed: {_words(fault)}")
            return None

    def group(self, at: float, step: Callable[..., T], *arguments: object) -> T | None:
        """One step about many jobs, without which the others still make sense; None where it fails."""
        try:
            return step(*arguments)
        except Exception as fault:  # noqa: BLE001 - as above
            self.count += 1
            text = f"a step of the plan is left out, it failed: {_words(fault)}"
            if text not in self._told:
                self._told[text] = at + LEFT_FOR
                self._tell(text)
            return None

    def clear(self, changes: list[Change]) -> None:
        """Drop what was planned of jobs that failed since the pass began, and give their pins back."""
        if not self._failed:
            return
        changes[:] = [change for change in changes if change.job.id not in self._failed]
        changes += [Release(job, "planning it failed") for job in self._failed.values() if job.gpus is not None]
        self._failed.clear()


def _words(fault: Exception) -> str:
    """What was thrown, and where, in one line."""
    frames = traceback.extract_tb(fault.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return " ".join(f"{type(fault).__name__}: {fault}{place}".split())[:300]
