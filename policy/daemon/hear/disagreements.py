# SPDX-License-Identifier: Apache-2.0
"""Logs and counts the jobs that run on another part of a GPU than Berth gave them, and finds those held for that.

Their nodes should hold such jobs (prolog_epilog/given.py). A node's message can be lost, so Slurm's record counts.
"""

import os

from policy.formats.plan_fields import DISAGREES, NODES
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, Reading
from policy.site import log
from policy.slurm import disagreement

_RUNS = frozenset({"RUNNING", "SUSPENDED", "STOPPED"})


class Disagreements:
    """The jobs of the last reading that run, and those of them that were logged."""

    def __init__(self, skipped: frozenset[str]) -> None:
        self._skipped = skipped
        self._trusted = frozenset({0, os.geteuid()})
        self._running = Selection(lambda job: job.state in _RUNS and job.wants_gpus)
        self._held = Selection(lambda job: not job.priority and job.state == "PENDING" and job.plan)
        self._seen: dict[int, JobFacts] = {}
        self._named: set[tuple[int, int | None]] = set()
        self._count = 0

    @property
    def counts(self) -> dict[str, int]:
        """Returns the count for `berth status`."""
        return {"disagreements": self._count} if self._count else {}

    def look(self, reading: Reading) -> list[tuple[int, str]]:
        """Logs each such run once; returns the held jobs whose users have not been told why, with their nodes."""
        seen = self._running.of(reading.jobs)
        self._named = {run for run in self._named if run[0] in seen and seen[run[0]].start == run[1]}
        for job in seen.values():
            # A record that did not change is the same object.
            if job is self._seen.get(job.id) or (job.id, job.start) in self._named:
                continue
            if why := disagreement.of_running(job, self._skipped, self._trusted):
                self._named.add((job.id, job.start))
                self._count += 1
                where = ",".join(job.nodes)
                log.error(
                    f"JobId={job.id} UserId={job.user} NodeList={where} runs against what Berth planned: {why}", 631
                )
        self._seen = seen
        held = self._held.of(reading.jobs).values()
        return [(job.id, ",".join(job.known.get(NODES, ()))) for job in held if self._has_to_be_told(job)]

    def _has_to_be_told(self, job: JobFacts) -> bool:
        return DISAGREES not in job.known and bool(disagreement.of_running(job, self._skipped, self._trusted))
