# SPDX-License-Identifier: Apache-2.0
"""Writes into waiting jobs why they wait and when they start; `squeue -O AdminComment` and `berth why` show it."""

import time
from collections.abc import Set as AbstractSet

from policy.formats.errors import SlurmError
from policy.formats.job_plan import latest
from policy.formats.messages import tagged
from policy.formats.plan_fields import BECAUSE, BECAUSE_TEXT, HELPS, PROMISED, START, UNTIL
from policy.placement.base import Policy
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.book import Book
from policy.plan.queue.plan import Plan
from policy.plan.queue.wait_reasons import ROOM, why
from policy.plan.queue.what_helps import what_helps
from policy.site import log
from policy.slurm.interface import Gateway

FIRST_AFTER = 60.0
"""Seconds that a job must have waited before its reason is written; most jobs start earlier."""

AGAIN_AFTER = 300.0
OTHERWISE = 0.1
"""Part of the planned wait by which a start must have moved to be written again."""
MOST_REASONS = 5
"""The most updates after one reading."""

_LONGEST = 0.02
"""Seconds of searching for a changed reason, after which an Epilog may have its turn."""


class Explainer:
    """Updates the reasons of a few jobs in each pass, in turn."""

    def __init__(self, gateway: Gateway, policy: Policy) -> None:
        self._gateway = gateway
        self._policy = policy
        self._said: dict[int, tuple[float, object]] = {}
        """By job, the time of its last check and the reason that was written."""
        self._next = 0
        self.left = 0
        """Updates that may still be written before the next reading."""
        self._queue: list[Waiting] = []
        self._old: list[Waiting] = []
        """The jobs of this queue that have waited for long enough."""

    def explain_one(self, plan: Plan, running: Book, changed: AbstractSet[int]) -> bool:
        """Writes one reason that has changed; returns True if there was one.

        Jobs that were `changed` since the last reading are left out: their plans here are out of date.
        """
        # A search that finds nothing, or fails, is the last one after this reading.
        left, self.left = self.left - 1, 0
        if left < 0 or not self._explain_one(plan, running, changed):
            return False
        self.left = left
        return True

    def _explain_one(self, plan: Plan, running: Book, changed: AbstractSet[int]) -> bool:
        planned, now = plan.book, time.monotonic()
        if planned is None:
            return False
        if self._queue is not plan.queue:
            self._begin(plan.queue, planned.cluster.at)
        old, tries = self._old, 0
        for _ in range(len(old)):
            if tries and time.monotonic() - now > _LONGEST:
                break
            entry = old[self._next % len(old)]
            self._next = (self._next + 1) % len(old)
            if entry.last.start == 0.0 or entry.job.id in changed:
                continue
            looked, said = self._said.get(entry.job.id, (-AGAIN_AFTER, None))
            if now - looked < AGAIN_AFTER:
                continue
            tries += 1
            reason = why(entry, planned, running, self._policy, plan.queue)
            if reason is None:
                continue
            helps = what_helps(entry, planned, self._policy) if reason.number in ROOM else ()
            start, told_start = int(entry.last.start or 0), entry.job.known.get(START, 0)
            moved = start and abs(start - told_start) > max(60.0, OTHERWISE * (start - planned.cluster.at))
            if (reason, helps) == said and not moved:
                self._said[entry.job.id] = now, said
                continue
            until = None if entry.level.insists is None else int(entry.level.until)
            because = BECAUSE(reason.kind), BECAUSE_TEXT(tagged(reason.text, reason.number))
            promise = entry.last.promise
            promised = None if promise is None else (int(promise.start), int(promise.latest))
            told = *because, HELPS(helps or None), UNTIL(until), PROMISED(promised), START(start or told_start or None)
            try:
                # Another program may have undone the job's pin since the reading.
                present = latest(self._gateway.job(entry.job.id).admin_comment, None)
                if present != entry.job.known:
                    continue
                self._gateway.annotate(entry.job.id, present.having(*told))
            except SlurmError as problem:
                log.error(f"JobId={entry.job.id}: why it waits could not be written: {problem}", 636)
            self._said[entry.job.id] = now, (reason, helps)
            return True
        return False

    def _begin(self, queue: list[Waiting], at: float) -> None:
        """Prepares a new queue, once: with tens of thousands of jobs that takes as long as many answers to notices."""
        # The number of an array would stand for its running tasks too, which have plans of their own.
        waiting = [entry for entry in queue if entry.job.wants_gpus and not entry.job.tasks]
        present = {entry.job.id for entry in waiting}
        self._said = {job_id: said for job_id, said in self._said.items() if job_id in present}
        self._queue, self._old = queue, [entry for entry in waiting if at - entry.job.submitted >= FIRST_AFTER]
