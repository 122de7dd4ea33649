# SPDX-License-Identifier: Apache-2.0
"""Step times of owners (hosts in names: jobs that may have guests), as guards report them.

Guards report a job when it is over, and by then readings do not show it any more. So owners are kept for a while.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from policy.daemon.hear.step_times import HeardStepTimes, StepWord
from policy.formats.plan_fields import TIER
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, Reading
from policy.request.tiers import GUARANTEED

REMEMBERED = 300.0
"""Seconds for which an owner is kept after its end; a guard reports all GPUs of a node within two minutes."""


class Hosts:
    """The owners that run, and those that have just ended."""

    def __init__(self, record: Path | None) -> None:
        self._steps = HeardStepTimes(record)
        self._owners = Selection(lambda job: job.nodes and job.known.get(TIER) == GUARANTEED)
        self._here: dict[int, JobFacts] = {}
        self._gone: dict[int, tuple[float, JobFacts]] = {}

    def look(self, reading: Reading) -> None:
        """Takes the owners from a reading."""
        here = self._owners.of(reading.jobs)
        for job_id in self._here.keys() - here.keys():
            self._gone[job_id] = reading.at, self._here[job_id]
        self._here = here
        self._gone = {job: one for job, one in self._gone.items() if one[0] + REMEMBERED > reading.at}
        self._steps.keep(here)

    @property
    def slow(self) -> Mapping[int, str]:
        """Returns by job number the reason why a running job is slow."""
        return self._steps.slow

    def hear(self, word: StepWord, class_of: Callable[[JobFacts], str], at: float) -> None:
        """Takes a guard's notice of an owner; ignores an owner that is not known."""
        job = self._here.get(word.job) or self._gone.get(word.job, (0.0, None))[1]
        if job is not None:
            self._steps.hear(word, job, class_of(job), at)

    def write_due(self, at: float, model_of: Callable[[str, str], str]) -> None:
        """Adds the complete measurements to the record of step times."""
        self._steps.write_due(at, model_of)
