# SPDX-License-Identifier: Apache-2.0
"""Leaves jobs without a pin that Slurm may start beside a reservation or in one; takes pins that pass one back."""

from dataclasses import dataclass

from policy.cluster.reserved import admits, counted_nodes, first
from policy.placement.base import Berth
from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.ledger.changes import Release
from policy.plan.opinions.opinion import Opinion, PassState
from policy.request.demand import Demand

OPEN_FOR = 120.0
"""Seconds for which a job may fail to start on GPUs that look free for its user's request; then it is pinned again."""

AGAIN_AFTER = 600.0
"""Seconds after which such a job may try again."""

_COUNTED = "a reservation counts GPUs of its node"


@dataclass(slots=True)
class OpenTry:
    """The tries of a job to start with its user's request, without a pin."""

    since: float | None = None
    """Time since which Slurm may start it so."""
    again: float = 0.0
    """Time before which it is not given back to Slurm for that again."""

    def lasts(self, at: float) -> bool:
        """Tells whether a try goes on; ends one that has lasted too long."""
        if self.since is not None and at - self.since > OPEN_FOR:
            self.since, self.again = None, at + AGAIN_AFTER
        return self.since is not None


class Reservations(Opinion):
    """Reads the rooms that active reservations leave to jobs without a pin."""

    about = Matter.COUNTED

    memory: dict[int, OpenTry]

    def begin(self, state: PassState) -> bool:
        self.questions_plain = bool(state.ledger.book.cluster.rooms)
        return super().begin(state)

    def leave(self, entry: Waiting, demand: Demand, berth: Berth | None, task: int | None = None) -> bool:
        job, ledger = entry.job, self.ledger
        cluster, nodes = self.book.cluster, list(entry.nodes)
        # The tasks of an array start one by one on its place, as long as that can be had.
        passes, in_parts = self._passes(entry), bool(job.het or (job.tasks and nodes and cluster.up[nodes].all()))
        if task is not None or not (passes or (cluster.rooms and not in_parts)):
            return False
        tried = self.memory.setdefault(job.id, OpenTry())
        tried.lasts(ledger.at)
        waits = in_parts or tried.again > ledger.at
        name = "" if waits else first(cluster.rooms, cluster.typed, demand, cluster.at, job.user, job.account)
        if name and entry.nodes:
            ledger.write(Release(job, f"Slurm may start it by reservation {name}", for_now=True))
        elif passes:
            # Its pin would pass the reservation.
            ledger.write(Release(job, _COUNTED, for_now=True))
            return True
        if name:
            tried.since = tried.since or ledger.at
            entry.last.start = 0.0
        return bool(name)

    def keep(self, entry: Waiting, demand: Demand, start: float | None, *, rests: bool = False) -> Release | None:
        if start == 0.0 and self.state.is_stuck(entry) and self._may_be_drawn(entry):
            return Release(entry.job, "it did not start there, and Slurm also tests it in a magnetic reservation")
        return Release(entry.job, _COUNTED, for_now=True) if rests and self._passes(entry) else None

    def _may_be_drawn(self, entry: Waiting) -> bool:
        """Tells whether a magnetic reservation of GPUs admits a job.

        While another job waits in it, Slurm 24.11 starts none that names a type of its GPUs, on no node.
        """
        magnets = (room.magnet for room in self.book.cluster.rooms if room.magnet is not None and room.magnet.gpus)
        return any(admits(magnet, entry.job.user, entry.job.account) for magnet in magnets)

    def _passes(self, entry: Waiting) -> bool:
        """Tells whether a job's pin passes a reservation, also a pin to nodes that are not for the job any more."""
        book = self.book
        counted = counted_nodes(book.cluster.counted, book.at + entry.demand.limit)
        if entry.nodes or entry.job.gpus is None or not counted:
            return not counted.isdisjoint(entry.nodes)
        return not counted.isdisjoint(map(book.fleet.index.get, entry.job.required))
