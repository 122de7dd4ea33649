# SPDX-License-Identifier: Apache-2.0
"""Leaves room for the jobs without GPUs that are first in line: Slurm chooses their nodes, but they take CPUs."""

from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.ledger.claims import claim_on
from policy.plan.opinions.opinion import Opinion, PassState

MOST_EXPECTED = 40
"""Jobs without GPUs, the first in line, for which room is left; those behind them start much later."""


class WithoutGpus(Opinion):
    """Claims room for jobs without GPUs on the nodes where Slurm will probably start them."""

    about = Matter.WITHOUT_GPUS

    def begin(self, state: PassState) -> bool:
        self._expected = 0
        return super().begin(state)

    def owns(self, entry: Waiting) -> bool:
        return not entry.job.wants_gpus

    def plan(self, entry: Waiting) -> None:
        if not entry.may_start_at(self.ledger.at):
            return
        self._expected += 1
        found = self.book.soonest_without_gpus(entry.demand) if self._expected <= MOST_EXPECTED else None
        if found is not None:
            entry.last.place, entry.last.start = found
            at = entry.last.start or self.ledger.at
            self.ledger.claim(claim_on(self.book.fleet, entry.demand, entry.last.place, 0, at))
