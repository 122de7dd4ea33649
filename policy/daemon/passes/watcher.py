"""Observing: each job that Slurm starts is compared with what Berth would have chosen, and the sums are kept."""

from dataclasses import dataclass

from policy.formats.segment import OBSERVED
from policy.formats.slurm_facts import Reading
from policy.placement.base import Policy
from policy.plan.answer import message
from policy.plan.answer.observe import Comparison, compare
from policy.plan.book import Book
from policy.plan.tracker import HOLDING
from policy.plan.waiting_jobs import Reader
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
        holding = {job.id: job for job in reading.jobs if job.state in HOLDING}
        reader = Reader(book.fleet)
        for job_id in holding.keys() - self._running:
            job = holding[job_id]
            if (job.segment or {}).get("state") != OBSERVED or not job.holds or not job.nodes:
                continue
            nodes = [book.fleet.index[name] for name in job.nodes if name in book.fleet.index]
            if len(nodes) == len(job.nodes) == len(job.holds):
                demand = reader.read(job, book.cluster.at).demand
                self._count(job_id, compare(book, demand, nodes, job.holds, self.policy))
        self._running = frozenset(holding)

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
                f"JobId={job_id} observed: Slurm chose {message.place(found.got)} ({message.links(found.got)}), Berth"
                f" {message.place(found.best)} ({message.links(found.best)}); predicted {found.gain:.1%} shorter",
                645,
            )
