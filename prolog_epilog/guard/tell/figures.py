# SPDX-License-Identifier: Apache-2.0
"""The figures that berthd is told of the jobs on one GPU, measured over a minute, so that it seats guests better.

For a job that had the GPU to itself: what it used. For an owner and its guest: how fast the owner was, and how much the
guest was allowed. The guard itself decides nothing by them.
"""

from dataclasses import dataclass, field

from prolog_epilog.guard.measure.baseline import Baseline
from prolog_epilog.guard.measure.signals import DeviceSample, HostBeat

_MIB = 1 << 20

_OF_ONE_ALONE = {"busy": "utilisation", "sms": "sm_active", "bandwidth": "bandwidth", "pipes": "pipes", "dram": "dram"}
"""The figures of a job that has the GPU to itself, and the readings that they are the means of."""

Told = tuple[tuple[str, float], ...]
"""Keys and values as they stand in the notice."""


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total, self.count = self.total + value, self.count + 1


@dataclass(slots=True)
class Figures:
    """The figures since berthd was told last, or since a job came or left."""

    _alone: dict[str, _Mean] = field(default_factory=lambda: {name: _Mean() for name in _OF_ONE_ALONE})
    _memory: float = 0.0
    _alone_s: float = 0.0
    _looked: float | None = None
    _shared_s: float = 0.0
    _given_s: float = 0.0
    _turned: float | None = None
    _steps: int = 0
    _took: float = 0.0

    def look(self, sample: DeviceSample, memory_bytes: int) -> None:
        """Adds a reading of the device while one job has the GPU to itself."""
        self._alone_s += 0.0 if self._looked is None else sample.at - self._looked
        self._looked = sample.at
        for name, metric in _OF_ONE_ALONE.items():
            self._alone[name].add(getattr(sample, metric))
        self._memory = max(self._memory, (sample.memory or 0.0) * memory_bytes / _MIB)

    def turn(self, now: float, duty: float) -> None:
        """Adds the time since the last call, while an owner and its guest are here."""
        spent = 0.0 if self._turned is None else now - self._turned
        self._turned = now
        self._shared_s += spent
        self._given_s += spent * duty

    def beat(self, beat: HostBeat) -> None:
        """Adds steps of the owner that ran while its guest could run."""
        self._steps += beat.steps
        self._took += beat.took

    def told(self, alone: int, host: int, baseline: Baseline) -> Told:
        """Returns the figures for the notice; `alone` and `host` are jobs, 0 for none."""
        found: list[tuple[str, float]] = []
        if alone and self._alone_s > 0.0:
            found += [("alone", alone), ("alone_s", self._alone_s)]
            if host and baseline.known:
                found.append(("step", baseline.step))
            found += [(name, mean.total / mean.count) for name, mean in self._alone.items() if mean.count]
            found += [("memory", self._memory)] if self._memory else []
        if host and not alone and self._took > 0.0 and baseline.known and self._shared_s > 0.0:
            speed = baseline.step * self._steps / self._took
            found += [("host", host), ("shared_s", self._shared_s), ("speed", speed)]
            found.append(("duty", self._given_s / self._shared_s))
        return tuple(found)
