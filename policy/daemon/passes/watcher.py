# SPDX-License-Identifier: Apache-2.0
"""Compares each job that Slurm starts with the place that Berth would have chosen, and keeps the sums.

It does not need the job_submit plugin.
"""

from dataclasses import dataclass

from policy.formats.slurm_facts import Reading
from policy.placement.base import Policy
from policy.plan.answer import told
from policy.plan.answer.beside import Comparison, beside, holding
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.book import Book
from policy.site import log


@dataclass(slots=True)
class Watcher:
    """The counts since berthd's start."""

    policy: Policy
    jobs: int = 0
    better_links: int = 0
    gain_sum: float = 0.0
    _running: frozenset[int] = frozenset()

    def watch(self, book: Book, reading: Reading) -> None:
        """Compares the jobs that have started since the last reading."""
        now = {job.id: job for job in holding(reading) if job.partition not in book.fleet.skipped}
        reader = Reader(book.fleet)
        for job_id in now.keys() - self._running:
            found = beside(book, now[job_id], self.policy, reader)
            if found is not None:
                self._count(job_id, found)
        self._running = frozenset(now)

    def told(self) -> dict[str, str]:
        """Returns the counts for `berth status`."""
        if not self.jobs:
            return {}
        return {
            "observed": str(self.jobs),
            "observed_better_links": str(self.better_links),
            "observed_gain_percent": f"{100 * self.gain_sum / self.jobs:.1f}",
        }

    def _count(self, job_id: int, found: Comparison) -> None:
        self.jobs += 1
        self.better_links += found.better_links
        self.gain_sum += found.gain
        if found.better_links or found.gain > 0:
            log.info(
                f"JobId={job_id} observed: Slurm chose {told.place(found.got)} ({told.links(found.got)}), Berth"
                f" {told.place(found.best)} ({told.links(found.best)}); predicted {found.gain:.1%} shorter",
                645,
            )
