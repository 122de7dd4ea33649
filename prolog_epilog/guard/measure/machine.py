# SPDX-License-Identifier: Apache-2.0
"""The device's state machine, MuxFlow's SysMonitor: whether a GPU may take a guest, keep it, or must shed it.

    Init -> Healthy          healthy samples for `admit_s`
    Healthy -> Unhealthy     no healthy sample for 5 s: the guest stays, no new one comes
    Unhealthy -> Healthy     healthy samples for `admit_s`
    any of them -> Overlimit 2 s more over the limit than below it: the guest goes
    Overlimit -> Unhealthy   the cool-down has passed and the device is not over its limit
    any -> Disabled          a fault, or no samples for 15 s; out of it only through Init

Utilisation and SM activity say how busy a GPU is, not whether its owner is harmed: a good pair is busy. They count only
while the owner has no heartbeat. With one, the control law keeps the owner's bound, and the machine watches clock,
memory and faults.
"""

from dataclasses import dataclass
from enum import Enum

from prolog_epilog.guard.measure.signals import DeviceSample
from prolog_epilog.settings.guard_keys import MachineSettings

HEALTHY_UTILISATION, HEALTHY_SM_ACTIVE = 0.80, 0.60
"""A GPU without a heartbeat is healthy below these."""
OVER_UTILISATION, OVER_SM_ACTIVE = 0.95, 0.85
"""The GPU is over its limit above both of these, if no heartbeat shows that the owner is well."""
LEAVE_S = 5.0
"""Seconds of samples in a row that are not healthy before the GPU is Unhealthy."""
SHED_S = 2.0
"""Seconds of samples in a row over the limit before the guest goes."""
LONGEST_COOL_DOWN_S = 3_600.0
"""The cool-down after Overlimit is doubled by each recent Overlimit, up to this."""
FORGIVE_S = 3_600.0
"""This long without Overlimit takes one doubling back."""
SILENT_S = 15.0
"""The device is not trusted after this long without a sample."""


