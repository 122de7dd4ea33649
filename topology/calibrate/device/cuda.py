# SPDX-License-Identifier: Apache-2.0
"""Measures a real GPU: the driver's library by ctypes, NVML for the device's state. No framework.

Each GPU is driven by one thread; ctypes lets go of the interpreter while the driver waits, so that all GPUs of a node
run at once.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any
from uuid import UUID

from topology.calibrate.device.cublas import SIZE, Gemm
from topology.calibrate.device.measure import Device, DeviceReading, Work
from topology.calibrate.kernels import ptx_for
from topology.calibrate.runs import CopySpeed
from topology.errors import ProviderError

_COMPUTE_ROUNDS = 40_000
_COMPUTE_FLOP = 4 * 2 * 16 * 8 * 16 / 32
"""Operations of each thread in each round: four tensor products of a warp."""
_FMA_ROUNDS, _FMA_LAUNCHES, _FMA_FLOP = 120_000, 8, 16 * 2
_TRIAD_LAUNCHES, _MIXED_TRIAD_LAUNCHES = 48, 24
_GEMM_SMS = 2
"""One product for each two multiprocessors: 100 to 400 ms a batch, whatever the model."""
_THREADS, _BLOCKS_PER_SM = 256, 4
_COPY_BYTES, _COPIES, _COPY_TRIES = 1 << 28, 8, 3
_ALREADY_ENABLED = 704
_MOST_STREAM_BYTES = 1 << 30
"""Size limit of each of the three streams: far beyond any cache."""
# CUdevice_attribute: MULTIPROCESSOR_COUNT, COMPUTE_CAPABILITY_MAJOR and _MINOR.
_SM_COUNT, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 16, 75, 76

_POWER_CAP, _HW_SLOW, _THERMAL = 0x4, 0x8 | 0x80, 0x20 | 0x40
"""Bits of NVML's clock event reasons."""


