# SPDX-License-Identifier: Apache-2.0
"""Named machines: as recorded, as the simulated driver shows them, and as many as one names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml.describe import machine_file, sysfs_tree
from tests.unit.topology.test_topology_nvml import discovered
from tests.unit.topology.test_topology_text import RECORDED, recorded
from topology import files
from topology.errors import ProviderError
from topology.machines import machine, names, rack, rack_names
from topology.model import Machine
from topology.providers.matrix_text import parse

#: Named machine: the recorded matrix that it follows.
MATRICES = {
    "dgx-1v": "dgx-1v",
    "dgx-a100": "dgx-a100",
    "hgx-h100": "dgx-h100",
    "a100-4": "a100-4",
    "h100-4": "h100-4",
    "a6000-pairs": "a6000-pairs",
    "a100-pcie": "a100-pcie",
    "l40s": "l40s",
    "gb200-tray": "gb200-tray",
}


def graph(one: Machine) -> dict[str, Any]:
    """What decides where jobs go, whatever the devices are called."""
    order = sorted(range(len(one.nics)), key=lambda i: int(one.nics[i].name.removeprefix("mlx5_").removeprefix("NIC")))
    return {
        "links": {(link.a, link.b, link.count, link.gbps, link.via) for link in one.links},
        "gbps": one.gbps,
        "near": one.near,
        "nic_paths": [[row[i] for i in order] for row in one.nic_paths],
        "cpus": [gpu.cpus for gpu in one.gpus],
    }


def simulated(one: Machine, folder: Path) -> Machine:
    """The machine as NVML and the kernel show it."""
    path = folder / "machine"
    path.write_text(machine_file(one))
    return discovered(path, sysfs_tree(one, folder / "sys"))


@pytest.mark.parametrize(
    ("name", "cards", "gbps"),
    [("dgx-1v", 4, 12.5), ("dgx-a100", 8, 25.0), ("hgx-h100", 8, 50.0), ("hgx-b200", 8, 50.0)],
)
def test_infiniband_cards_are_as_fast_as_their_source_says(name: str, cards: int, gbps: float) -> None:
    # EDR, HDR and NDR have 100, 200 and 400 Gb/s.
    found = [card.gbps for card in machine(name, "n1").nics if card.kind == "infiniband"]

    assert found == [gbps] * cards


@pytest.mark.parametrize(("name", "matrix"), MATRICES.items())
def test_a_named_machine_is_its_recorded_matrix(name: str, matrix: str) -> None:
    named = machine(name, "n1")
    text = parse(recorded(matrix), "n1", named.model)
    assert graph(named) == graph(text)
    # The oldest driver prints no NUMA nodes.
    assert all(there in {here, -1} for here, there in zip(numas(named), numas(text), strict=True))


def numas(one: Machine) -> list[int]:
    return [gpu.numa for gpu in one.gpus]


@pytest.mark.parametrize("name", names())
def test_the_driver_shows_a_named_machine_as_it_is(tmp_path: Path, name: str) -> None:
    named = machine(name, "n1")
    found = simulated(named, tmp_path)
    assert graph(found) == graph(named)
    assert (found.model, found.switches, found.problems) == (named.model, named.switches, ())
    assert [replace(gpu, bus_id="") for gpu in found.gpus] == list(named.gpus)
    assert [(nic.name, nic.kind, nic.gbps) for nic in found.nics] == [
        (nic.name, nic.kind, nic.gbps) for nic in named.nics
    ]


@pytest.mark.parametrize("name", RECORDED)
def test_the_driver_and_the_text_show_the_same_machine(tmp_path: Path, name: str) -> None:
    text = parse(recorded(name), "n1", RECORDED[name].model)
    assert graph(simulated(text, tmp_path)) == graph(text)


@pytest.mark.parametrize("name", names())
def test_a_named_machine_can_be_written_and_read(name: str) -> None:
    named = machine(name, "n1")
    assert files.decode(json.loads(files.encode(named))) == named
    assert named.discovered is not None
    assert named.discovered.by == f"named machine {name}"


def test_the_uuids_of_a_node_are_always_the_same_and_only_its_own() -> None:
    first, again, other = (machine("dgx-a100", node) for node in ("n1", "n1", "n2"))
    assert first == again
    assert not {gpu.uuid for gpu in first.gpus} & {gpu.uuid for gpu in other.gpus}
    assert first.shape is other.shape


def test_a_rack_is_one_nvlink_domain() -> None:
    nodes = [f"tray{i}" for i in range(18)]
    trays = rack("gb200-nvl72", nodes)
    assert [tray.node for tray in trays] == nodes
    assert len({gpu.uuid for tray in trays for gpu in tray.gpus}) == 72
    assert len({tray.domain for tray in trays}) == 1
    assert trays[0].domain != rack("gb200-nvl72", ["other"])[0].domain
    assert machine("gb200-tray", "tray0").domain == ""


@pytest.mark.parametrize(
    ("nodes", "given"), [([], "0 names"), (["a"] * 2, "2 names"), ([f"n{i}" for i in range(19)], "19 names")]
)
def test_a_rack_has_room_for_so_many_nodes(nodes: list[str], given: str) -> None:
    with pytest.raises(ProviderError, match=f"places for 18 nodes of different names; {given} were given"):
        rack("gb200-nvl72", nodes)


def test_an_unknown_name_is_an_error_with_the_nearest_right_one() -> None:
    with pytest.raises(ProviderError, match='there is no machine "dgx-a10"; did you mean "dgx-a100"'):
        machine("dgx-a10", "n1")
    with pytest.raises(ProviderError, match='there is no rack "nvl72"; did you mean "gb200-nvl72"'):
        rack("nvl72", ["n1"])
    assert rack_names() == ("gb200-nvl72",)
