# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the names are NVML's
"""The model of NVML: stands in for pynvml on the node whose program asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.world.nodes.kernel import NodeKernel
from tests.world.nodes.machine import GPU_MIB, Machine, ModelGpu

_MIB = 1 << 20
_CORES = {(8, 9): 142 * 128}


class ModelNvmlError(Exception):
    """NVML's errors."""


class NotSupportedByModel(ModelNvmlError):
    """This GPU cannot do that."""


class LostByModel(ModelNvmlError):
    """The GPU has fallen off the bus."""


class NotFoundByModel(ModelNvmlError):
    """There is no such GPU."""


class TimeoutByModel(ModelNvmlError):
    """Nothing came."""


class ModelNvml:
    """The calls that Berth's programs of a node make."""

    NVMLError = ModelNvmlError
    NVMLError_NotSupported = NotSupportedByModel
    NVMLError_FunctionNotFound = NotSupportedByModel
    NVMLError_GpuIsLost = LostByModel
    NVMLError_NotFound = NotFoundByModel
    NVMLError_Timeout = TimeoutByModel
    NVML_CLOCK_SM = 1
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 - NVML's own name

    def __init__(self, kernel: NodeKernel) -> None:
        self._kernel = kernel

    @property
    def _machine(self) -> Machine:
        return self._kernel.machine

    def _ask(self) -> None:
        self._kernel.operation()
        if self._machine.nvml_fails:
            raise ModelNvmlError("Unknown Error")

    def nvmlInit(self) -> None:
        self._ask()

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54"

    def nvmlDeviceGetCount(self) -> int:
        self._ask()
        return len(self._machine.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> ModelGpu:
        return self._machine.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> ModelGpu:
        found = self._machine.gpu(uuid.decode())
        if found is None:
            raise NotFoundByModel("Not Found")
        return self._good(found)

    def _good(self, gpu: ModelGpu) -> ModelGpu:
        if gpu.lost:
            raise LostByModel("GPU is lost")
        return gpu

    def nvmlDeviceGetMinorNumber(self, gpu: ModelGpu) -> int:
        return gpu.minor

    def nvmlDeviceGetUUID(self, gpu: ModelGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetComputeMode(self, gpu: ModelGpu) -> int:
        self._ask()
        return self._good(gpu).mode

    def nvmlDeviceSetComputeMode(self, gpu: ModelGpu, mode: int) -> None:
        self._ask()
        self._good(gpu).mode = mode

    def _processes(self, gpu: ModelGpu, kind: str) -> list[SimpleNamespace]:
        self._ask()
        self._good(gpu)
        return [
            SimpleNamespace(pid=one.pid, usedGpuMemory=512 * _MIB) for one in self._machine.users_of(gpu.uuid, kind)
        ]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: ModelGpu) -> list[SimpleNamespace]:
        return self._processes(gpu, "compute")

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, gpu: ModelGpu) -> list[SimpleNamespace]:
        return self._processes(gpu, "mps")

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: ModelGpu) -> list[SimpleNamespace]:
        return self._processes(gpu, "graphics")

    def nvmlDeviceGetMemoryInfo(self, gpu: ModelGpu) -> SimpleNamespace:
        total = GPU_MIB * _MIB
        return SimpleNamespace(total=total, used=round(total * gpu.memory_used))

    def nvmlDeviceGetNumGpuCores(self, gpu: ModelGpu) -> int:  # noqa: ARG002
        return 132 * 128

    def nvmlDeviceGetCudaComputeCapability(self, gpu: ModelGpu) -> tuple[int, int]:  # noqa: ARG002
        return 9, 0

    def nvmlDeviceGetMigMode(self, gpu: ModelGpu) -> tuple[int, int]:  # noqa: ARG002
        return 0, 0

    def nvmlDeviceGetRemappedRows(self, gpu: ModelGpu) -> tuple[int, int, int, int]:
        self._good(gpu)
        return 0, 0, 0, 0

    # What the guard measures

    def nvmlDeviceGetMaxClockInfo(self, gpu: ModelGpu, _: int) -> int:  # noqa: ARG002
        return 1_980

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: ModelGpu) -> int:  # noqa: ARG002
        return 700_000

    def nvmlGpmQueryDeviceSupport(self, gpu: ModelGpu) -> SimpleNamespace:  # noqa: ARG002
        return SimpleNamespace(isSupportedDevice=0)

    def nvmlDeviceGetUtilizationRates(self, gpu: ModelGpu) -> SimpleNamespace:
        self._ask()
        return SimpleNamespace(gpu=self._good(gpu).busy, memory=gpu.busy // 2)

    def nvmlDeviceGetClockInfo(self, gpu: ModelGpu, _: int) -> int:
        return 900 if gpu.slow_clock else 1_980

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: ModelGpu) -> int:
        return 0x40 if gpu.slow_clock else 0

    def nvmlEventSetCreate(self) -> object:
        self._ask()
        return self._machine

    def nvmlDeviceRegisterEvents(self, *_: Any) -> None:
        pass

    def nvmlEventSetWait_v2(self, _: object, milliseconds: int) -> SimpleNamespace:
        machine = self._machine
        tasks, pace = self._kernel.tasks, lambda: self._kernel.pace
        if not tasks.wait(milliseconds / 1000.0, pace, lambda: bool(machine.xids)):
            raise TimeoutByModel("Timeout")
        uuid, number = machine.xids.pop(0)
        return SimpleNamespace(device=machine.gpu(uuid), eventData=number)

    def nvmlEventSetFree(self, _: object) -> None:
        pass
