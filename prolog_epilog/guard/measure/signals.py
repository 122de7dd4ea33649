# SPDX-License-Identifier: Apache-2.0
"""The guard's inputs: the device's metrics and the owners' heartbeats."""

from dataclasses import dataclass
from typing import NamedTuple


class HostBeat(NamedTuple):
    """Some steps of a training job, or requests of a service, that ended since the last beat.

    `took` is the sum of their times. A beat says nothing about an owner that pauses by itself between steps.
    """

    at: float
    """The time at which the last of them ended, in seconds of the guard's own clock."""
    steps: int
    took: float


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One reading of a GPU. A metric that the device lacks is None and is not judged."""

    at: float
    utilisation: float | None = None
    """Share of time with any kernel, 0 to 1."""
    sm_active: float | None = None
    """Share of SMs with a warp, 0 to 1; only where the device measures it (GPM)."""
    clock: float | None = None
    """SM clock over its highest, 0 to 1."""
    held_back: bool = False
    """The clock is low because of power or heat, and not because the GPU idles."""
    memory: float | None = None
    """Memory in use over all memory, 0 to 1."""
    memory_bytes: int = 0
    """All memory; 0 if the driver does not say."""
    sm_mhz: float | None = None
    power_limit_w: float | None = None
    at_power_limit: bool = False
    """The clock is low because of the power limit, and for no other reason."""
    bandwidth: float | None = None
    """Share of time in which the memory was read or written, 0 to 1."""
    pipes: float | None = None
    """Share of time in which the busiest kind of arithmetic pipe worked, 0 to 1 (GPM)."""
    dram: float | None = None
    """Memory bandwidth in use over all of it, 0 to 1 (GPM)."""


def work_beat(at: float, seconds: float, done: int, unit: int) -> HostBeat | None:
    """Makes a beat out of a counter of work (kernel launches, bytes sent) for an owner without a heartbeat.

    `unit` pieces of work count as one step, so that a phase with more launches a second is not taken for harm sooner
    than a step time would be. Returns None while less than one unit was done: there is nothing to judge then.
    """
    steps = done // unit
    return HostBeat(at, steps, seconds * steps * unit / done) if steps else None
