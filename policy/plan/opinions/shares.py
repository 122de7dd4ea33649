# SPDX-License-Identifier: Apache-2.0
"""Makes packed jobs ask for their part of their GPUs while they may take it, else for whole GPUs.

Slurm counts percent only. It knows neither whose jobs may share a GPU nor the GPU's memory, so it would start the job.
"""

from policy.formats.errors import BadCompany, NotNow
from policy.placement.base import Policy
from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Move, Release
from policy.plan.ledger.places import berth_of
from policy.plan.opinions.opinion import Opinion, Reason
from policy.request.demand import Demand


class Shares(Opinion):
    """Changes the pins of packed jobs that keep their places."""

    about = Matter.SHARES

    def keep(self, entry: Waiting, demand: Demand, start: float | None, *, rests: bool = False) -> Move | None:
        book = self.book
        if demand.share is None or not entry.nodes:
            return None
        if entry.share.packed == (start == 0.0 and book.takes_part(demand, entry.nodes, entry.mask)):
            return None
        beside = "" if entry.share.packed or start != 0.0 else book.company(demand, entry.nodes, entry.mask)
        berth = berth_of(book.cluster, demand, entry.nodes, entry.mask, f"where it was pinned before{beside}")
        if entry.share.packed:
            return Move(entry.job, berth, start or book.at, "its part of them is not free any more")
        if not self.ledger.may_change:
            return None
        return Move(entry.job, berth, 0.0, "its part of them is free", adopted=entry.adopted)

    def end(self) -> None:
        self.ledger.changes.sort(key=lambda one: not (isinstance(one, Release) and one.job.share > 0))

    @staticmethod
    def reason(entry: Waiting, planned: Book, running: Book, policy: Policy) -> Reason | None:
        demand, _ = entry.demand_at(planned.at)
        if demand.share is None or not demand.share.picky:
            return None
        try:
            running.now(demand, policy)
        except BadCompany as company:
            left = max(0, round(entry.share.until - planned.at))
            return Reason("capacity", f"{company}; it waits {left} s more for better company", 511)
        except NotNow:
            pass
        return None