class State(Enum):
    """The states of a GPU."""

    INIT = "Init"
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    OVERLIMIT = "Overlimit"
    DISABLED = "Disabled"


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state, for the log, with its cause and the sample that led to it."""

    at: float
    before: State
    after: State
    cause: str
    sample: DeviceSample | None


def healthy(sample: DeviceSample, limits: MachineSettings, *, heartbeat: bool) -> str:
    """Returns the reason against a guest, in words; empty if there is none."""
    if sample.held_back and sample.clock is not None and sample.clock < limits.healthy_clock:
        return f"power or heat holds the SM clock at {sample.clock:.0%}"
    if sample.memory is not None and sample.memory >= limits.healthy_memory:
        return f"{sample.memory:.0%} of the memory is in use"
    if heartbeat:
        return ""
    if sample.sm_active is not None:  # the better measure, where there is one
        busy = sample.sm_active >= HEALTHY_SM_ACTIVE
        return f"{sample.sm_active:.0%} of the SMs are active" if busy else ""
    if sample.utilisation is not None and sample.utilisation >= HEALTHY_UTILISATION:
        return f"utilisation is {sample.utilisation:.0%}"
    return ""


def over_limit(sample: DeviceSample, limits: MachineSettings, *, heartbeat: bool) -> str:
    """Returns the reason why a guest has to go, in words; empty if it may stay."""
    if sample.held_back and sample.clock is not None and sample.clock < limits.over_clock:
        return f"power or heat holds the SM clock at {sample.clock:.0%}"
    if sample.memory is not None and sample.memory >= limits.over_memory:
        return f"{sample.memory:.0%} of the memory is in use"
    if heartbeat or sample.utilisation is None or sample.sm_active is None:
        return ""
    if sample.utilisation >= OVER_UTILISATION and sample.sm_active >= OVER_SM_ACTIVE:
        return f"utilisation is {sample.utilisation:.0%} with {sample.sm_active:.0%} of the SMs active"
    return ""


class DeviceMachine:
    """The state of one GPU. Feed it samples and faults; it returns the transition, if there was one."""

    def __init__(self, limits: MachineSettings, now: float) -> None:
        self._limits = limits
        self.state = State.INIT
        self._sampled = now
        self._good_since: float | None = None
        self._bad_since: float | None = None
        self._over_s = 0.0
        self._over_entries = 0
        self._forgiven_at = now
        self._cool_until = now

    @property
    def admits(self) -> bool:
        """Tells whether a new guest may come."""
        return self.state is State.HEALTHY

    @property
    def keeps(self) -> bool:
        """Tells whether a guest that is there may stay."""
        return self.state not in (State.OVERLIMIT, State.DISABLED)

    @property
    def cool_down(self) -> float:
        """Returns the seconds for which the next Overlimit would last."""
        return min(self._limits.cool_down_s * 2.0**self._over_entries, LONGEST_COOL_DOWN_S)

    def fault(self, now: float, cause: str) -> Transition | None:
        """Handles a fault of the device or of what serves it."""
        return self._to(State.DISABLED, now, cause, None)

    def repaired(self, now: float) -> Transition | None:
        """Leaves Disabled for Init because the fault is gone; the GPU has to show healthy samples again."""
        if self.state is not State.DISABLED:
            return None
        self._good_since = None
        self._sampled = now
        return self._to(State.INIT, now, "repaired", None)

    def no_sample(self, now: float) -> Transition | None:
        """Handles time that passed without a sample."""
        silent = now - self._sampled
        if silent <= SILENT_S or self.state is State.DISABLED:
            return None
        return self._to(State.DISABLED, now, f"no metrics for {silent:.0f} s", None)

    def not_asked(self, seconds: float) -> None:
        """Handles time in which the guard itself stood still: that the device said nothing then means nothing."""
        self._sampled += seconds

    def sample(self, now: float, sample: DeviceSample, *, heartbeat: bool) -> Transition | None:
        """Handles a sample of the device; `heartbeat`: the owner reports its own steps."""
        passed, self._sampled = now - self._sampled, now
        silent = self.state is State.DISABLED and passed > SILENT_S
        if silent:
            return self.repaired(now)
        if self.state is State.DISABLED:
            return None
        self._forgive(now)
        against = healthy(sample, self._limits, heartbeat=heartbeat)
        over = over_limit(sample, self._limits, heartbeat=heartbeat)
        self._good_since = None if against else _since(self._good_since, now)
        self._bad_since = _since(self._bad_since, now) if against else None
        # A guest that lets go for a moment, again and again, goes all the same.
        self._over_s = self._over_s + passed if over else max(0.0, self._over_s - passed)
        limits = self._limits
        if self.state is State.OVERLIMIT:
            if now >= self._cool_until and not over:
                return self._to(State.UNHEALTHY, now, "the cool-down has passed", sample)
            return None
        if over and self._over_s - passed >= SHED_S:
            self._cool_until = now + self.cool_down
            self._over_entries += 1
            self._forgiven_at = now
            return self._to(State.OVERLIMIT, now, over, sample)
        if self.state is State.HEALTHY:
            if self._bad_since is not None and now - self._bad_since >= LEAVE_S:
                return self._to(State.UNHEALTHY, now, against, sample)
        elif self._good_since is not None and now - self._good_since >= limits.admit_s:
            return self._to(State.HEALTHY, now, f"nothing against a guest for {limits.admit_s:.0f} s", sample)
        return None

    def _forgive(self, now: float) -> None:
        while self._over_entries and now - max(self._forgiven_at, self._cool_until) >= FORGIVE_S:
            self._over_entries -= 1
            self._forgiven_at = max(self._forgiven_at, self._cool_until) + FORGIVE_S

    def _to(self, state: State, now: float, cause: str, sample: DeviceSample | None) -> Transition | None:
        if state is self.state:
            return None
        before, self.state = self.state, state
        self._good_since = self._bad_since = None
        self._over_s = 0.0
        return Transition(now, before, state, cause, sample)


def _since(since: float | None, now: float) -> float:
    return now if since is None else since
