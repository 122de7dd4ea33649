"""Lets a job wait rather than start now on slow GPUs, if it is expected to end sooner on others.

The expected times use time limits; most jobs end before, so the real wait is shorter. A job never waits longer than the
slow GPUs would cost it over its whole time limit.
"""

import numpy as np

from policy.placement.base import Berth, Policy
from policy.placement.speed import ALIKE_IN_A_CROWD, node_scores
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.book import Book
from policy.plan.ledger.later_places import expected_end, faster_than
from policy.plan.ledger.pinnable import berth_of
from policy.plan.opinions.opinion import HeldBack, Opinion, PassState, Reason
from policy.request.demand import Demand


class EndsSooner(Opinion):
    """The part that is common to jobs which wait to end sooner: for how long they may."""

    memory: dict[int, float]
    """By job, the time at which it could first have started."""

    def waits_at_most(self, entry: Waiting, seconds: float) -> HeldBack | None:
        """Returns the decision to wait, while a job may still wait for so long since it first refused a free place."""
        at = self.ledger.at
        entry.last.refuses_until = self.memory.setdefault(entry.job.id, at) + seconds
        return HeldBack() if at < entry.last.refuses_until else None

    @staticmethod
    def left(entry: Waiting, at: float) -> int:
        """Returns the seconds for which a job waits at most."""
        return max(0, round(entry.last.refuses_until - at))

    def cost_of_pin(self, entry: Waiting, demand: Demand) -> float:
        """Returns the cost of the place that a job is pinned to."""
        return berth_of(self.book.cluster, demand, entry.nodes, entry.mask).cost


class SlowGpus(EndsSooner):
    """Refuses places whose GPUs are slow for a job."""

    def begin(self, state: PassState) -> bool:
        """Reads whether the policy weighs how fast GPUs are."""
        return super().begin(state) and state.ledger.policy.weighs_scores

    def hold(self, entry: Waiting, demand: Demand, berth: Berth | None, start: float | None) -> HeldBack | None:
        """Refuses a place if the job is expected to end sooner on faster GPUs, elsewhere or where it is pinned."""
        if berth is None:
            return None
        demand = demand.on(len(berth.nodes))
        book, policy = self.book, self.ledger.policy
        if demand.n == 1 and policy.worthwhile(demand, book.fleet)[berth.nodes[0]]:
            return None
        at = self.ledger.at
        end, cost = expected_end(demand, 0.0, berth.cost, at), berth.cost
        faster = faster_than(berth, book, demand, policy)
        if faster is not None and expected_end(demand, faster.start, faster.berth.cost, at) < end:
            cost = faster.berth.cost
        elif start is not None and self._is_faster(entry, demand, berth):
            pinned = self.cost_of_pin(entry, demand)
            cost = pinned if expected_end(demand, start, pinned, at) < end else cost
        return self.waits_at_most(entry, (berth.cost - cost) * demand.limit)

    @staticmethod
    def reason(entry: Waiting, planned: Book, running: Book, policy: Policy) -> Reason | None:
        """Returns that free GPUs are slow for a job."""
        left = EndsSooner.left(entry, planned.at)
        slow = f"the GPUs that are free are slow for it; it waits {left} s more at most for faster ones"
        return Reason("node", slow, 510) if left else None

    def _is_faster(self, entry: Waiting, demand: Demand, berth: Berth) -> bool:
        """Tells whether the GPUs that a job is pinned to are clearly faster than those of `berth`."""
        fleet = self.book.fleet
        there, here = (
            float(node_scores(fleet, demand.app_class, np.array(nodes), mask).max())
            for nodes, mask in ((entry.nodes, entry.mask), (berth.nodes, berth.mask))
        )
        return there < here * (1 - ALIKE_IN_A_CROWD)
