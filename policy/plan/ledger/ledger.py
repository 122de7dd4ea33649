# SPDX-License-Identifier: Apache-2.0
"""The ledger of one pass: finds free places, claims them in the book, and collects the changes to be written.

The changes are committed when all jobs are planned; those of a job whose planning failed are discarded before.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from policy.formats.arrays import FAR, Bools
from policy.formats.errors import NotNow
from policy.formats.slurm_facts import JobFacts
from policy.placement.base import Berth, Policy
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Release
from policy.plan.ledger.claims import Claim
from policy.plan.ledger.places import free_now
from policy.request.demand import Demand


class PlanLedger:
    """The claims of one pass. Claims only take GPUs away, so a shape that did not fit once does not fit later."""

    def __init__(self, book: Book, policy: Policy, most_changes: int, only: "Bools | None" = None) -> None:
        """`only` marks the nodes that the pass may use."""
        self.book, self.policy, self.only, self.at = book, policy, only, book.at
        self.changes: list[Change] = []
        self.refused: dict[Hashable, int] = {}
        """Shortest time limit that was tried, for each shape that fits nowhere now."""
        self._most_changes = most_changes
        self._most_free: int | None = None
        self._free = 0

    @property
    def may_change(self) -> bool:
        """Tells whether the pass may still change jobs."""
        return len(self.changes) < self._most_changes

    @property
    def most_free(self) -> int:
        """Returns the largest number of free GPUs on one node; jobs that need more need no search."""
        if self._most_free is None:
            now = self.book.cluster.gpus_now
            free = np.bitwise_count(now if self.only is None else now[self.only])
            self._most_free, self._free = int(free.max(initial=0)), int(free.sum())
        return self._most_free

    @property
    def free(self) -> int:
        """Returns the number of free GPUs on all nodes."""
        return self._free if self.most_free else 0

    def forget_free(self) -> None:
        """Counts the free GPUs anew when they are asked for next."""
        self._most_free = None

    def has_refused(self, shape: Hashable, limit: int) -> bool:
        """Tells whether no place was found for this shape, with this time limit or a shorter one."""
        return self.refused.get(shape, FAR) <= limit

    def refuse(self, shape: Hashable, limit: int) -> None:
        """Notes that no place was found for this shape with this time limit."""
        self.refused[shape] = min(limit, self.refused.get(shape, limit))

    def may_spread(self, gpus: int, shape: Hashable, limit: int) -> bool:
        """Tells whether it is worth looking for so many GPUs of a shape on several nodes; 0 if one place must do."""
        return 0 < gpus <= self.free and not self.has_refused(shape, limit)

    def now(self, demand: Demand, shape: Hashable) -> Berth | None:
        """Returns the best place that is free now, on the splits that a job may have; None if there is none."""
        # A share may also go where no GPU is free.
        enough = demand.share is not None or min(one.k for one in demand.every_split) <= self.most_free
        if not enough or self.has_refused(shape, demand.limit):
            return None
        book, policy = self.book, self.policy
        try:
            if self.only is not None:
                return free_now(demand.within(self.only), lambda one: book.now(one, policy))
            return free_now(demand, lambda one: book.now_together(one, policy))
        except NotNow:
            self.refuse(shape, demand.limit)
            return None

    def start_of(self, demand: Demand, nodes: Sequence[int], mask: int) -> tuple[float | None, int]:
        """Returns when a place is free, 0 for now and None if that is not in sight, and its GPUs.

        For a pin to nodes alone other GPUs of these nodes do too, as Slurm chose others than the plan for other jobs.
        """
        start = self.book.start_of(demand, nodes, mask)
        if start == 0.0 or not self.book.fleet.nodes_alone:
            return start, mask
        here = np.zeros(len(self.book.fleet.names), np.bool_)
        here[list(nodes)] = True
        try:
            return 0.0, self.book.now(demand.within(here), self.policy).mask
        except NotNow:
            return start, mask

    def claim(self, claim: Claim) -> None:
        """Takes a place out of the book."""
        self.book.note(claim)
        if claim.start <= self.at:
            self.forget_free()

    def write(self, change: Change, *, first: bool = False) -> None:
        """Adds a change; `first`: before the others, as its job gives up a part of a GPU that another one may get."""
        self.changes.insert(0 if first else len(self.changes), change)

    def discard(self, failed: Mapping[int, JobFacts]) -> None:
        """Drops the changes of jobs whose planning failed, and gives the pins of these jobs back."""
        given_back = [Release(job, "planning it failed") for job in failed.values() if job.gpus is not None]
        self.changes = [*given_back, *(change for change in self.changes if change.job.id not in failed)]

    def commit(self) -> list[Change]:
        """Returns the changes to write, in their order."""
        return self.changes
