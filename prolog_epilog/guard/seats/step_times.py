# SPDX-License-Identifier: Apache-2.0
"""Gathers the step times of owners' ranks; berthd learns from them which GPU became slow (docs/develop/formats.md).

A second counts if only the GPU itself can have made a step longer: no guest ran, and the GPU was busy all the time. A
rank that waits for its input leaves its GPU idle, and its time is not counted. Nothing is kept on disk: a guard that is
restarted loses an hour of times at most.
"""

import math
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from prolog_epilog.guard.measure.device_reader import Look
from prolog_epilog.guard.measure.heartbeat import Rank
from prolog_epilog.guard.seats.seat import GuardedSeat
from prolog_epilog.guard.tell.notice import Payload
from prolog_epilog.injob.word import WordBeat

REPORT_S = 3_600.0
"""Seconds between reports: hours of the wall clock, so that all nodes of a job report at about the same moment."""
_SPREAD_S = 60
"""Nodes report within this many seconds after the hour, so that berthd does not hear of all GPUs at once."""
_LOOK_S = 1.0
_BUSY = 0.95
"""Share of time with a kernel from which on a GPU waits for no one but other GPUs."""
_LEAST_S, _LEAST_STEPS = 60.0, 20
"""The least seconds and steps of a report; less says too little."""
_LEAST_CLOCK_S = 10.0
_IN_A_ROW = (0.7, 1.3)
"""A training job's steps fill the time; a service's requests overlap or leave gaps, and say nothing about the GPU."""
_MOST_TO_TELL = 256
_STALE_S = 3.0
"""A reading of the device that is older than this is not used."""


@dataclass(frozen=True, slots=True)
class StepNotice:
    """The report on one GPU of one job; 0 for a value that was not measured."""

    node: str
    gpu: int
    uuid: str
    job: int
    app: int
    own_ns: int
    """The median time of a step, in nanoseconds."""
    steps: int
    mhz: int
    """Median SM clock at the power limit."""
    watts: int
    seconds: int
    """The seconds for which the clock was watched."""

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        return (
            f"berth/1 steps node={self.node} gpu={self.gpu} uuid={self.uuid} job={self.job} app={self.app:x} "
            f"own_ns={self.own_ns} steps={self.steps} mhz={self.mhz} watts={self.watts} seconds={self.seconds}"
        )


@dataclass(slots=True)
class _Account:
    """One GPU of one owner job since the last report."""

    job: int
    seat: GuardedSeat
    last: WordBeat | None = None
    clean: bool = True
    """True if nothing disturbed the GPU since `last`."""
    clean_s: float = 0.0
    step_ns: int = 0
    heard_s: float = 0.0
    steps: int = 0
    app: int = 0
    times: list[float] = field(default_factory=list)
    clocks: list[float] = field(default_factory=list)
    watts: float = 0.0

    def hear(self, beat: WordBeat | None, seconds: float, *, clean: bool) -> None:
        """Takes the beat of the GPU's only rank that knows its own time, or None."""
        self.clean = self.clean and clean
        before, fresh = self.last, beat is not None and (self.last is None or beat.steps != self.last.steps)
        if beat is None or before is None or before.pid != beat.pid or beat.own_steps < before.own_steps:
            self.last, self.clean = beat, clean
            return
        self.heard_s += seconds
        if not fresh:
            return
        steps, took = beat.own_steps - before.own_steps, beat.own_ns - before.own_ns
        self.step_ns += max(beat.step_ns - before.step_ns, 0)
        if self.clean and steps > 0 and took > 0:
            self.times.append(took / steps)
            self.steps += steps
            self.clean_s += took / 1e9
            self.app = beat.app
        self.last, self.clean = beat, clean

    def see(self, look: Look) -> None:
        """Takes the clock of a busy GPU, if only the power limit decides it."""
        sample = look.sample
        if sample.at_power_limit and sample.sm_mhz and sample.power_limit_w:
            if self.watts != sample.power_limit_w:
                self.clocks.clear()
            self.watts = sample.power_limit_w
            self.clocks.append(sample.sm_mhz)

    def notice(self) -> StepNotice | None:
        """Returns the report, or None if there is too little to tell."""
        least, most = _IN_A_ROW
        in_a_row = self.heard_s > 0.0 and least <= self.step_ns / 1e9 / self.heard_s <= most
        enough = in_a_row and self.steps >= _LEAST_STEPS and self.clean_s >= _LEAST_S and self.app
        clocked = bool(self.app) and in_a_row and len(self.clocks) * _LOOK_S >= _LEAST_CLOCK_S
        if not self.seat.node or not (enough or clocked):
            return None
        return StepNotice(
            node=self.seat.node,
            gpu=self.seat.place.position,
            uuid=self.seat.uuid,
            job=self.job,
            app=self.app,
            own_ns=round(median(self.times)) if enough else 0,
            steps=self.steps if enough else 0,
            mhz=round(median(self.clocks)) if clocked else 0,
            watts=round(self.watts) if clocked else 0,
            seconds=round(len(self.clocks) * _LOOK_S) if clocked else 0,
        )


