# SPDX-License-Identifier: Apache-2.0
"""Measures one GPU: warm-up, phases, samples and their summary. Takes less than a minute for each GPU.

A device is whatever can run a batch of a kernel and tell its clocks. A simulated one stands in where there is no GPU.
Standard library only: compute nodes run it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median
from time import sleep
from typing import Protocol

from topology.calibrate.runs import CopySpeed, GpuVisit, KernelRun, verdict

_LEAST_WARM_S, _MOST_WARM_S = 8.0, 15.0
_STEADY_S, _STEADY = 3.0, 0.005
"""Warm is when the SM clock moved by less than this part over so many seconds."""
_SETTLING_S = 2.0
"""At the start of a phase the clock still settles; these batches do not count."""
_OUTLIER_MADS, _MAD_TO_SD = 3.0, 1.4826
_RETRIES = 2
"""Number of retries of a phase whose run would not count."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One kernel for some seconds."""

    app_class: str
    kernel: str
    seconds: float


PHASES = (
    Phase("compute", "gemm-fp16", 12.0),
    Phase("mixed", "fma-fp32+triad", 6.0),
    Phase("memory", "triad", 5.0),
)
"""Tensor cores on random data, which draws full power; the FP32 units and memory in turns; memory."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one batch of a kernel."""

    label: str
    """The kernel that really runs, such as `mma-fp16`: a device may have several ways to one kernel."""
    tflop: float = 0.0
    gb: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """A device's state at one moment; counters are seconds since some start."""

    sm_mhz: float
    mem_mhz: float = 0.0
    power_w: float = 0.0
    temp_c: float = 0.0
    capped_s: float = 0.0
    thermal_s: float = 0.0
    hw_slow_s: float = 0.0
    foreign: tuple[int, ...] = ()
    xids: tuple[int, ...] = ()


class Device(Protocol):
    """A GPU that can be measured."""

    @property
    def uuid(self) -> str:
        """Its identity."""

    @property
    def model(self) -> str:
        """As NVML names it."""

    @property
    def driver(self) -> str:
        """The driver's version."""

    @property
    def power_limit_w(self) -> float:
        """As it is set now."""

    def now(self) -> float:
        """Returns the time in seconds, as it passes for this device."""

    def work(self, kernel: str) -> Work:
        """Returns the work of a batch of this kernel on this device."""

    def batch(self, kernel: str) -> float:
        """Run a fixed amount of work of a kernel, about 150 ms; its time by the device's events, in milliseconds."""

    def copies(self, others: Mapping[int, Device]) -> tuple[CopySpeed, ...]:
        """Measures copies from and to the host, and from other GPUs of the node, by position."""

    def read(self) -> DeviceReading:
        """Reads the device's state now."""


def measure(device: Device, position: int, phases: Sequence[Phase] = PHASES) -> GpuVisit:
    """Runs all phases on one GPU; a phase whose run would not count is tried again, twice at most."""
    steady = _warm_up(device, phases[0].kernel)
    before = device.read()
    runs = [_counting_run(device, position, phase) for phase in phases]
    xids = tuple(one for one in device.read().xids if one not in before.xids)
    return GpuVisit(
        position,
        device.uuid,
        device.model,
        device.driver,
        device.power_limit_w,
        xids=xids,
        runs=tuple(runs),
        steady_s=steady,
    )


def measure_all(devices: Sequence[tuple[int, Device]], *, together: bool = True) -> tuple[GpuVisit, ...]:
    """Measure GPUs by position: all at once, as jobs heat a node, or one by one. Copies are always one by one."""
    with ThreadPoolExecutor(len(devices) if together else 1) as threads:
        visits = tuple(threads.map(lambda one: measure(one[1], one[0]), devices))
    return tuple(
        replace(visit, links=device.copies({other: one for other, one in devices if other != position}))
        for visit, (position, device) in zip(visits, devices, strict=True)
    )


def _counting_run(device: Device, position: int, phase: Phase) -> KernelRun:
    """Tries a phase again until a run counts; returns that run, or the last one."""
    for _ in range(_RETRIES):
        run = _run(device, phase)
        if not verdict(GpuVisit(position, device.uuid), run):
            return run
    return _run(device, phase)


def summary(samples: Sequence[float]) -> tuple[float, float, int]:
    """Returns median and MAD without outliers, and how many these were."""
    middle = median(samples)
    mad = median(abs(one - middle) for one in samples)
    kept = [one for one in samples if abs(one - middle) <= _OUTLIER_MADS * _MAD_TO_SD * mad]
    middle = median(kept)
    return middle, median(abs(one - middle) for one in kept), len(samples) - len(kept)


def _warm_up(device: Device, kernel: str) -> float:
    """Runs until the clock is steady, since a cold GPU looks a few percent faster than it is; returns the seconds."""
    start = device.now()
    clocks: list[tuple[float, float]] = []
    while (passed := device.now() - start) < _MOST_WARM_S:
        device.batch(kernel)
        clocks.append((device.now(), device.read().sm_mhz))
        recent = [clock for at, clock in clocks if at >= device.now() - _STEADY_S]
        if passed >= _LEAST_WARM_S and max(recent) - min(recent) < _STEADY * max(recent):
            break
    final = median(clock for at, clock in clocks if at >= device.now() - _STEADY_S)
    moving = [at for at, clock in clocks if abs(clock - final) >= _STEADY * final]
    return round(max(moving, default=start) - start, 2)


