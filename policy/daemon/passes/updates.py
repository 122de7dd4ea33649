# SPDX-License-Identifier: Apache-2.0
"""The planned updates of jobs that are not written yet: one for each job or task, and one writer for all of them."""

import time
from collections.abc import Iterable, Sequence
from functools import partial

from policy.daemon.write.pins import Pins
from policy.formats.slurm_facts import JobFacts, Reading
from policy.plan.ledger.changes import Change, Evict, Move, Release
from policy.plan.queue.plan import Plan

Key = tuple[int, str | int | None]


class Updates:
    """Keeps updates until they are written, and knows the jobs of which the last reading is out of date."""

    def __init__(self, plan: Plan, pins: Pins) -> None:
        self._plan, self._pins = plan, pins
        self.waiting: dict[Key, Change] = {}
        """Updates that are not written yet; later plans replace earlier ones."""
        self.moved: set[int] = set()
        """Jobs that were changed since the last reading: what it shows of them is out of date."""
        self._sent_away: set[int] = set()
        """Guests that were sent away since then. A pin from what it shows of them would take back why they left."""

    def count(self, written: int | None) -> None:
        """Counts updates that a part of berthd has written by itself."""
        self._pins.written += written or 0

    def begin_pass(self) -> None:
        """Drops what could not be written: it is planned anew."""
        for change in self.waiting.values():
            self._plan.reread(change.job.id)
        self.waiting.clear()

    def plan_is_made(self) -> None:
        """Trusts the last reading again: the plan was made of it."""
        self.moved.clear()
        self._sent_away.clear()

    def put_off(self, changes: Iterable[Change]) -> None:
        """Keeps updates for later."""
        # A guest's way out takes longest.
        for change in sorted(changes, key=lambda change: not isinstance(change, Evict)):
            self.waiting[_key(change)] = change
            self.moved.add(change.job.id)

    def take_over(self, changes: Iterable[Change]) -> None:
        """Drops earlier updates of jobs that are about to be written."""
        for change in changes:
            self.waiting.pop(_key(change), None)
            self.moved.add(change.job.id)

    def write_now(self, changes: Sequence[Change], reading: Reading) -> None:
        """Writes updates at once: the Epilogs of the nodes wait for them."""
        self._write(changes, reading, hurry=True)

    def write_one(self, reading: Reading) -> bool:
        """Writes one of those that were put off; returns False if none is left."""
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
        """Lets nothing be written into a guest that leaves before it was read again."""
        self._sent_away.add(guest.id)
        for key in [key for key in self.waiting if key[0] == guest.id]:
            self._plan.reread(guest.id)
            del self.waiting[key]


def _key(change: Change) -> Key:
    return change.job.id, change.task if isinstance(change, Move | Release) else None
