# SPDX-License-Identifier: Apache-2.0
"""NVLinks as the driver tells them, one GPU at a time, the way NCCL reads them."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from topology.providers import speeds

#: Links that a GPU of this compute capability can have; the driver's own count wins where it is greater.
_MOST_LINKS = ((9, 18), (8, 12), (7, 6), (0, 4))
_P2P = 0  # NVML_NVLINK_CAP_P2P_SUPPORTED
_REMOTE_GPU, _REMOTE_SWITCH, _REMOTE_UNKNOWN = 0, 2, 0xFF
_FIELD_SPEED_COMMON, _FIELD_LINK_COUNT = 90, 91
_FIELD_SPEED, _FIELD_STATE = 164, 165


@dataclass(slots=True)
class GpuLinks:
    """Live links of one GPU, and what is wrong with the others."""

    direct: Counter[str] = field(default_factory=Counter)
    """Number of links to each GPU, by its bus id."""
    to_switch: int = 0
    switches: set[str] = field(default_factory=set)
    """Bus ids of the switches, as far as the driver tells them."""
    mbps: int = 0
    """Rate of the slowest live link, so that a sum over links is never too high."""
    down: list[int] = field(default_factory=list)
    unseen: int = 0
    """Links to GPUs that this process does not see."""

    @property
    def up(self) -> int:
        """Links that carry data, to whatever."""
        return sum(self.direct.values()) + self.to_switch + self.unseen

    @property
    def total(self) -> int:
        """Links that the GPU has, whether up or down."""
        return self.up + len(self.down)


def quiet(nvml: Any, function: str, *arguments: Any) -> Any:
    """Call NVML; None where this driver or GPU does not answer that question."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None
    except (AttributeError, UnicodeDecodeError):
        # An older pynvml lacks the call; a virtual machine's driver leaves unprintable text.
        return None


def bus_id(pci: Any) -> str | None:
    """Returns a PCI address as sysfs writes it, or None where the driver hides it.

    In a virtual machine the text is unprintable; of the switches of an NVLink domain it is `FFFFFFF:FF:FF.0`.
    """
    if pci is None:
        return None
    try:
        text = pci.busId.lower()
    except UnicodeDecodeError:
        return None
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", text)
    if not match:
        return None
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}"


def survey(nvml: Any, handle: Any, gpus: frozenset[str], sm: tuple[int, int]) -> GpuLinks:
    """Look at each NVLink of a GPU; `gpus` are the bus ids of all GPUs."""
    links = GpuLinks()
    for number in range(_most_links(nvml, handle, sm)):
        if quiet(nvml, "nvmlDeviceGetNvLinkCapability", handle, number, _P2P) != 1:
            continue
        if not _is_up(nvml, handle, number, sm):
            links.down.append(number)
            continue
        speed = _speed(nvml, handle, number, sm)
        links.mbps = min(links.mbps, speed) if links.mbps else speed
        _count(nvml, handle, number, gpus, links)
    return links


def _count(nvml: Any, handle: Any, number: int, gpus: frozenset[str], links: GpuLinks) -> None:
    kind = quiet(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
    remote = bus_id(quiet(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, number))
    if remote in gpus:
        links.direct[remote] += 1
    elif kind == _REMOTE_SWITCH or remote is None or kind in (None, _REMOTE_UNKNOWN):
        # A virtual machine hides the other end; NCCL takes that for a switch too, and P2P status decides. A driver
        # without the type call shows a bus id that is no GPU's.
        links.to_switch += 1
        links.switches.update([remote] if remote else [])
    elif kind == _REMOTE_GPU:
        links.unseen += 1


def _most_links(nvml: Any, handle: Any, sm: tuple[int, int]) -> int:
    usual = next(count for major, count in _MOST_LINKS if sm[0] >= major)
    return max(usual, field_value(nvml, handle, _FIELD_LINK_COUNT) or 0)


def _is_up(nvml: Any, handle: Any, number: int, sm: tuple[int, int]) -> bool:
    # From Hopper on the call can fail where the field answers; before, there is no such field.
    state = field_value(nvml, handle, (_FIELD_STATE, number)) if sm >= (9, 0) else None
    if state is None:
        state = quiet(nvml, "nvmlDeviceGetNvLinkState", handle, number)
    return state == 1


def _speed(nvml: Any, handle: Any, number: int, sm: tuple[int, int]) -> int:
    told = field_value(nvml, handle, (_FIELD_SPEED, number)) or field_value(nvml, handle, _FIELD_SPEED_COMMON)
    if told:
        return told
    version = quiet(nvml, "nvmlDeviceGetNvLinkVersion", handle, number)
    return speeds.SM86 if sm == (8, 6) else speeds.of_version(version)


def field_value(nvml: Any, handle: Any, field_id: int | tuple[int, int]) -> int | None:
    """Returns a whole number of `nvmlDeviceGetFieldValues`, by id or (id, link); None where there is no such field."""
    values = quiet(nvml, "nvmlDeviceGetFieldValues", handle, [field_id])
    if not values or values[0].nvmlReturn != 0:
        return None
    # Unsigned int (1) or, in some drivers for the same field, 64 bits (2, 3).
    value = values[0].value
    return int(value.ullVal if values[0].valueType in (2, 3) else value.uiVal)
