# SPDX-License-Identifier: Apache-2.0
"""Observing: each job that Slurm starts is compared with what Berth would have chosen, and the sums are kept.

The job_submit plugin is not needed for that.
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
    """Counts since berthd's start."""

    policy: Policy
    jobs: int = 0
    better_links: int = 0
    gain_sum: float = 0.0
    _running: frozenset[int] = frozenset()

    def watch(self, book: Book, reading: Reading) -> None:
        """Look at the jobs that have started since the last reading."""
        now = {job.id: job for job in holding(reading) if job.partition not in book.fleet.skipped}
        reader = Reader(book.fleet)
        for job_id in now.keys() - self._running:
            found = beside(book, now[job_id], self.policy, reader)
            if found is not None:
                self._count(job_id, found)
        self._running = frozenset(now)

    def told(self) -> dict[str, str]:
        """For `berth status`."""
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
