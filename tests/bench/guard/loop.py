# SPDX-License-Identifier: Apache-2.0
"""One pair in a closed loop: the host steps, the guard hears it late, the guest gets its duty late.

Time runs in ticks of 0.1 s. The guard's own Decider is called as berth-guard calls it: for every new beat, and once a
second with a reading of the device. It sees nothing but beats and samples of the age that the case names. Where the
host tells no steps, its launches are counted, and the guard's own OwnerHeartbeat makes beats of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from prolog_epilog.guard.decide.decider import Action, Decider, Do
from prolog_epilog.guard.measure.heartbeat import OwnerHeartbeat
from prolog_epilog.guard.measure.signals import DeviceSample, HostBeat
from prolog_epilog.injob.word import WordBeat
from tests.bench.guard.cases import SECONDS, Case
from tests.bench.guard.device import Physics, Profile, sensed

TICK = 0.1
ALONE_S = 61.0
"""How long the host runs before the guest: a GPU has to be Healthy for a minute before a guest is admitted."""
LAUNCHES, LAUNCHING = 1000, 0.3
"""Of a step: how many, and in which first part of it; then the host waits for the GPU."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to both from the guest's arrival on."""

    speed: Floats
    """The host's speed in each tick, over alone."""
    duty: Floats
    gain: Floats
    """The guest's throughput in each tick, over alone."""
    burst: Floats
    latencies: Floats
    """Time of each step or request."""
    alone: Floats
    """The same without a guest."""
    actions: int


def ticks(seconds: float) -> int:
    return round(seconds / TICK)


def bursts_of(case: Case) -> list[float]:
    """The host's demand in each tick."""
    factors = [1.0] * ticks(SECONDS)
    for begin, end, factor in case.bursts:
        for tick in range(ticks(begin), min(len(factors), ticks(end))):
            factors[tick] = factor
    return factors


def steps_of(case: Case, seconds: float) -> Floats:
    """How long each step takes alone: log-normal around the case's mean."""
    draw = np.random.default_rng(case.seed)
    count = int(seconds / case.step_s * 1.1) + 50
    noise = case.noise_cv * draw.standard_normal(count) - case.noise_cv**2 / 2.0
    return case.step_s * np.exp(noise)


def uncontrolled(case: Case, physics: Physics, duty: Floats | float) -> Outcome:
    """The pair with a duty for each tick that nobody adapts."""
    burst = np.array(bursts_of(case))
    duties = np.broadcast_to(np.asarray(duty, dtype=np.float64), burst.shape).copy()
    kinds, inverse = np.unique(np.stack([burst, duties]), axis=1, return_inverse=True)
    loss = np.array([physics.loss(*pair) for pair in kinds.T.tolist()])[inverse]
    gain = np.array([physics.gain(*pair) for pair in kinds.T.tolist()])[inverse]
    return _outcome(steps_of(case, SECONDS), 0.0, 1.0 - loss, duties, gain, burst, 0)


def controlled(
    case: Case,
    physics: Physics,
    decider: Decider,
    host: Profile,
    guest: Profile,
    *,
    alone_s: float = ALONE_S,
    hears: str = "steps",
) -> Outcome:
    """The pair under the guard; the clock is 0 when the guest comes, and the host ran `alone_s` before.

    It `hears` the host's "steps", its "launches", or nothing of it ("").
    """
    delay = ticks(case.sensor_delay_s + TICK / 2.0 - 1e-9)
    kinds = {"steps": _Steps, "launches": _Launches, "": _Nothing}
    ear = kinds[hears](delay, -ticks(alone_s) * TICK)
    return _Loop(case, physics, decider, host, guest, alone_s, ear, delay).run()


class _Ear(Protocol):
    """How the guard hears the host, some ticks late."""

    def ended(self, tick: int, steps: int, at: float) -> None:
        """Steps ended, the last at this moment."""

    def worked(self, tick: int, done: int, part: float) -> None:
        """So many steps are done, and of the next one this part."""

    def hear(self, tick: int, *, alone: bool) -> HostBeat | None:
        """What has arrived."""


class _Nothing:
    def __init__(self, delay: int, began: float) -> None:
        self._delay = delay
        self._heard = began

    def ended(self, tick: int, steps: int, at: float) -> None:
        pass

    def worked(self, tick: int, done: int, part: float) -> None:
        pass

    def hear(self, tick: int, *, alone: bool) -> HostBeat | None:  # noqa: ARG002 - nothing is nothing
        return None


class _Steps(_Nothing):
    def __init__(self, delay: int, began: float) -> None:
        super().__init__(delay, began)
        self._waiting: deque[tuple[int, int, float]] = deque()

    def ended(self, tick: int, steps: int, at: float) -> None:
        self._waiting.append((tick + 1 + self._delay, steps, at))

    def hear(self, tick: int, *, alone: bool) -> HostBeat | None:  # noqa: ARG002 - steps are what they are
        steps, last = 0, self._heard
        while self._waiting and self._waiting[0][0] <= tick:
            _, more, last = self._waiting.popleft()
            steps += more
        if not steps:
            return None
        before, self._heard = self._heard, last
        return HostBeat(last, steps, last - before)


