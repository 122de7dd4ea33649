# SPDX-License-Identifier: Apache-2.0
"""Network cards and NUMA nodes from trees that look like /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.nvml.describe import sysfs_tree
from topology.machines import machine
from topology.model import Gpu
from topology.providers import sysfs


class Tree:
    """A small /sys to plug devices into."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def plug(self, *way: str, numa: int = 0) -> Path:
        """A PCI device by its way down from the host bridge; its last part is its address."""
        leaf = self.root.joinpath("devices", *way)
        leaf.mkdir(parents=True)
        (leaf / "numa_node").write_text(f"{numa}\n")
        link = self.root / "bus/pci/devices" / way[-1]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(leaf)
        return leaf

    def net(self, leaf: Path, name: str, *, state: str = "up", speed: str | None = "25000", kind: int = 1) -> None:
        """A network interface on a device."""
        device = self._listed("net", leaf, name)
        (device / "operstate").write_text(f"{state}\n")
        (device / "type").write_text(f"{kind}\n")
        if speed is not None:
            (device / "speed").write_text(f"{speed}\n")

    def rdma(self, leaf: Path, name: str, *ports: tuple[str, str], layer: str = "InfiniBand") -> None:
        """An RDMA device with ports of a state and a rate."""
        device = self._listed("infiniband", leaf, name)
        for number, (state, rate) in enumerate(ports, start=1):
            port = device / "ports" / str(number)
            port.mkdir(parents=True)
            for file, text in (("state", state), ("rate", rate), ("link_layer", layer)):
                (port / file).write_text(f"{text}\n")

    def _listed(self, kind: str, leaf: Path, name: str) -> Path:
        device = leaf / kind / name
        device.mkdir(parents=True)
        (device / "device").symlink_to(leaf)
        listed = self.root / "class" / kind / name
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.symlink_to(device)
        return device


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def gpu(bus_id: str, numa: int = 0) -> Gpu:
    return Gpu(0, 0, "GPU-a", bus_id=bus_id, numa=numa)


ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"
CARD = ("pci0000:3a", "0000:3a:00.0", "0000:3b:00.0")


@pytest.mark.parametrize("name", ["dgx-1v", "dgx-a100", "hgx-h100", "a6000-pairs"])
def test_known_machines_have_their_recorded_relations(tmp_path: Path, name: str) -> None:
    known = machine(name, "n1")
    root = sysfs_tree(known, tmp_path)
    nics = sysfs.discover_nics(root)
    assert [(nic.name, nic.kind, nic.gbps) for nic in nics] == [(nic.name, nic.kind, nic.gbps) for nic in known.nics]
    buses = sorted(path.name for path in (root / "bus/pci/devices").iterdir() if not (path / "infiniband").exists())
    by_place = {tuple(row) for row in known.nic_paths}
    rows = sysfs.nic_paths([gpu(bus, sysfs.numa(bus, root)) for bus in buses], nics, root)
    assert len(rows) == known.size
    assert set(rows) == by_place


def test_a_flat_virtual_machine_has_everything_below_one_host_bridge(tree: Tree) -> None:
    tree.plug("pci0000:00", "0000:00:05.0", numa=-1)
    tree.net(tree.plug("pci0000:00", "0000:00:06.0", numa=-1), "eth0", speed="-1")
    (virtio := tree.plug("pci0000:00", "0000:00:07.0", numa=-1) / "virtio2").mkdir()
    tree.net(virtio, "eth1", speed=None)
    nics = sysfs.discover_nics(tree.root)
    assert [(nic.name, nic.bus_id, nic.numa, nic.gbps) for nic in nics] == [
        ("eth0", "0000:00:06.0", -1, 0.0),
        ("eth1", "0000:00:07.0", -1, 0.0),
    ]
    assert sysfs.nic_paths([gpu("0000:00:05.0", -1)], nics, tree.root) == (("PHB", "PHB"),)


@pytest.mark.parametrize(
    ("way", "numa", "word"),
    [
        ((*CARD, "0000:3c:00.0", "0000:3d:00.1"), 0, "PIX"),
        ((*CARD, "0000:3c:04.0", "0000:3e:00.0"), 0, "PIX"),
        ((*CARD, "0000:3c:08.0", "0000:40:00.0", "0000:41:00.0", "0000:42:00.0"), 0, "PXB"),
        (("pci0000:3a", "0000:3a:02.0", "0000:50:00.0"), 0, "PHB"),
        (("pci0000:5d", "0000:5d:00.0", "0000:5e:00.0"), 0, "NODE"),
        (("pci0000:85", "0000:85:00.0", "0000:86:00.0"), 1, "SYS"),
        (("pci0000:85", "0000:85:00.0", "0000:86:00.0"), -1, "?"),
        (("LNXSYSTM:00", "VMBUS:01", "pci0001:00", "0001:00:00.0"), 1, "SYS"),
    ],
)
def test_words_for_what_the_ways_have_in_common(tree: Tree, way: tuple[str, ...], numa: int, word: str) -> None:
    tree.plug(*CARD, "0000:3c:00.0", "0000:3d:00.0")
    tree.rdma(tree.plug(*way, numa=numa), "mlx5_0", (ACTIVE, "100 Gb/sec (4X EDR)"))
    nics = sysfs.discover_nics(tree.root)
    assert sysfs.nic_paths([gpu("0000:3d:00.0")], nics, tree.root) == ((word,),)


