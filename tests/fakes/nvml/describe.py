# SPDX-License-Identifier: Apache-2.0
"""Write down any machine for the simulated library, and its PCI devices as a tree like /sys.

python3 -m tests.fakes.nvml.describe dgx-a100 n1 > machine
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from topology import machines
from topology.model import NEAR, Machine, Nic

__all__ = ["machine_file", "sysfs_tree"]

#: Compute capability and NVML's number of the NVLink version.
_GENERATIONS = {
    "v100": ("7.0", 2),
    "a100": ("8.0", 5),
    "a6000": ("8.6", 5),
    "l40s": ("8.9", 0),
    "h100": ("9.0", 6),
    "b200": ("10.0", 7),
    "gb200": ("10.0", 7),
}
_C2C_MBPS = 44712
#: What the driver shows of switches that are not in the node.
_FAR_SWITCH = "fffffff:ff:ff.0"
#: How many parts of its nearest GPU's place a device shares.
_SHARED = {"PIX": 4, "PXB": 3, "PHB": 2, "NODE": 1, "SYS": 0}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a device is plugged in: NUMA node, host bridge, upper switch, lower switch; each number is used once."""

    parts: tuple[int, ...]
    bus_id: str


def machine_file(machine: Machine) -> str:
    """The machine file of a machine whose PCIe relations are a tree."""
    sm, version = _GENERATIONS[machine.model]
    lines = [f"# {machine.discovered.by if machine.discovered else 'a machine'}"]
    for gpu, place in zip(machine.gpus, _places(machine), strict=False):
        pcie = "/".join(map(str, place.parts[1:]))
        name = gpu.name or f"NVIDIA {machine.model.upper()}"
        lines.append(
            f"gpu {gpu.position} minor={gpu.minor} uuid={gpu.uuid} pci={place.bus_id} numa={place.parts[0]}"
            f' pcie={pcie} sm={sm} memory={gpu.memory_mib or 1024} name="{name}"'
        )
        if gpu.cpus:
            lines.append(f"gpu {gpu.position} cpus={gpu.cpus}")
        if gpu.c2c_gbps:
            lines.append(f"gpu {gpu.position} c2c-links={round(gpu.c2c_gbps * 1000 / _C2C_MBPS)} c2c-mbps={_C2C_MBPS}")
    if machine.links:
        link = machine.links[0]
        speed = f"nvlink-mbps={round(link.gbps * 1000 / link.count)} nvlink-version={version}"
        lines.append(f"gpu 0-{machine.size - 1} {speed}")
    if machine.domain:
        cluster, _, clique = machine.domain.rpartition(".")
        lines.append(f"gpu 0-{machine.size - 1} fabric-state=3 cluster={cluster} clique={clique}")
    lines += _direct(machine) + _switched(machine)
    return "\n".join(lines) + "\n"


def _direct(machine: Machine) -> list[str]:
    used = [0] * machine.size
    joined = []
    for link in machine.links:
        if link.via == "direct":
            ends = [f"{gpu}:{used[gpu]}-{used[gpu] + link.count - 1}" for gpu in (link.a, link.b)]
            joined.append(f"nvlink {ends[0]} {ends[1]}")
            used[link.a] += link.count
            used[link.b] += link.count
    return [f"gpu {gpu} nvlinks={number}" for gpu, number in enumerate(used) if number] + joined


def _switched(machine: Machine) -> list[str]:
    switched = [link for link in machine.links if link.via == "switch"]
    if not switched:
        return []
    addresses = [f"0000:c{i:x}:00.0" for i in range(machine.switches)] or [_FAR_SWITCH]
    lines = [f"switch {i} pci={address}" for i, address in enumerate(addresses)]
    for gpu in range(machine.size):
        total = max((link.count for link in switched if gpu in (link.a, link.b)), default=0)
        lines += [f"gpu {gpu} nvlinks={total}"] if total else []
        first = 0
        for i in range(len(addresses)):
            last = first + total // len(addresses) + (i < total % len(addresses)) - 1
            lines += [f"nvlink {gpu}:{first}-{last} switch:{i}"] if last >= first else []
            first = last + 1
    return lines


