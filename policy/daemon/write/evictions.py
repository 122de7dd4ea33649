"""Guests on their way out: warned where the site says so, put back into the queue, and seen to have left.

What a guest has to come back to stands in its segment before it goes, so that no restart of berthd forgets it. Only a
guest that runs is put back: one that finished by itself, even in the same moment, is not run again. The seat is its
owner's from the first step on, for the plan counts guests as air; the owner waits for the seat in Slurm's own queue.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policy.formats import segment
from policy.formats.errors import SlurmError
from policy.formats.slurm_facts import JobFacts
from policy.plan.changes import BACK_AFTER, BY_THE_SIGNAL, LEAVING, PATIENCE
from policy.plan.waiting_jobs import nodes_avoided
from policy.request.settings import Sharing
from policy.site import log
from policy.slurm.interface import Gateway

AGAIN_AFTER = 30.0
"""Seconds until a guest that could not be put back is tried again."""


@dataclass(slots=True)
class _Going:
    job: JobFacts
    since: float
    until: float
    """When it is put back if it has not ended before."""
    warned: bool
    asked: bool = False
    """True if Slurm was asked to requeue it."""
    told: bool = False
    """True if the log already says that it takes long."""


class Evictions:
    """The guests that are leaving."""

    def __init__(self, gateway: Gateway, sharing: Sharing) -> None:
        self._gateway = gateway
        self._sharing = sharing
        self._going: dict[int, _Going] = {}
        self._failed: dict[int, float] = {}
        self.count = 0
        """Number of guests that had to leave."""

    def has_asked(self, job_id: int) -> bool:
        """Tells whether Slurm was asked to put a guest back."""
        return job_id in self._going and self._going[job_id].asked

    def begin(self, job: JobFacts, reason: str, at: float) -> int:
        """Send a guest away, warned where the site says so; how many updates that took."""
        grace = self._sharing.evict_grace
        if job.id in self._going or not self._note(job, reason, at, grace, {}, warned=grace > 0):
            return 0
        return 1 + (self._warn(job.id) if grace > 0 else self._put_back(self._going[job.id], at))

    def obey(
        self, job: JobFacts, reason: str, at: float, avoid: Mapping[str, float], patience: float | None = None
    ) -> int:
        """Send a guest away as its guard says, not to come back to the nodes of `avoid` for now.

        With `patience` the guard has warned it and ends it before so many seconds have passed; else it goes at once.
        """
        known = job.id in self._going
        if not known and not self._note(job, reason, at, patience or 0.0, avoid, warned=patience is not None):
            return 0
        going = self._going[job.id]
        at_once = patience is None and not going.asked
        return (not known) + (self._put_back(going, at) if at_once else 0)

    def _note(
        self, job: JobFacts, reason: str, at: float, wait: float, avoid: Mapping[str, float], *, warned: bool
    ) -> bool:
        """Write into the segment what the guest comes back to, before anything happens to it."""
        if at < self._failed.get(job.id, 0.0):
            return False
        try:
            # It may have been pinned and started since it was read.
            values = segment.latest(self._gateway.job(job.id).admin_comment, job.segment)
            self._gateway.annotate(job.id, evicted(values, reason, at + wait + BACK_AFTER, avoid))
        except SlurmError as problem:
            self._give_up(job.id, problem, at)
            return False
        self._going[job.id] = _Going(job, at, at + wait, warned)
        self.count += 1
        log.info(f"JobId={job.id} NodeList={','.join(job.nodes)} a guest has to leave: {reason}", 613)
        return True

    def step(self, jobs: Iterable[JobFacts], at: float) -> int:
        """Go on with those that were warned, and see who has left."""
        if not self._going:
            return 0
        known = {job.id: job for job in jobs if job.id in self._going}
        updates = 0
        for job_id, going in list(self._going.items()):
            job = known.get(job_id)
            if not going.asked and at >= going.until:
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
            del self._going[job_id]
            return self._give_up(job_id, problem, at)
        going.asked = running
        if running:
            log.info(f"JobId={job_id} was put back into the queue", 613)
            return 1
        return self._gone_by_itself(going)

    def _gone_by_itself(self, going: _Going) -> int:
        """It ended before it was put back: by its own will, unless the warning killed it."""
        job_id = going.job.id
        try:
            job = self._gateway.job(job_id) if going.warned else None
            if job is not None and job.state == "COMPLETING":
                return 0  # the next step tells
            self._going.pop(job_id, None)
            if job is not None and job.state in BY_THE_SIGNAL:
                self._gateway.requeue(job_id)
                log.info(f"JobId={job_id} ended on its warning and was put back into the queue", 613)
                return 1
        except SlurmError as problem:
            log.error(f"JobId={job_id} ended while it was to leave: {problem}", 614)
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

    def _give_up(self, job_id: int, problem: SlurmError, at: float) -> int:
        self._failed = {one: until for one, until in self._failed.items() if until > at}
        self._failed[job_id] = at + AGAIN_AFTER
        log.error(f"JobId={job_id} could not be sent away, tried again in {AGAIN_AFTER:.0f} s: {problem}", 614)
        return 0


def evicted(values: Mapping[str, str], reason: str, back: float, avoid: Mapping[str, float]) -> dict[str, str]:
    """The segment of a guest that is sent away: from `back` on it may have another seat."""
    avoids = {**nodes_avoided(values, back), **avoid}
    count = values.get("evicted", "0")
    kept = {key: value for key, value in values.items() if key not in {"held", "held_text"}}
    return {
        **kept,
        "parked": str(int(back)),
        "evicted": str(int(count) + 1 if count.isdigit() else 1),
        "evicted_text": reason,
        **({"avoids": ",".join(f"{name}@{int(until)}" for name, until in avoids.items())} if avoids else {}),
    }
