# SPDX-License-Identifier: Apache-2.0
"""Slow work, done by a thread that talks to berthd, Slurm and MPS. Gate and freezer never wait.

Urgent work, for which a user or a node waits, goes before plain messages.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from prolog_epilog.errors import Interrupted, NodeError, NodeSlurmError
from prolog_epilog.guard.mishaps import sentence
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.roll import Member
from prolog_epilog.guard.tell import notice
from prolog_epilog.guard.tell.notice import GuardNotice, Payload
from prolog_epilog.job.slurm import Scontrol
from prolog_epilog.messages import numbered

_MOST_WAITING = 256
_URGENT, _TOLD = 0, 1


@dataclass(slots=True)
class Question:
    """A question to Slurm."""

    done: threading.Event = field(default_factory=threading.Event)
    answer: bool | None = None
    """None as long as Slurm has not answered, also if it was too slow to."""


@dataclass(frozen=True, slots=True, order=True)
class _Work:
    urgency: int
    number: int
    work: Callable[[], object] = field(compare=False)


@dataclass(slots=True)
class SlowWork:
    """The queue of slow work, done piece by piece; each piece reports its own errors."""

    slurm: Scontrol
    options: NoticeOptions
    say: Callable[[str], None]
    end_clients: Callable[[Member], None]
    """Has MPS end a guest's clients: killing a client while it computes may end its owner's too."""
    tell: Callable[[NoticeOptions, Payload], bool] = notice.tell
    _waiting: queue.PriorityQueue[_Work] = field(default_factory=lambda: queue.PriorityQueue(_MOST_WAITING))
    _count: int = 0

    def notify(self, one: Payload) -> None:
        """Tells berthd; nothing is lost if it does not hear."""
        if self.options.hosts:
            self._put(partial(self._tell, one), _TOLD)

    def evict(self, guest: Member, one: GuardNotice, *, lives: bool) -> threading.Event:
        """Has the guest put back into the queue, by berthd or else by Slurm itself; the event is set when that is done.

        Slurm would run a job again that has ended by itself, so it is asked only if the job's processes were seen.
        SIGTERM does not wait for Slurm: a slow Slurm must put back also a job that has ended by then.
        """
        done = threading.Event()

        def work() -> None:
            try:
                if not self._tell(one) and lives:
                    self.slurm.requeue(guest.job)
            except NodeSlurmError as problem:
                self.say(numbered(problem))
            try:
                if guest.way == "mps":
                    self.end_clients(guest)
            finally:
                done.set()

        self._put(work)
        return done

    def is_sent_away(self, guest: Member) -> Question:
        """Asks whether Slurm ends the guest to put it back into the queue; if so, MPS ends its clients first of all."""
        question = Question()

        def work() -> None:
            try:
                question.answer = self.slurm.is_sent_away(guest.job)
                if question.answer and guest.way == "mps":
                    self.end_clients(guest)
            finally:
                question.done.set()

        self._put(work)
        return question

    def requeue(self, job: int) -> None:
        """Has Slurm requeue the job; the last resort."""
        self._put(partial(self.slurm.requeue, job))

    def drain(self, node: str, reason: str) -> None:
        """Takes this node out of service."""
        self._put(partial(self.slurm.drain, node, f"berth: {reason}"))

    def run(self, seconds: float) -> None:
        """Does one waiting piece of work, or waits about this long for one; called in the thread."""
        try:
            piece = self._waiting.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return
        try:
            piece.work()
        except Interrupted:
            raise
        except Exception as problem:  # noqa: BLE001 - the work behind it is done whatever it is
            self.say(sentence(problem))

    def _tell(self, one: Payload) -> bool:
        try:
            return self.tell(self.options, one)
        except (NodeError, OSError) as problem:
            self.say(f"berthd was not told: {problem} [BERTH-935]")
            return False

    def _put(self, work: Callable[[], object], urgency: int = _URGENT) -> None:
        self._count += 1
        try:
            self._waiting.put_nowait(_Work(urgency, self._count, work))
        except queue.Full:
            self.say(
                "berthd and Slurm are slower than the guard has things to tell them; see slurmctld's log [BERTH-935]"
            )
