# SPDX-License-Identifier: Apache-2.0
"""Evicts guests: warns them if the site says so, requeues them, and checks that they leave.

A guest's plan says what it comes back to before it leaves, so that this survives a restart of berthd. Only a guest
that runs is requeued: a guest that finished by itself, even in the same moment, is not run again. The seat is its
owner's from the first step on, as the plan ignores guests; the owner waits for it in Slurm's own queue.

Requeue of the guest's record is set before each try, since its user may have cleared it. A guest that Slurm still
does not requeue is ended: its owner waits 10 s for that, and then as long as Slurm or the guard takes to end a job.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan, latest
from policy.formats.plan_fields import EVICTED, EVICTED_TEXT, HELD, HELD_TEXT, PARKED, SHORT_RUNS, UPGRADE
from policy.formats.slurm_facts import JobFacts
from policy.plan.jobs.waiting_jobs import avoiding
from policy.plan.ledger.changes import BACK_AFTER, BY_THE_SIGNAL, LEAVING, PATIENCE
from policy.request.settings import Sharing
from policy.site import log
from policy.slurm.interface import Gateway

AGAIN_AFTER = 5.0
"""Seconds after which a refused requeue is tried again."""

ENDED_AFTER = 10.0
"""Seconds after the first refusal at which the guest is ended. KillWait (30 s) is added to them."""

SHORT = 600.0
"""Seconds of a run below which it counts as short: the guest lost its run for little."""

LONGEST_BACK_OFF = 600.0
"""The most seconds for which a guest gets no new seat, however often it was sent away."""

_FORGOTTEN_AFTER = 30.0
"""Seconds without a try after which a refusal is forgotten: the owner does not need the seat any more."""


@dataclass(slots=True)
class _Going:
    job: JobFacts
    reason: str
    since: float
    until: float
    """The time at which it is requeued if it has not ended before."""
    warned: bool
    asked: bool = False
    """True if Slurm has taken its requeue."""
    told: bool = False
    """True if it was logged that its end takes long."""
    ended: bool = False
    """True if it was cancelled because Slurm did not requeue it."""


@dataclass(slots=True)
class _Refused:
    """A guest that Slurm did not requeue."""

    since: float
    again: float
    noted: bool
    """True if its plan already says what it comes back to."""


class Evictions:
    """The guests that are leaving."""

    def __init__(self, gateway: Gateway, sharing: Sharing) -> None:
        self._gateway = gateway
        self._sharing = sharing
        self._going: dict[int, _Going] = {}
        self._failed: dict[int, _Refused] = {}
        self.count = 0
        """Number of guests that had to leave."""

    def has_asked(self, job_id: int) -> bool:
        """Tells whether Slurm has taken a guest's requeue."""
        return job_id in self._going and self._going[job_id].asked

    def begin(self, job: JobFacts, reason: str, at: float) -> int:
        """Sends a guest away, after a warning if the site says so; returns the number of updates."""
        # A guest that Slurm did not requeue has had its warning.
        grace = 0 if job.id in self._failed else self._sharing.evict_grace
        if job.id in self._going or not self._note(job, reason, at, grace, {}, warned=self._sharing.evict_grace > 0):
            return 0
        return 1 + (self._warn(job.id) if grace > 0 else self._put_back(self._going[job.id], at))

    def obey(
        self,
        job: JobFacts,
        reason: str,
        at: float,
        avoid: Mapping[str, float],
        patience: float | None = None,
        *,
        ends: bool = False,
    ) -> int:
        """Sends a guest away as its guard asks; it avoids the nodes of `avoid` until the times there.

        With `patience` the guard has warned it and ends it within so many seconds; else it is requeued at once. If the
        guard `ends` it now, it is requeued also if Slurm answers only when it has ended.
        """
        known = job.id in self._going
        if not known and not self._note(job, reason, at, patience or 0.0, avoid, warned=patience is not None):
            if ends:
                self._going[job.id] = _Going(job, reason, at, at + AGAIN_AFTER, warned=True)
            return 0
        going = self._going[job.id]
        at_once = patience is None and not going.asked
        return (not known) + (self._put_back(going, at) if at_once else 0)

    def _note(
        self, job: JobFacts, reason: str, at: float, wait: float, avoid: Mapping[str, float], *, warned: bool
    ) -> bool:
        """Writes into the plan what the guest comes back to, before it is warned or requeued; returns True if done."""
        failed = self._failed.get(job.id)
        if failed is not None and at < failed.again:
            return False
        noted = failed is not None and failed.noted
        try:
            # It may have been pinned and started since the reading.
            plan = latest(self._gateway.job(job.id).admin_comment, job.plan)
            plan = plan if noted else evicted(plan, reason, at + wait + BACK_AFTER, avoid)
            plan = plan if noted or avoid else backed_off(plan, at - (job.start or at))
            self._gateway.annotate(job.id, plan, requeue=True)
        except SlurmError as problem:
            self._refused(job, reason, problem, at, noted=noted)
            return False
        self._going[job.id] = _Going(job, reason, at, at + wait, warned)
        self.count += not noted
        log.info(f"JobId={job.id} NodeList={','.join(job.nodes)} a guest has to leave: {reason}", 613)
        return True

    def step(self, jobs: Iterable[JobFacts], at: float) -> int:
        """Requeues the guests whose warning is over, and drops those that have left; returns the number of updates."""
        if not self._going:
            return 0
        known = {job.id: job for job in jobs if job.id in self._going}
        updates = 0
        for job_id, going in list(self._going.items()):
            job = known.get(job_id)
            if job is not None and job.state == "RUNNING" and (job.start or 0) > going.since:
                del self._going[job_id]  # its guard put it back, and it runs again
            elif not going.asked and at >= going.until:
                updates += self._put_back(going, at)
            elif job is not None and job.state in LEAVING:
                self._tell(going, at)
            elif going.asked and job is not None:
                log.info(f"JobId={job_id} has left its seat after {at - going.since:.1f} s", 613)
                del self._going[job_id]
            else:
                updates += self._gone_by_itself(going)
        return updates

    def _warn(self, job_id: int) -> int:
        signal = self._sharing.evict_signal
        try:
            self._gateway.warn(job_id, signal)
            log.info(f"JobId={job_id} was sent SIG{signal}, {self._sharing.evict_grace} s before it is put back", 613)
        except (SlurmError, KeyError) as problem:
            log.error(f"JobId={job_id} could not be warned: {problem}", 614)
        return 1

    def _put_back(self, going: _Going, at: float) -> int:
        job_id = going.job.id
        try:
            running = self._gateway.evict(job_id)
        except SlurmError as problem:
            if isinstance(problem, NoAnswer) and going.warned:
                going.until = at + AGAIN_AFTER
                return 0
            del self._going[job_id]
            return self._refused(going.job, going.reason, problem, at, noted=True)
        going.asked = running
        self._failed.pop(job_id, None)
        if running:
            log.info(f"JobId={job_id} was put back into the queue", 613)
            return 1
        return self._gone_by_itself(going)

    def _gone_by_itself(self, going: _Going) -> int:
        """Handles a guest that ended before it was requeued; it is requeued only if the warning killed it."""
        job_id = going.job.id
        try:
            job = self._gateway.job(job_id) if going.warned else None
            if job is not None and job.state == "COMPLETING":
                return 0  # the next step finds its state
            self._going.pop(job_id, None)
            if going.ended:
                return 0
            if job is not None and job.state in BY_THE_SIGNAL:
                self._gateway.requeue(job_id)
                log.info(f"JobId={job_id} ended on its warning and was put back into the queue", 613)
                return 1
        except NoAnswer:
            self._going[job_id] = going  # the next step asks again
            return 0
        except SlurmError as problem:
            log.error(f"JobId={job_id} ended before it was requeued: {problem}", 614)
            self._going.pop(job_id, None)
            return 0
        log.info(f"JobId={job_id} has ended by itself and is not run again", 613)
        return 0

    def _tell(self, going: _Going, at: float) -> None:
        if going.asked and not going.told and at - going.until > PATIENCE:
            going.told = True
            log.error(
                f"JobId={going.job.id} still ends after {at - going.since:.0f} s; KillWait in slurm.conf bounds it", 615
            )

    def _refused(self, job: JobFacts, reason: str, problem: SlurmError, at: float, *, noted: bool) -> int:
        """Notes a refused requeue; ends the guest if Slurm has refused it for long enough."""
        self._failed = {one: known for one, known in self._failed.items() if known.again + _FORGOTTEN_AFTER > at}
        failed = self._failed.setdefault(job.id, _Refused(at, at, noted))
        failed.again, failed.noted = at + AGAIN_AFTER, noted
        if isinstance(problem, NoAnswer):
            failed.since = at
        if at - failed.since >= ENDED_AFTER:
            return self._end(job, reason, problem, at)
        log.error(f"JobId={job.id} could not be sent away, tried again in {AGAIN_AFTER:.0f} s: {problem}", 614)
        return 0

    def _end(self, job: JobFacts, reason: str, refusal: SlurmError, at: float) -> int:
        """Ends a guest that Slurm does not requeue, and tells its user why."""
        why = f"{reason}; Slurm did not requeue it, so it was ended: {refusal}"
        try:
            record = self._gateway.job(job.id)
            if record.state not in LEAVING:
                return 0  # the refusal was about a job that has left
            plan = latest(record.admin_comment, job.plan)
            with suppress(SlurmError):
                self._gateway.annotate(job.id, plan.having(EVICTED_TEXT(why)))
            self._gateway.cancel(job.id)
        except SlurmError as problem:
            log.error(f"JobId={job.id} could not be ended, tried again in {AGAIN_AFTER:.0f} s: {problem}", 614)
            return 0
        del self._failed[job.id]
        self._going[job.id] = _Going(job, reason, at, at, warned=False, asked=True, ended=True)
        log.error(f"JobId={job.id} was ended: {why}", 614)
        return 2


