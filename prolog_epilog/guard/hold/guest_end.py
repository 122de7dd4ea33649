"""Handles a guest that Slurm ends because berthd sent it away: one that ignores SIGTERM does not get all of KillWait.

KillWait is meant for jobs that their users or their time limits end, and is long for their sake. A guest that was sent
away has an owner waiting for its seat, and had its time to save its work before.
"""

from prolog_epilog.guard.roll import Member
from prolog_epilog.guard.tell.slow_work import Question, SlowWork

_ASK_AGAIN_S = 2.0
"""Least seconds between two questions to Slurm: users may send SIGCONT to their jobs as often as they like."""


class GuestEnd:
    """The end of one guest: call `stirs` when another process thaws it, and `turn` ten times a second."""

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