class CudaDevice:
    """A GPU by UUID; `close` gives its memory and context back. `blas` is cuBLAS (`cublas.find`) or None."""

    def __init__(self, uuid: str, blas: Any = None, library: str = "libcuda.so.1") -> None:
        self._nvml: Any = importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        before = self._processes()
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as error:
            raise ProviderError(
                f"{library} cannot be loaded; install NVIDIA's driver on this node ({error})"
            ) from error
        self._call("cuInit", 0)
        self._device = self._find(uuid)
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._call("cuCtxSetCurrent", self._context)
        # Inside a container this process has another PID than the one that NVML reports.
        self._ours = self._processes() - before
        self._load()
        self._gemm = Gemm(blas) if blas and self._count.value * 16 >= 2 * SIZE**2 else None
        self.uuid = uuid
        self.model = _text(self._nvml.nvmlDeviceGetName(self._handle))
        self.driver = _text(self._nvml.nvmlSystemGetDriverVersion())
        self.power_limit_w = self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000.0
        self._last = time.monotonic()
        self._seconds = {_POWER_CAP: 0.0, _HW_SLOW: 0.0, _THERMAL: 0.0}

    def now(self) -> float:
        """Returns the time in seconds."""
        return time.monotonic()

    def work(self, kernel: str) -> Work:
        """Returns operations and bytes of a batch, in units of 10^12 and 10^9."""
        if kernel == "gemm-fp16":
            if self._gemm:
                return Work(self._gemm.label, self._gemms * 2.0 * SIZE**3 / 1e12)
            flop = self._ptx.launches * _COMPUTE_ROUNDS * _COMPUTE_FLOP * self._threads
            return Work(self._ptx.kernel, flop / 1e12)
        launches = _TRIAD_LAUNCHES if kernel == "triad" else _MIXED_TRIAD_LAUNCHES
        moved = launches * 3.0 * self._count.value * 16 / 1e9
        if kernel == "triad":
            return Work(kernel, 0.0, moved)
        return Work(kernel, _FMA_LAUNCHES * _FMA_ROUNDS * _FMA_FLOP * self._threads / 1e12, moved)

    def batch(self, kernel: str) -> float:
        """Launches a batch between two events; returns the milliseconds between these."""
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuEventRecord", self._start, None)
        if kernel == "gemm-fp16":
            self._multiply()
        else:
            if "fma" in kernel:
                for _ in range(_FMA_LAUNCHES):
                    self._launch(self._kernels["fma32"], self._streams[0], ctypes.c_int(_FMA_ROUNDS))
            for _ in range(_TRIAD_LAUNCHES if kernel == "triad" else _MIXED_TRIAD_LAUNCHES):
                self._launch(self._kernels["triad"], *self._streams, self._count)
        return self._elapsed()

    def copies(self, others: Mapping[int, Device]) -> tuple[CopySpeed, ...]:
        """Returns medians of a few tries each; nothing for GPUs that this process does not drive."""
        self._call("cuCtxSetCurrent", self._context)
        peers = {position: one for position, one in others.items() if isinstance(one, CudaDevice)}
        return (*self._host_copies(), *(self._peer_copy(position, one) for position, one in peers.items()))

    def read(self) -> DeviceReading:
        """Reads clocks, power and heat now, and how long the clock was held down since the start (sampled by calls)."""
        nvml, handle, now = self._nvml, self._handle, time.monotonic()
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        for bits in self._seconds:
            if reasons & bits:
                self._seconds[bits] += now - self._last
        self._last = now
        return DeviceReading(
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            self._seconds[_POWER_CAP],
            self._seconds[_THERMAL],
            self._seconds[_HW_SLOW],
            tuple(sorted(self._processes() - self._ours)),
        )

    def close(self) -> None:
        """Frees memory and context."""
        self._call("cuCtxSetCurrent", self._context)
        if self._gemm:
            self._gemm.close()
        for stream in self._streams:
            self._call("cuMemFree_v2", stream)
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)
        self._nvml.nvmlShutdown()

    def _find(self, uuid: str) -> ctypes.c_int:
        count, device, found = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        for number in range(count.value):
            self._call("cuDeviceGet", ctypes.byref(device), number)
            self._call("cuDeviceGetUuid_v2", ctypes.byref(found), device)
            if UUID(bytes=bytes(found)) == UUID(uuid.removeprefix("GPU-")):
                return device
        raise ProviderError(f"CUDA does not show {uuid}; check CUDA_VISIBLE_DEVICES and the job's device cgroup")

    def _load(self) -> None:
        module, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self._ptx = ptx_for(10 * self._attribute(_CAPABILITY_MAJOR) + self._attribute(_CAPABILITY_MINOR))
        self._call("cuModuleLoadData", ctypes.byref(module), self._ptx.path.read_bytes() + b"\0")
        self._kernels = {name: ctypes.c_void_p() for name in ("compute", "fma32", "fill", "triad")}
        for name, function in self._kernels.items():
            self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        sms = self._attribute(_SM_COUNT)
        self._blocks = sms * _BLOCKS_PER_SM
        self._threads = self._blocks * _THREADS
        self._gemms = max(sms // _GEMM_SMS, 4)
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        size = min(_MOST_STREAM_BYTES, total.value // 8) // 4096 * 4096
        self._streams = [ctypes.c_uint64() for _ in range(3)]
        for stream in self._streams:
            self._call("cuMemAlloc_v2", ctypes.byref(stream), ctypes.c_size_t(size))
        self._count = ctypes.c_uint64(size // 16)
        self._start, self._end = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(self._start), 0)
        self._call("cuEventCreate", ctypes.byref(self._end), 0)
        for stream in self._streams:
            self._launch(self._kernels["fill"], stream, ctypes.c_uint64(size // 4))

    def _multiply(self) -> None:
        c, a, b = self._streams
        if self._gemm:
            for _ in range(self._gemms):
                self._gemm.launch(a, b, c)
        else:
            for _ in range(self._ptx.launches):
                self._launch(self._kernels["compute"], c, ctypes.c_int(_COMPUTE_ROUNDS))

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def _elapsed(self) -> float:
        """Waits for all work, then returns the milliseconds since the start was recorded."""
        self._call("cuEventRecord", self._end, None)
        self._call("cuEventSynchronize", self._end)
        took = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(took), self._start, self._end)
        return took.value

    def _host_copies(self) -> Iterator[CopySpeed]:
        pinned, device, size = ctypes.c_void_p(), self._streams[0], ctypes.c_size_t(self._copy_bytes())
        self._call("cuMemAllocHost_v2", ctypes.byref(pinned), size)
        try:
            yield CopySpeed("to-host", self._rate("cuMemcpyDtoHAsync_v2", pinned, device, size, None))
            yield CopySpeed("to-device", self._rate("cuMemcpyHtoDAsync_v2", device, pinned, size, None))
        finally:
            self._call("cuMemFreeHost", pinned)

    def _peer_copy(self, position: int, other: CudaDevice) -> CopySpeed:
        """Read from another GPU: directly where the machine allows it, else by way of the host."""
        reachable = ctypes.c_int()
        self._call("cuDeviceCanAccessPeer", ctypes.byref(reachable), self._device, other._device)
        direct = bool(reachable.value) and self._cuda.cuCtxEnablePeerAccess(other._context, 0) in {0, _ALREADY_ENABLED}
        size = ctypes.c_size_t(min(self._copy_bytes(), other._copy_bytes()))
        ends = (self._streams[0], self._context, other._streams[1], other._context)
        return CopySpeed("peer" if direct else "staged", self._rate("cuMemcpyPeerAsync", *ends, size, None), position)

    def _rate(self, name: str, *arguments: Any) -> float:
        """Measures GB/s of a copy; its size is the last argument but one."""
        times = []
        for _ in range(_COPY_TRIES):
            self._call("cuEventRecord", self._start, None)
            for _ in range(_COPIES):
                self._call(name, *arguments)
            times.append(self._elapsed())
        return round(_COPIES * float(arguments[-2].value) / median(times) / 1e6, 2)

    def _copy_bytes(self) -> int:
        return min(_COPY_BYTES, int(self._count.value) * 16)

    def _launch(self, function: ctypes.c_void_p, *arguments: Any) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(one), ctypes.c_void_p) for one in arguments)
        )
        self._call("cuLaunchKernel", function, self._blocks, 1, 1, _THREADS, 1, 1, 0, None, pointers, None)

    def _processes(self) -> set[int]:
        return {one.pid for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise ProviderError(
                f"CUDA's {name} failed with {code}; is the GPU in use or in MIG mode, or its driver older than CUDA 11?"
            )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
