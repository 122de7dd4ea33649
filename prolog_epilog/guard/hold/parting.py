"""A guest that Slurm ends because berthd sent it away: what ignores SIGTERM is not left to Slurm's KillWait.

KillWait is there for jobs that their users or their time limits end, and is long for their sake. A guest that was sent
away has an owner waiting for its seat, and had its time to save its work before.
"""

from __future__ import annotations

from prolog_epilog.guard.roll import Member
from prolog_epilog.guard.tell.errands import Errands, Question

__all__ = ["Parting"]

_ASK_AGAIN_S = 2.0
"""A user may send SIGCONT to a job as often as he likes; Slurm is not asked more often than this."""


class Parting:
    """One guest; `stirs` when somebody lets it go on, `turn` ten times a second."""

    def __init__(self, errands: Errands, guest: Member) -> None:
        self._errands, self._guest = errands, guest
        self._stirred: float | None = None
        self._question: Question | None = None
        self._asked = float("-inf")

    def stirs(self, now: float) -> None:
        """Somebody let the guest go on, as Slurm does right before SIGTERM."""
        if self._stirred is None:
            self._stirred = now

    def turn(self, now: float) -> float | None:
        """When Slurm began to end the guest, once Slurm has said that it does because the guest was sent away."""
        if self._question is not None and self._question.done.is_set():
            sent_away, self._question = self._question.answer, None
            if sent_away:
                return self._asked
            if sent_away is None and self._stirred is None:
                # Slurm was too slow to say; the hint does not come twice.
                self._stirred = now
        if self._stirred is not None and self._question is None and now - self._asked >= _ASK_AGAIN_S:
            self._asked, self._stirred = now, None
            self._question = self._errands.is_sent_away(self._guest)
        return None
