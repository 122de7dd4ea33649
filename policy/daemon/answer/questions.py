"""The questions that users may ask berthd, and who may see the answers (docs/formats.md, section 11.3).

Whoever asks has been vouched for by munge. Of a job is told what Slurm's own records say of it, and only to those to
whom Slurm would show the job.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from policy.formats import segment, wire
from policy.formats.errors import BerthError, FormatError, SlurmError
from policy.formats.slurm_facts import JobText

_QUESTION = re.compile(rb"berth/1 (?:(status)|why job=([1-9][0-9]{0,9}))")
_SLURM_USER = re.compile(r"[^(]*\(([0-9]+)\)")

RARELY = 60.0
"""Seconds between looks at who may see whose jobs."""

STATUS_FOR = 1.0
"""Seconds for which what berthd said of itself is told on."""

BURST, EACH_SECOND = 20.0, 5.0
"""Questions of one user at once, and for long: each costs Slurm the look at a job."""

_MOST_USERS = 4_096


class SlurmToAsk(Protocol):
    """The part of a gateway that answers need."""

    def job(self, job_id: int) -> JobText:
        """One job's record."""
        ...

    def config(self) -> Mapping[str, str]:
        """Slurm's configuration."""
        ...


class QuestionBudget:
    """The number of questions that each user has left."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, uid: int, now: float) -> bool:
        """Tells whether a user may ask one more."""
        left, since = self._left.get(uid, (BURST, now))
        left = min(BURST, left + (now - since) * EACH_SECOND)
        if len(self._left) >= _MOST_USERS and uid not in self._left:
            # Who has all his questions again need not be remembered.
            self._left = {user: turn for user, turn in self._left.items() if now - turn[1] < BURST / EACH_SECOND}
        self._left[uid] = (left - 1.0 if left >= 1.0 else left, now)
        return left >= 1.0


class Questions:
    """Answers one question at a time."""

    def __init__(self, slurm: SlurmToAsk, status: Callable[[], Mapping[str, str]], own_uid: int) -> None:
        self._slurm = slurm
        self._status = status
        self._trusted = {0, own_uid}
        self._turns = QuestionBudget()
        self._told: tuple[float, Mapping[str, str]] | None = None
        self._rules: tuple[float, bool, int | None] | None = None

    def answer(self, uid: int, question: bytes) -> bytes | None:
        """The reply to what a user asks; None for what is no question."""
        match = _QUESTION.fullmatch(question)
        if match is None:
            return None
        now = time.monotonic()
        if not self._turns.take(uid, now):
            return refusal(f"too many questions of one user; {EACH_SECOND:.0f} a second are answered")
        try:
            return self._of_berthd(now) if match[1] else self._of_job(uid, int(match[2]), now)
        except BerthError as problem:
            return refusal(str(problem))

    def _of_berthd(self, now: float) -> bytes:
        if self._told is None or now - self._told[0] > STATUS_FOR:
            self._told = now, self._status()
        return wire.encode("status", self._told[1])

    def _of_job(self, uid: int, job_id: int, now: float) -> bytes:
        job = self._slurm.job(job_id)
        if not self._may_see(uid, job, now):
            # In the words for a job that is none: that there is one is part of what is private.
            raise SlurmError(f"job {job_id} is not known to Slurm (any more); sacct may still know it")
        values = segment.fields(job.admin_comment)
        told = {} if values is None else {"segment": segment.put("", values)}
        reply = wire.encode("why", {"job": str(job.id), "state": job.state, **told})
        if len(reply) > wire.REPLY_BYTES:
            raise FormatError(f"what is known of job {job_id} is too long; scontrol show job {job_id} has it all")
        return reply

    def _may_see(self, uid: int, job: JobText, now: float) -> bool:
        if uid == job.user_id or uid in self._trusted:
            return True
        private, slurm_user = self._who_sees_jobs(now)
        return not private or uid == slurm_user

    def _who_sees_jobs(self, now: float) -> tuple[bool, int | None]:
        """Tells whether jobs are private (PrivateData=jobs), and Slurm's user; where Slurm does not tell, they are."""
        if self._rules is None or now - self._rules[0] > RARELY:
            try:
                config = self._slurm.config()
            except SlurmError:
                return (True, None) if self._rules is None else self._rules[1:]
            hidden = {word.strip().lower() for word in config.get("PrivateData", "all").split(",")}
            user = _SLURM_USER.fullmatch(config.get("SlurmUser", ""))
            self._rules = now, bool(hidden & {"jobs", "all"}), int(user[1]) if user else None
        return self._rules[1:]


def refusal(text: str) -> bytes:
    """No answer, and why."""
    return wire.encode("refuse", {"message": text[: wire.MESSAGE_BYTES]})
