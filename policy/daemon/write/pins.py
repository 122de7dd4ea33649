# SPDX-License-Identifier: Apache-2.0
"""Writes what the plan decided into Slurm, and keeps the list of pinned jobs that the plugin reads."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from policy.cluster.fleet import Fleet
from policy.cluster.partitions import others
from policy.daemon.write import pinned
from policy.daemon.write.asked import Asked
from policy.daemon.write.evictions import Evictions
from policy.formats.errors import DaemonError, SlurmError, TooLong
from policy.formats.job_plan import JobPlan, latest
from policy.formats.messages import tagged
from policy.formats.plan_fields import GPUS, OWNS, RELEASED, SEATS, SHARE, STATE, TIER, WHOLE, WHY
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, Reading
from policy.plan.answer.told import moved, parked
from policy.plan.jobs.waiting import Waiting
from policy.plan.jobs.waiting_jobs import PARKED_FOR
from policy.plan.ledger.changes import Change, Evict, Move, Own, Park, Release
from policy.request.settings import Sharing
from policy.request.tiers import OPPORTUNISTIC, Rules
from policy.site import log
from policy.slurm.changes import target
from policy.slurm.interface import Gateway, Pin

_RETRY_LIST_EVERY = 60.0


class Pins:
    """Writes one update for each change. Later passes plan with what Slurm then shows."""

    def __init__(
        self,
        gateway: Gateway,
        pinned_file: Path,
        evictions: Evictions | None = None,
        skipped: frozenset[str] = frozenset(),
        allowed: Rules = (),
        exclude_others: int = 0,
    ) -> None:
        """`skipped` are the partitions that Berth does not touch, `allowed` are the site's rules of tiers.

        On a cluster of `exclude_others` nodes or more, pinned jobs exclude all other nodes; 0: on none.
        """
        self._gateway = gateway
        self._evictions = evictions or Evictions(gateway, Sharing())
        self._pinned_file = pinned_file
        self._skipped, self._allowed, self._exclude_others = skipped, allowed, exclude_others
        self._bound = Selection(partial(pinned.may_be_bound, skipped=skipped, allowed=allowed))
        self.asked = Asked(gateway, pinned_file, self._write_again)
        self._listed: Mapping[int, int] | None = None
        self._list_mark: object = None
        """The mark of the file as it was written: if it was removed or changed since, it is written again."""
        self._no_list_before = 0.0
        self._kept_out: set[str] = set()
        """Nodes on which no packed job is pinned now: another packed job there could not be moved, and may start."""
        self._again: set[int] = set()
        """Jobs whose excluded nodes may differ from the last reading."""
        self.fleet: Fleet | None = None
        """The fleet, if pinned jobs exclude all other nodes; else None."""
        self.counting: Fleet | None = None
        """The fleet, if the site counts GPU models; else None."""
        self.written = 0
        self.first, self.again = 0, 0
        """Pins of jobs that had no place yet, and pins that moved a job."""

    def learn(self, fleet: Fleet, *, typed: bool) -> None:
        """Sets the fleet; a pin that is not `typed` names only nodes, and changes nothing else in the job."""
        self.fleet = fleet if 0 < self._exclude_others <= len(fleet.names) and typed else None
        self.counting = fleet if fleet.counted and typed else None

    def begin(self) -> None:
        """Prepares for a new reading, after which failed changes are planned anew."""
        self._kept_out.clear()
        self._again.clear()

    def write(self, changes: Sequence[Change], reading: Reading, *, hurry: bool = False) -> list[int]:
        """Writes some changes; a change that fails does not stop the others. Returns the jobs of those that failed.

        In a `hurry`, when an Epilog waits, pins are based on the texts of the reading; else each job is read again.
        """
        failed: list[int] = []
        for change in changes:
            name = _name(change)
            try:
                if isinstance(change, Release):
                    reason = f"given back to Slurm: {change.reason}"
                    job = change.job.id if change.task is None else target(change.job, change.task)
                    if self._gateway.release(job, reason, for_now=change.for_now):
                        self.written += 1
                    log.info(f"JobId={name} given back to Slurm: {change.reason}", 606)
                else:
                    self._write_one(change, name, reading.at, hurry=hurry)
            except SlurmError as problem:
                failed.append(change.job.id)
                if isinstance(change, Move | Release) and change.job.share:
                    self._kept_out.update(change.job.required)
                log.error(f"JobId={name} keeps its place: {problem}", 607)
        return failed

    def _write_one(self, change: Change, name: str, at: float, *, hurry: bool) -> None:
        if isinstance(change, Move):
            self._pin(change, at, hurry=hurry)
        elif isinstance(change, Park):
            self._gateway.park(target(change.job), parked(change, at), PARKED_FOR)
            self.written += 1
            log.info(f"JobId={name} waits on no node: {change.reason}", 608)
        elif isinstance(change, Own):
            # Its guard may have changed its plan since the reading.
            present = latest(self._gateway.job(change.job.id).admin_comment, change.job.plan)
            self._gateway.annotate(change.job.id, present.having(OWNS.set, WHY(change.reason)))
            self.written += 1
            log.info(f"JobId={name} has its GPU for itself: {change.reason}", 609)
        elif isinstance(change, Evict):
            self.written += self._evictions.begin(change.job, change.reason, at)

    def _pin(self, change: Move, at: float, *, hurry: bool) -> None:
        if self.asked.has_changed(change.job.id):
            raise SlurmError("its owner has changed it since it was read")
        place = self._place(moved(change, at), change.berth.names, change.berth.gpus, change.job.partition)
        if place.share and not self._kept_out.isdisjoint(place.nodes):
            raise SlurmError("another packed job could not be taken away from there")
        try:
            as_read = change.job.id not in self._again
            self._gateway.pin(target(change.job, change.task), place, hurry=hurry and as_read)
        except TooLong as problem:
            self._give_up(change.job, f"given back to Slurm: {problem}")
            return
        self.written += 1
        had_a_place = bool(change.job.required) and change.job.gpus is not None
        self.first, self.again = self.first + (not had_a_place), self.again + had_a_place
        where = f"NodeList={','.join(place.nodes)} GPUs={','.join(map(str, place.gpus))}"
        log.info(f"JobId={_name(change)} {where} pinned: {change.reason}", 610)

    def pin_again(self, job: JobFacts, alone: str = "") -> None:
        """Writes the place of a waiting job again, with the nodes that it has to exclude now.

        With the list `alone` it closes its partition (policy/plan/queue/closers.py). If its owner has meanwhile written
        the same list as Berth, nothing is written until the next pass.
        """
        if not self.asked.has_written_ours(job):
            self._write_again(job, alone)

    def _write_again(self, job: JobFacts, alone: str = "") -> None:
        plan = job.known
        place = replace(self._place(plan, job.required, plan[GPUS], job.partition), again=True)
        if alone:
            place = replace(place, others=alone, closes=True)
        self._gateway.pin(target(job), place, hurry=False)
        self._again.add(job.id)
        self.written += 1

    def _place(self, plan: JobPlan, nodes: tuple[str, ...], gpus: tuple[int, ...], partitions: str) -> Pin:
        share = 0 if WHOLE in plan else plan.get(SHARE, 0)
        excluded = others(self.fleet, partitions, nodes) if self.fleet is not None else ""
        return Pin(nodes, gpus, plan[SEATS], plan, share, excluded, self._licenses(plan, nodes, gpus))

    def _licenses(self, plan: JobPlan, nodes: tuple[str, ...], gpus: tuple[int, ...]) -> dict[str, int] | None:
        """Returns the licences that count a place by model: none for a share or a seat, None if no model is counted."""
        if self.counting is None:
            return None
        whole = SHARE not in plan and plan.get(TIER) != OPPORTUNISTIC
        return self.counting.licences(nodes, len(gpus)) if whole else {}

    def _give_up(self, job: JobFacts, why: str) -> None:
        """Leaves a job to Slurm whose pin would be too long: otherwise each pass would try it again."""
        if not self._gateway.release(job.id, why):
            # It waited for its first place, so its request is still its user's.
            present = latest(self._gateway.job(job.id).admin_comment, job.plan)
            self._gateway.annotate(job.id, present.having(STATE(RELEASED), WHY(tagged(why, 106))))
        self.written += 1
        log.info(f"JobId={job.id} {why}", 606)

    def list_pinned(self, queue: Iterable[Waiting], everybody: Iterable[JobFacts] = ()) -> None:
        """Writes the list of jobs that their owners cannot change freely, for the plugin, if it has changed."""
        jobs = pinned.listed(queue, self._bound.of(everybody).values(), self._skipped, self._allowed)
        now = time.monotonic()
        as_written = jobs == self._listed and self._list_mark == pinned.mark(self._pinned_file)
        if as_written or now < self._no_list_before:
            return
        try:
            pinned.write(self._pinned_file, jobs)
            self._listed, self._list_mark = jobs, pinned.mark(self._pinned_file)
        except DaemonError as problem:
            self._no_list_before = now + _RETRY_LIST_EVERY
            log.error(problem)


def _name(change: Change) -> str:
    task = change.task if isinstance(change, Move | Release) else None
    return str(change.job.id) if task is None else f"{change.job.array}_{task}"
