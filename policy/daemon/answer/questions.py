"""The questions that users may ask berthd, and who may see the answers (docs/formats.md, section 11.3).

Whoever asks has been vouched for by munge. Of a job is told what Slurm's own records say of it, and only to those to
whom Slurm would show the job.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from policy.formats import messages, wire
from policy.formats.errors import BerthError, FormatError, SlurmError
from policy.formats.job_plan import of_text
from policy.formats.slurm_facts import JobText
from policy.site.overview import MOST_BYTES, fleet_for, queue_for

_QUESTION = re.compile(rb"berth/1 (?:(status)|(fleet|queue)|why job=([1-9][0-9]{0,9}))")
_SLURM_USER = re.compile(r"[^(]*\(([0-9]+)\)")

RARELY = 60.0
"""Seconds between looks at who may see whose jobs."""

STATUS_FOR = 1.0
"""Seconds for which what berthd said of itself is told on."""

BURST, EACH_SECOND = 20.0, 5.0
"""Questions of one user at once, and for long: each costs Slurm the look at a job."""

DEAR = 2.0
"""Number of questions that `fleet` and `queue` count as: on a large cluster each takes some 50 ms."""

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

    def take(self, uid: int, now: float, price: float = 1.0) -> bool:
        """Tells whether a user may ask one more, which counts as `price`."""
        left, since = self._left.get(uid, (BURST, now))
        left = min(BURST, left + (now - since) * EACH_SECOND)
        if len(self._left) >= _MOST_USERS and uid not in self._left:
            # Who has all his questions again need not be remembered.
            self._left = {user: turn for user, turn in self._left.items() if now - turn[1] < BURST / EACH_SECOND}
        self._left[uid] = (left - price if left >= price else left, now)
        return left >= price


class Questions:
    """Answers one question at a time."""

    def __init__(
        self,
        slurm: SlurmToAsk,
        status: Callable[[], Mapping[str, str]],
        own_uid: int,
        overview: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._slurm = slurm
        self._status = status
        self._overview = overview
        self._trusted = {0, own_uid}
        self._turns = QuestionBudget()
        self._told: tuple[float, Mapping[str, str]] | None = None
        self._rules: tuple[float, frozenset[str], int | None] | None = None

    def answer(self, uid: int, question: bytes) -> bytes | None:
        """The reply to what a user asks; None for what is no question."""
        match = _QUESTION.fullmatch(question)
        if match is None:
            return None
        now = time.monotonic()
        if not self._turns.take(uid, now, DEAR if match[2] else 1.0):
            return refusal(f"too many questions of one user; {EACH_SECOND:.0f} a second are answered")
        try:
            if match[1]:
                return self._of_berthd(now)
            if match[2]:
                return self._of_cluster(uid, match[2].decode(), now)
            return self._of_job(uid, int(match[3]), now)
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
        plan = of_text(job.admin_comment)
        told = {} if plan is None else {"segment": plan.into("")}
        reply = wire.encode("why", {"job": str(job.id), "state": job.state, **told})
        if len(reply) > wire.REPLY_BYTES:
            raise FormatError(f"what is known of job {job_id} is too long; scontrol show job {job_id} has it all")
        return reply

    def _of_cluster(self, uid: int, question: str, now: float) -> bytes:
        """Answers `fleet` and `queue` from the overview; no call to Slurm but for who may see what."""
        if question == "fleet" and not self._sees("nodes", uid, now):
            raise BerthError("Slurm hides the nodes from you (PrivateData=nodes); berth queue shows your jobs")
        visible = None if self._sees("jobs", uid, now) else uid
        found = self._overview()
        told = fleet_for(found, visible) if question == "fleet" else queue_for(found, uid, visible)
        reply = f"{wire.VERSION} {question}\n{json.dumps(told, separators=(',', ':'))}\n".encode("ascii")
        if len(reply) > MOST_BYTES:
            raise FormatError(f"the answer is longer than {MOST_BYTES} bytes; ask an admin for a part of it")
        return reply

    def _may_see(self, uid: int, job: JobText, now: float) -> bool:
        return uid == job.user_id or self._sees("jobs", uid, now)

    def _sees(self, kind: str, uid: int, now: float) -> bool:
        """Tells whether a user may see all `jobs`, or the `nodes`."""
        if uid in self._trusted:
            return True
        hidden, slurm_user = self._private_data(now)
        return not hidden & {kind, "all"} or uid == slurm_user

    def _private_data(self, now: float) -> tuple[frozenset[str], int | None]:
        """Returns the words of PrivateData, and Slurm's user; where Slurm does not tell, everything is private."""
        if self._rules is None or now - self._rules[0] > RARELY:
            try:
                config = self._slurm.config()
            except SlurmError:
                return (frozenset({"all"}), None) if self._rules is None else self._rules[1:]
            hidden = frozenset(word.strip().lower() for word in config.get("PrivateData", "all").split(","))
            user = _SLURM_USER.fullmatch(config.get("SlurmUser", ""))
            self._rules = now, hidden, int(user[1]) if user else None
        return self._rules[1:]


def refusal(text: str) -> bytes:
    """No answer, and why."""
    return wire.encode("refuse", {"message": text[: messages.MOST_BYTES]})
