# SPDX-License-Identifier: Apache-2.0
"""Notices of the guards: GPUs that take no guest for now, and guests that have to leave."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from policy.formats.errors import FormatError

BELIEVED_FOR = 600.0
"""Seconds for which a GPU stays closed without another notice; a guard that lives sends one each minute."""

AVOID_FOR = {"leave": 600.0, "evict": 600.0, "fault": 3_600.0}
"""By order, the seconds for which a guest avoids the node whose guard sent it away; longer if it was at fault."""

LATE = 10.0
"""Seconds after a grace in which the guard may still end the guest; after that berthd takes it for dead and does so."""

OPEN = "healthy"

_PAYLOAD = re.compile(
    rb"berth/1 guard node=([A-Za-z0-9_.-]{1,255}) gpu=([0-9]|[1-5][0-9]|6[0-3]) job=(0|[1-9][0-9]{0,9})"
    rb" state=([a-z]{1,16}) word=([a-z]{1,16})(?: grace=([0-9]{1,5}))?"
    rb"((?: [a-z_]{1,16}=[0-9]{1,10}(?:\.[0-9]{1,6})?)*)"
)
_MOST_JOBS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Alone:
    """The figures that a guard measured of a job that had a GPU to itself."""

    job: int
    seconds: float
    step: float | None = None
    """Seconds per step; the other figures are as in a profile."""
    busy: float | None = None
    sms: float | None = None
    bandwidth: float | None = None
    pipes: float | None = None
    dram: float | None = None
    memory: float | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """The figures that a guard measured of an owner (host in names) beside its guest."""

    host: int
    seconds: float
    speed: float
    """Speed of the owner; 1.0 is its speed alone."""
    duty: float
    """Part of the time in which the guest might use the GPU."""


@dataclass(frozen=True, slots=True)
class GuardWord:
    """One notice of a guard (docs/develop/formats.md)."""

    node: str
    gpu: int
    job: int
    """The guest; 0 for none."""
    state: str
    """State of the GPU's state machine."""
    word: str
    """Order about the guest: `evict` and `fault` send it away at once, `leave` after its grace; `state` is none."""
    grace: int = 0
    """Seconds that a guest that has to leave was given to save its work."""
    alone: Alone | None = None
    together: Together | None = None

    @property
    def sends_away(self) -> bool:
        """Tells whether the guest has to leave."""
        return self.job > 0 and self.word in AVOID_FOR

    @property
    def patience(self) -> float | None:
        """Returns the seconds until berthd ends the guest: its grace, and time for its guard; None if at once."""
        return self.grace + LATE if self.word == "leave" else None

    @property
    def reason(self) -> str:
        """Returns the reason, for the guest's user."""
        if self.word == "fault":
            return f"it made a fatal error on {self.node} GPU {self.gpu}"
        return f"the guard of {self.node} protects the owner of GPU {self.gpu} ({self.state})"


def read_word(payload: bytes) -> GuardWord | None:
    """Returns the notice in a payload; None if it is not one."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None or int(match[3]) > _MOST_JOBS:
        return None
    figures = [item.partition("=") for item in match[7].decode().split()]
    try:
        alone, together = measured({key: float(value) for key, _, value in figures})
    except FormatError:
        return None
    node, gpu, job, state, word, grace, _ = match.groups(b"0")
    return GuardWord(node.decode(), int(gpu), int(job), state.decode(), word.decode(), int(grace), alone, together)


class Guards:
    """The GPUs that are closed to new guests."""

    def __init__(self) -> None:
        self._closed: dict[tuple[str, int], float] = {}

    def hear(self, word: GuardWord, at: float) -> None:
        """Notes the state of a GPU."""
        key = word.node, word.gpu
        if word.state == OPEN:
            self._closed.pop(key, None)
        else:
            self._closed[key] = at + BELIEVED_FOR

    def closed(self, index: Mapping[str, int], at: float) -> dict[int, int]:
        """Returns by node number a mask of the GPUs that take no new guest."""
        if not self._closed:
            return {}
        self._closed = {key: until for key, until in self._closed.items() if until > at}
        found: dict[int, int] = {}
        for node, gpu in self._closed:
            if node in index:
                found[index[node]] = found.get(index[node], 0) | 1 << gpu
        return found


_OF_ONE_ALONE = ("step", "busy", "sms", "bandwidth", "pipes", "dram", "memory")


def measured(figures: Mapping[str, float]) -> tuple[Alone | None, Together | None]:
    """Reads a guard's figures (docs/develop/formats.md, 11.1).

    >>> measured({"alone": 7, "alone_s": 60, "busy": 0.5})[0]
    Alone(job=7, seconds=60, step=None, busy=0.5, sms=None, bandwidth=None, pipes=None, dram=None, memory=None)
    """
    left = dict(figures)
    try:
        alone = together = None
        if "alone" in left:
            job, seconds = int(left.pop("alone")), left.pop("alone_s")
            alone = Alone(job, seconds, **{name: left.pop(name) for name in _OF_ONE_ALONE if name in left})
        if "host" in left:
            together = Together(int(left.pop("host")), left.pop("shared_s"), left.pop("speed"), left.pop("duty"))
    except KeyError as missing:
        raise FormatError(f"a guard's figures lack {missing}") from None
    if left:
        raise FormatError(f"a guard's figures have {next(iter(left))}, which berthd does not know")
    return alone, together
