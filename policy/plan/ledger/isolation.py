# SPDX-License-Identifier: Apache-2.0
"""Isolates faults: an exception about one job leaves that job to Slurm, and the plan of all others goes on.

Each exception is logged and counted.
"""

import traceback
from collections.abc import Callable
from typing import TypeVar

from policy.formats.slurm_facts import JobFacts

LEFT_FOR = 600.0
"""Seconds for which a job whose planning failed is left to Slurm; then the cause of the fault may be over."""

T = TypeVar("T")


class Isolation:
    """Runs the steps of a pass; an exception ends only the step that raised it."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """`tell` gets one line per fault."""
        self._tell = tell or (lambda _: None)
        self._left: dict[int, float] = {}
        self._failed: dict[int, JobFacts] = {}
        self._told: dict[str, float] = {}
        self.count = 0
        """Number of exceptions so far."""

    @property
    def counts(self) -> dict[str, int]:
        """Returns the count of faults for `berth status`; empty if there were none."""
        return {"plan_faults": self.count} if self.count else {}

    def begin(self, at: float) -> None:
        """Begins a pass: forgets the failures of the last one, and jobs and lines whose time is over."""
        self._failed.clear()
        self._left = {job_id: until for job_id, until in self._left.items() if until > at}
        self._told = {text: until for text, until in self._told.items() if until > at}

    def leaves(self, job: JobFacts) -> bool:
        """Tells whether a job is left to Slurm for a while."""
        return job.id in self._left

    @property
    def leaves_any(self) -> bool:
        """Tells whether any job is left to Slurm for a while."""
        return bool(self._left)

    def job(self, job: JobFacts, at: float, step: Callable[..., T], *arguments: object) -> T | None:
        """Runs a step about one job; returns None if it fails, or if the job is left to Slurm."""
        return None if job.id in self._left else self.once(job, at, step, *arguments)

    def once(self, job: JobFacts, at: float, step: Callable[..., T], *arguments: object) -> T | None:
        """Runs a step about one job, also one that is left to Slurm; returns None if it fails."""
        try:
            return step(*arguments)
        except Exception as fault:  # noqa: BLE001 - the other jobs must be planned all the same
            self.count += 1
            self._left[job.id], self._failed[job.id] = at + LEFT_FOR, job
            self._tell(f"JobId={job.id} is left to Slurm for {LEFT_FOR:.0f} s, planning it failed: {_words(fault)}")
            return None

    def group(self, at: float, step: Callable[..., T], *arguments: object) -> T | None:
        """Runs a step about many jobs that the other steps can do without; returns None if it fails."""
        try:
            return step(*arguments)
        except Exception as fault:  # noqa: BLE001 - as above
            self._note(at, f"a step of the plan is left out, it failed: {_words(fault)}")
            return None

    def node(self, name: str, at: float, step: Callable[..., object], *arguments: object) -> bool:
        """Runs a step about one node and the jobs on it; returns whether it went well."""
        try:
            step(*arguments)
        except Exception as fault:  # noqa: BLE001 - as above
            self._note(at, f"NodeList={name} counts as down, what runs there is not understood: {_words(fault)}")
            return False
        return True

    def _note(self, at: float, text: str) -> None:
        self.count += 1
        if text not in self._told:
            self._told[text] = at + LEFT_FOR
            self._tell(text)

    def failed(self) -> dict[int, JobFacts]:
        """Returns the jobs that failed since the pass began, and forgets them."""
        failed, self._failed = self._failed, {}
        return failed


def _words(fault: Exception) -> str:
    """Describes an exception and its place in the code in one line."""
    frames = traceback.extract_tb(fault.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return " ".join(f"{type(fault).__name__}: {fault}{place}".split())[:300]