class ToldStepTimes:
    """The step times of all GPUs with an owner on this node."""

    def __init__(self, tell: Callable[[Payload], None], wall: Callable[[], float] = time.time) -> None:
        self._tell, self._wall = tell, wall
        self._accounts: dict[str, _Account] = {}
        self._to_tell: deque[StepNotice] = deque(maxlen=_MOST_TO_TELL)
        """One report is sent with each look: a guest's eviction must not wait behind them."""
        self._looked = -math.inf
        self._hour: int | None = None

    def turn(
        self,
        now: float,
        seats: Mapping[str, GuardedSeat],
        words: Mapping[int, Mapping[Rank, WordBeat]],
        looks: Mapping[str, Look],
    ) -> None:
        """Gathers and reports; called ten times a second, looks once a second. `words`: the beats of each owner job."""
        if now - self._looked < _LOOK_S:
            return
        seconds = min(now - self._looked, 2.0 * _LOOK_S)
        self._looked = now
        for uuid, account in list(self._accounts.items()):
            host = seats[uuid].host if uuid in seats else None
            if host is None or host.job != account.job:
                self._report(uuid)
        for uuid, seat in seats.items():
            if seat.host is not None:
                account = self._accounts.setdefault(uuid, _Account(seat.host.job, seat))
                account.seat = seat
                self._look(now, seat, account, words.get(seat.host.job, {}), looks.get(uuid), seconds)
        hour = self._hour_of(next((seat.node for seat in seats.values()), ""))
        if self._hour is not None and hour != self._hour:
            for uuid in list(self._accounts):
                self._report(uuid)
        self._hour = hour
        if self._to_tell:
            self._tell(self._to_tell.popleft())

    def _look(
        self,
        now: float,
        seat: GuardedSeat,
        account: _Account,
        words: Mapping[Rank, WordBeat],
        look: Look | None,
        seconds: float,
    ) -> None:
        mine = [beat for (uuid, _), beat in words.items() if uuid == seat.uuid and beat.own_steps]
        alone = seat.held is None or seat.held.duty == 0.0
        fresh = look is not None and now - look.sample.at < _STALE_S
        busy = look is not None and fresh and (look.sample.utilisation or 0.0) >= _BUSY
        # Ranks that share a GPU slow each other.
        account.hear(mine[0] if len(mine) == 1 else None, seconds, clean=alone and busy)
        if look is not None and alone and busy and len(mine) == 1:
            account.see(look)

    def _hour_of(self, node: str) -> int:
        return math.floor((self._wall() - zlib.crc32(node.encode()) % _SPREAD_S) / REPORT_S)

    def _report(self, uuid: str) -> None:
        if one := self._accounts.pop(uuid).notice():
            self._to_tell.append(one)
