# SPDX-License-Identifier: Apache-2.0
"""The heartbeat of an owner: turns the counters that its processes write into their words into beats for the Decider.

Ranks of one job wait for each other, so the job is as slow as its slowest rank. A beat is made once all live ranks have
ended a step. It is that of the rank that is slowest against itself alone: the worst, not the mean. Times are scaled to
the first rank's, so that ranks with different step lengths have one baseline. An owner that reports no steps is judged
by how fast it launches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prolog_epilog.guard.measure.signals import HostBeat, work_beat
from prolog_epilog.injob.word import WordBeat

_WINDOW_S = 1.5
"""Launches are counted for so long before they are a beat; the guard looks ten times a second, so the end is vague."""
_QUIET_S = 0.25
"""A pause between launches after which the next step begins: a window ends there if it can."""
_LONGEST_S = 2.5
_REST_S = 5.0
"""A program that launches nothing for so long pauses by itself; that is no harm, and its window does not count."""
_STEPS = 8
"""The first window counts as this many steps: enough to learn from, and a beat is never less than one."""


@dataclass(slots=True)
class _Count:
    """The launches of one process."""

    pid: int
    began: float
    before: int
    """Launches when the window began."""
    launches: int
    grew: float
    """The time at which it was last seen to launch."""
    unit: int = 0
    """Launches that are taken for a step."""
    steps: int = 0
    step_ns: int = 0
    at_ns: int = 0

    def hear(self, now: float, launches: int) -> None:
        """Takes the number of launches so far."""
        if launches == self.launches:
            return
        quiet, ended = now - self.grew, launches - self.before
        # Launches after the pause belong to the next window.
        paused, ended_then = quiet > _QUIET_S, self.launches - self.before
        self.launches, self.grew = launches, now
        if quiet > _REST_S:
            self.began, self.before = now, launches
        elif paused and now - self.began >= _WINDOW_S:
            self._close(now, ended_then)
        elif now - self.began >= _LONGEST_S:
            self._close(now, ended)

    def _close(self, now: float, done: int) -> None:
        if done < (self.unit or _STEPS):
            return  # the window goes on: a program may launch only one graph every few seconds
        seconds = now - self.began
        self.began, self.before = now, self.before + done
        if not self.unit:
            self.unit = done // _STEPS
            return
        beat = work_beat(now, seconds, done, self.unit)
        if beat is not None:
            self.steps += beat.steps
            self.step_ns += round(beat.took * 1e9)
            self.at_ns = round(now * 1e9)


class WorkRate:
    """The work rate of one owner job that reports no steps, from the launches that the library counts.

    The signal is TGS's, the law behind it the guard's own. It is rougher than a heartbeat: an owner whose launches vary
    by themselves, as a service's with its requests, is sometimes taken for slowed, and its guest gets less.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], _Count] = {}
        self.measure = 0
        """A number that changes whenever earlier times say nothing about later ones."""

    def heard(self, now: float, words: Mapping[tuple[str, int], WordBeat]) -> Mapping[tuple[str, int], WordBeat]:
        """Returns the beats to judge by: the processes' own steps, or steps of launches if none reports steps."""
        if any(beat.steps for beat in words.values()) or not any(beat.launches for beat in words.values()):
            if self._counts and any(beat.steps for beat in words.values()):
                self.measure += 1
            self._counts.clear()
            return {place: beat for place, beat in words.items() if beat.ready}
        self._counts = {place: count for place, count in self._counts.items() if place in words}
        return {place: self._stepping(now, place, beat) for place, beat in words.items() if beat.launches}

    def _stepping(self, now: float, place: tuple[str, int], beat: WordBeat) -> WordBeat:
        count = self._counts.get(place)
        if count is None or count.pid != beat.pid or beat.launches < count.launches:
            self.measure += 1
            count = self._counts[place] = _Count(beat.pid, now, beat.launches, beat.launches, now)
        count.hear(now, beat.launches)
        return replace(beat, steps=count.steps, step_ns=count.step_ns, at_ns=count.at_ns)


Rank = tuple[str, int]
"""A process of the owner: its GPU and its slot."""

_PATIENCE = 3.0
"""A rank that ended no step for this many steps of the others does not hold up their beat."""
_ENOUGH = 8
_SERVES = (0.7, 1.3)
"""Share of the time that is spent in steps: a training job's steps fill the time; requests overlap, or leave gaps."""