def backed_off(plan: JobPlan, ran: float) -> JobPlan:
    """Returns the plan of a guest that is sent away after it `ran` for so many seconds.

    After several short runs it waits longer for a seat: else a user who submits exclusive jobs and cancels them would
    restart the guest again and again, each time for seconds of a GPU. A guest that is to become an owner does not
    wait longer.
    """
    row = plan.get(SHORT_RUNS, 0) + 1
    if ran >= SHORT or UPGRADE in plan:
        return plan.without(SHORT_RUNS)
    delay = 0 if row == 1 else int(min(LONGEST_BACK_OFF, 30 * 2 ** min(row - 2, 10)))
    told = f"; sent away {row} times in a row soon after its start, it gets no seat for {delay} s" if delay else ""
    return plan.having(PARKED(plan[PARKED] + delay), SHORT_RUNS(row), EVICTED_TEXT(f"{plan[EVICTED_TEXT]}{told}"))


def evicted(plan: JobPlan, reason: str, back: float, avoid: Mapping[str, float]) -> JobPlan:
    """Returns the plan of a guest that is sent away; from the time `back` on it may have another seat."""
    return plan.without(HELD, HELD_TEXT).having(
        PARKED(int(back)), EVICTED(plan.get(EVICTED, 0) + 1), EVICTED_TEXT(reason), avoiding(plan, back, avoid)
    )
