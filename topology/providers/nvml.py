# SPDX-License-Identifier: Apache-2.0
"""Discover a node's GPUs through NVIDIA's management library.

Standard library and pynvml only: this runs on compute nodes.
"""

import datetime
import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from topology.errors import ProviderError
from topology.model import Discovered, Gpu, Link, Machine, Nic, PathWord
from topology.providers import sysfs
from topology.providers.cpus import cpus_of_words, format_cpus
from topology.providers.naming import short_model
from topology.providers.nvml_fabric import ChipToChip, FabricRegistration, ask_chip_to_chip, ask_fabric, domain_of
from topology.providers.nvml_links import GpuLinks, bus_id, quiet, survey

_ANCESTORS: dict[int, PathWord] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK
_P2P_OK = 0
_SCOPE_NODE = 0
_SET_WORDS = 64  # 4,096 CPUs


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU with the handle that NVML knows it by."""

    handle: Any
    gpu: Gpu
    links: GpuLinks
    fabric: FabricRegistration
    c2c: ChipToChip
    mig_devices: int


def discover(node: str, model: str | None = None, sysfs_root: Path = sysfs.ROOT) -> Machine:
    """Ask the driver about this machine.

    Positions follow the device minor numbers, because Slurm's index and the device files do; NVML's own
    order (by PCI address) is often another one. NICs are what the kernel shows under `sysfs_root`. ProviderError
    when NVML is not there, or knows no GPU.
    """
    with _nvml() as nvml:
        problems: list[str] = []
        found = _devices(nvml, sysfs_root, problems)
        if not found:
            raise ProviderError(f"node {node}: the NVIDIA driver shows no usable GPU; check nvidia-smi")
        found.sort(key=lambda device: device.gpu.minor)
        devices = [replace(device, gpu=replace(device.gpu, position=i)) for i, device in enumerate(found)]
        gpus = tuple(device.gpu for device in devices)
        problems += _gpu_problems(devices)
        common = model or _common_model(devices, problems)
        links = tuple(_links(nvml, devices, problems))
        domain = domain_of({device.gpu.position: device.fabric for device in devices}, problems)
        nics, nic_paths = _nics(gpus, sysfs_root, problems)
        return Machine(
            node=node,
            model=common,
            gpus=gpus,
            links=links,
            paths=_paths(nvml, devices),
            problems=tuple(problems),
            nics=nics,
            nic_paths=nic_paths,
            domain=domain,
            switches=len(set().union(*(device.links.switches for device in devices))),
            discovered=Discovered(
                at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                by="nvml",
                driver=quiet(nvml, "nvmlSystemGetDriverVersion") or "",
            ),
        )


@contextmanager
def _nvml() -> Iterator[Any]:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise ProviderError("pynvml is not installed here; install nvidia-ml-py") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise ProviderError(f"NVML does not start ({error}); is the NVIDIA driver loaded?") from error
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise ProviderError(f"NVML failed while the GPUs were being read: {error}") from error
    finally:
        quiet(nvml, "nvmlShutdown")


def _devices(nvml: Any, sysfs_root: Path, problems: list[str]) -> list[_Device]:
    handles = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            handles.append((index, handle, bus_id(nvml.nvmlDeviceGetPciInfo(handle)) or ""))
        except nvml.NVMLError as error:
            problems.append(f"the GPU that NVML numbers {index} does not answer ({error}) and was left out")
    everyone = frozenset(bus for _, _, bus in handles if bus)
    devices = []
    for index, handle, bus in handles:
        try:
            devices.append(_device(nvml, index, handle, bus, everyone, sysfs_root, problems))
        except nvml.NVMLError as error:
            problems.append(f"the GPU at {bus} does not answer ({error}) and was left out")
    return devices


def _device(
    nvml: Any,
    index: int,
    handle: Any,
    bus: str,
    everyone: frozenset[str],
    sysfs_root: Path,
    problems: list[str],
) -> _Device:
    minor = quiet(nvml, "nvmlDeviceGetMinorNumber", handle)
    if minor is None:
        problems.append(f"the driver tells no device minor number for the GPU at {bus}; NVML's index {index} is used")
        minor = index
    sm = quiet(nvml, "nvmlDeviceGetCudaComputeCapability", handle) or (0, 0)
    memory = quiet(nvml, "nvmlDeviceGetMemoryInfo", handle)
    mig = quiet(nvml, "nvmlDeviceGetMigMode", handle)
    c2c = ask_chip_to_chip(nvml, handle)
    gpu = Gpu(
        position=index,
        minor=minor,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=quiet(nvml, "nvmlDeviceGetName", handle) or "",
        bus_id=bus,
        numa=_numa(nvml, handle, bus, sysfs_root),
        cpus=_cpus(nvml, handle, bus, sysfs_root),
        memory_mib=memory.total >> 20 if memory else 0,
        mig=bool(mig and mig[0]),
        c2c_gbps=c2c.gbps,
    )
    return _Device(
        handle=handle,
        gpu=gpu,
        links=survey(nvml, handle, everyone, tuple(sm)),
        fabric=ask_fabric(nvml, handle),
        c2c=c2c,
        mig_devices=_count_mig_devices(nvml, handle) if gpu.mig else 0,
    )


def _count_mig_devices(nvml: Any, handle: Any) -> int:
    most = quiet(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    return sum(quiet(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, i) is not None for i in range(most))


def _numa(nvml: Any, handle: Any, bus: str, sysfs_root: Path) -> int:
    words = quiet(nvml, "nvmlDeviceGetMemoryAffinity", handle, 1, _SCOPE_NODE)
    nodes = cpus_of_words(words) if words else []
    return nodes[0] if len(nodes) == 1 else sysfs.numa(bus, sysfs_root)


def _cpus(nvml: Any, handle: Any, bus: str, sysfs_root: Path) -> str:
    words = quiet(nvml, "nvmlDeviceGetCpuAffinityWithinScope", handle, _SET_WORDS, _SCOPE_NODE) or quiet(
        nvml, "nvmlDeviceGetCpuAffinity", handle, _SET_WORDS
    )
    return format_cpus(cpus_of_words(words)) if words else sysfs.cpus(bus, sysfs_root)


def _nics(
    gpus: tuple[Gpu, ...], sysfs_root: Path, problems: list[str]
) -> tuple[tuple[Nic, ...], tuple[tuple[PathWord, ...], ...]]:
    """Returns the network cards; GPUs are placed without them where the kernel's files cannot be understood."""
    try:
        nics = sysfs.discover_nics(sysfs_root)
        return nics, sysfs.nic_paths(gpus, nics, sysfs_root) if nics else ()
    except (OSError, ValueError) as error:
        problems.append(f"the network cards cannot be read from {sysfs_root} ({error}) and were left out")
        return (), ()


