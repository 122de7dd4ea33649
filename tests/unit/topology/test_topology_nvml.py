# SPDX-License-Identifier: Apache-2.0
"""Discovery through real pynvml on simulated machines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.fakes import nvml as fake
from tests.fakes.nvml.describe import machine_file
from tests.unit.repository.test_fake_nvml import A6000_PAIRS, DGX_1V, numbers
from topology import files
from topology.machines import rack
from topology.model import Machine
from topology.providers.cpus import cpus_of_words, format_cpus, parse_cpus
from topology.providers.naming import short_model

DISCOVER = """
from pathlib import Path
from topology.files import encode
from topology.providers.nvml import discover
answer = json.loads(encode(discover("n1", sysfs_root=Path("/nowhere"))))
"""


def discovered(machine: Path, sysfs: Path | None = None) -> Machine:
    return files.decode(fake.run(machine, DISCOVER.replace("/nowhere", str(sysfs)) if sysfs else DISCOVER))


def counts(machine: Machine) -> list[list[int]]:
    matrix = [[0] * machine.size for _ in machine.gpus]
    for link in machine.links:
        matrix[link.a][link.b] = matrix[link.b][link.a] = link.count
    return matrix


def in_bus_order(machine: Machine, matrix: list[list[int]]) -> list[list[int]]:
    """NVML's order, which is what nvidia-smi topo -m prints."""
    order = [gpu.position for gpu in sorted(machine.gpus, key=lambda gpu: gpu.bus_id)]
    return [[matrix[a][b] for b in order] for a in order]


@pytest.fixture
def altered(tmp_path: Path) -> Altered:
    return Altered(tmp_path / "machine")


