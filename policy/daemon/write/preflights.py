# SPDX-License-Identifier: Apache-2.0
"""Bounds the time that a job waits for its pre-flight; Slurm does everything else about pre-flights by itself."""

from collections.abc import Callable

from policy.formats.errors import SlurmError
from policy.formats.job_plan import latest
from policy.formats.plan_fields import PREFLIGHT, PREFLIGHT_TEXT, is_preflight, preflight_of
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, Reading
from policy.site import log
from policy.slurm.by_command.command import run_command
from policy.slurm.interface import Gateway

_NOT_ITS_OWN = ("Dependency", "BeginTime")
"""Reasons of a pre-flight for which the job itself would wait as well."""


class Preflights:
    """The pre-flights that could begin and have not begun."""

    def __init__(self, gateway: Gateway, wait: float, run: Callable[..., bytes] = run_command) -> None:
        self._gateway = gateway
        self._wait = wait
        self._run = run
        self._waiting = Selection(lambda job: job.state == "PENDING" and PREFLIGHT in job.known)
        self._could_begin: dict[int, float] = {}
        """By pre-flight, the time since which it could begin, or of its last cancellation."""

    def step(self, reading: Reading) -> None:
        """Cancels the pre-flights that could have begun for longer than the site allows."""
        waiting = self._waiting.of(reading.jobs).values()
        firsts = [job for job in waiting if is_preflight(job.plan) and not job.reason.startswith(_NOT_ITS_OWN)]
        self._could_begin = {job.id: self._could_begin.get(job.id, reading.at) for job in firsts}
        for first in firsts:
            if reading.at - self._could_begin[first.id] >= self._wait:
                self._could_begin[first.id] = reading.at
                self._give_up(first, [job for job in waiting if _waits_for(job, first)])

    def _give_up(self, first: JobFacts, jobs: list[JobFacts]) -> None:
        """Cancels a pre-flight, on whose end its job waits, and tells the job's user why."""
        text = f"did not begin within {self._wait:.0f} s, so that the job goes on without it"
        try:
            # Once the pre-flight is cancelled, the job may start, and cannot be changed any more.
            for job in jobs:
                log.info(f"JobId={job.id} its pre-flight, job {first.id}, {text}", 624)
                plan = latest(self._gateway.job(job.id).admin_comment, job.plan)
                self._gateway.annotate(job.id, plan.having(PREFLIGHT_TEXT(text)))
        except SlurmError as problem:
            log.error(f"JobId={first.id}: its job was not told that it goes on without it: {problem}", 623)
        try:
            # A pre-flight that has begun since the reading runs on: its job waits for its end, as planned.
            self._run("scancel", "--state=PENDING", str(first.id))
        except SlurmError as problem:
            log.error(f"JobId={first.id} is a pre-flight that does not begin, and scancel failed: {problem}", 623)


def _waits_for(job: JobFacts, first: JobFacts) -> bool:
    """Tells whether a job waits for this pre-flight, of the same user: a job may name another user's."""
    return preflight_of(job.plan) == first.id and job.user == first.user
