# SPDX-License-Identifier: Apache-2.0
"""The plan of the waiting jobs: gives each one its place, and lists the pins that have to change.

Jobs are taken in Slurm's own order. Each claims its place, so that no later job can delay it. A pin moves only if

- the job could start now elsewhere, and not where it is pinned;
- its place is gone;
- its wait for a locality level has ended;
- it is one of the first in line that need several nodes, and other nodes are expected to be free sooner.

Any other move would only cost updates. So the place of the job that is next is fixed until it starts.

A whole pass looks at all waiting jobs. When one job has ended, only the nodes that it left are planned again.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np

from policy.cluster.fleet import Fleet
from policy.formats.errors import FormatError
from policy.formats.slurm_facts import JobFacts
from policy.placement.base import Policy
from policy.plan.jobs.waiting import Present, Waiting
from policy.plan.jobs.waiting_jobs import WAITS, Reader, ours, pinned_by_layout_before, takes_room
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Release
from policy.plan.ledger.claims import Claim, renumbered
from policy.plan.ledger.isolation import Isolation
from policy.plan.ledger.ledger import PlanLedger
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.all import all_opinions
from policy.plan.opinions.opinion import Opinion, PassState
from policy.plan.queue.index import QueueIndex
from policy.plan.queue.outlook import PastSearch
from policy.plan.queue.walk import Walk
from policy.request.settings import Settings
from policy.sharing.classes import Classes


class Plan:
    """Keeps the places of the waiting jobs up to date from pass to pass; all other input comes with each pass."""

    def __init__(
        self,
        policy: Policy,
        settings: Settings,
        opinions: Sequence[Opinion] | None = None,
        classes: Classes | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`opinions` are all that the settings name, if not given; `tell` gets one line of each fault of the plan."""
        self._policy = policy
        self._settings = settings
        self._classes = classes
        self.isolation = Isolation(tell)
        self.opinions = all_opinions(settings) if opinions is None else opinions
        self._reader: Reader | None = None
        self._fleet: Fleet | None = None
        self._free_since: dict[int, float] = {}
        """Times since which the jobs' places have looked free to this plan."""
        self._stuck: dict[int, int] = {}
        """Numbers of places that jobs have given up because they did not start there."""
        self._searched: dict[int, PastSearch] = {}
        self.book: Book | None = None
        """The book of the last pass, with all claims made in it."""
        self.queue: list[Waiting] = []
        """The jobs of the last pass, in their order."""
        self._index: tuple[list[Waiting], frozenset[int], QueueIndex] | None = None
        """A queue, the jobs that come first in it, and its index."""
        self._planned: Iterable[JobFacts] = ()
        """The reading's jobs that this queue was read from."""
        self.kept: tuple[Claim, ...] = ()
        """Places kept for jobs that are being moved there; no other job gets them, whatever its priority."""
        self.first: frozenset[int] = frozenset()
        """Jobs that claim their places before all others, because room was made for them."""

    @property
    def looks(self) -> int:
        """Returns how many jobs searched for a later place in the last whole pass: most of its time goes there."""
        at = None if self.book is None else self.book.cluster.at
        return sum(memory.looked == at for memory in self._searched.values())

    def replan(self, book: Book, jobs: Iterable[JobFacts], starting: AbstractSet[int] = frozenset()) -> list[Change]:
        """Claims the places of all waiting jobs in the book; returns the changes to make.

        Jobs in `starting` claim theirs first: Slurm has probably started them since the snapshot was made.
        """
        everybody, at, isolation = list(jobs), book.cluster.at, self.isolation
        reader = self._reader_of(book.fleet)
        isolation.begin(at)
        ledger = PlanLedger(book, self._policy, self._settings.most_moves)
        queue: list[Waiting] = []
        leaves_any = isolation.leaves_any
        for job in everybody:
            if job.state not in WAITS:
                continue
            known = None if leaves_any and isolation.leaves(job) else reader.known(job, at)
            if known is not None:
                queue.append(known)
                continue
            entry = isolation.job(job, at, _read, reader, job, at)
            if isinstance(entry, Waiting):
                queue.append(entry)
            elif entry is not None and job.wants_gpus:
                ledger.write(Release(job, f"its segment cannot be read: {entry}"))
            elif isolation.job(job, at, pinned_by_layout_before, job, book.fleet):
                ledger.write(Release(job, "its pin is from before GPUs had GRES types of their own"))
        queue.sort(key=lambda entry: entry.order)
        present = {entry.job.id for entry in queue}
        self._forget(present)
        self.book, self.queue, self._planned = book, queue, jobs
        walk = self._walk(ledger, queue, everybody, Present.of(queue), starting | self.first)
        isolation.group(at, walk.know)
        with book.rows_kept():
            for claim in self.kept:
                isolation.group(at, book.claim, claim)
            for one in walk.to_plan(walk.state.line):
                if not isolation.job(one.job, at, walk.claims_simply, one):
                    isolation.job(one.job, at, walk.settle, one)
        book.cluster = replace(book.cluster, waiting=sum(entry.job.wants_gpus for entry in queue))
        return self._commit(walk)

    def _forget(self, present: set[int]) -> None:
        """Forgets what is kept of jobs that wait no more."""
        if self._reader is not None:
            self._reader.forget(present)
        kept: list[dict[int, Any]] = [
            self._free_since,
            self._stuck,
            self._searched,
            *(one.memory for one in self.opinions),
        ]
        for memory in kept:
            for job_id in memory.keys() - present:
                del memory[job_id]

    def _walk(
        self,
        ledger: PlanLedger,
        queue: Sequence[Waiting],
        jobs: Iterable[JobFacts],
        present: Present,
        first: AbstractSet[int],
        touched: AbstractSet[int] | None = None,
    ) -> Walk:
        """Begins a walk, in which it asks the opinions whose matter is present."""
        read, kept = self._reader_of(ledger.book.fleet).read, (self.isolation, self._free_since, self._stuck)
        state = PassState(ledger, self._settings, queue, jobs, read, *kept, present, first, touched)
        there = {None, *state.matters}
        opinions = [one for one in self.opinions if one.about in there]
        began = [one for one in opinions if self.isolation.group(ledger.at, one.begin, state)]
        return Walk(state, opinions, began, self._searched)

    def _commit(self, walk: Walk) -> list[Change]:
        """Ends a walk; returns its changes, without those of jobs whose planning failed."""
        ledger = walk.state.ledger
        for one in walk.asked("end"):
            self.isolation.group(ledger.at, one.end)
        failed = self.isolation.failed()
        ledger.discard(failed)
        self.reread(*failed)
        return ledger.commit()

    def starting(self, touched: AbstractSet[int]) -> frozenset[int]:
        """Returns the jobs whose places were free at the last look, without those on the nodes in `touched`."""
        return frozenset(
            entry.job.id for entry in self.queue if entry.last.start == 0.0 and touched.isdisjoint(entry.last.place)
        )

    def reread(self, *jobs: int) -> None:
        """Trusts Slurm's records of jobs again, after a change could not be written."""
        if self._reader is not None:
            self._reader.reread(jobs)

    def reread_all(self) -> None:
        """Trusts Slurm's records again, after a pass failed whose changes are not written."""
        self.reread(*(entry.job.id for entry in self.queue))

    def freed(self, tracker: Tracker, nodes: Iterable[int], jobs: Iterable[JobFacts]) -> list[Change] | None:
        """Plans the jobs of the last pass again on a few changed nodes; returns None if a whole pass is needed.

        `jobs` is the queue of the last reading. Jobs that are new or changed since the last pass are planned too.
        """
        if self.book is None or self._fleet is not self.book.fleet:
            return None
        book, touched, isolation, at = self.book, set(nodes), self.isolation, self.book.cluster.at
        queue = self._bring_up_to_date(jobs, touched)
        if len(touched) > max(64, len(book.fleet.names) // 4):
            return None
        tracker.put_back(book, touched)
        for claim in self.kept:
            if not touched.isdisjoint(claim.nodes):
                here_too = tuple(node for node in claim.nodes if node in touched)
                isolation.group(at, book.claim, replace(claim, nodes=here_too))
        here = np.zeros(len(book.fleet.names), np.bool_)
        here[list(touched)] = True
        ledger, index = PlanLedger(book, self._policy, self._settings.most_moves, here), self._index_of(queue)
        walk = self._walk(ledger, queue, jobs, index.present, self.first, touched)
        for entry in index.concerned(walk, touched):
            isolation.job(entry.job, at, _freed_for, walk, entry, touched, tracker)
        self.queue, self._planned = queue, jobs
        return self._commit(walk)

    def expect_notices(self) -> None:
        """Makes the index of the queue before the next notice needs it: with 30,000 jobs that takes a while."""
        if self.book is not None:
            self._index_of(self.queue)

    def _index_of(self, queue: list[Waiting]) -> QueueIndex:
        """Returns the index of a queue, which stays in use until a reading or a whole pass makes another queue."""
        if self._index is None or self._index[0] is not queue or self._index[1] != self.first:
            line = sorted(queue, key=lambda entry: entry.job.id not in self.first) if self.first else queue
            self._index = queue, self.first, QueueIndex(line)
        return self._index[2]

    def _bring_up_to_date(self, jobs: Iterable[JobFacts], touched: set[int]) -> list[Waiting]:
        """Returns the last queue without jobs that are gone, with new and changed ones; `touched` gets their nodes."""
        assert self._reader is not None and self.book is not None, "there was a pass"  # noqa: S101, PT018
        if jobs is self._planned and not self.isolation.leaves_any:
            return self.queue
        known = {entry.job.id: entry for entry in self.queue}
        queue = []
        for job in jobs:
            if job.state not in WAITS:
                continue  # most jobs run, and this loop runs at the end of each job
            old = known.get(job.id)
            at = self.book.cluster.at
            same = old is not None and (old.job is job or self._reader.known(job, at) is old)
            if same and not self.isolation.leaves(job):
                queue.append(known.pop(job.id))
                continue
            entry = self.isolation.job(job, at, _read, self._reader, job, at)
            if not isinstance(entry, Waiting):
                continue  # the next whole pass gives a job that cannot be read back to Slurm
            known.pop(job.id, None)
            if old is not None and entry.pinned_to(old.last.place, old.last.mask):
                # Slurm's record now shows what was planned.
                entry.last.start, entry.last.place, entry.last.mask = old.last.start, old.last.place, old.last.mask
            else:
                entry.last.start, entry.last.place = None, entry.nodes
                touched.update(entry.nodes)
                touched.update(old.last.place if old else ())
            queue.append(entry)
        for gone in known.values():
            touched.update(gone.last.place)
        queue.sort(key=lambda entry: entry.order)
        return queue

    def _reader_of(self, fleet: Fleet) -> Reader:
        if self._reader is None or self._fleet is not fleet:
            if self._fleet is not None:
                self.kept = renumbered(self.kept, self._fleet, fleet)
            eligible = None if self._reader is None else self._reader.eligible
            self._reader, self._fleet = Reader(fleet, self._classes, eligible), fleet
        return self._reader


def _read(reader: Reader, job: JobFacts, at: float) -> Waiting | FormatError | None:
    """Reads a job of the queue; returns the error if that fails, and None if the plan does not handle the job."""
    if (known := reader.known(job, at)) is not None:
        return known
    if not (takes_room(job) or (ours(job) and reader.takes(job))):
        return None
    try:
        return reader.read(job, at)
    except FormatError as problem:
        return problem


def _freed_for(walk: Walk, entry: Waiting, touched: set[int], tracker: Tracker) -> None:
    """Plans one job again after the nodes in `touched` have changed."""
    if touched.isdisjoint(entry.last.place):
        if entry.last.start != 0.0 and entry.job.wants_gpus and walk.may_start(entry):
            walk.bring(entry)
        if entry.collects and entry.last.start != 0.0:
            walk.leave_empty_nodes_to(entry)
    elif touched.issuperset(entry.last.place):
        if not walk.claims_alone(entry):
            walk.settle(entry)
    else:
        walk.hold(entry, touched, free_now=tracker.is_free(entry.last.place, entry.mask))