class Altered:
    """A machine with some lines more."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, name: str, lines: Iterable[str]) -> Machine:
        self.path.write_text((fake.MACHINES / name).read_text() + "\n".join(lines) + "\n")
        return discovered(self.path)


def test_cube_mesh_is_found_as_nvidia_smi_shows_it() -> None:
    machine = discovered(fake.MACHINES / "dgx-1v")
    assert in_bus_order(machine, counts(machine)) == numbers(DGX_1V)
    assert machine.gbps[0][3] == 51.562
    assert machine.paths[0] == ("SELF", "PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS")
    assert (machine.model, machine.problems) == ("v100", ())


def test_positions_follow_minor_numbers_not_nvml_order() -> None:
    machine = discovered(fake.MACHINES / "a6000-pairs")
    assert [gpu.minor for gpu in machine.gpus] == list(range(8))
    assert [gpu.bus_id for gpu in machine.gpus] != sorted(gpu.bus_id for gpu in machine.gpus)
    assert {(link.a, link.b) for link in machine.links} == {(2, 5), (0, 7), (1, 6), (3, 4)}
    assert in_bus_order(machine, counts(machine)) == numbers(A6000_PAIRS)


def test_nvswitch_machine_is_one_island() -> None:
    machine = discovered(fake.MACHINES / "hgx-h100")
    assert len(machine.links) == 28
    assert {(link.count, link.gbps, link.via) for link in machine.links} == {(18, 478.116, "switch")}
    assert (machine.model, machine.switches, machine.problems) == ("h100", 4, ())
    # Its fabric is registered, but ends at the node.
    assert machine.domain == ""


def test_machine_without_nvlink_has_its_pcie_relations() -> None:
    machine = discovered(fake.MACHINES / "l40s")
    assert machine.links == ()
    assert machine.paths[0] == ("SELF", "PIX", "PXB", "PXB", "SYS", "SYS", "SYS", "SYS")
    assert machine.paths[4][4:] == ("SELF", "PIX", "NODE", "NODE")
    assert [(gpu.numa, gpu.cpus) for gpu in machine.gpus] == [(0, "0-7")] * 4 + [(1, "8-15")] * 4
    assert machine.problems == ()


def test_a_link_that_is_down_is_not_counted_and_both_ends_are_named(altered: Altered) -> None:
    machine = altered("dgx-1v", ["nvlink 0:3 down"])
    assert counts(machine)[0][3] == 1
    assert machine.problems == ("GPU 0: NVLink 3 is down", "GPU 3: NVLink 1 is down")


def test_a_switched_machine_with_a_weak_gpu_counts_its_fewer_links(altered: Altered) -> None:
    machine = altered("hgx-h100", ["nvlink 0:0-4 down"])
    weak = next(gpu.position for gpu in machine.gpus if gpu.bus_id == "0000:1b:00.0")
    assert {link.count for link in machine.links if weak in (link.a, link.b)} == {13}
    assert {link.count for link in machine.links if weak not in (link.a, link.b)} == {18}
    assert machine.problems == (f"GPU {weak}: NVLinks 0 and 1 and 2 and 3 and 4 are down",)


def test_a_partitioned_fabric_joins_only_gpus_that_can_talk(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    path.write_text(
        "switch 0 pci=0000:05:00.0\nswitch 1 pci=0000:06:00.0\n"
        'gpu 0-3 name="NVIDIA H100" sm=9.0 memory=80000 nvlinks=18 nvlink-mbps=26562\n'
        + "".join(f"gpu {i} uuid=GPU-{i} pci=0000:1{i}:00.0\nnvlink {i}:0-17 switch:{i // 2}\n" for i in range(4))
    )
    machine = discovered(path)
    assert [(link.a, link.b) for link in machine.links] == [(0, 1), (2, 3)]
    assert machine.problems == (
        "the NVSwitches do not join GPUs 0 and 2 and 3 more pairs; is the fabric whole, and its manager running?",
    )


def test_a_virtual_machine_that_hides_the_other_ends_is_taken_for_a_switch(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    path.write_text(
        'gpu 0-3 name="NVIDIA A100-SXM4-80GB" sm=8.0 memory=80000 nvlinks=12 nvlink-mbps=25781\n'
        + "".join(f"gpu {i} uuid=GPU-{i} pci=0000:1{i}:00.0\nnvlink {i}:0-11 hidden\n" for i in range(4))
    )
    machine = discovered(path)
    assert {(link.count, link.via) for link in machine.links} == {(12, "switch")}
    assert len(machine.links) == 6
    assert (machine.model, machine.switches, machine.problems) == ("a100", 0, ())


def test_a_lost_gpu_is_left_out_and_reported(altered: Altered) -> None:
    machine = altered("l40s", ["gpu 2 lost=1"])
    assert [gpu.minor for gpu in machine.gpus] == [0, 1, 3, 4, 5, 6, 7]
    assert [gpu.position for gpu in machine.gpus] == list(range(7))
    assert machine.problems == ("the GPU that NVML numbers 2 does not answer (GPU is lost) and was left out",)


def test_mig_mode_is_reported_with_its_devices(altered: Altered) -> None:
    machine = altered("hgx-h100", ["gpu 2 mig=1 mig-devices=3", "gpu 3 mig=1"])
    assert [gpu.mig for gpu in machine.gpus].count(True) == 2
    assert machine.problems == (
        "GPU 0: MIG mode is on, 3 MIG devices; Berth places whole GPUs only",
        "GPU 1: MIG mode is on, no MIG devices; Berth places whole GPUs only",
    )


def test_a_gpu_without_the_links_of_its_like_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    # A driver that forgets all links of one GPU of a board leaves nothing that is down.
    path.write_text(
        'gpu 0-2 name="NVIDIA B200" sm=10.0 memory=183359\nswitch 0 pci=0000:05:00.0\n'
        + "".join(f"gpu {i} uuid=GPU-{i} pci=0000:1{i}:00.0\n" for i in range(3))
        + "gpu 0-1 nvlinks=18 nvlink-mbps=53125\nnvlink 0:0-17 switch:0\nnvlink 1:0-17 switch:0\n"
    )
    machine = discovered(path)
    assert [(link.a, link.b, link.gbps) for link in machine.links] == [(0, 1, 956.25)]
    assert machine.problems == ("GPU 2: the driver shows 0 NVLinks, and 18 of a GPU like it",)


@pytest.fixture
def tray(tmp_path: Path) -> Callable[..., Machine]:
    """A tray of an NVL72 rack with some lines more."""

    def discover(*lines: str) -> Machine:
        path = tmp_path / "tray"
        path.write_text(machine_file(rack("gb200-nvl72", ["n1", "n2"])[0]) + "\n".join(lines) + "\n")
        return discovered(path)

    return discover


def test_a_tray_knows_its_domain_and_its_links_to_the_cpus(tray: Callable[..., Machine]) -> None:
    machine = tray()
    expected = rack("gb200-nvl72", ["n1", "n2"])
    assert machine.domain == expected[1].domain
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.1", machine.domain)
    assert {gpu.c2c_gbps for gpu in machine.gpus} == {223.56}
    assert {(link.count, link.gbps, link.via) for link in machine.links} == {(18, 956.25, "switch")}
    # The driver gives the switches, which are in other trays, an address that is none.
    assert (machine.switches, machine.problems) == (0, ())


OTHER = "01020304-0506-0708-090a-0b0c0d0e0f10"


@pytest.mark.parametrize(
    ("lines", "in_domain", "problem"),
    [
        (["gpu 0-3 fabric-state=1"], False, "GPUs 0,1,2,3: the NVLink fabric has not started; discover again"),
        (["gpu 2 fabric-state=2"], True, "GPU 2: the NVLink fabric is still starting; discover again"),
        (["gpu 2 fabric-state=0"], True, "GPU 2: not in the node's NVLink domain"),
        (["gpu 1 fabric-status=999"], True, "GPU 1: the NVLink fabric refused the GPU (NVML error 999)"),
        (["gpu 1 fabric-health=2"], True, "GPU 1: the NVLink fabric is unhealthy"),
        (["gpu 0-1 fabric-health=3"], True, "GPUs 0,1: the NVLink fabric has limited capacity"),
        ([f"gpu 3 cluster={OTHER}"], False, "the GPUs are in 2 NVLink domains (01020304-0506"),
        (["gpu 3 clique=2"], False, "the GPUs are in 2 NVLink domains"),
        (["gpu 1 c2c-down=2"], True, "GPU 1: 2 of its 5 chip-to-chip links to the CPU are down"),
    ],
)
def test_what_is_wrong_with_a_tray_is_reported(
    tray: Callable[..., Machine], lines: list[str], in_domain: bool, problem: str
) -> None:
    machine = tray(*lines)
    assert bool(machine.domain) == in_domain
    assert len(machine.problems) == 1
    assert machine.problems[0].startswith(problem)


def test_chip_to_chip_links_that_are_down_do_not_count(tray: Callable[..., Machine]) -> None:
    assert [gpu.c2c_gbps for gpu in tray("gpu 1 c2c-down=2").gpus] == [223.56, 134.136, 223.56, 223.56]


def test_a_driver_without_fabrics_has_none(tray: Callable[..., Machine]) -> None:
    machine = tray("refuse nvmlDeviceGetGpuFabricInfoV function-not-found")
    assert (machine.domain, machine.problems) == ("", ())


OLDER_DRIVER = """
import pynvml
ask = pynvml.nvmlDeviceGetGpuFabricInfoV
def refuse_version_3(gpu, info):
    if info._obj.version >> 24 == 3:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    return ask(gpu, info)