def test_with_one_numa_node_all_host_bridges_are_in_it(tree: Tree) -> None:
    tree.plug("pci0000:00", "0000:00:01.0", "0000:01:00.0", numa=-1)
    tree.net(tree.plug("pci0000:40", "0000:40:01.0", "0000:41:00.0", numa=-1), "ens1")
    (tree.root / "devices/system/node/node0").mkdir(parents=True)
    nics = sysfs.discover_nics(tree.root)
    assert sysfs.nic_paths([gpu("0000:01:00.0", -1)], nics, tree.root) == (("NODE",),)


def test_virtual_functions_belong_to_their_physical_one(tree: Tree) -> None:
    physical = tree.plug("pci0000:3a", "0000:3b:00.0")
    tree.rdma(physical, "mlx5_0", (ACTIVE, "200 Gb/sec (4X HDR)"))
    for number in (1, 2):
        virtual = tree.plug("pci0000:3a", f"0000:3b:00.{number}")
        (virtual / "physfn").symlink_to(physical)
        tree.rdma(virtual, f"mlx5_{number}", (ACTIVE, "200 Gb/sec (4X HDR)"))
        tree.net(virtual, f"ib{number}", kind=32)
    assert [(nic.name, nic.bus_id, nic.gbps) for nic in sysfs.discover_nics(tree.root)] == [
        ("mlx5_0", "0000:3b:00.0", 25.0)
    ]


def test_a_virtual_function_alone_in_a_virtual_machine_is_a_card(tree: Tree) -> None:
    tree.rdma(tree.plug("pci0000:00", "0000:00:08.2", numa=-1), "mlx5_0", (ACTIVE, "100 Gb/sec (4X EDR)"))
    assert [nic.gbps for nic in sysfs.discover_nics(tree.root)] == [12.5]


def test_ports_are_added_and_functions_are_not(tree: Tree) -> None:
    two_ports = tree.plug("pci0000:3a", "0000:3b:00.0")
    tree.rdma(two_ports, "mlx4_0", (ACTIVE, "56 Gb/sec (4X FDR)"), (ACTIVE, "40 Gb/sec (4X QDR)"), (DOWN, "10 Gb/sec"))
    for function in (0, 1):
        leaf = tree.plug("pci0000:5d", f"0000:5e:00.{function}")
        tree.rdma(leaf, f"mlx5_{function}", (ACTIVE, "400 Gb/sec (4X NDR)"), layer="Ethernet")
    assert [(nic.name, nic.kind, nic.gbps) for nic in sysfs.discover_nics(tree.root)] == [
        ("mlx4_0", "infiniband", 12.0),
        ("mlx5_0", "ethernet", 50.0),
        ("mlx5_1", "ethernet", 50.0),
    ]


def test_a_card_of_both_subsystems_is_one_card(tree: Tree) -> None:
    leaf = tree.plug("pci0000:3a", "0000:3b:00.0", numa=1)
    tree.rdma(leaf, "mlx5_10", (ACTIVE, "100 Gb/sec (2X HDR)"), layer="Ethernet")
    tree.net(leaf, "ens3f0", speed="100000")
    tree.net(tree.plug("pci0000:00", "0000:02:00.0"), "eno1", speed="10000")
    assert [(nic.name, nic.numa, nic.kind, nic.gbps) for nic in sysfs.discover_nics(tree.root)] == [
        ("eno1", 0, "ethernet", 1.25),
        ("mlx5_10", 1, "ethernet", 12.5),
    ]


def test_what_is_down_or_no_card_is_left_out(tree: Tree) -> None:
    tree.net(tree.plug("pci0000:00", "0000:01:00.0"), "eno1", state="down", speed=None)
    tree.rdma(tree.plug("pci0000:00", "0000:02:00.0"), "mlx5_0", (DOWN, "10 Gb/sec (4X SDR)"))
    (usb := tree.plug("pci0000:00", "0000:00:14.0") / "usb1" / "1-1:1.0").mkdir(parents=True)
    tree.net(usb, "enx0")
    (part := tree.plug("pci0000:00", "0000:03:00.0") / "mlx5_core.sf.4").mkdir()
    tree.net(part, "en8f0pf0sf1")
    (tree.root / "class/net/lo").mkdir()
    (tree.root / "class/net/bonding_masters").write_text("bond0\n")
    assert sysfs.discover_nics(tree.root) == ()


def test_a_machine_without_network_or_pci_has_no_cards(tmp_path: Path) -> None:
    assert sysfs.discover_nics(tmp_path / "nothing") == ()
    assert (sysfs.numa("0000:01:00.0", tmp_path), sysfs.cpus("", tmp_path)) == (-1, "")


def test_a_gpu_that_the_kernel_does_not_show_has_unknown_relations(tree: Tree) -> None:
    tree.net(tree.plug("pci0000:00", "0000:01:00.0"), "eno1")
    nics = sysfs.discover_nics(tree.root)
    assert sysfs.nic_paths([gpu(""), gpu("0000:99:00.0")], nics, tree.root) == (("?",), ("?",))
