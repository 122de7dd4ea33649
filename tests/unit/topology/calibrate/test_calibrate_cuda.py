# SPDX-License-Identifier: Apache-2.0
"""What a measurement asks of the driver, on one that only takes notes: sizes, labels, and that all is given back."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from topology.calibrate.device import cublas, cuda
from topology.calibrate.device.measure import PHASES, measure_all
from topology.errors import ProviderError

UUIDS = ["5586ec8e-0000-0000-0000-000000000001", "5586ec8e-0000-0000-0000-000000000002"]
SMS, MEMORY = 132, 141 << 30


class Driver:
    """Every function notes its call and answers 0; those whose answer matters fill it in."""

    def __init__(self, *, direct: bool = True, capability: int = 90) -> None:
        self.capability = capability
        self.loaded = b""
        self.calls: Counter[str] = Counter()
        self.held = 0
        self.direct = direct
        self.launched: Counter[int] = Counter()

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any) -> int:
            self.calls[name] += 1
            answer = getattr(self, f"_{name}", None)
            return answer(*arguments) or 0 if answer else 0

        if name.startswith("_"):
            raise AttributeError(name)
        return called

    def _cuDeviceGetCount(self, count: Any) -> None:  # noqa: N802 - the driver's names
        count._obj.value = len(UUIDS)

    def _cuDeviceGet(self, device: Any, number: int) -> None:  # noqa: N802
        device._obj.value = number

    def _cuDeviceGetUuid_v2(self, found: Any, device: Any) -> None:  # noqa: N802
        found._obj[:] = list(UUID(UUIDS[device.value]).bytes)

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> None:  # noqa: N802
        context._obj.value = 100 + device.value
        self.held += 1

    def _cuDevicePrimaryCtxRelease_v2(self, _device: Any) -> None:  # noqa: N802
        self.held -= 1

    def _cuDeviceGetAttribute(self, found: Any, what: int, _device: Any) -> None:  # noqa: N802
        found._obj.value = {16: SMS, 75: self.capability // 10, 76: self.capability % 10}[what]

    def _cuModuleLoadData(self, _module: Any, text: bytes) -> None:  # noqa: N802
        self.loaded = text

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> None:  # noqa: N802
        free._obj.value = total._obj.value = MEMORY

    def _cuMemAlloc_v2(self, _pointer: Any, _size: Any) -> None:  # noqa: N802
        self.held += 1

    def _cuMemFree_v2(self, _pointer: Any) -> None:  # noqa: N802
        self.held -= 1

    _cuMemAllocHost_v2 = _cuMemAlloc_v2  # noqa: N815
    _cuMemFreeHost = _cuMemFree_v2  # noqa: N815

    def _cuDeviceCanAccessPeer(self, found: Any, _mine: Any, _other: Any) -> None:  # noqa: N802
        found._obj.value = self.direct

    def _cuEventElapsedTime(self, took: Any, _start: Any, _end: Any) -> None:  # noqa: N802
        took._obj.value = 100.0


class Blas:
    """cuBLAS 12.9 that multiplies nothing."""

    def __init__(self) -> None:
        self.products = 0

    def cublasCreate_v2(self, _handle: Any) -> int:  # noqa: N802
        return 0

    def cublasDestroy_v2(self, _handle: Any) -> int:  # noqa: N802
        return 0

    def cublasGetVersion_v2(self, _handle: Any, version: Any) -> int:  # noqa: N802
        version._obj.value = 120_902
        return 0

    def cublasGemmEx(self, *arguments: Any) -> int:  # noqa: N802
        assert len(arguments) == 19
        self.products += 1
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetComputeRunningProcesses=lambda _: [],
        nvmlDeviceGetName=lambda _: "NVIDIA H200",
        nvmlSystemGetDriverVersion=lambda: "580.95.05",
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0,
        nvmlDeviceGetClockInfo=lambda *_: 1_410,
        nvmlDeviceGetPowerUsage=lambda _: 698_000,
        nvmlDeviceGetTemperature=lambda *_: 61,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: made)
    return made


def device(number: int = 0, blas: Any = None) -> cuda.CudaDevice:
    return cuda.CudaDevice(f"GPU-{UUIDS[number]}", blas=blas)


def test_all_is_given_back(driver: Driver) -> None:
    one, two = device(0), device(1)
    one.copies({1: two})
    one.close()
    two.close()

    assert driver.held == 0


def test_without_cublas_our_own_kernel_is_measured_and_named(driver: Driver) -> None:
    one = device()
    before = driver.calls["cuLaunchKernel"]
    one.batch("gemm-fp16")

    assert driver.calls["cuLaunchKernel"] - before == 24
    work = one.work("gemm-fp16")
    # 24 launches x 40,000 rounds x 4 products of 16 x 8 x 16 for each of 132 x 4 x 8 warps.
    assert work.label == "mma-fp16"
    assert work.tflop == pytest.approx(24 * 40_000 * 4 * 2 * 16 * 8 * 16 * SMS * 4 * 8 / 1e12)


@pytest.mark.parametrize(("capability", "target"), [(70, 70), (75, 70), (80, 80), (89, 80), (90, 80), (120, 80)])
def test_each_gpu_gets_kernels_that_it_can_run(driver: Driver, capability: int, target: int) -> None:
    driver.capability = capability
    one = device()

    assert f".target sm_{target}\n".encode() in driver.loaded
    assert one.work("gemm-fp16").label == ("mma-fp16" if target == 80 else "wmma-fp16")
    before = driver.calls["cuLaunchKernel"]
    one.batch("gemm-fp16")
    launches = driver.calls["cuLaunchKernel"] - before
    # Each launch is the same work on all GPUs.
    assert one.work("gemm-fp16").tflop == pytest.approx(launches * 40_000 * 4 * 2 * 16 * 8 * 16 * SMS * 4 * 8 / 1e12)


def test_a_gpu_without_tensor_cores_is_refused_by_name(driver: Driver) -> None:
    driver.capability = 61
    with pytest.raises(ProviderError, match=r"compute capability 6\.1, and calibration needs 7\.0 \(Volta\)"):
        device()


def test_with_cublas_it_multiplies_and_its_version_is_part_of_the_name(driver: Driver) -> None:
    blas = Blas()
    one = device(blas=blas)
    one.batch("gemm-fp16")

    assert blas.products == SMS // 2
    work = one.work("gemm-fp16")
    assert work.label == "cublas-12.9-fp16-8192"
    assert work.tflop == pytest.approx(66 * 2 * 8192**3 / 1e12)


def test_memory_moves_three_gibibytes_a_launch_and_the_mixed_kernel_does_both(driver: Driver) -> None:
    one = device()
    gb = 3 * (1 << 30) / 1e9

    assert one.work("triad").gb == pytest.approx(48 * gb)
    mixed = one.work("fma-fp32+triad")
    assert mixed.gb == pytest.approx(24 * gb)
    assert mixed.tflop == pytest.approx(8 * 120_000 * 16 * 2 * SMS * 4 * 256 / 1e12)
    before = driver.calls["cuLaunchKernel"]
    one.batch("fma-fp32+triad")
    assert driver.calls["cuLaunchKernel"] - before == 8 + 24


def test_copies_go_to_the_host_and_back_and_from_each_other_gpu(driver: Driver) -> None:
    one, two = device(0), device(1)
    links = one.copies({1: two})

    # Eight copies of 256 MiB in 100 ms.
    rate = round(8 * (1 << 28) / 0.1 / 1e9, 2)
    assert [(link.kind, link.peer, link.gb_per_s) for link in links] == [
        ("to-host", None, rate),
        ("to-device", None, rate),
        ("peer", 1, rate),
    ]
    assert driver.calls["cuMemcpyPeerAsync"] == 24


def test_a_machine_without_direct_access_copies_through_the_host_and_says_so(driver: Driver) -> None:
    driver.direct = False
    one, two = device(0), device(1)

    assert one.copies({1: two})[-1].kind == "staged"
    assert not driver.calls["cuCtxEnablePeerAccess"]


def test_a_whole_measurement_asks_for_nothing_that_is_not_there(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**9))
    monkeypatch.setattr("time.monotonic", lambda: next(ticks) / 20.0)
    (visit,) = measure_all([(0, device())])

    assert [run.app_class for run in visit.runs] == [phase.app_class for phase in PHASES]
    assert (visit.model, visit.power_limit_w, visit.runs[0].sm_mhz) == ("NVIDIA H200", 700.0, 1_410.0)
    assert visit.runs[2].gb_per_s == pytest.approx(48 * 3 * (1 << 30) / 0.1 / 1e9, abs=0.1)


def test_a_gpu_that_cuda_does_not_show_and_a_call_that_fails_are_told(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProviderError, match="CUDA_VISIBLE_DEVICES"):
        cuda.CudaDevice("GPU-00000000-0000-0000-0000-000000000009")
    monkeypatch.setattr(Driver, "_cuModuleLoadData", lambda *_: 218, raising=False)
    with pytest.raises(ProviderError, match="cuModuleLoadData failed with 218"):
        device()


def test_cublas_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cublas.find() is None
