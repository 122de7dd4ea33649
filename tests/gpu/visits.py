# SPDX-License-Identifier: Apache-2.0
"""Short visits of a calibration to the first GPU: how far they spread, and whether power is at its cap.

    python -m tests.gpu.visits COUNT [SECONDS] [--own-kernels]

Each visit makes a context of its own, settles for half of SECONDS and measures for the rest. Prints one line of JSON a
visit, and the spread at the end. A visit of `berth calibrate node` takes half a minute; thirty of them would not fit
into the time that a GPU is lent for.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass

from prolog_epilog.node import devices
from topology.calibrate.device import cublas
from topology.calibrate.device.cuda import CudaDevice
from topology.calibrate.device.measure import DeviceReading, summary

__all__ = ["ShortVisit", "main"]

_WARM_S = 8.0
_KERNEL = "gemm-fp16"


@dataclass(frozen=True, slots=True)
class ShortVisit:
    """The medians of one visit."""

    time_ms: float
    mad_ms: float
    batches: int
    kernel: str
    tflops: float
    sm_mhz: float
    power_w: float
    limit_w: float
    temp_c: float
    capped: float
    """Part of the time in which the power cap held the clock down."""


def _run(device: CudaDevice, seconds: float) -> tuple[list[float], list[DeviceReading]]:
    times, readings, until = [], [device.read()], device.now() + seconds
    while device.now() < until:
        times.append(device.batch(_KERNEL))
        readings.append(device.read())
    return times, readings


def _visit(uuid: str, seconds: float, *, own: bool) -> ShortVisit:
    device = CudaDevice(uuid, blas=None if own else cublas.find())
    try:
        _run(device, seconds / 2)
        began = device.now()
        times, readings = _run(device, seconds / 2)
        passed = device.now() - began
        middle, mad, _ = summary(times)
        work = device.work(_KERNEL)
        return ShortVisit(
            round(middle, 4), round(mad, 4), len(times), work.label, round(1e3 * work.tflop / middle, 1),
            statistics.median(one.sm_mhz for one in readings),
            round(statistics.median(one.power_w for one in readings), 1),
            device.power_limit_w,
            statistics.median(one.temp_c for one in readings),
            round((readings[-1].capped_s - readings[0].capped_s) / passed, 2),
        )  # fmt: skip
    finally:
        device.close()


def main() -> None:
    """Make the visits and print what they showed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("seconds", type=float, nargs="?", default=2.0)
    parser.add_argument("--own-kernels", action="store_true")
    asked = parser.parse_args()
    with devices.driver() as nvml:
        uuid = nvml.gpus()[0].uuid
    warm = CudaDevice(uuid, blas=None if asked.own_kernels else cublas.find())
    _run(warm, min(_WARM_S, 4 * asked.seconds))
    warm.close()
    visits = []
    for _ in range(asked.count):
        visits.append(_visit(uuid, asked.seconds, own=asked.own_kernels))
        print(json.dumps({name: getattr(visits[-1], name) for name in ShortVisit.__slots__}), flush=True)
    times = [one.time_ms for one in visits]
    middle = statistics.median(times)
    spread = {
        "visits": len(visits),
        "kernel": visits[-1].kernel,
        "time_ms": middle,
        "range_percent": round(100 * (max(times) - min(times)) / middle, 3),
        "sd_percent": round(100 * statistics.pstdev(times) / middle, 3),
        "power_w": statistics.median(one.power_w for one in visits),
        "limit_w": visits[-1].limit_w,
        "capped": statistics.median(one.capped for one in visits),
    }
    print(json.dumps(spread))


if __name__ == "__main__":
    main()
