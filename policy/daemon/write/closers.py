# SPDX-License-Identifier: Apache-2.0
"""Lets the first waiting job close its partition while no job can start there, and opens it before one does."""

import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from policy.cluster.fleet import Fleet
from policy.daemon.write.pins import Pins
from policy.formats.errors import SlurmError
from policy.formats.slurm_facts import JobFacts
from policy.formats.slurm_syntax.excluded_nodes import mark_of
from policy.plan.jobs.waiting import Waiting
from policy.plan.queue import closers as plan
from policy.site import log

QUIET = 3.0
"""Seconds without a start or an end after which partitions are closed: with short jobs that gains nothing."""

TRIES = 3
"""Updates of a job for its reason: a pass of Slurm's that began before an update sets the old reason again."""

MOST_A_PASS = 10
"""The most updates in a pass, as for lists of excluded nodes."""


class Closers:
    """The jobs that close their partitions, and those whose reason is left from an open partition."""

    def __init__(self, pins: Pins, *, allowed: bool) -> None:
        """`allowed` is False if the site forbids lists of excluded nodes; then no job closes its partition."""
        self._pins, self._allowed = pins, allowed
        self._closing: set[int] = set()
        self._due: dict[int, bool] = {}
        """Jobs to be written: True to close the partition, False to require their nodes and to get a new reason."""
        self._told: Counter[int] = Counter()
        """By job, updates since a job last started or ended; `TRIES` if Slurm refused one."""
        self._quiet_from = time.monotonic() + QUIET

    def look(self, queue: Sequence[Waiting], fleet: Fleet, moved: Container[int]) -> None:
        """Opens partitions that have to be open, and notes the jobs to be written; called in each pass.

        A job that is `moved` is left out: it will soon require the nodes of its new place.
        """
        closing = [entry.job for entry in queue if entry.job.closes is not None]
        self._closing = {job.id for job in closing}
        in_the_way = plan.in_the_way(queue, fleet, self._closing)
        for job in closing:
            # A list that the user changed, or from before a node came, leaves other nodes open.
            right = self._allowed and job.closes == mark_of(fleet.others.but(job.required))
            if job.id not in moved and (job in in_the_way or not right):
                self._write(job, fleet, closes=False)
        self._due.clear()
        if any(entry.last.start == 0.0 for entry in queue):
            self._stir()
        if not self._allowed or time.monotonic() < self._quiet_from:
            return
        wanted = plan.closers(queue, fleet)
        first = {job.id for job in wanted.values()}
        self._due |= {job_id: job_id in first for job_id in first ^ self._closing if self._told[job_id] < TRIES}
        closed = {name for name, job in wanted.items() if job.id in self._closing}
        for entry in queue:
            job = entry.job
            if len(self._due) >= MOST_A_PASS:
                break
            if job.partition in closed and entry.nodes and self._told[job.id] < TRIES and _is_left(job.reason):
                self._due[job.id] = False

    def before_start(self, queue: Sequence[Waiting], fleet: Fleet, moved: Container[int]) -> None:
        """Opens partitions before an Epilog ends; after a quiet time the next waiting jobs close them at once."""
        was_quiet = time.monotonic() >= self._quiet_from
        self._stir()
        if not self._closing:
            return
        due = [(job, False) for job in plan.in_the_way(queue, fleet, self._closing)]
        if was_quiet:
            due += [(job, True) for job in plan.closers(queue, fleet).values() if job.id not in self._closing]
        for job, closes in due:
            if job.id not in moved:
                self._write(job, fleet, closes=closes)

    def write_one(self, jobs: Mapping[int, JobFacts], fleet: Fleet, moved: Container[int]) -> bool:
        """Writes one job; returns False if none is left for this pass."""
        while self._due:
            job_id = next(iter(self._due))
            closes, job = self._due.pop(job_id), jobs.get(job_id)
            if job is not None and job_id not in moved:
                self._told[job_id] += 1
                self._write(job, fleet, closes=closes)
                return True
        return False

    def _stir(self) -> None:
        self._quiet_from = time.monotonic() + QUIET
        self._told.clear()

    def _write(self, job: JobFacts, fleet: Fleet, *, closes: bool) -> None:
        excluded = fleet.others.but(job.required) if closes else ""
        if closes and not excluded:
            return
        try:
            self._pins.pin_again(job, excluded)
        except SlurmError as problem:
            log.error(f"JobId={job.id} keeps its old list of excluded nodes: {problem}", 616)
            self._told[job.id] = TRIES
        else:
            (self._closing.add if closes else self._closing.discard)(job.id)


def _is_left(reason: str) -> bool:
    """Tells whether a reason is the one that Slurm gives if another waiting job takes a required node."""
    return reason.startswith("ReqNodeNotAvail") and reason.replace("_", " ").endswith("for other job")
