# SPDX-License-Identifier: Apache-2.0
"""Lets a job wait rather than start now on slow GPUs, or on more nodes, if it is expected to end sooner on others.

The expected times use time limits; most jobs end before, so the real wait is shorter. A job never waits longer than the
slow GPUs, or the distance, would cost it over its whole time limit. Where it was promised a start
(policy/plan/jobs/promise.py), it waits beyond that no longer than they would cost it over its expected run time.
"""

import numpy as np

from policy.placement.base import Berth, Policy
from policy.placement.speed import ALIKE_IN_A_CROWD, node_scores
from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.ledger.book import Book
from policy.plan.ledger.later_places import ends_sooner, expected_end, faster_than
from policy.plan.ledger.places import berth_of
from policy.plan.opinions.opinion import HeldBack, Opinion, Reason
from policy.request.demand import Demand


class EndsSooner(Opinion):
    """Refuses free places on which a job would end later than elsewhere."""

    about = Matter.SPEED

    memory: dict[int, float]
    """By job, the time at which it could first have started."""

    def hold(self, entry: Waiting, demand: Demand, berth: Berth | None, start: float | None) -> HeldBack | None:
        if berth is None:
            return None
        entry.last.waits_for_fewer = self._waits_for_fewer(entry, demand, berth, start)
        refuses = entry.last.waits_for_fewer or self._refuses(entry, demand.on(len(berth.nodes)), berth, start)
        return HeldBack() if refuses else None

    def _waits_for_fewer(self, entry: Waiting, demand: Demand, berth: Berth, start: float | None) -> bool:
        """Tells whether a job is expected to end sooner on the fewer nodes that it is pinned to."""
        if not (demand.splits and start and entry.nodes) or len(berth.nodes) <= len(entry.nodes):
            return False
        cost = self._cost_of_pin(entry, demand)
        if ends_sooner(demand, berth, start, cost, self.ledger.at):
            return False
        return self._waits_at_most(entry, demand, berth.cost - cost)

    def _refuses(self, entry: Waiting, demand: Demand, berth: Berth, start: float | None) -> bool:
        """Tells whether a job is expected to end sooner on faster GPUs, elsewhere or where it is pinned."""
        book, policy, at = self.book, self.ledger.policy, self.ledger.at
        if not policy.weighs_scores or (demand.n == 1 and policy.worthwhile(demand, book.fleet)[berth.nodes[0]]):
            return False
        end, cost = expected_end(demand, 0.0, berth.cost, at), berth.cost
        faster = faster_than(berth, book, demand, policy)
        if faster is not None and expected_end(demand, faster.start, faster.berth.cost, at) < end:
            cost = faster.berth.cost
        elif start is not None and self._is_faster(entry, demand, berth):
            pinned = self._cost_of_pin(entry, demand)
            cost = pinned if expected_end(demand, start, pinned, at) < end else cost
        return self._waits_at_most(entry, demand, berth.cost - cost)

    def _waits_at_most(self, entry: Waiting, demand: Demand, more: float) -> bool:
        """Tells whether a job may still refuse a free place that stretches its run time by so much `more`.

        It waits no longer than that costs over its whole time limit, since it first refused a place, and no longer
        after the start that it was promised than that costs over its expected run time.
        """
        at, promise = self.ledger.at, entry.last.promise
        until = self.memory.setdefault(entry.job.id, at) + more * demand.limit
        entry.last.refuses_until = until if promise is None else min(until, promise.latest + more * promise.run)
        return at < entry.last.refuses_until

    def _is_faster(self, entry: Waiting, demand: Demand, berth: Berth) -> bool:
        """Tells whether the GPUs that a job is pinned to are clearly faster than those of `berth`."""
        there, here = (
            float(node_scores(self.book.fleet, demand.app_class, np.array(nodes), mask).max())
            for nodes, mask in ((entry.nodes, entry.mask), (berth.nodes, berth.mask))
        )
        return there < here * (1 - ALIKE_IN_A_CROWD)

    def _cost_of_pin(self, entry: Waiting, demand: Demand) -> float:
        return berth_of(self.book.cluster, demand, entry.nodes, entry.mask).cost

    @staticmethod
    def reason(entry: Waiting, planned: Book, running: Book, policy: Policy) -> Reason | None:
        left = max(0, round(entry.last.refuses_until - planned.at))
        if left and entry.last.waits_for_fewer:
            more = f"GPUs are free on more nodes; it waits {left} s more at most for fewer nodes, to end sooner"
            return Reason("locality", more, 512)
        slow = f"the GPUs that are free are slow for it; it waits {left} s more at most for faster ones"
        return Reason("node", slow, 510) if left else None
