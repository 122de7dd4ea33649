# SPDX-License-Identifier: Apache-2.0
"""Keeps components of a heterogeneous job on nodes of their own: Slurm gives no node to two of them."""

from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.opinions.opinion import Opinion, PassState
from policy.request.demand import Demand


class Siblings(Opinion):
    """Takes the nodes of the other components out of a component's demand."""

    about = Matter.COMPONENTS

    def begin(self, state: PassState) -> bool:
        self._components: dict[int, list[Waiting]] = {}
        for entry in state.present.het:
            self._components.setdefault(entry.job.het, []).append(entry)
        return super().begin(state)

    def narrow(self, entry: Waiting, demand: Demand) -> Demand:
        taken: list[int] = []
        for other in self._components.get(entry.job.het, ()) if entry.job.het else ():
            if other is not entry:
                taken += (other.job.id in self.state.settled and other.last.place) or other.nodes
        return demand.without(taken) if taken else demand
