# SPDX-License-Identifier: Apache-2.0
"""Leaves room for the jobs whose nodes Slurm chooses: those without GPUs, and those that Berth has left to Slurm."""

from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.ledger.claims import claim_on
from policy.plan.opinions.opinion import Opinion, PassState

MOST_EXPECTED = 40
"""Jobs without GPUs, the first in line, for which room is left; those behind them start much later."""


class WithoutGpus(Opinion):
    """Claims room for a job where Slurm's backfill plans to start it; without such a plan, where it probably will.

    Slurm starts no job behind it there that would end later: such a job is to wait elsewhere.
    """

    about = Matter.WITHOUT_GPUS

    def begin(self, state: PassState) -> bool:
        self._expected = 0
        return super().begin(state)

    def owns(self, entry: Waiting) -> bool:
        return not entry.job.wants_gpus

    def plan(self, entry: Waiting) -> None:
        if not entry.may_start_at(self.ledger.at):
            return
        found = self._planned(entry) if entry.job.planned else self._expects(entry)
        if found is not None:
            entry.last.place, entry.last.start = found
            at = entry.last.start or self.ledger.at
            self.ledger.claim(claim_on(self.book.fleet, entry.demand, entry.last.place, 0, at))

    def _planned(self, entry: Waiting) -> tuple[tuple[int, ...], float]:
        """Returns where and when Slurm plans to start a job."""
        start, index = entry.job.start or 0, self.book.fleet.index
        nodes = tuple(index[name] for name in entry.job.planned if name in index)
        return nodes, float(start) if start > self.ledger.at else 0.0

    def _expects(self, entry: Waiting) -> tuple[tuple[int, ...], float] | None:
        self._expected += 1
        return self.book.soonest_without_gpus(entry.demand) if self._expected <= MOST_EXPECTED else None
