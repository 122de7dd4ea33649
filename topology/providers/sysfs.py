# SPDX-License-Identifier: Apache-2.0
"""Reads PCI devices from the kernel: NUMA nodes, near CPUs, network cards and their nearness to the GPUs.

Standard library only: this runs on compute nodes. `root` is `/sys` or a tree of the same form.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from topology.model import Gpu, Nic, PathWord

ROOT = Path("/sys")

_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
#: Below a PCI function a network device may stand behind this bus only; others are USB, or parts of a card.
_TRANSPARENT = re.compile(r"virtio\d+")
_ACTIVE = "4: ACTIVE"


@dataclass(slots=True)
class _Card:
    """One physical PCI function and the network devices on it."""

    bus_id: str
    names: list[str] = field(default_factory=list)
    kind: str = ""
    gbps: float = 0.0


def numa(bus_id: str, root: Path = ROOT) -> int:
    """Returns NUMA node of a PCI device, -1 where the kernel does not say."""
    try:
        return int(_text(_device(bus_id, root) / "numa_node"))
    except ValueError:
        return -1


def cpus(bus_id: str, root: Path = ROOT) -> str:
    """Returns CPUs near a PCI device as a list, empty where the kernel does not say."""
    return _text(_device(bus_id, root) / "local_cpulist")


def discover_nics(root: Path = ROOT) -> tuple[Nic, ...]:
    """Returns network cards that are up, one for each physical PCI function, by name.

    A card that the RDMA subsystem knows too goes by that name (`mlx5_0`), as in `nvidia-smi topo -m`. Left out:
    what is down, what is no PCI device (bridges, bonds, USB), and virtual functions beside their physical one.
    """
    cards: dict[str, _Card] = {}
    for device in _entries(root / "class" / "infiniband"):
        _add(cards, device, *_rdma(device))
    known = set(cards)
    for device in _entries(root / "class" / "net"):
        bus_id = _function_of(device)
        if bus_id not in known:
            _add(cards, device, *_ethernet(device))
    nics = (
        Nic(card.names[0], card.bus_id, numa(card.bus_id, root), card.kind, round(card.gbps, 3))
        for card in cards.values()
    )
    return tuple(sorted(nics, key=lambda nic: _natural(nic.name)))


def nic_paths(gpus: Iterable[Gpu], nics: Sequence[Nic], root: Path = ROOT) -> tuple[tuple[PathWord, ...], ...]:
    """Returns PCIe relation of each GPU (row) to each NIC (column); `?` where the kernel does not show a device."""
    places = [_place(nic.bus_id, root) for nic in nics]
    one_node = len(list(root.glob("devices/system/node/node[0-9]*"))) == 1
    rows = []
    for gpu in gpus:
        here = _place(gpu.bus_id, root)
        row = (
            _relation(here, there, gpu.numa, nic.numa, one_node=one_node)
            for nic, there in zip(nics, places, strict=True)
        )
        rows.append(tuple(row))
    return tuple(rows)


def _relation(
    here: tuple[str, ...], there: tuple[str, ...], numa_here: int, numa_there: int, *, one_node: bool
) -> PathWord:
    """Compare two ways down from the host bridge, the way NVIDIA's tools name what they share."""
    if not here or not there:
        return "?"
    if here[0] != there[0]:
        if one_node or (numa_here == numa_there and numa_here >= 0):
            return "NODE"
        return "?" if -1 in {numa_here, numa_there} else "SYS"
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=False)))
    if shared == 1:
        return "PHB"
    # Below a switch's upper port come its lower port and the device; anything longer passes another switch.
    return "PIX" if max(len(here), len(there)) - shared <= 2 else "PXB"


def _device(bus_id: str, root: Path) -> Path:
    return root / "bus" / "pci" / "devices" / (bus_id or "unknown")


def _place(bus_id: str, root: Path) -> tuple[str, ...]:
    """Returns way from the host bridge down to a device, empty where the kernel does not show it."""
    parts = Path(os.path.realpath(_device(bus_id, root))).parts
    start = next((i for i, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), len(parts))
    return parts[start:]


def _function_of(device: Path) -> str:
    """Returns PCI address of the physical function behind a network device, empty where there is none."""
    parts = list(Path(os.path.realpath(device / "device")).parts)
    while parts and _TRANSPARENT.fullmatch(parts[-1]):
        parts.pop()
    if not parts or not _FUNCTION.fullmatch(parts[-1]):
        return ""
    physical = Path(*parts) / "physfn"
    return Path(os.path.realpath(physical)).name if physical.exists() else parts[-1]


def _is_virtual_function(device: Path) -> bool:
    return (device / "device" / "physfn").exists()


def _add(cards: dict[str, _Card], device: Path, kind: str, gbps: float | None) -> None:
    """Add a network device to its card; `gbps` is None where it is down."""
    bus_id = _function_of(device)
    if not bus_id or gbps is None or _is_virtual_function(device):
        return
    card = cards.setdefault(bus_id, _Card(bus_id, kind=kind))
    card.names.append(device.name)
    card.gbps += gbps


def _rdma(device: Path) -> tuple[str, float | None]:
    """Returns kind and GB/s of an RDMA device: all its active ports together."""
    ports = [port for port in _entries(device / "ports") if _text(port / "state") == _ACTIVE]
    if not ports:
        return "", None
    kind = _text(ports[0] / "link_layer").lower()
    return kind if kind in {"infiniband", "ethernet"} else "", sum(map(_port_gbps, ports))


def _port_gbps(port: Path) -> float:
    """Returns GB/s of a port whose rate reads `400 Gb/sec (4X NDR)`."""
    match = re.match(r"([0-9.]+) Gb/sec", _text(port / "rate"))
    return float(match[1]) / 8 if match else 0.0


def _ethernet(device: Path) -> tuple[str, float | None]:
    """Returns kind and GB/s of a network interface; its speed is in Mb/s, -1 if it has none, as in virtual machines."""
    state = _text(device / "operstate")
    if state != "up" and not (state == "unknown" and _text(device / "carrier") == "1"):
        return "", None
    arp_type = _text(device / "type")
    kind = {"1": "ethernet", "32": "infiniband"}.get(arp_type, "")
    try:
        return kind, max(int(_text(device / "speed")), 0) / 8000
    except ValueError:
        return kind, 0.0


def _entries(directory: Path) -> Iterator[Path]:
    try:
        yield from sorted(directory.iterdir(), key=lambda path: _natural(path.name))
    except OSError:
        return


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", name)]


def _text(path: Path) -> str:
    """Returns a file's text, empty if it cannot be read: drivers refuse some reads while a link is down."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
