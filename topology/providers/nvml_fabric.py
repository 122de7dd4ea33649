# SPDX-License-Identifier: Apache-2.0
"""Reads a GPU's connections beyond its node's NVLinks: NVLink domain, and chip-to-chip links to its CPU."""

import ctypes
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from topology.providers.nvml_links import field_value, quiet

_NOT_STARTED, _IN_PROGRESS, _COMPLETED = 1, 2, 3  # NVML_GPU_FABRIC_STATE_...; 0 is a GPU without a fabric
_SUMMARIES = {2: "is unhealthy", 3: "has limited capacity"}  # NVML_GPU_FABRIC_HEALTH_SUMMARY_...
_DEGRADED_MASK, _DEGRADED = 0x3, 1  # NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_...
_C2C_COUNT, _C2C_STATUS, _C2C_MBPS = 170, 171, 172


class _Info2(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t, written down here because some releases of pynvml have its UUID too long."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_ubyte),
        ("health", ctypes.c_uint32),
    )


class _Info3(ctypes.Structure):
    """nvmlGpuFabricInfo_v3_t."""

    _fields_ = (*_Info2._fields_, ("summary", ctypes.c_ubyte))


@dataclass(frozen=True, slots=True)
class FabricRegistration:
    """One GPU's registration with its NVLink fabric."""

    domain: str = ""
    """`CLUSTER-UUID.CLIQUE`; empty where the fabric ends at the node, or the GPU is not registered."""
    complaint: str = ""
    """Its fault, as a predicate: `its NVLink fabric ...`."""


@dataclass(frozen=True, slots=True)
class ChipToChip:
    """One GPU's links to its CPU."""

    gbps: float = 0.0
    up: int = 0
    down: int = 0


def ask_fabric(nvml: Any, handle: Any) -> FabricRegistration:
    """Ask for the NVLink domain; nothing is known of a GPU, driver or pynvml that has no such thing."""
    info = _fabric_info(nvml, handle)
    state = info.state if info else 0
    if state in {_NOT_STARTED, _IN_PROGRESS}:
        progress = "has not started" if state == _NOT_STARTED else "is still starting"
        return FabricRegistration(complaint=f"{progress}; discover again when the fabric manager is done")
    if info is None or state != _COMPLETED:
        return FabricRegistration()
    # The status counts only now that registration is over.
    if info.status != 0:
        return FabricRegistration(complaint=f"refused the GPU (NVML error {info.status})")
    cluster = uuid.UUID(bytes=bytes(info.cluster))
    complaint = _SUMMARIES.get(getattr(info, "summary", 0), "")
    if not complaint and info.health & _DEGRADED_MASK == _DEGRADED:
        complaint = "has degraded bandwidth"
    # Clique numbers repeat from cluster to cluster. A cluster of zeros is one node behind its own switches.
    return FabricRegistration(f"{cluster}.{info.clique}" if cluster.int else "", complaint)


def _fabric_info(nvml: Any, handle: Any) -> Any:
    for version, kind in ((3, _Info3), (2, _Info2)):
        # NVML refuses a struct whose version does not carry its size.
        info = kind(version=ctypes.sizeof(kind) | version << 24)
        if quiet(nvml, "nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is not None:
            return info
    return None


def domain_of(fabrics: Mapping[int, FabricRegistration], problems: list[str]) -> str:
    """Returns the NVLink domain of a node, from those of its GPUs by position; empty where they disagree."""
    complaints: dict[str, list[int]] = {}
    for position, fabric in fabrics.items():
        if fabric.complaint:
            complaints.setdefault(fabric.complaint, []).append(position)
    problems += [f"{_gpus(positions)}: the NVLink fabric {text}" for text, positions in complaints.items()]
    domains = {fabric.domain for fabric in fabrics.values() if fabric.domain}
    if len(domains) > 1:
        problems.append(f"the GPUs are in {len(domains)} NVLink domains ({', '.join(sorted(domains))}); none is used")
        return ""
    outside = [position for position, fabric in fabrics.items() if not fabric.domain and not fabric.complaint]
    if domains and outside:
        problems.append(f"{_gpus(outside)}: not in the node's NVLink domain")
    return next(iter(domains), "")


def _gpus(positions: list[int]) -> str:
    return f"GPU {positions[0]}" if len(positions) == 1 else f"GPUs {','.join(map(str, positions))}"


def ask_chip_to_chip(nvml: Any, handle: Any) -> ChipToChip:
    """Ask for the links to the CPU, all of them together."""
    speeds = list(_chip_links(nvml, handle, field_value(nvml, handle, _C2C_COUNT) or 0))
    return ChipToChip(round(sum(speeds) / 1000, 3), sum(mbps > 0 for mbps in speeds), speeds.count(0))


def _chip_links(nvml: Any, handle: Any, count: int) -> Iterator[int]:
    """Yields MB/s of each link, 0 where it is down."""
    for link in range(count):
        is_down = field_value(nvml, handle, (_C2C_STATUS, link)) == 0
        yield 0 if is_down else field_value(nvml, handle, (_C2C_MBPS, link)) or 0
