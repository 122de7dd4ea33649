# SPDX-License-Identifier: Apache-2.0
"""Tries the other partitions of a job's list, where one of them did not start the job on a place that looks free."""

from policy.cluster.partitions import BLAMED_FOR, beyond, holding
from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.opinions.opinion import Opinion
from policy.request.demand import Demand


class OtherPartitions(Opinion):
    """Blames the partitions of a place on which a job does not start, and leaves them out for a while."""

    about = Matter.PARTITIONS

    memory: dict[int, tuple[frozenset[str], float]]
    """By job: the partitions that did not start it, and until when they are not used for it."""

    def narrow(self, entry: Waiting, demand: Demand) -> Demand:
        blamed, until = self.memory.get(entry.job.id, (frozenset(), 0.0))
        if until <= self.ledger.at:
            return demand
        left = demand.within(beyond(self.book.fleet, entry.job.partition, blamed))
        return left if left.could_be_held else demand

    def keep(self, entry: Waiting, demand: Demand, start: float | None, *, rests: bool = False) -> None:
        at = self.ledger.at
        if start != 0.0 or not entry.partitions.apart or not self.state.is_stuck(entry):
            return
        fleet, listed = self.book.fleet, entry.job.partition
        blamed = holding(fleet, listed, entry.nodes)
        before, until = self.memory.get(entry.job.id, (frozenset(), 0.0))
        if until > at:
            blamed |= before
        if entry.demand.within(beyond(fleet, listed, blamed)).could_be_held:
            self.memory[entry.job.id] = blamed, at + BLAMED_FOR
