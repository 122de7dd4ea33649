# SPDX-License-Identifier: Apache-2.0
"""Ends a guest without harm to its owner, and without a second run of a guest that ended by itself.

The guest is frozen first. A frozen guest cannot end by itself, so if processes are left, Slurm may requeue the job.
Then berthd, or Slurm itself, puts it back into the queue. It is thawed behind a shut gate and gets SIGTERM; what is
left of it gets SIGKILL. If berthd sent the guest away itself, Slurm has already done all of that except the SIGKILL.
"""

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

from prolog_epilog.errors import NodeError
from prolog_epilog.guard.hold.guest_hold import TERM_S, GuestHold
from prolog_epilog.guard.roll import Member
from prolog_epilog.guard.tell.slow_work import Question, SlowWork
from prolog_epilog.node import freezer

ASK_S = 1.0
"""Time that berthd and Slurm get to put an ended guest back into the queue before its processes get SIGTERM."""

HURRY_S = 0.3
"""The same, if the owner waits for the guest's memory; SIGKILL follows SIGTERM at once then."""

_AGAIN_S = 0.5


class Ending:
    """The end of one guest; call `turn` until it is `over`."""

    def __init__(
        self,
        held: GuestHold,
        cgroups: Path,
        ask: Callable[[bool], Event] | None,
        now: float,
    ) -> None:
        """Freezes the guest and calls `ask`, which has it put back into the queue.

        `ask(False)` does that by berthd only, which knows whether the job runs. Without `ask`, Slurm has put the guest
        back already, and has sent SIGTERM by `now`.
        """
        self.held = held
        self._cgroups = cgroups
        self._began = now
        self._termed: float | None = now if ask is None else None
        self._killed: float | None = None
        self._ask_s, self._term_s = ASK_S, TERM_S
        self.over = False
        if ask is not None or held.by_freezer:
            # A guest that cannot be frozen, as with a full /run, is ended all the same.
            with suppress(NodeError, OSError):
                held.hold(now, 0.0, by_freezer=ask is not None)
        lives = self._lives()
        self._asked = ask(lives) if ask is not None else Event()
        self.over = not lives

    @property
    def killed(self) -> bool:
        """Tells whether the guest had to be killed."""
        return self._killed is not None

    def hurry(self) -> None:
        """Gives the guest no time: each step follows at once."""
        self._ask_s, self._term_s = HURRY_S, 0.0

    def turn(self, now: float) -> None:
        """Takes the next step if its time has come."""
        if self.over:
            return
        if not self._lives():
            self.over = True
            self.held.hold(now, 0.0, by_freezer=False)
            return
        if self._termed is None and (self._asked.is_set() or now - self._began >= self._ask_s):
            self._termed = now
            freezer.send(self.held.guest.job, signal.SIGTERM, root=self._cgroups)
            self.held.hold(now, 0.0, by_freezer=False)
        termed = self._termed is not None and now - self._termed >= self._term_s
        if termed and (self._killed is None or now - self._killed >= _AGAIN_S):
            self._killed = now
            freezer.send(self.held.guest.job, signal.SIGKILL, root=self._cgroups)

    def _lives(self) -> bool:
        return any(True for _ in freezer.pids(self.held.guest.job, self._cgroups))


_ASK_AGAIN_S = 2.0
"""Least seconds between two questions to Slurm: users may send SIGCONT to their jobs as often as they like."""


class GuestEnd:
    """The end of one guest that berthd sent away: if it ignores SIGTERM, it ends before KillWait is over.

    KillWait is meant for jobs that their users or their time limits end. A guest had its time to save its work before,
    and an owner waits for its seat. Call `stirs` when another process thaws it, and `turn` ten times a second.
    """

    def __init__(self, slow_work: SlowWork, guest: Member) -> None:
        self._slow_work, self._guest = slow_work, guest
        self._stirred: float | None = None
        self._question: Question | None = None
        self._asked = float("-inf")

    def stirs(self, now: float) -> None:
        """Notes that another process thawed the guest, as Slurm does right before SIGTERM."""
        if self._stirred is None:
            self._stirred = now

    def turn(self, now: float) -> float | None:
        """Returns when Slurm began to end the guest, once Slurm has said that the guest was sent away; else None."""
        if self._question is not None and self._question.done.is_set():
            sent_away, self._question = self._question.answer, None
            if sent_away:
                return self._asked
            if sent_away is None and self._stirred is None:
                # Slurm was too slow to answer; the hint does not come twice, so ask again.
                self._stirred = now
        if self._stirred is not None and self._question is None and now - self._asked >= _ASK_AGAIN_S:
            self._asked, self._stirred = now, None
            self._question = self._slow_work.is_sent_away(self._guest)
        return None
