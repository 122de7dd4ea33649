"""The heartbeat of an owner: turns the counters that its processes write into their words into beats for the Decider.

Ranks of one job wait for each other, so the job is as slow as its slowest rank. A beat is made once all live ranks have
ended a step. It is that of the rank that is slowest against itself alone: the worst, not the mean. Times are scaled to
the first rank's, so that ranks with different step lengths have one baseline. An owner that reports no steps is judged
by how fast it launches.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from prolog_epilog.guard.measure.signals import HostBeat
from prolog_epilog.guard.measure.work_rate import WorkRate
from prolog_epilog.injob.word import WordBeat

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
