# SPDX-License-Identifier: Apache-2.0
"""Keeps the other nodes of a job for it, for a while, when Slurm requeued it because one of its nodes was lost.

The job starts again on them when its own node is back, or a spare one is free at its turn. Kept are whole free nodes
alone. A job that Berth has left to Slurm, or that needs no GPU, may still start there: Slurm knows of no such keeping.

All that this needs stands in Slurm's records: a requeued job has a later submission time than its place. So a berthd
that has just started keeps them too, while the lost node is down.
"""

from policy.formats.errors import NotNow
from policy.placement.base import Policy
from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.ledger.book import Book
from policy.plan.ledger.places import free_now
from policy.plan.opinions.opinion import Opinion, PassState, Reason
from policy.request.demand import Demand

KEPT_FOR = 600
"""Seconds after the requeue for which no other job of Berth's gets them."""


class LostNode(Opinion):
    """Keeps such nodes from all jobs but the one that had them; that one keeps its pin until it can start."""

    about = Matter.REQUEUED

    memory: dict[int, float]
    """By job that has lost a node, the time until which it keeps the others."""

    def begin(self, state: PassState) -> bool:
        super().begin(state)
        self._kept: dict[int, tuple[int, ...]] = {}
        for entry in state.present.requeued:
            until, known = entry.job.submitted + KEPT_FOR, entry.job.id in self.memory
            if self.ledger.at < until and (known or self._has_lost_one(entry)) and self._whole(entry, until):
                self.memory[entry.job.id] = until
                if free := tuple(node for node in entry.nodes if self.book.is_wholly_free(node)):
                    self._kept[entry.job.id] = free
        for job_id, nodes in self._kept.items():
            self.book.keep(nodes, self.memory[job_id])
        state.keeping = frozenset(self._kept)
        return bool(self._kept)

    def _has_lost_one(self, entry: Waiting) -> bool:
        """Tells whether Slurm requeued a job because of a node: it is down, or drained where Slurm says so itself."""
        cluster = self.book.cluster
        drained = entry.job.expedited and not bool(cluster.up[list(entry.nodes)].all())
        return drained or not cluster.lost.isdisjoint(entry.nodes)

    def _whole(self, entry: Waiting, until: float) -> bool:
        """Tells whether a job has whole nodes, and could start on them by then."""
        job, demand = entry.job, entry.demand
        whole = demand.share is None and bool((self.book.fleet.size[list(entry.nodes)] == demand.k).all())
        return whole and not (demand.may_go_elsewhere or job.het) and job.may_start_at(until)

    def narrow(self, entry: Waiting, demand: Demand) -> Demand:
        if self.ledger.only is None and (kept := self._kept.get(entry.job.id)):
            self.book.open_again(kept)
            # Others of its shape found no place while these were closed.
            self.ledger.refused.pop(entry.demand_at(self.ledger.at)[1], None)
        return demand

    def keep(self, entry: Waiting, demand: Demand, start: float | None, *, rests: bool = False) -> None:
        if start != 0.0 and (kept := self._kept.get(entry.job.id)):
            self.book.keep(kept, self.memory[entry.job.id])

    @staticmethod
    def reason(entry: Waiting, planned: Book, running: Book, policy: Policy) -> Reason | None:
        kept = planned.kept_until
        left = max(0, round(max((kept.get(node, 0.0) for node in entry.nodes), default=0.0) - planned.at))
        if left and Matter.REQUEUED in entry.matters:
            own = f"a node of its place was lost; its other nodes are kept for it for {left} s more at most"
            return Reason("node", own, 519)
        if not kept:
            return None
        try:
            berth = free_now(entry.demand_at(planned.at)[0], lambda one: running.now(one, policy))
        except NotNow:
            return None
        left = max(0, round(max(kept.get(node, 0.0) for node in berth.nodes) - planned.at))
        others = f"GPUs that fit are free, and kept for {left} s more at most for a job that lost a node"
        return Reason("node", others, 519) if left else None