pynvml.nvmlDeviceGetGpuFabricInfoV = refuse_version_3
"""


def test_a_driver_of_the_older_fabric_call_is_asked_by_that(tmp_path: Path) -> None:
    tray = rack("gb200-nvl72", ["n1"])[0]
    (tmp_path / "tray").write_text(machine_file(tray))
    assert files.decode(fake.run(tmp_path / "tray", OLDER_DRIVER + DISCOVER)).domain == tray.domain


def test_unreadable_network_cards_are_a_problem_not_a_failure() -> None:
    code = DISCOVER.replace("answer =", "from topology.providers import sysfs\nsysfs.discover_nics = open\nanswer =")
    machine = files.decode(fake.run(fake.MACHINES / "l40s", code))
    assert (machine.size, machine.nics) == (8, ())
    assert machine.problems[0].startswith("the network cards cannot be read from /nowhere (")


@pytest.mark.parametrize(
    ("call", "what_is_lost"),
    [
        ("nvmlDeviceGetTopologyCommonAncestor", "paths"),
        ("nvmlDeviceGetMinorNumber", "minor"),
        ("nvmlDeviceGetNvLinkRemoteDeviceType", ""),
        ("nvmlDeviceGetFieldValues", ""),
        ("nvmlDeviceGetP2PStatus", ""),
        ("nvmlDeviceGetMemoryInfo", "memory"),
        ("nvmlDeviceGetCpuAffinityWithinScope", ""),
        ("nvmlDeviceGetMigMode", ""),
        ("nvmlSystemGetDriverVersion", ""),
    ],
)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["hgx-h100", "a6000-pairs"])
def test_an_older_driver_costs_only_what_it_does_not_tell(
    altered: Altered, name: str, call: str, what_is_lost: str
) -> None:
    machine = altered(name, [f"refuse {call} not-supported"])
    whole = discovered(fake.MACHINES / name)
    assert in_bus_order(machine, counts(machine)) == in_bus_order(whole, counts(whole))
    assert sorted(gpu.cpus for gpu in machine.gpus) == sorted(gpu.cpus for gpu in whole.gpus)
    assert ("?" in machine.paths[0]) == (what_is_lost == "paths")
    assert all(gpu.memory_mib == 0 for gpu in machine.gpus) == (what_is_lost == "memory")
    if what_is_lost == "minor":
        assert len(machine.problems) == 8
        assert "tells no device minor number" in machine.problems[0]
    else:
        assert machine.problems == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "no usable GPU"), ("gpu 0 nonsense", "NVML does not start"), (None, "is the NVIDIA driver loaded?")],
)
def test_no_gpus_is_one_sentence(tmp_path: Path, text: str | None, complaint: str) -> None:
    path = tmp_path / "machine"
    if text is not None:
        path.write_text(text + "\n")
    code = """
