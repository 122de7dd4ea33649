# SPDX-License-Identifier: Apache-2.0
"""The planned updates that are not yet written, one for each job or task, and their one writer."""

import time
from collections.abc import Iterable, Sequence
from functools import partial

from policy.daemon.write.pins import Pins
from policy.formats.slurm_facts import JobFacts, Reading
from policy.plan.ledger.changes import Change, Evict, Move, Release
from policy.plan.queue.plan import Plan

Key = tuple[int, str | int | None]


class Updates:
    """Keeps updates until they are written, and the jobs that have changed since the last reading."""

    def __init__(self, plan: Plan, pins: Pins) -> None:
        self._plan, self._pins = plan, pins
        self.waiting: dict[Key, Change] = {}
        """Updates that are not yet written; a later plan replaces an earlier one."""
        self.moved: set[int] = set()
        """Jobs that were changed since the last reading, which is out of date for them."""
        self._sent_away: set[int] = set()
        """Guests that were sent away since the last reading. A pin based on it would overwrite why they left."""

    def count(self, written: int | None) -> None:
        """Counts updates that a part of berthd has written by itself."""
        self._pins.written += written or 0

    def begin_pass(self) -> None:
        """Drops the updates that are not yet written: they are planned anew."""
        for change in self.waiting.values():
            self._plan.reread(change.job.id)
        self.waiting.clear()

    def plan_is_made(self) -> None:
        """Clears the changed jobs: the plan was made from the last reading."""
        self.moved.clear()
        self._sent_away.clear()

    def put_off(self, changes: Iterable[Change]) -> None:
        """Queues updates, evictions first."""
        # An eviction takes longest.
        for change in sorted(changes, key=lambda change: not isinstance(change, Evict)):
            self.waiting[_key(change)] = change
            self.moved.add(change.job.id)

    def take_over(self, changes: Iterable[Change]) -> None:
        """Drops queued updates of jobs that are about to be written."""
        for change in changes:
            self.waiting.pop(_key(change), None)
            self.moved.add(change.job.id)

    def write_now(self, changes: Sequence[Change], reading: Reading) -> None:
        """Writes updates at once: the Epilogs of the nodes wait for them."""
        self._write(changes, reading, hurry=True)

    def write_one(self, reading: Reading) -> bool:
        """Writes one queued update; returns False if none is left."""
        if not self.waiting:
            return False
        self._write([self.waiting.pop(next(iter(self.waiting)))], reading, hurry=False)
        return True

    def _write(self, changes: Sequence[Change], reading: Reading, *, hurry: bool) -> None:
        write = partial(self._pins.write, reading=reading, hurry=hurry)
        for change in changes:
            failed = self._plan.isolation.once(change.job, time.time(), write, [change])
            if failed is None or failed:
                self._plan.reread(change.job.id)

    def of_guests_that_stay(self, changes: list[Change]) -> list[Change]:
        """Returns the changes without those of guests that were sent away since the last reading."""
        for change in changes:
            if change.job.id in self._sent_away:
                self._plan.reread(change.job.id)
        return [change for change in changes if change.job.id not in self._sent_away]

    def guest_leaves(self, guest: JobFacts) -> None:
        """Drops the updates of a guest that leaves; until the next reading no more are written into it."""
        self._sent_away.add(guest.id)
        for key in [key for key in self.waiting if key[0] == guest.id]:
            self._plan.reread(guest.id)
            del self.waiting[key]


def _key(change: Change) -> Key:
    return change.job.id, change.task if isinstance(change, Move | Release) else None