def _run(device: Device, phase: Phase) -> KernelRun:
    """Runs one try of a phase."""
    start = device.now()
    while device.now() - start < _SETTLING_S:
        device.batch(phase.kernel)
    begun, first = device.now(), device.read()
    times: list[float] = []
    readings: list[DeviceReading] = []
    while not times or device.now() - start < phase.seconds:
        times.append(device.batch(phase.kernel))
        readings.append(device.read())
    time, mad, dropped = summary(times)
    last, work = readings[-1], device.work(phase.kernel)
    return KernelRun(
        phase.app_class,
        time,
        mad,
        len(times),
        dropped,
        work.label,
        device.now() - begun,
        median(one.sm_mhz for one in readings),
        median(one.mem_mhz for one in readings),
        median(one.power_w for one in readings),
        median(one.temp_c for one in readings),
        last.capped_s - first.capped_s,
        last.thermal_s - first.thermal_s,
        last.hw_slow_s - first.hw_slow_s,
        tuple(sorted({one for reading in (first, *readings) for one in reading.foreign})),
        round(1e3 * work.tflop / time, 2),
        round(1e3 * work.gb / time, 1),
    )


_BOUND = {"triad": 0.0, "fma-fp32+triad": 0.5}
"""Clock-bound part of a simulated kernel, if it is not all of it."""


@dataclass(slots=True)
class SimulatedDevice:
    """A GPU on paper: it warms up, holds a power limit, and may be slow, hot, shared, or left waiting by its host."""

    uuid: str
    model: str = "simulated"
    driver: str = "580.0"
    power_limit_w: float = 300.0
    slow: float = 1.0
    """Time of compute-bound work over a typical chip's."""
    waits: float = 1.0
    """Factor by which a batch takes longer because the host is late."""
    throttled: float = 0.0
    """Part of the time in which heat slows it down."""
    foreign_until: float = 0.0
    """Until then another process runs on it."""
    slow_links: float = 1.0
    """Factor by which its copies are slower."""
    noise: float = 0.001
    seed: int = 0
    pace: float = 0.0
    """Seconds that pass in truth for each on paper; 0: none."""
    _clock: float = 0.0
    _thermal: float = 0.0
    _capped: float = 0.0
    _random: Random = field(default_factory=Random)

    def __post_init__(self) -> None:
        self._random.seed(f"{self.uuid}/{self.seed}")

    def now(self) -> float:
        """Returns simulated seconds."""
        return self._clock

    def work(self, kernel: str) -> Work:
        """Returns the work of a batch, as on a GPU of 100 TFLOP/s and 1,000 GB/s."""
        bound = _BOUND.get(kernel, 1.0)
        return Work(kernel, 15.0 * bound, 150.0 * (1.0 - bound))

    def copies(self, others: Mapping[int, Device]) -> tuple[CopySpeed, ...]:
        """Returns rates of PCIe of the fourth generation, and of NVLink to all others."""
        host = (CopySpeed(kind, self._rate(25.0)) for kind in ("to-host", "to-device"))
        return (*host, *(CopySpeed("peer", self._rate(250.0), other) for other in others))

    def batch(self, kernel: str) -> float:
        """Runs a simulated batch: the clock does not affect a memory-bound kernel, and affects half of a mixed one."""
        bound = _BOUND.get(kernel, 1.0)
        took: float = (
            150.0 * (1500.0 / self._mhz()) ** bound * self.waits * math.exp(self._random.gauss(0.0, self.noise))
        )
        if self._clock < self.foreign_until:
            took *= 1.0 + self._random.random()
        self._clock += took / 1000.0
        self._thermal += self.throttled * took / 1000.0
        self._capped += bound * took / 1000.0
        if self.pace:
            sleep(self.pace * took / 1000.0)
        return took

    def read(self) -> DeviceReading:
        """Returns clock and power as the limit allows; an idle device has its full clock."""
        waiting = self.waits > 1.1
        return DeviceReading(
            sm_mhz=1530.0 if waiting else self._mhz(),
            mem_mhz=877.0,
            power_w=self.power_limit_w * (0.6 if waiting else 1.0),
            temp_c=35.0 + 30.0 * (1.0 - math.exp(-self._clock / 5.0)),
            capped_s=self._capped,
            thermal_s=self._thermal,
            foreign=(4711,) if self._clock < self.foreign_until else (),
        )

    def _rate(self, gb_per_s: float) -> float:
        return round(gb_per_s / self.slow_links * math.exp(self._random.gauss(0.0, self.noise)), 2)

    def _mhz(self) -> float:
        # Leakage grows with temperature, and the power limit takes it from the clock.
        cold = 0.04 * math.exp(-self._clock / 5.0)
        return 1500.0 / self.slow * (1.0 + cold)
