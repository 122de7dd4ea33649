# SPDX-License-Identifier: Apache-2.0
"""The questions that users may ask berthd, and the users that may see the answers (docs/develop/formats.md, 11.3).

munge or the kernel vouches for the user who asks. The answer about a job comes from Slurm's own records, and only
users to whom Slurm would show the job get it.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from policy.formats import messages, wire
from policy.formats.errors import BerthError, DaemonError, FormatError, SlurmError
from policy.formats.job_plan import of_text
from policy.formats.slurm_facts import JobText
from policy.serve.status import BerthdStatus
from policy.site.ahead import ahead_of
from policy.site.overview import MOST_BYTES, fleet_for, queue_for, running_of
from policy.site.privacy import SlurmRules

_QUESTION = re.compile(rb"berth/1 (?:(status)|(fleet|queue)|why job=([1-9][0-9]{0,9}))")

BURST, EACH_SECOND = 20.0, 5.0
"""Questions that one user may ask at once, and in each second: for each Slurm is asked about a job."""

DEAR = 2.0
"""The number of questions that `fleet` or `queue` counts as: on a large cluster each takes some 50 ms."""

_MOST_USERS = 4_096


class QuestionBudget:
    """The number of questions that each user has left."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, uid: int, now: float, price: float = 1.0) -> bool:
        """Tells whether a user may ask one more, which counts as `price`."""
        left, since = self._left.get(uid, (BURST, now))
        left = min(BURST, left + (now - since) * EACH_SECOND)
        if len(self._left) >= _MOST_USERS and uid not in self._left:
            # A user who has all questions again need not be remembered.
            self._left = {user: turn for user, turn in self._left.items() if now - turn[1] < BURST / EACH_SECOND}
        self._left[uid] = (left - price if left >= price else left, now)
        return left >= price


class Questions:
    """Answers one question at a time."""

    def __init__(
        self,
        slurms_job: Callable[[int], JobText],
        rules: SlurmRules,
        status: BerthdStatus,
        overview: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._slurms_job = slurms_job
        self._rules = rules
        self._status = status
        self._overview = overview
        self._turns = QuestionBudget()

    def answer(self, uid: int, question: bytes) -> bytes | None:
        """Returns the reply to a user's question; None if it is not a question."""
        match = _QUESTION.fullmatch(question)
        if match is None:
            return None
        if not self._turns.take(uid, time.monotonic(), DEAR if match[2] else 1.0):
            return refusal(f"too many questions of one user; {EACH_SECOND:.0f} a second are answered")
        try:
            if match[1]:
                return wire.encode("status", self._status.told())
            if match[2]:
                return self._of_cluster(uid, match[2].decode())
            return self._of_job(uid, int(match[3]))
        except BerthError as problem:
            return refusal(str(problem))

    def _of_job(self, uid: int, job_id: int) -> bytes:
        job, visibility = self._slurms_job(job_id), self._rules.visibility()
        if not visibility.shows("jobs", uid, job.user_id):
            # The same words as for a job that does not exist: that it exists is private too.
            raise SlurmError(f"job {job_id} is not known to Slurm (any more); sacct may still know it")
        plan = of_text(job.admin_comment)
        told = {"job": str(job.id), "state": job.state, **({} if plan is None else {"segment": plan.into("")})}
        if job.state == "RUNNING":
            with suppress(DaemonError):
                told |= running_of(self._overview(), job_id)
        reply = wire.encode("why", told)
        if job.state == "PENDING":
            with suppress(DaemonError):
                ahead = ahead_of(self._overview(), job_id, visibility, uid)
                longer = wire.encode("why", {**told, "ahead": json.dumps(ahead, separators=(",", ":"))})
                reply = longer if len(longer) <= wire.REPLY_BYTES else reply
        if len(reply) > wire.REPLY_BYTES:
            raise FormatError(f"what is known of job {job_id} is too long; scontrol show job {job_id} has it all")
        return reply

    def _of_cluster(self, uid: int, question: str) -> bytes:
        """Answers `fleet` and `queue` from the overview; Slurm is asked only for its PrivateData."""
        visibility = self._rules.visibility()
        if question == "fleet" and not visibility.shows("nodes", uid):
            raise BerthError("Slurm hides the nodes from you (PrivateData=nodes); berth queue shows your jobs")
        visible = None if visibility.shows("jobs", uid) else uid
        found = self._overview()
        told = fleet_for(found, visible) if question == "fleet" else queue_for(found, uid, visible)
        reply = f"{wire.VERSION} {question}\n{json.dumps(told, separators=(',', ':'))}\n".encode("ascii")
        if len(reply) > MOST_BYTES:
            raise FormatError(f"the answer is longer than {MOST_BYTES} bytes; ask an admin for a part of it")
        return reply


def refusal(text: str) -> bytes:
    """Returns a reply that refuses an answer, with the reason."""
    return wire.encode("refuse", {"message": text[: messages.MOST_BYTES]})