def _common_model(devices: list[_Device], problems: list[str]) -> str:
    models = Counter(short_model(device.gpu.name) for device in devices)
    if len(models) > 1:
        counts = ", ".join(f"{count} {name}" for name, count in models.most_common())
        problems.append(f"the GPUs are not of one model ({counts}); users can ask for the first only")
    return models.most_common(1)[0][0]


def _gpu_problems(devices: list[_Device]) -> Iterator[str]:
    most: Counter[str] = Counter()
    for device in devices:
        most[device.gpu.name] = max(most[device.gpu.name], device.links.total)
    for device in devices:
        who, links, c2c = f"GPU {device.gpu.position}", device.links, device.c2c
        if links.down and not links.up:
            yield f"{who}: none of its {len(links.down)} NVLinks is up"
        elif links.down:
            numbers = " and ".join(map(str, links.down))
            yield f"{who}: NVLink {numbers} is down" if len(links.down) == 1 else f"{who}: NVLinks {numbers} are down"
        if links.total < most[device.gpu.name]:
            yield f"{who}: the driver shows {links.total} NVLinks, and {most[device.gpu.name]} of a GPU like it"
        if links.unseen:
            yield f"{who}: {links.unseen} NVLinks lead to GPUs that are not visible here"
        if c2c.down:
            yield f"{who}: {c2c.down} of its {c2c.up + c2c.down} chip-to-chip links to the CPU are down"
        if device.gpu.mig:
            count = device.mig_devices or "no"
            yield f"{who}: MIG mode is on, {count} MIG devices; Berth places whole GPUs only"


def _links(nvml: Any, devices: list[_Device], problems: list[str]) -> Iterator[Link]:
    apart = []
    for one, other in combinations(devices, 2):
        a, b = one.gpu.position, other.gpu.position
        speed = min(one.links.mbps, other.links.mbps) / 1000
        there, back = one.links.direct[other.gpu.bus_id], other.links.direct[one.gpu.bus_id]
        if there != back:
            problems.append(f"GPUs {a} and {b} disagree on their NVLinks ({there} and {back}); the fewer are used")
        if count := min(there, back):
            yield Link(a, b, count, round(count * speed, 3), "direct")
        elif count := min(one.links.to_switch, other.links.to_switch):
            if _talk_by_nvlink(nvml, one, other):
                yield Link(a, b, count, round(count * speed, 3), "switch")
            else:
                apart.append(f"{a} and {b}")
    if apart:
        more = f" and {len(apart) - 1} more pairs" if len(apart) > 1 else ""
        problems.append(
            f"the NVSwitches do not join GPUs {apart[0]}{more}; is the fabric whole, and its manager running?"
        )


def _talk_by_nvlink(nvml: Any, one: _Device, other: _Device) -> bool:
    """Returns True if the switches between two GPUs join them: a fabric can be partitioned, or not be up yet."""
    status = quiet(nvml, "nvmlDeviceGetP2PStatus", one.handle, other.handle, _P2P_NVLINK)
    return status is None or status == _P2P_OK


def _paths(nvml: Any, devices: list[_Device]) -> tuple[tuple[PathWord, ...], ...]:
    words: dict[tuple[int, int], PathWord] = {}
    for one, other in combinations(devices, 2):
        level = quiet(nvml, "nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
        a, b = one.gpu.position, other.gpu.position
        words[a, b] = words[b, a] = _ANCESTORS.get(level, "?")
    size = range(len(devices))
    return tuple(tuple("SELF" if a == b else words[a, b] for b in size) for a in size)
