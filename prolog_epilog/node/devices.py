# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this node, through NVML (pynvml, imported only where a GPU is shared or guarded)."""

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from prolog_epilog.errors import DriverError, HardwareFault, StateError
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.node.processes import boot_id

FORMAT = "berth-gpus/1"
#: Compute modes, as NVML numbers them.
DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS = 0, 2, 3
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU of this node: position (K of Slurm's type gK), number of its device file, UUID, and NVML's number."""

    position: int
    minor: int
    uuid: str
    index: int = -1


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; kind is `compute` (a context of its own), `mps` or `graphics`; memory None: unknown."""

    pid: int
    kind: str
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class Worked:
    """The share of the time since an earlier look in which a GPU ran a kernel, and the driver's own time of that."""

    percent: int
    """Rounded up: 0 only if it ran none."""
    stamp: int

    @property
    def busy(self) -> bool:
        """Tells whether it ran a kernel."""
        return self.percent > 0


class Driver:
    """NVML while it is open; every failure becomes an error with one sentence."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}

    def gpus(self) -> tuple[NodeGpu, ...]:
        """Returns all GPUs, by device minor: Slurm and the device files use that order, NVML does not."""
        nvml, found = self._nvml, []
        with self._named("the node's GPUs"):
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found.append((nvml.nvmlDeviceGetMinorNumber(handle), _text(nvml.nvmlDeviceGetUUID(handle)), index))
        return tuple(NodeGpu(position, *one) for position, one in enumerate(sorted(found)))

    def version(self) -> str:
        """Returns the driver's version."""
        with self._named("the driver's version"):
            return _text(self._nvml.nvmlSystemGetDriverVersion())

    def instance_name(self, uuid: str) -> str:
        """Returns the name of a MIG instance in monitoring: its GPU's number, a point, the GPU instance's number."""
        nvml = self._nvml
        with self._named(uuid):
            handle = self._handle(uuid)
            gpu = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            return f"{nvml.nvmlDeviceGetIndex(gpu)}.{nvml.nvmlDeviceGetGpuInstanceId(handle)}"

    def compute_mode(self, uuid: str) -> int:
        """Returns the GPU's compute mode."""
        with self._named(uuid):
            return int(self._nvml.nvmlDeviceGetComputeMode(self._handle(uuid)))

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Sets the compute mode of this GPU alone, and checks that it holds."""
        with self._named(uuid):
            self._nvml.nvmlDeviceSetComputeMode(self._handle(uuid), mode)
            now = int(self._nvml.nvmlDeviceGetComputeMode(self._handle(uuid)))
        if now != mode:
            raise DriverError(f"GPU {uuid} keeps compute mode {now} and does not take {mode}; look at the driver's log")

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Returns the processes that use the GPU now."""
        nvml, found = self._nvml, []
        calls = {
            "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
            "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
        }
        with self._named(uuid):
            for kind, call in calls.items():
                for one in getattr(nvml, call)(self._handle(uuid)):
                    memory = one.usedGpuMemory
                    found.append(GpuProcess(one.pid, kind, None if memory is None else memory // _MIB))
        return tuple(found)

    def memory_mib(self, uuid: str) -> int:
        """Returns the GPU's memory in MiB."""
        with self._named(uuid):
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle(uuid)).total) // _MIB

    def memory_used_mib(self, uuid: str) -> int:
        """Returns the part of the GPU's memory that is in use, in MiB."""
        with self._named(uuid):
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle(uuid)).used) // _MIB

    def worked(self, uuid: str, since: int) -> Worked | None:
        """Returns how much the GPU worked after a driver's time, as far back as the driver remembers.

        None if the GPU does not tell, as in MIG mode. A driver that remembers nothing tells of the last moment.
        """
        nvml = self._nvml
        with self._named(uuid):
            handle = self._handle(uuid)
            try:
                _, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, since)
                values = [int(one.sampleValue.uiVal) for one in samples]
                newest = max((int(one.timeStamp) for one in samples), default=since)
                return Worked(-(-sum(values) // max(1, len(values))), newest)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotFound):
                pass
            try:
                return Worked(int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), since)
            except nvml.NVMLError_NotSupported:
                return None

    def power_w(self, uuid: str) -> int | None:
        """Returns the power that the GPU draws, in watts; None if it does not tell."""
        with self._named(uuid):
            try:
                return round(int(self._nvml.nvmlDeviceGetPowerUsage(self._handle(uuid))) / 1_000)
            except self._nvml.NVMLError_NotSupported:
                return None

    def limit_memory(self, uuid: str, cgroup: str, mib: int) -> bool:
        """Limits the GPU memory of a cgroup's processes to `mib`, and reads the limit back.

        Returns False if driver, kernel or pynvml has no such limits (driver 615 and Linux 6.14 have them).
        """
        nvml = self._nvml
        try:
            wanted = nvml.c_nvmlSetMemoryLimits_v1_t()
            shown = nvml.c_nvmlGetMemoryLimits_v1_t()
        except AttributeError:
            return False
        wanted.nameSpace = shown.nameSpace = cgroup.encode()
        # A soft limit that outlives its cgroup keeps the memory reserved, so there is none.
        wanted.softLimit = 0
        wanted.hardLimit = mib * _MIB
        with self._named(uuid):
            try:
                nvml.nvmlDeviceSetMemoryLimits_v1(self._handle(uuid), wanted)
                nvml.nvmlDeviceGetMemoryLimits_v1(self._handle(uuid), shown)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
                return False
        if shown.hardLimit > mib * _MIB:
            raise DriverError(f"GPU {uuid} keeps {shown.hardLimit // _MIB} MiB as the limit of {cgroup}, not {mib} MiB")
        return True

    def obstacle(self, uuid: str) -> str | None:
        """Returns the reason why this GPU must not be shared, or None; a broken GPU is a HardwareFault."""
        nvml = self._nvml
        with self._named(uuid):
            handle = self._handle(uuid)
            try:
                mig = nvml.nvmlDeviceGetMigMode(handle)[0]
            except nvml.NVMLError_NotSupported:
                mig = 0
            try:
                *_, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
                pending = failed = 0
        if failed:
            raise HardwareFault(f"GPU {uuid} has no spare memory rows left (row remapping failed); have it replaced")
        if mig:
            return f"GPU {uuid} is in MIG mode, where its instances are shared and not the GPU; turn MIG off"
        if pending:
            return f"GPU {uuid} waits for a reset to remap bad memory rows; reset it when the node is empty"
        return None

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        return self._handles[uuid]

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        nvml = self._nvml
        try:
            yield
        except nvml.NVMLError_GpuIsLost as error:
            raise HardwareFault(f"GPU {what} has fallen off the bus; power-cycle the node") from error
        except nvml.NVMLError_NotFound as error:
            raise HardwareFault(f"GPU {what} is not in this node any more; discover the node again") from error
        except nvml.NVMLError as error:
            raise DriverError(f"the NVIDIA driver failed on {what} ({error}); look at nvidia-smi") from error


def opened() -> Any:
    """Opens NVML; the caller closes it by `nvmlShutdown`."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise DriverError("pynvml is not installed for Berth on this node; install slurm-berth[node]") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise DriverError(f"NVML does not start ({error}); is the NVIDIA driver loaded?") from error
    return nvml


@contextmanager
def driver() -> Iterator[Driver]:
    """Opens NVML for some calls."""
    nvml = opened()
    try:
        yield Driver(nvml)
    finally:
        nvml.nvmlShutdown()


def gpus(paths: Paths) -> tuple[NodeGpu, ...]:
    """Returns the node's GPUs by position; asks the driver once in a boot, so a job without a share needs no NVML."""
    boot = boot_id(paths.boot_id)
    known = _cached(paths, boot)
    if known:
        return known
    with driver() as nvml:
        found = nvml.gpus()
    content = {"format": FORMAT, "boot": boot, "gpus": [asdict(gpu) for gpu in found]}
    # If the answer cannot be kept, the driver is asked again next time.
    with suppress(StateError):
        files.prepare(paths)
        files.write(paths.identity, json.dumps(content) + "\n", 0o644)
    return found


def _cached(paths: Paths, boot: str) -> tuple[NodeGpu, ...]:
    """Returns what an earlier call wrote; nothing, if anything in it is not as expected."""
    try:
        content = json.loads(files.read(paths.identity) or "{}")
        if content.get("format") == FORMAT and content.get("boot") == boot:
            return tuple(
                NodeGpu(int(gpu["position"]), int(gpu["minor"]), str(gpu["uuid"]), int(gpu["index"]))
                for gpu in content["gpus"]
            )
    except (StateError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return ()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
