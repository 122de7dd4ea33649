# SPDX-License-Identifier: Apache-2.0
"""Gives jobs back that Slurm may start sooner elsewhere: on nodes of the plain layout, or by preemption.

A job with a range of numbers of nodes is given back too: Slurm may start it on fewer.

Pins to nodes alone say no GPU. Slurm knows better than the plan which GPUs of a node come free, so such a job has a pin
only while it can start there, unless it needs all of several nodes.
"""

from policy.formats.plan_fields import WAS
from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.ledger.changes import Release
from policy.plan.opinions.opinion import Opinion, PassState
from policy.request import node_range
from policy.request.demand import ELSEWHERE, Demand

STUCK_ON_A_NODE = 15
"""Seconds for which a job with a pin to one node may fail to start: without its pin, the next backfill starts it."""


class Elsewhere(Opinion):
    """Keeps pins only where Slurm could not start the job elsewhere before."""

    about = Matter.ELSEWHERE

    def begin(self, state: PassState) -> bool:
        self._alone = state.ledger.book.fleet.nodes_alone
        self.questions_plain = self._alone or not state.settings.pin_ahead
        return super().begin(state)

    def keep(self, entry: Waiting, demand: Demand, start: float | None, *, rests: bool = False) -> Release | None:
        why = self._why_not(entry, start, rests=rests)
        return Release(entry.job, why) if why else None

    def _why_not(self, entry: Waiting, start: float | None, *, rests: bool) -> str:
        alone, state = self._alone, self.state
        on_any_node = alone and bool(entry.nodes) and not state.may_wait(entry)
        in_range = bool(entry.nodes and node_range.of(entry.job.known.get(WAS, ())))
        if start == 0.0:
            stuck = (on_any_node or in_range) and state.free_for(entry) > STUCK_ON_A_NODE
            return f"it did not start in {STUCK_ON_A_NODE} s on a place that looks free" if stuck else ""
        if entry.job.id in state.keeping:
            return ""
        if rests:
            return "it may not start yet, and Slurm chooses its node when it may" if on_any_node else ""
        looked = state.ledger.may_change and state.ledger.only is None
        if alone and looked and not entry.nodes and entry.job.gpus is not None:
            return "its nodes are not for it any more, and no others are in sight"
        if entry.nodes and entry.level.insists is None and entry.demand.may_go_elsewhere:
            return node_range.WHY_NOT if in_range else f"its place is not free, and {ELSEWHERE}"
        if entry.nodes and not state.may_wait(entry):
            # With a pin to GPUs Slurm could preempt only the jobs that run at this place.
            how = "start it" if alone else "preempt for it"
            return f"its place is not free, and Slurm may {how} elsewhere"
        return ""
