# SPDX-License-Identifier: Apache-2.0
"""The Decider for one guest on one GPU: takes heartbeats and metrics, returns the actions to carry out.

It uses no clock, file or device: berth-guard calls it for each heartbeat or metric and carries out the actions. They
are ordered from weak to strong: the gate, which the guest's own process obeys; the freezer, which no process can
refuse; a request to leave; the end through MPS; the end by Slurm. Berth uses the weakest action that works.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import hypot, sqrt

from prolog_epilog.guard.decide.aimd import WINDOW_S
from prolog_epilog.guard.decide.law import GuardReading, Law
from prolog_epilog.guard.decide.trust import Trust
from prolog_epilog.guard.measure.baseline import STEPS, WAIT_S, Baseline, ChangeDetector
from prolog_epilog.guard.measure.machine import DeviceMachine, Transition
from prolog_epilog.guard.measure.signals import DeviceSample, HostBeat
from prolog_epilog.node.xid_list import DRAINING_XIDS, MPS_XIDS
from prolog_epilog.settings.guard_keys import GuardSettings

GATE_LAG_S, DRAIN_S = 0.05, 0.1
"""Time until a new duty reaches the guest, and time for which the queued work of a stopped guest still runs."""
ANSWER_S = 2.0
"""Time after which the freezer replaces a guest's gate that does not answer."""
FREEZE_SLOT_S = 0.2
"""Time slot for which a guest held by the freezer runs or is frozen."""
SILENT_DUTY = 0.10
"""The highest duty of a guest whose owner fell silent."""
END_S = 6.0
"""Time after its end at which a guest that still runs is requeued by Slurm."""
EVERY_S = 300.0
"""Time without a pause after which the guest is paused, so that a changed step of the owner is seen."""
ERROR, PAUSE_S = 0.006, 10.0
"""A pause lasts until the baseline's error is below the first, but no longer than the second.

A peer of the guest that waits for it must not run into a time-out.
"""

BELIEVED = float("-inf")
"""The value of `held_since` for a guest that no freezer reaches: that its shut gate holds it has to be believed."""
_SAME = 0.01
"""Step times whose relative difference is less than this are the same."""
_STOOD_STILL = 5.0
"""Seconds between two ticks, of which there is one a second, from which on the guard itself was held up."""
_HELD = 0.95
"""A guest that was held for this part of a step slowed that step by no more than the measurement error."""


class Do(Enum):
    """The actions on a guest or its GPU, weakest first."""

    GATE = "gate"
    """Set the duty that the guest's own process obeys."""
    FREEZER = "freezer"
    """Hold the guest's processes so that they run for this share of time; 0 is frozen."""
    MEMORY = "memory"
    """Ask the guest to give memory back."""
    LEAVE = "leave"
    """Send the signal that warns the guest before its end, so that it can save its work."""
    TERMINATE = "terminate"
    """End the guest's clients through MPS, or its processes by signals where there is no MPS."""
    REQUEUE = "requeue"
    """Have Slurm requeue the job."""
    RESET = "reset"
    """Bring the MPS server back to work."""
    DRAIN = "drain"
    """Tell Slurm that this GPU takes no jobs."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action to carry out, with its cause in words for `berth why`."""

    do: Do
    cause: str
    duty: float = 0.0


@dataclass(frozen=True, slots=True)
class GuestState:
    """The observed state of the guest."""

    runs: bool = True
    obeys: bool = True
    """True if its gate has applied the last order, or had none to apply yet."""
    held_since: float | None = BELIEVED
    """The time since which the kernel has held all of it still; None: it is not held."""


@dataclass(slots=True)
class _Leaving:
    """A guest that has to go: the steps to come, and their times."""

    cause: str
    end: float
    """The time at which it is ended."""
    steps: list[tuple[float, Do]]


