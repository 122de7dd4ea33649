"""The device's state machine, MuxFlow's SysMonitor: whether a GPU may take a guest, keep it, or must shed it.

    Init -> Healthy          healthy samples for `admit_s`
    Healthy -> Unhealthy     no healthy sample for `leave_s`: the guest stays, no new one comes
    Unhealthy -> Healthy     healthy samples for `admit_s`
    any of them -> Overlimit `shed_s` more over the limit than below it: the guest goes
    Overlimit -> Unhealthy   the cool-down has passed and the device is not over its limit
    any -> Disabled          a fault, or no samples for `silent_s`; out of it only through Init

Utilisation and SM activity say how busy a GPU is, not whether its owner is harmed: a good pair is busy. They count only
while the owner has no heartbeat. With one, the control law keeps the owner's bound, and the machine watches clock,
memory and faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from prolog_epilog.guard.measure.signals import DeviceSample
from prolog_epilog.guard.settings import MachineSettings

__all__ = ["DeviceMachine", "State", "Transition", "healthy", "over_limit"]


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
        busy = sample.sm_active >= limits.healthy_sm_active
        return f"{sample.sm_active:.0%} of the SMs are active" if busy else ""
    if sample.utilisation is not None and sample.utilisation >= limits.healthy_utilisation:
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
    if sample.utilisation >= limits.over_utilisation and sample.sm_active >= limits.over_sm_active:
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
        return min(self._limits.cool_down_s * 2.0**self._over_entries, self._limits.longest_cool_down_s)

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
        if silent <= self._limits.silent_s or self.state is State.DISABLED:
            return None
        return self._to(State.DISABLED, now, f"no metrics for {silent:.0f} s", None)

    def not_asked(self, seconds: float) -> None:
        """Handles time in which the guard itself stood still: that the device said nothing then means nothing."""
        self._sampled += seconds

    def sample(self, now: float, sample: DeviceSample, *, heartbeat: bool) -> Transition | None:
        """Handles a sample of the device; `heartbeat`: the owner reports its own steps."""
        passed, self._sampled = now - self._sampled, now
        silent = self.state is State.DISABLED and passed > self._limits.silent_s
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
        if over and self._over_s - passed >= limits.shed_s:
            self._cool_until = now + self.cool_down
            self._over_entries += 1
            self._forgiven_at = now
            return self._to(State.OVERLIMIT, now, over, sample)
        if self.state is State.HEALTHY:
            if self._bad_since is not None and now - self._bad_since >= limits.leave_s:
                return self._to(State.UNHEALTHY, now, against, sample)
        elif self._good_since is not None and now - self._good_since >= limits.admit_s:
            return self._to(State.HEALTHY, now, f"nothing against a guest for {limits.admit_s:.0f} s", sample)
        return None

    def _forgive(self, now: float) -> None:
        while self._over_entries and now - max(self._forgiven_at, self._cool_until) >= self._limits.forgive_s:
            self._over_entries -= 1
            self._forgiven_at = max(self._forgiven_at, self._cool_until) + self._limits.forgive_s

    def _to(self, state: State, now: float, cause: str, sample: DeviceSample | None) -> Transition | None:
        if state is self.state:
            return None
        before, self.state = self.state, state
        self._good_since = self._bad_since = None
        self._over_s = 0.0
        return Transition(now, before, state, cause, sample)


def _since(since: float | None, now: float) -> float:
    return now if since is None else since
