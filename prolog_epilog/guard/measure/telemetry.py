# SPDX-License-Identifier: Apache-2.0
"""Reads the devices once a second, through NVML that is opened once: no program is started for a look.

GPM counts busy SMs and pipes where the device has it (Hopper and newer). Everywhere else utilisation has to do, which
only says that something ran. A metric that a device lacks is None.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from prolog_epilog.guard.measure.signals import DeviceSample
from prolog_epilog.node import devices

_SM_ACTIVE, _DRAM = 2, 10
_PIPES = (5, 11, 12, 13)
"""GPM's numbers: SMs with a warp, the memory's bandwidth in use, and the tensor, FP64, FP32 and FP16 pipes."""
_HELD_BACK = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Reasons for a low clock that are power or heat: software cap, hardware slowdown, both thermal ones, power brake."""
_POWER_LIMIT = 0x4
"""The one reason of these that is normal: the chip works as hard as its power limit allows."""
_GPM_SECONDS = 0.1
"""Two samples of GPM have to lie this far apart."""


class _Gpu:
    """One device and its last GPM sample."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self.nvml, self.uuid = nvml, uuid
        self.handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        self.highest = self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)
        milliwatts = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        self.power_limit_w = None if milliwatts is None else milliwatts / 1_000
        self.samples: list[Any] = []
        self.taken = 0.0
        with suppress(nvml.NVMLError):
            if nvml.nvmlGpmQueryDeviceSupport(self.handle).isSupportedDevice:
                self.samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
                nvml.nvmlGpmSampleGet(self.handle, self.samples[1])
                self.taken = time.monotonic()

    def _ask(self, call: str, *words: Any) -> Any:
        """Returns the value of an NVML call; None if the device lacks the metric. A lost device raises an error."""
        try:
            return getattr(self.nvml, call)(self.handle, *words)
        except (self.nvml.NVMLError_NotSupported, self.nvml.NVMLError_FunctionNotFound):
            return None

    def sample(self) -> DeviceSample:
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        clock = self._ask("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        counted = self._counted()
        return DeviceSample(
            at=time.monotonic(),
            utilisation=None if rates is None else rates.gpu / 100.0,
            sm_active=counted.get(_SM_ACTIVE),
            clock=clock / self.highest if clock is not None and self.highest else None,
            held_back=bool((reasons or 0) & _HELD_BACK),
            memory=memory.used / memory.total if memory is not None and memory.total else None,
            memory_bytes=0 if memory is None else int(memory.total),
            sm_mhz=clock,
            power_limit_w=self.power_limit_w,
            at_power_limit=(reasons or 0) & _HELD_BACK == _POWER_LIMIT,
            bandwidth=None if rates is None else rates.memory / 100.0,
            pipes=max((counted[pipe] for pipe in _PIPES if pipe in counted), default=None),
            dram=counted.get(_DRAM),
        )

    def _counted(self) -> dict[int, float]:
        """Returns parts of 1 since the last sample, by GPM's numbers; without those that the device lacks."""
        if not self.samples or time.monotonic() - self.taken < _GPM_SECONDS:
            return {}
        nvml = self.nvml
        self.samples.reverse()
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted = (_SM_ACTIVE, _DRAM, *_PIPES)
        request.numMetrics = len(wanted)
        for place, number in enumerate(wanted):
            request.metrics[place].metricId = number
        try:
            nvml.nvmlGpmSampleGet(self.handle, self.samples[1])
            request.sample1, request.sample2 = self.samples
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError_NotSupported:
            return {}
        self.taken = time.monotonic()
        told = request.metrics[: len(wanted)]
        return {int(one.metricId): float(one.value) / 100.0 for one in told if one.nvmlReturn == 0}

    def close(self) -> None:
        for sample in self.samples:
            with suppress(self.nvml.NVMLError):
                self.nvml.nvmlGpmSampleFree(sample)


class Telemetry:
    """NVML, held open for these GPUs until `close`. One that is lost costs the others nothing."""

    def __init__(self, uuids: Sequence[str]) -> None:
        nvml = self._nvml = devices.opened()
        self.uuids = frozenset(uuids)
        self._gpus: dict[str, _Gpu] = {}
        self._events: Any = None
        with suppress(nvml.NVMLError):
            self._events = nvml.nvmlEventSetCreate()
        for uuid in uuids:
            with suppress(nvml.NVMLError):
                self._open(uuid)

    def _open(self, uuid: str) -> _Gpu:
        """Returns an open GPU, whose Xids are heard from now on where it has them; NVMLError where it is lost."""
        gpu = self._gpus.get(uuid)
        if gpu is None:
            nvml, gpu = self._nvml, _Gpu(self._nvml, uuid)
            if self._events is not None:
                with suppress(nvml.NVMLError):
                    nvml.nvmlDeviceRegisterEvents(gpu.handle, nvml.nvmlEventTypeXidCriticalError, self._events)
            self._gpus[uuid] = gpu
        return gpu

    def sample(self, uuid: str) -> DeviceSample | None:
        """Returns a reading of this GPU; None if the driver gives none: the device is then no longer trusted."""
        try:
            return self._open(uuid).sample()
        except self._nvml.NVMLError:
            return None

    def users(self, uuid: str) -> dict[int, int]:
        """Returns the processes that compute or draw on this GPU, and their memory in bytes; 0: the driver hides it.

        Shaders take the GPU from others as kernels do.
        """
        nvml, found = self._nvml, dict[int, int]()
        for kind in ("Compute", "MPSCompute", "Graphics"):
            # An older pynvml or driver may lack one of them.
            with suppress(nvml.NVMLError, AttributeError):
                call = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")
                for one in call(self._open(uuid).handle):
                    # A client of MPS may be listed twice.
                    found[int(one.pid)] = max(found.get(int(one.pid), 0), int(one.usedGpuMemory or 0))
        return found

    def xid(self, seconds: float) -> tuple[str, int] | None:
        """Waits this long for an Xid; returns its GPU and its number."""
        nvml = self._nvml
        if self._events is None:
            time.sleep(seconds)
            return None
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, max(0, round(seconds * 1000)))
            uuid = nvml.nvmlDeviceGetUUID(event.device)
        except nvml.NVMLError_Timeout:
            return None
        except nvml.NVMLError:
            time.sleep(seconds)
            return None
        return (uuid.decode() if isinstance(uuid, bytes) else str(uuid)), int(event.eventData)

    def close(self) -> None:
        """Closes the driver: an open handle keeps a GPU from being reset."""
        for gpu in self._gpus.values():
            gpu.close()
        with suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()