def _places(machine: Machine) -> list[_Place]:
    """A place for each GPU, then for each NIC: beside the nearest GPU that has one."""
    fresh, bus = count(), count(0x10)
    parts: list[tuple[int, ...]] = []
    rows = [list(row) for row in machine.paths] + [list(column) for column in zip(*machine.nic_paths, strict=True)]
    for device, words in enumerate(rows):
        known = range(min(device, machine.size))
        nearest = max(known, key=lambda gpu: NEAR[words[gpu]], default=None)
        shared = parts[nearest][: _SHARED[words[nearest]]] if nearest is not None else ()
        parts.append(shared + tuple(next(fresh) for _ in range(4 - len(shared))))
    numas = _numa_numbers(machine, parts)
    own = [gpu.bus_id for gpu in machine.gpus] + [nic.bus_id for nic in machine.nics]
    return [
        _Place((numas[one[0]], *one[1:]), bus_id or f"{one[1]:04x}:{next(bus):02x}:00.0")
        for one, bus_id in zip(parts, own, strict=True)
    ]


def _numa_numbers(machine: Machine, parts: list[tuple[int, ...]]) -> dict[int, int]:
    """The machine's own NUMA numbers, or others where it names none or contradicts its own paths."""
    groups: dict[int, int] = {}
    for gpu, one in zip(machine.gpus, parts, strict=False):
        groups.setdefault(one[0], gpu.numa)
    agrees = all(groups[one[0]] == gpu.numa for gpu, one in zip(machine.gpus, parts, strict=False))
    if not agrees or -1 in groups.values() or len(set(groups.values())) < len(groups):
        groups = {group: i for i, group in enumerate(groups)}
    unused = (number for number in count() if number not in groups.values())
    return groups | {one[0]: next(unused) for one in parts if one[0] not in groups}


def sysfs_tree(machine: Machine, root: Path) -> Path:
    """Make `root` a tree in which the machine's GPUs and NICs stand as the kernel would show them."""
    bridges: dict[tuple[int, ...], str] = {}
    places = _places(machine)
    for place in places:
        _, bridge, upper, lower = place.parts
        way = [f"pci{bridge:04x}:00"]
        # A root port and the upper switch; a port of that and the lower switch; a port of that and the device.
        for key in ((upper, 0), (upper, 1), (lower, 2), (lower, 3), (lower, 4, len(bridges))):
            number = len(bridges)
            way.append(bridges.setdefault(key, f"{bridge:04x}:{0xC0 + number // 32:02x}:{number % 32:02x}.0"))
        leaf = root.joinpath("devices", *way, place.bus_id)
        (root / f"devices/system/node/node{place.parts[0]}").mkdir(parents=True, exist_ok=True)
        leaf.mkdir(parents=True)
        (leaf / "numa_node").write_text(f"{place.parts[0]}\n")
        link = root / "bus/pci/devices" / place.bus_id
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(leaf)
    for nic, place in zip(machine.nics, places[machine.size :], strict=True):
        _rdma_device(nic, root, (root / "bus/pci/devices" / place.bus_id).resolve())
    return root


def _rdma_device(nic: Nic, root: Path, leaf: Path) -> None:
    device = leaf / "infiniband" / nic.name
    port = device / "ports" / "1"
    port.mkdir(parents=True)
    (device / "device").symlink_to(leaf)
    (port / "state").write_text("4: ACTIVE\n")
    if nic.kind:
        (port / "link_layer").write_text({"infiniband": "InfiniBand", "ethernet": "Ethernet"}[nic.kind] + "\n")
    if nic.gbps:
        (port / "rate").write_text(f"{nic.gbps * 8:g} Gb/sec (4X)\n")
    listed = root / "class" / "infiniband" / nic.name
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.symlink_to(device)


if __name__ == "__main__":
    sys.stdout.write(machine_file(machines.machine(*sys.argv[1:3])))
