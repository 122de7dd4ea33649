"""Best losses of jobs and their times, as guards tell: kept in the plan, where `berth report` finds them.

Slurm refuses changes of a job that is over, and guards tell of a job's end after it: then it goes into the accounting.
"""

import re
from dataclasses import dataclass

from policy.daemon.hear.accounts import Accounts
from policy.formats.errors import FormatError, SlurmError
from policy.formats.job_plan import JobPlan, of_text
from policy.formats.plan_fields import BEST_AT, ID
from policy.site import log
from policy.slurm.interface import Gateway

PATIENCE = 600.0
"""Seconds after which a job is given up that does not come to its end."""

_LOOK_AGAIN = 1.0
_ENDING = frozenset({"COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"})
_WAITING = frozenset({"PENDING", "CONFIGURING"})
_MOST_JOBS = 2**32 - 1
_MOST_WAITING = 10_000
_PAYLOAD = re.compile(
    rb"berth/1 loss node=([A-Za-z0-9_.-]{1,255}) job=([1-9][0-9]{0,9}) best=([1-9][0-9]{0,10}) told=([1-9][0-9]{0,18})"
)


@dataclass(frozen=True, slots=True)
class LossWord:
    """One notice of a guard (docs/formats.md)."""

    node: str
    job: int
    best: int
    """When the loss was best, seconds since 1970."""
    told: int
    """Number of losses that the job's programs there have told."""


def read_word(payload: bytes) -> LossWord | None:
    """Returns what a payload says; None where it is no such notice."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None or int(match[2]) > _MOST_JOBS:
        return None
    return LossWord(match[1].decode(), int(match[2]), int(match[3]), int(match[4]))


@dataclass(slots=True)
class _Heard:
    best: int
    since: float
    due: float


class HeardLosses:
    """Losses that were heard and are not written yet."""

    def __init__(self, gateway: Gateway, accounts: Accounts) -> None:
        self._gateway, self._accounts = gateway, accounts
        self._heard: dict[int, _Heard] = {}

    def hear(self, word: LossWord, at: float) -> None:
        """Keeps the latest best of several nodes that tell of a job: less GPU time then comes after it."""
        known = self._heard.get(word.job)
        if known is not None:
            known.best = max(known.best, word.best)
        elif len(self._heard) < _MOST_WAITING:
            self._heard[word.job] = _Heard(word.best, at, at)

    def write_one(self, at: float) -> int | None:
        """Go on with one job whose time has come; its number, or None where there is none."""
        job_id = next((job for job, one in self._heard.items() if one.due <= at), None)
        if job_id is not None:
            try:
                self._write(job_id, self._heard.pop(job_id), at)
            except (SlurmError, FormatError) as problem:
                log.error(f"JobId={job_id}: when its loss was best could not be written: {problem}", 632)
        return job_id

    def _write(self, job_id: int, heard: _Heard, at: float) -> None:
        job = self._gateway.job(job_id)
        if job.state in _ENDING and at - heard.since < PATIENCE:
            heard.due = at + _LOOK_AGAIN
            self._heard[job_id] = heard
            return
        plan = of_text(job.admin_comment)
        # One that waits again has had that run; what is told of the next one comes later.
        if plan is None or ID not in plan or job.state in _WAITING:
            return
        after = with_best(plan, heard.best)
        if job.state != "RUNNING":
            self._accounts.add(job_id, job.admin_comment, after.only((BEST_AT,)), self._gateway.config(), at)
        elif after != plan:
            self._gateway.annotate(job_id, after)


def with_best(plan: JobPlan, best: int) -> JobPlan:
    """Returns the plan of a job whose loss was best at a moment; an earlier word of another node may be later."""
    return plan.having(BEST_AT(max(best, plan.get(BEST_AT, 0))))
