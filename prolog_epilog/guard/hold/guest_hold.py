# SPDX-License-Identifier: Apache-2.0
"""Holds one guest by its gate, the freezer and its memory limit. All of them lapse if the guard dies."""

import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog.guard.decide.decider import BELIEVED, DRAIN_S, FREEZE_SLOT_S, GATE_LAG_S
from prolog_epilog.guard.roll import Member
from prolog_epilog.injob import word
from prolog_epilog.injob.errors import WordError
from prolog_epilog.injob.word import OPEN, OrderPage, WordBeat
from prolog_epilog.node import freezer
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.guard_keys import ActionSettings

TERM_S = 1.5
"""Time from SIGTERM to SIGKILL of a guest that has to end."""

_MIB = 1 << 20
_RENEW_S = 1.0
_STEPS_WITHOUT_END = 2.0
"""A program is not in a step if it has ended none for this many of its step times."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The folders that the guard works in."""

    paths: Paths
    cgroups: Path = freezer.ROOT


class GuestHold:
    """The guest's last order, which is renewed before its lease ends."""

    def __init__(self, ground: Ground, settings: ActionSettings, uuid: str, guest: Member) -> None:
        self.guest = guest
        self.duty = 0.0
        self.by_freezer = False
        self.frozen = False
        self.held_since: float | None = None
        """The time since which the kernel has held all of it; BELIEVED if its freezer reaches no process."""
        self.measured = False
        """True while the owner's step time alone is measured: the gate's report is not enough for that."""
        self.epoch = 0
        self.wrote = False
        """True if its freezer was written to since this was cleared."""
        self.stirred = False
        """True if another process thawed it, or it waits for SIGTERM: Slurm may be ending it."""
        self.memory = 0
        """The limit in bytes of GPU memory that the guest is asked to keep to; 0: no limit."""
        self.quota: int | None = None
        """The bytes of GPU memory beyond which it gets no more; 0: no limit, None: what its Prolog said."""
        self._ground = ground
        self._host_bound = round(settings.host_bound_mib) * _MIB
        self._word = guest.words.get(uuid)
        self._page: OrderPage | None = None
        self._told: tuple[int, int, int | None] | None = None
        self._renewed = 0.0
        self._leased = 0.0
        self._let_go_until = 0.0
        self._warned = False
        self._slot_until = 0.0
        self._credit = 0.0
        self._before: dict[int, WordBeat] = {}
        self._still_since = 0.0
        self._answered = False

    def hold(self, now: float, duty: float, *, by_freezer: bool) -> None:
        """Holds the guest at this duty from now on."""
        if duty != self.duty:
            self._still_since = now
            self._before = {}
            self._answered = False
        self.duty, self.by_freezer = duty, by_freezer
        self._slot_until = self._credit = 0.0
        self.turn(now)

    def turn(self, now: float) -> None:
        """Renews what would lapse, and pulses the freezer; called ten times a second."""
        self._tell(now)
        if not self._is_held or now < self._let_go_until:
            if self.frozen:
                self._thaw()
            return
        if now >= self._slot_until:
            self._slot_until = now + FREEZE_SLOT_S
            self._credit += self.duty
            runs = self._credit >= 1.0
            self._credit -= runs
            if runs and self.frozen:
                self._thaw()
            elif not runs and not self.frozen:
                self._freeze(now)
        if self.frozen:
            self._keep_frozen(now)

    @property
    def _is_held(self) -> bool:
        """Tells whether the freezer has to hold the guest. A gate that has not answered yet gets its time to do so."""
        if self.by_freezer:
            return self.duty < 1.0
        return self.measured and self.duty == 0.0 and self._answered

    def _tell(self, now: float) -> None:
        # If the freezer does the work of a gate that is not obeyed, the gate is left open, except for a duty of 0.
        duty = round(self.duty * OPEN) if not self.by_freezer or self.duty == 0.0 else OPEN
        order = duty, self.memory, self.quota
        if self._word is None or (order == self._told and now - self._renewed < _RENEW_S):
            return
        bound = self._host_bound if self.memory else 0
        try:
            if self._page is None:
                self._page = OrderPage(self._word)
            self.epoch = self._page.give(duty, self.memory, bound, quota=self.quota, lease_s=freezer.LEASE_SECONDS)
            self._told = order
        except (WordError, OSError):
            # The Epilog has removed it, or is about to.
            self._page = None
        self._renewed = now

    def _freeze(self, now: float) -> None:
        freezer.lease(self._ground.paths, self.guest.job)
        self._leased = now
        self.frozen = self.wrote = True
        self._seize(now)

    def _seize(self, now: float) -> None:
        if not freezer.freeze(self.guest.job, self._ground.cgroups):
            self.held_since = BELIEVED
        elif self.held_since in {None, BELIEVED}:
            self.held_since = now

    def _keep_frozen(self, now: float) -> None:
        """Freezes new tasks of the guest as they come, and renews the lease."""
        self.wrote = True
        if freezer.was_thawed(self.guest.job, self._ground.cgroups):
            self.stirred, self.held_since = True, None
        if now - self._leased >= _RENEW_S:
            freezer.lease(self._ground.paths, self.guest.job)
            self._leased = now
            if self._is_to_end(now):
                self._thaw()
                return
        self._seize(now)

    def _is_to_end(self, now: float) -> bool:
        """Tells whether the guest has to be thawed for a while, so that it can end: Slurm or its user sent a signal.

        After SIGKILL it is thawed to die, after the first SIGTERM once to clean up.
        """
        job, root = self.guest.job, self._ground.cgroups
        if freezer.awaits(job, signal.SIGKILL, root):
            self._let_go_until = now + _RENEW_S
        elif not self._warned and freezer.awaits(job, signal.SIGTERM, root):
            self._warned = self.stirred = True
            self._let_go_until = now + TERM_S
        return now < self._let_go_until

    def _thaw(self) -> None:
        self.wrote = True
        freezer.thaw(self.guest.job, self._ground.cgroups)
        freezer.end_lease(self._ground.paths, self.guest.job)
        self.frozen, self.held_since = False, None

    def obeys(self, now: float, *, on_gpu: bool) -> bool:
        """Tells whether the guest does what it was told, as far as is seen; one without anything on the GPU does.

        In the first moments the guest is believed.
        """
        if self.duty >= 1.0 or (self.frozen and not self.by_freezer):
            return True
        beats = self._gated()
        if not beats:
            self._answered |= not on_gpu
            return not on_gpu
        if not self._has_settled(now, beats):
            return True
        follows = all(self._follows(now, beat) for beat in beats)
        self._answered |= follows
        # The freezer may hold the guest because of another of its GPUs, and a frozen guest cannot answer.
        return follows or (not self.frozen and freezer.is_frozen(self.guest.job, self._ground.cgroups))

    @property
    def told_at(self) -> float:
        """Returns the time at which its duty last changed."""
        return self._still_since

    def _gated(self) -> tuple[WordBeat, ...]:
        # A process with both parts (the Python hooks and the library) beats twice; only one of the beats is its gate's.
        return tuple(beat for beat in self.beats() if not beat.elsewhere)

    def _has_settled(self, now: float, beats: tuple[WordBeat, ...]) -> bool:
        """Tells whether the work queued before the gate was shut is done; until then it keeps the beats to compare."""
        if now - self._still_since >= GATE_LAG_S + DRAIN_S and self._before:
            return True
        self._before = {beat.slot: beat for beat in beats}
        return False

    def _follows(self, now: float, beat: WordBeat) -> bool:
        """Tells whether the process obeys: it confirmed the last order, or stands still, or has idled since."""
        before = self._before_of(beat)
        if before is None or beat.epoch == self.epoch or (self.duty > 0.0 and beat.idle_ns > before.idle_ns):
            return True
        # The step during which the gate was shut may still be reported.
        return beat.launches == before.launches and beat.steps <= before.steps + 1 and not _is_in_a_step(now, beat)

    def _before_of(self, beat: WordBeat) -> WordBeat | None:
        """Returns the beat of this process from when the order had settled; None if the process has come since."""
        before = self._before.get(beat.slot)
        if before is not None and before.pid == beat.pid:
            return before
        self._before[beat.slot] = beat
        return None

    def beats(self) -> tuple[WordBeat, ...]:
        """Returns the beats of the guest's processes."""
        if self._word is None:
            return ()
        with suppress(WordError, OSError):
            return word.read_beats(self._word)
        return ()

    def unknown_functions(self) -> int:
        """Counts what the guest's programs looked up in the driver and the library has no hook for (newer CUDA)."""
        return sum(beat.unknown for beat in self.beats())

    def release(self) -> None:
        """Lets the guest go: opens its gate, and thaws it."""
        self.by_freezer, self.duty = False, 1.0
        if self.frozen:
            self._thaw()
        if self._page is not None:
            with suppress(WordError):
                self._page.give(OPEN, quota=self.quota, lease_s=0.0)
            self._page.close()
            self._page = None


def _is_in_a_step(now: float, beat: WordBeat) -> bool:
    """Tells whether a program that is gated only at its step boundaries is still computing a step.

    A program that has reached no boundary for much longer than its steps take does something else.
    """
    if beat.library or not beat.steps:
        return False
    return now - beat.at_ns / 1e9 < _STEPS_WITHOUT_END * beat.step_ns / beat.steps / 1e9