class _Launches(_Nothing):
    def __init__(self, delay: int, began: float) -> None:
        super().__init__(delay, began)
        self._heartbeat = OwnerHeartbeat()
        self._waiting: deque[tuple[int, int]] = deque()

    def worked(self, tick: int, done: int, part: float) -> None:
        launches = round(LAUNCHES * (done + min(1.0, part / LAUNCHING)))
        self._waiting.append((tick + 1 + self._delay, launches))

    def hear(self, tick: int, *, alone: bool) -> HostBeat | None:
        launches = 0
        while self._waiting and self._waiting[0][0] <= tick:
            launches = self._waiting.popleft()[1]
        word = replace(_SILENT, launches=launches)
        return self._heartbeat.take(tick * TICK, {("GPU", 1): word}, alone=alone) if launches else None


_SILENT = WordBeat(1, 1, True, False, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ())


class _Loop:
    def __init__(
        self,
        case: Case,
        physics: Physics,
        decider: Decider,
        host: Profile,
        guest: Profile,
        alone_s: float,
        ear: _Ear,
        delay: int,
    ) -> None:
        self._case, self._physics, self._decider = case, physics, decider
        self._host, self._guest = host, guest
        self._ear, self._delay = ear, delay
        self._first = -ticks(alone_s)
        self._steps = steps_of(case, SECONDS + alone_s)
        self._actions = 0
        self._sits = alone_s < ALONE_S  # the guest was there first: an owner came to it
        self._present = False
        self._asked = 0.0  # the duty that the guest was told last
        self._queued: int | None = None  # tick until which a stopped guest's queued work runs

    def run(self) -> Outcome:
        case, physics = self._case, self._physics
        ends = np.cumsum(self._steps).tolist()
        burst = [1.0] * -self._first + bursts_of(case)
        speeds, duties, gains = ([0.0] * len(burst) for _ in range(3))
        samples: deque[tuple[int, DeviceSample]] = deque()
        work, done, ear = 0.0, 0, self._ear
        state = (0.0, 0.0, 1.0, 0.0)  # burst, duty, speed, gain of the tick before
        duty = 0.0
        for index, factor in enumerate(burst):
            tick = index + self._first
            now = tick * TICK
            beat = ear.hear(tick, alone=self._asked == 0.0 or not self._present)
            second = tick % 10 == 0
            if beat is not None or second:
                device = None
                if second:
                    samples.append((tick + self._delay, sensed(self._host, self._guest, factor, duty, now)))
                    while samples and samples[0][0] <= tick:
                        device = samples.popleft()[1]
                    if not self._present and tick >= 0 and (self._sits or self._decider.machine.admits):
                        self._present = True
                        self._obey(self._decider.guest_arrives(now))
                self._obey(self._decider.tick(now, beat, device))
            duty, mean = self._felt(tick, duty)
            if (factor, mean) != state[:2]:
                state = (factor, mean, 1.0 - physics.loss(factor, mean), physics.gain(factor, mean))
            speed = state[2]
            after = work + speed * TICK
            if ends[done] <= after:
                upto = bisect_right(ends, after, done)
                ear.ended(tick, upto - done, now + (ends[upto - 1] - work) / speed)
                done = upto
            work = after
            began = ends[done - 1] if done else 0.0
            ear.worked(tick, done, (work - began) / (ends[done] - began))
            speeds[index], duties[index], gains[index] = speed, mean, state[3]
        begin = -self._first
        past = begin * TICK
        return _outcome(
            self._steps,
            past,
            np.array(speeds[begin:]),
            np.array(duties[begin:]),
            np.array(gains[begin:]),
            np.array(burst[begin:]),
            self._actions,
        )

    def _felt(self, tick: int, before: float) -> tuple[float, float]:
        """The duty at the end of this tick and its mean: a word takes half a tick, queued work one tick more."""
        asked = self._asked
        if asked == 0.0 < before:
            if self._queued is None:
                self._queued = tick + 1
            if tick < self._queued:
                return before, before
        self._queued = None
        return asked, (before + asked) / 2.0

    def _obey(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if action.do in (Do.GATE, Do.FREEZER):
                self._asked = action.duty
                self._actions += 1
            elif action.do is Do.TERMINATE:
                self._asked, self._present = 0.0, False
                self._actions += 1


def _outcome(
    steps: Floats, past: float, speed: Floats, duty: Floats, gain: Floats, burst: Floats, actions: int
) -> Outcome:
    """Step times are read off the host's work: it runs at full speed until the guest comes at `past`."""
    work = past + np.concatenate([[0.0], np.cumsum(speed) * TICK])
    at = np.arange(len(work)) * TICK
    ends = np.cumsum(steps)
    inside = (ends > past) & (ends < work[-1])
    begin = np.maximum(ends - steps, past)[inside]
    latencies = np.interp(ends[inside], work, at) - np.interp(begin, work, at)
    return Outcome(speed, duty, gain, burst, latencies[1:], steps[inside][1:], actions)