from topology.errors import ProviderError
from topology.providers.nvml import discover
try:
    discover("n1")
except ProviderError as error:
    answer = str(error)
"""
    assert complaint in fake.run(path, code)


def test_the_model_can_be_named_by_the_admin() -> None:
    code = 'from topology.providers.nvml import discover\nanswer = discover("n1", "fast").model'
    assert fake.run(fake.MACHINES / "l40s", code) == "fast"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("A100-PCIE-40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("Quadro RTX 6000", "rtx6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("GeForce GTX 1080 Ti", "gtx1080ti"),
        ("NVIDIA TITAN V", "titanv"),
        ("TITAN RTX", "titanrtx"),
        ("", "gpu"),
    ],
)
def test_short_model_names(name: str, short: str) -> None:
    assert short_model(name) == short


@pytest.mark.parametrize("text", ["0-7", "0-19,40-59", "6,14,22,30", "", "3"])
def test_cpu_lists_survive_a_round_trip(text: str) -> None:
    assert format_cpus(parse_cpus(text)) == text


def test_cpu_words_are_64_bits_wide() -> None:
    assert cpus_of_words([1 << 63, 1, 0, 2]) == [63, 64, 193]


def test_output_is_stable() -> None:
    first, second = (fake.run(fake.MACHINES / "dgx-1v", DISCOVER) for _ in range(2))
    del first["discovered"], second["discovered"]
    assert json.dumps(first) == json.dumps(second)