@dataclass(slots=True)
class _Pulse:
    """One rank: its counters up to the last beat, and its step time alone."""

    pid: int
    steps: int
    step_ns: int
    alone: float = 0.0
    """Seconds a step takes without a guest; a rank that was never heard alone is compared with its first beat."""
    weight: float = 0.0

    def guess(self, mean: float) -> None:
        """Sets a first guess that lasts until the rank is heard alone.

        Its weight is tiny: a guest that slows the rank from its first step on must not become its usual pace.
        """
        self.alone, self.weight = mean, 1e-9

    def learn(self, mean: float, steps: int) -> None:
        self.weight = min(self.weight + steps, 200.0)
        between = self.alone + (mean - self.alone) * min(1.0, steps / self.weight)
        # Step times are divided by it, so rounding must not make it 0.
        self.alone = max(between, min(self.alone or mean, mean))


class OwnerHeartbeat:
    """The heartbeat of one owner job on this node."""

    def __init__(self) -> None:
        self._ranks: dict[Rank, _Pulse] = {}
        self._work_rate = WorkRate()
        self._since: float | None = None  # when the first rank of the next beat was heard
        self._began: float | None = None
        self._at = float("-inf")  # time of the last beat
        self._heard_s = 0.0
        self._spent_s = 0.0
        self._steps = 0

    @property
    def serves(self) -> bool:
        """Tells whether the job looks like a service: its times are those of requests, not of steps in a row."""
        if self._steps < _ENOUGH or self._heard_s <= 0.0:
            return False
        least, most = _SERVES
        return not least < self._spent_s / self._heard_s / max(1, len(self._ranks)) < most

    @property
    def measure(self) -> int:
        """Returns a number that changes when times are measured anew: another process's launches, or steps instead."""
        return self._work_rate.measure

    def take(self, now: float, words: Mapping[Rank, WordBeat], *, alone: bool) -> HostBeat | None:
        """Returns the beat since the last call, or None; `alone`: no guest ran meanwhile."""
        words = self._work_rate.heard(now, words)
        self._ranks = {rank: pulse for rank, pulse in self._ranks.items() if rank in words}
        fresh: dict[Rank, tuple[int, float]] = {}
        for rank, beat in words.items():
            pulse = self._ranks.get(rank)
            if pulse is None or pulse.pid != beat.pid or beat.steps < pulse.steps or beat.step_ns < pulse.step_ns:
                # The rank counts from now on: no guest is blamed for how long earlier steps took.
                self._ranks[rank] = _Pulse(beat.pid, beat.steps, beat.step_ns)
                continue
            steps, took_ns = beat.steps - pulse.steps, beat.step_ns - pulse.step_ns
            if 0 < steps <= took_ns:
                fresh[rank] = (steps, took_ns / 1e9)
            elif took_ns > 0 < steps:
                # No step is shorter than a nanosecond: these counters are false, but what follows may be true.
                pulse.steps, pulse.step_ns = beat.steps, beat.step_ns
        if not fresh:
            return None
        self._since = now if self._since is None else self._since
        longest = max(took / steps for steps, took in fresh.values())
        if len(fresh) < len(self._ranks) and now - self._since < _PATIENCE * longest:
            return None
        return self._beat(fresh, words, alone=alone)

    def _beat(
        self, fresh: Mapping[Rank, tuple[int, float]], words: Mapping[Rank, WordBeat], *, alone: bool
    ) -> HostBeat:
        for rank, (steps, took) in fresh.items():
            pulse = self._ranks[rank]
            pulse.steps, pulse.step_ns = words[rank].steps, words[rank].step_ns
            if alone:
                pulse.learn(took / steps, steps)
            elif not pulse.weight:
                pulse.guess(took / steps)
        self._since = None
        # Time must not run backwards, whatever a process reports: what was learned fades by the time between two beats.
        at = self._at = max(self._at, *(words[rank].at_ns / 1e9 for rank in fresh))
        self._count(fresh, at)
        first = self._ranks[min(rank for rank, pulse in self._ranks.items() if pulse.weight)].alone
        worst = max(fresh, key=lambda rank: fresh[rank][1] / fresh[rank][0] / self._ranks[rank].alone)
        steps, took = fresh[worst]
        return HostBeat(at, steps, took * first / self._ranks[worst].alone)

    def _count(self, fresh: Mapping[Rank, tuple[int, float]], at: float) -> None:
        if self._began is None:
            self._began = at
            return
        self._heard_s = at - self._began
        self._spent_s += sum(took for _, took in fresh.values())
        self._steps += sum(steps for steps, _ in fresh.values())
