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
from prolog_epilog.node import freezer

ASK_S = 1.0
"""Time that berthd and Slurm get to put an ended guest back into the queue before its processes get SIGTERM."""

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

    def turn(self, now: float) -> None:
        """Takes the next step if its time has come."""
        if self.over:
            return
        if not self._lives():
            self.over = True
            self.held.hold(now, 0.0, by_freezer=False)
        elif self._termed is None:
            if self._asked.is_set() or now - self._began >= ASK_S:
                self._termed = now
                freezer.send(self.held.guest.job, signal.SIGTERM, root=self._cgroups)
                self.held.hold(now, 0.0, by_freezer=False)
        elif now - self._termed >= TERM_S and (self._killed is None or now - self._killed >= _AGAIN_S):
            self._killed = now
            freezer.send(self.held.guest.job, signal.SIGKILL, root=self._cgroups)

    def _lives(self) -> bool:
        return any(True for _ in freezer.pids(self.held.guest.job, self._cgroups))