class DutyRecord:
    """The history of the guest's duty: an old reading of the owner is compared with the duty of that time."""

    def __init__(self, keep_s: float) -> None:
        self._keep = keep_s
        self._changes: deque[tuple[float, float]] = deque([(float("-inf"), 0.0)])

    def set(self, at: float, duty: float) -> None:
        """Records that the guest has this duty from `at` on."""
        changes = self._changes
        while changes[-1][0] >= at:
            changes.pop()
        changes.append((at, duty))
        while len(changes) > 1 and changes[1][0] < at - self._keep:
            changes.popleft()

    def mean(self, begin: float, end: float) -> float:
        """Returns the mean duty between two times; the newest duty is taken to last."""
        changes = self._changes
        since, duty = changes[-1]
        if since <= begin:
            return duty
        if end <= begin:
            return next((duty for since, duty in reversed(changes) if since <= begin), changes[0][1])
        total, upto = 0.0, end
        for since, duty in reversed(changes):
            if since < upto:
                total += duty * (upto - max(since, begin))
                upto = since
            if since <= begin:
                break
        return total / (end - begin)


class Decider:
    """Protects one owner from one guest. All times are seconds of one steady clock."""

    def __init__(self, settings: GuardSettings, law: Law, blind: Law, now: float, *, mps: bool = False) -> None:
        """Uses `law` while the owner has a heartbeat, else `blind`; `mps`: both jobs share one fault domain."""
        self._mps = mps
        self.machine = DeviceMachine(settings.machine, now)
        self.baseline = Baseline()
        self.transitions: deque[Transition] = deque(maxlen=64)
        self._settings = settings
        self._law = law
        self._blind = blind
        self._record = DutyRecord(settings.action.silent_host_s + 60.0)
        # Detects slowdowns of the owner that no guest explains: it is faster than alone, or slower than the guest's
        # duty allows.
        self._strange = ChangeDetector(slack=1.0, largest=4.0, beats=1e8)
        self._trust = Trust()
        self._usual: float | None = (
            None  # while a slower owner is measured anew: the seconds a step up to which it is as before
        )
        self._guest: GuestState | None = None
        self._runs: bool | None = None
        self._law_since = now
        self._asked_since: float | None = None
        self._watched_from = now
        self._heard: float | None = None
        self._pace = 0.0  # seconds a step, as last heard
        self._device: DeviceSample | None = None
        self._present = False
        self._duty = 0.0
        self._by = Do.GATE
        self._disobeys_since: float | None = None
        self._leaving: _Leaving | None = None
        self._pause_since: float | None = None
        self._paused_at = now
        self._asked_memory = False
        self._ticked = now

    @property
    def duty(self) -> float:
        """Returns the duty that the guest was given last."""
        return self._duty

    def guest_arrives(self, now: float, law: Law | None = None, blind: Law | None = None) -> list[Action]:
        """Registers a new guest on this GPU; its gate is shut until the owner's baseline is known.

        A law knows one pair: pass new laws for this pair if another guest was here before.
        """
        self._law, self._blind = law or self._law, blind or self._blind
        self._present, self._leaving, self._by, self._asked_memory = True, None, Do.GATE, False
        self._trust, self._usual, self._disobeys_since = Trust(), None, None
        return self._give(now, 0.0, "the guest has just come", always=True)

    def guest_left(self, now: float) -> None:
        """Registers that the guest is gone, for whatever reason."""
        self._present, self._leaving, self._usual = False, None, None
        self._note(now, 0.0)

    def owner_arrives(self, now: float, law: Law, *, tolerates: bool, evict_grace_s: float) -> list[Action]:
        """Handles an owner that starts where a guest runs, as the owner's tier says: gate shut, or the guest leaves."""
        self._law = law
        self._watched_from, self._heard, self._usual = now, None, None
        self.baseline = Baseline()
        if tolerates:
            return self._give(now, 0.0, "an owner has come: its step time is measured first")
        return self._leave(now, "an owner has come that takes no guest", evict_grace_s)

    def mistrust(self, now: float, law: Law) -> list[Action]:
        """Drops all that was learned from the owner, because its reports cannot be used.

        Until the owner is heard again, it is treated as an owner that fell silent.
        """
        self._law = law
        self.baseline = Baseline()
        self._heard, self._usual = float("-inf"), None
        if not self._present:
            return []
        duty = min(SILENT_DUTY, self._duty)
        return self._give(now, duty, "nothing can be made of what the host tells")

    def felt(self, now: float, *, runs: bool) -> None:
        """Records whether a guest that the freezer holds to its duty runs now: the owner's steps feel which it is.

        If its turns are too rare for the law to see each of them, the frozen time is recorded with the guest's duty,
        not 0.
        """
        if runs is self._runs:
            return
        self._runs = runs
        rare = self._duty * WINDOW_S < FREEZE_SLOT_S
        self._record.set(now, 1.0 if runs else self._duty if rare else 0.0)

    def begin_anew(self, now: float, law: Law) -> None:
        """Starts a new law: the freezer holds the guest now; the old law learned from a guest that was not held."""
        self._law, self._law_since = law, now

    def end_now(self, now: float, cause: str) -> list[Action]:
        """Freezes and ends the guest: it has no time to save its work."""
        self._by = Do.FREEZER
        return self._leave(now, cause, 0.0)

    def send_away(self, now: float, cause: str, grace_s: float) -> list[Action]:
        """Makes the guest leave, if it has not been told to already."""
        return [] if self._leaving is not None else self._leave(now, cause, grace_s)

    def fault(self, now: float, xid: int) -> list[Action]:
        """Handles an Xid of the device, or the MPS server's FAULT state (xid 0)."""
        cause = f"Xid {xid}" if xid else "the MPS server is in FAULT"
        if xid in DRAINING_XIDS:
            self._log(self.machine.fault(now, cause))
            return [*self._leave(now, cause, 0.0), Action(Do.DRAIN, cause)]
        if self._mps and (xid == 0 or xid in MPS_XIDS):
            # All clients of the server have to go before it takes new ones, whichever of them caused the fault.
            self._log(self.machine.fault(now, cause))
            return [*self._leave(now, cause, 0.0), Action(Do.RESET, cause)]
        return []  # with time slicing, a fault affects only the program that caused it

    def tick(
        self,
        now: float,
        beat: HostBeat | None = None,
        device: DeviceSample | None = None,
        guest: GuestState | None = None,
        *,
        watched: bool = True,
    ) -> Sequence[Action]:
        """Returns what to do now; called for each new beat, and once a second with or without one.

        `watched`: the device is read, so that its silence means something.
        """
        actions: list[Action] = []
        self._guest = guest
        if not watched or now - self._ticked > _STOOD_STILL:
            self.machine.not_asked(now - self._ticked)
        self._ticked = now
        if device is not None:
            self._device = device
            actions += self._look(now, device)
        elif self._device is not None:
            actions += self._shed(now, self.machine.no_sample(now))
        duty = self._duty
        if beat is not None:
            self._heard, self._pace = now, beat.took / beat.steps
            duty = self._record.mean(beat.at - beat.took, beat.at)
            if duty == 0.0 and self._ran_alone(beat):
                self._learn(beat)
        if not self._present:
            return actions
        if guest is not None:
            actions += self._obedience(now, guest)
            actions += self._distrust(now)
        if self._leaving is not None:
            return actions + self._escalate(now, self._leaving)
        wanted, cause = self._wanted(now, beat, duty, device)
        return actions + self._give(now, wanted, cause)

    def _wanted(self, now: float, beat: HostBeat | None, duty: float, device: DeviceSample | None) -> tuple[float, str]:
        base = self.baseline
        reading = GuardReading(now, beat, base.step, base.error, base.noise, duty, device)
        if not self._hears(now):
            if self._heard is not None:
                return min(self._duty, SILENT_DUTY), "the host ends no steps any more"
            if now - self._watched_from >= WAIT_S:
                return self._blind.duty(reading), "the host reports no steps"
        if not base.known:
            return 0.0, "the host's step time alone is being measured"
        if beat is not None and duty > 0.0:
            self._suspect(reading, beat)
        if beat is not None and beat.at - beat.took < self._law_since:
            reading = reading._replace(beat=None)  # the beat began before this law did
        wanted = self._law.duty(reading)
        if self._asks(now):
            return 0.0, "the host is slower than the gate explains: the guest is frozen to see whose doing that is"
        if self._pausing(now):
            return 0.0, "a pause to measure the host's step time alone"
        return wanted, "the host's step time"

    def measures(self, now: float) -> bool:
        """Tells whether the owner's steps now become its baseline, so that only the freezer may vouch for the guest.

        The guest is not kept frozen for an owner that has fallen silent.
        """
        if not self._present or self._leaving is not None or self._duty > 0.0 or self._heard is None:
            return False
        return now - self._heard <= self._settings.action.silent_host_s + 3.0 * max(self.baseline.step, self._pace)

    def ran_alone(self, now: float, held_since: float | None) -> bool:
        """Tells whether a step that ends now ran while the freezer held the guest."""
        return held_since is not None and now - held_since - DRAIN_S >= _HELD * self._pace

    def _ran_alone(self, beat: HostBeat) -> bool:
        """Tells whether no guest can have slowed these steps, whatever it reports: only such steps are a baseline."""
        if not self._present:
            return True
        if self._guest is None:
            return self._leaving is None
        held = self._guest.held_since
        return held is not None and beat.at - held - DRAIN_S >= _HELD * beat.took

    def _learn(self, beat: HostBeat) -> None:
        """Adds steps that ran alone to the owner's baseline; they also show whether the guest caused a slowdown."""
        base, usual = self.baseline, self._usual
        was_known = base.known
        if was_known:
            usual = base.step * (1.0 + max(_SAME, 3.0 * base.noise / sqrt(beat.steps)))
        base.add(beat)
        if usual is None or not base.known:
            return
        step, self._usual = beat.took / beat.steps if was_known else base.step, None
        held = None if self._guest is None else self._guest.held_since
        if held is None or held == BELIEVED:
            return
        whole = beat.at - beat.took >= held + DRAIN_S
        if whole or not was_known:
            self._trust.alone(as_ever=step <= usual)

    def _asks(self, now: float) -> bool:
        """Tells whether the guest is frozen until the owner has shown whether it is slow by itself."""
        if not self._trust.asks:
            self._asked_since = None
            return False
        self._asked_since = now if self._asked_since is None else self._asked_since
        if now - self._asked_since < max(PAUSE_S, 3.0 * self.baseline.step):
            return True
        # The owner has shown nothing: the guest cannot be frozen, or one step goes on and on.
        self._trust.alone(as_ever=False)
        return False

    def _distrust(self, now: float) -> list[Action]:
        """Lets the freezer hold a guest that takes more than its gate allows, for as long as the guest is here."""
        if self._by is Do.FREEZER or self._leaving is not None or not self._trust.lost:
            return []
        self._by = Do.FREEZER
        cause = "its host is slower than its gate explains, and as fast as alone whenever it is frozen"
        return self._give(now, self._duty, cause, always=True)

    def _suspect(self, reading: GuardReading, beat: HostBeat) -> None:
        """Looks for slowdowns that the guest's duty does not explain: the baseline is out of date, or the guest lies.

        The owner is then measured anew with the guest frozen, which shows which of the two it is.
        """
        spare = max(_SAME, 3.0 * reading.base_error)
        deviation = reading.noise / sqrt(beat.steps)
        excess = reading.loss - reading.duty
        # A step during which the gate was opened late says nothing for or against the guest.
        told = self._guest is not None and self._guest.held_since is None and self._by is Do.GATE
        if told and reading.duty >= 0.5 * self._duty:
            self._trust.beside((excess - spare) / deviation)
        if self._strange.alarm((max(-reading.loss, excess) - spare) / deviation):
            self._strange.reset()
            if excess > 0.0:
                again = reading.noise / sqrt(STEPS)
                self._usual = reading.base * (1.0 + max(_SAME, 3.0 * hypot(reading.base_error, again)))
            self.baseline.forget()

    def _pausing(self, now: float) -> bool:
        """Tells whether the guest is paused so that the owner's step time alone is measured again."""
        base = self.baseline
        if self._pause_since is None:
            if now - max(base.measured_at, self._paused_at) < EVERY_S:
                return False
            self._pause_since = now
        measured = base.measured_at > self._pause_since and base.error <= ERROR
        if not measured and now - self._pause_since < max(PAUSE_S, 3.0 * base.step):
            return True
        self._pause_since, self._paused_at = None, now
        return False

    def _hears(self, now: float) -> bool:
        """Tells whether the owner has a heartbeat that was heard lately."""
        patience = self._settings.action.silent_host_s + 3.0 * self.baseline.step
        return self._heard is not None and now - self._heard <= patience

    def _look(self, now: float, device: DeviceSample) -> list[Action]:
        actions = self._shed(now, self.machine.sample(now, device, heartbeat=self._hears(now)))
        if device.memory is None or device.memory < self._settings.machine.healthy_memory:
            self._asked_memory = False
        elif self._present and not self._asked_memory:
            self._asked_memory = True
            actions.append(Action(Do.MEMORY, f"{device.memory:.0%} of the memory is in use"))
        return actions

    def _shed(self, now: float, transition: Transition | None) -> list[Action]:
        self._log(transition)
        if transition is None or self.machine.keeps or not self._present or self._leaving is not None:
            return []
        return self._leave(
            now, f"the GPU is {transition.after.value}: {transition.cause}", self._settings.action.evict_grace_s
        )

    def _obedience(self, now: float, guest: GuestState) -> list[Action]:
        """Replaces a gate that does not answer by the freezer, for as long as this guest is here."""
        if not guest.runs:
            self.guest_left(now)
            return []
        if guest.obeys:
            self._disobeys_since = None
            return []
        if self._disobeys_since is None:
            self._disobeys_since = now
        waited = now - self._disobeys_since
        if self._by is Do.FREEZER or waited < ANSWER_S:
            return []
        self._by = Do.FREEZER
        return self._give(now, self._duty, f"the gate has not answered for {waited:.0f} s", always=True)

    def _leave(self, now: float, cause: str, grace_s: float) -> list[Action]:
        """Makes the guest leave: its duty becomes 0 at once, and it has its grace time to save its work."""
        if not self._present:
            return []
        actions = self._give(now, 0.0, cause, always=True)
        end = now + grace_s
        if self._leaving is None or end < self._leaving.end:
            asked = [(now, Do.LEAVE)] if grace_s > 0.0 else []
            later = [(end, Do.TERMINATE), (end + END_S, Do.REQUEUE)]
            self._leaving = _Leaving(cause, end, [*asked, *later])
        return actions + self._escalate(now, self._leaving)

    def _escalate(self, now: float, leaving: _Leaving) -> list[Action]:
        due = [Action(do, leaving.cause) for at, do in leaving.steps if at <= now]
        leaving.steps = [(at, do) for at, do in leaving.steps if at > now]
        return due

    def _give(self, now: float, duty: float, cause: str, *, always: bool = False) -> list[Action]:
        if duty == self._duty and not always:
            return []
        self._note(now, duty)
        return [Action(self._by, cause, duty)]

    def _note(self, now: float, duty: float) -> None:
        self._runs = None
        # Work that a stopped guest has queued still runs for a while; otherwise a lower duty has an effect at once.
        self._record.set(now + GATE_LAG_S + (DRAIN_S if duty == 0.0 < self._duty else 0.0), duty)
        self._duty = duty

    def _log(self, transition: Transition | None) -> None:
        if transition is not None:
            self.transitions.append(transition)
