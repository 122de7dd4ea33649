"""What changed between two discoveries: one sentence a change, the worst first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.strategies import machines
from topology.diff import TopologyChange, changes, cluster_changes
from topology.machines import machine, rack
from topology.model import Discovered, Gpu, Link, Machine, PathWord

Paths = tuple[tuple[PathWord, ...], ...]


def real(name: str, node: str = "n1") -> Machine:
    """A named machine as its driver would tell it."""
    planned = machine(name, node)
    gpus = tuple(replace(gpu, bus_id=f"0000:{gpu.position + 16:02x}:00.0") for gpu in planned.gpus)
    return replace(planned, gpus=gpus, discovered=Discovered("2026-11-20T21:00:00Z", "nvml", "550.54.15"))


DGX, HGX = real("dgx-1v"), real("hgx-h100")


def seen(found: list[TopologyChange]) -> list[tuple[str, str]]:
    return [(change.kind, change.uuid) for change in found]


def with_gpu(node: Machine, position: int, **new: Any) -> Machine:
    gpus = tuple(replace(gpu, **new) if gpu.position == position else gpu for gpu in node.gpus)
    return replace(node, gpus=gpus)


def without_gpu(node: Machine, position: int) -> Machine:
    """The node as its driver would tell it with one GPU fallen off the bus."""
    kept = [gpu.position for gpu in node.gpus if gpu.position != position]
    at = {old: new for new, old in enumerate(kept)}
    return replace(
        node,
        gpus=tuple(replace(node.gpus[old], position=new) for old, new in at.items()),
        links=tuple(replace(one, a=at[one.a], b=at[one.b]) for one in node.links if position not in {one.a, one.b}),
        paths=tuple(tuple(node.paths[a][b] for b in kept) for a in kept),
        nic_paths=tuple(node.nic_paths[a] for a in kept) if node.nic_paths else (),
    )


def relinked(node: Machine, counts: Mapping[tuple[int, int], int]) -> Machine:
    """The node with other numbers of links; 0 removes."""
    links = []
    for link in node.links:
        count = counts.get((link.a, link.b), link.count)
        if count:
            links.append(replace(link, count=count, gbps=round(link.gbps / link.count * count, 3)))
    return replace(node, links=tuple(links))


@pytest.mark.parametrize("node", [DGX, HGX, machine("l40s", "n2")])
def test_the_same_node_has_no_changes(node: Machine) -> None:
    assert changes(node, node) == []


@given(machines())
def test_no_machine_differs_from_itself(node: Machine) -> None:
    assert changes(node, node) == []


def test_a_link_less_between_two_gpus() -> None:
    (change,) = changes(DGX, relinked(DGX, {(0, 3): 1}))
    assert (change.kind, change.severity, change.uuid) == ("links", "loss", DGX.gpus[0].uuid)
    assert "1 of 2 NVLinks are left (25.8 GB/s instead of 51.6)" in change.text
    assert DGX.gpus[3].uuid in change.text


def test_all_links_of_a_pair() -> None:
    (change,) = changes(DGX, relinked(DGX, {(0, 1): 0}))
    assert (change.kind, change.severity) == ("links", "loss")
    assert "no NVLink is left of 1 (25.8 GB/s lost)" in change.text


def test_a_dead_link_to_the_switches_is_one_change_though_seven_pairs_lost_it() -> None:
    fewer = relinked(HGX, {(a, b): 17 for a in range(8) for b in range(8) if 3 in {a, b}})
    (change,) = changes(HGX, fewer)
    assert (change.kind, change.uuid) == ("links", HGX.gpus[3].uuid)
    assert "to the switches: 17 of 18 NVLinks are left" in change.text


def test_a_gpu_cut_off_from_the_switches() -> None:
    cut = relinked(HGX, {(a, b): 0 for a in range(8) for b in range(8) if 3 in {a, b}})
    assert seen(changes(HGX, cut)) == [("links", HGX.gpus[3].uuid)]


def test_one_pair_that_the_switches_no_longer_join_is_named() -> None:
    (change,) = changes(HGX, relinked(HGX, {(2, 5): 0}))
    assert (change.kind, change.severity) == ("links", "loss")
    assert HGX.gpus[2].uuid in change.text
    assert HGX.gpus[5].uuid in change.text


def test_a_gpu_that_fell_off_the_bus_and_those_that_shifted() -> None:
    found = changes(DGX, without_gpu(DGX, 6))
    assert seen(found) == [("gpu", DGX.gpus[6].uuid), ("position", DGX.gpus[7].uuid)]
    assert "its GRES type is g6 now" in found[1].text
    assert [change.kind for change in changes(without_gpu(DGX, 6), DGX)] == ["position", "gpu"]


def test_a_replaced_gpu_is_known_by_its_slot() -> None:
    found = changes(DGX, with_gpu(DGX, 2, uuid="GPU-new"))
    assert seen(found) == [("replaced", DGX.gpus[2].uuid)]
    assert "was replaced by GPU-new" in found[0].text


def test_swapped_gpus_moved_and_were_not_replaced() -> None:
    a, b = DGX.gpus[0], DGX.gpus[1]
    gpus = (replace(b, position=0, minor=0), replace(a, position=1, minor=1), *DGX.gpus[2:])
    swapped = replace(DGX, gpus=gpus)
    kinds = {change.kind for change in changes(DGX, swapped)}
    assert kinds >= {"position", "minor"}
    assert "replaced" not in kinds


@pytest.mark.parametrize(
    ("new", "kind"),
    [
        ({"minor": 9}, "minor"),
        ({"mig": True}, "mig"),
        ({"bus_id": "0000:99:00.0"}, "bus"),
        ({"memory_mib": 1}, "memory"),
        ({"numa": 1}, "numa"),
        ({"name": "Other"}, "name"),
        ({"cpus": "1-2"}, "cpus"),
        ({"c2c_gbps": 5.0}, "links"),
    ],
)
def test_each_fact_of_a_gpu(new: dict[str, Any], kind: str) -> None:
    assert seen(changes(DGX, with_gpu(DGX, 0, **new))) == [(kind, DGX.gpus[0].uuid)]


def test_what_is_not_known_is_no_change() -> None:
    silent = with_gpu(DGX, 0, bus_id="", memory_mib=0, numa=-1, name="", cpus="")
    assert changes(DGX, replace(silent, paths=(), nic_paths=())) == []


def test_nics() -> None:
    nics = HGX.nics
    gone = replace(HGX, nics=nics[1:], nic_paths=tuple(row[1:] for row in HGX.nic_paths))
    assert [change.text for change in changes(HGX, gone)] == ["the NIC mlx5_0 is gone"]
    assert [change.text for change in changes(gone, HGX)] == ["the NIC mlx5_0 is new"]
    slower = replace(HGX, nics=(replace(nics[0], gbps=25.0), *nics[1:]))
    assert [change.text for change in changes(HGX, slower)] == ["the NIC mlx5_0 has 25 GB/s, not 50"]


def test_a_nic_of_another_name_in_the_same_slot_is_the_same_nic() -> None:
    placed = replace(HGX, nics=tuple(replace(nic, bus_id=f"slot-{i}") for i, nic in enumerate(HGX.nics)))
    renamed = replace(placed, nics=(replace(placed.nics[0], name="ibp24s0"), *placed.nics[1:]))
    assert [(change.kind, change.severity) for change in changes(placed, renamed)] == [("nic", "software")]


def test_domains() -> None:
    tray, alone = replace(rack("gb200-nvl72", ["n1"])[0], domain="uuid.1"), machine("gb200-tray", "n1")
    assert [(change.kind, change.severity) for change in changes(tray, alone)] == [("domain", "loss")]
    assert [(change.kind, change.severity) for change in changes(alone, tray)] == [("domain", "gain")]
    assert [change.severity for change in changes(tray, replace(tray, domain="uuid.2"))] == ["change"]


def test_driver_model_and_problems() -> None:
    assert DGX.discovered
    newer = replace(DGX, discovered=replace(DGX.discovered, driver="580.1"), model="v100s", problems=("GPU 1: hot",))
    found = changes(DGX, newer)
    assert [(change.kind, change.severity) for change in found] == [
        ("problem", "loss"),
        ("model", "change"),
        ("driver", "software"),
    ]
    assert ("problem", "gain") in [(change.kind, change.severity) for change in changes(newer, DGX)]


def test_few_changed_paths_are_named_and_many_counted() -> None:
    rows = [list(row) for row in DGX.paths]
    rows[0][1] = rows[1][0] = "SYS"
    (change,) = changes(DGX, replace(DGX, paths=tuple(tuple(row) for row in rows)))
    assert "are farther over PCIe: SYS, not PIX" in change.text
    everything: Paths = tuple(tuple("SELF" if a == b else "PHB" for b in range(8)) for a in range(8))
    (change,) = changes(DGX, replace(DGX, paths=everything))
    assert "PCIe paths changed, the first: GPU 0" in change.text


def test_a_plan_and_the_delivered_node_are_compared_by_position() -> None:
    planned = machine("dgx-1v", "plan")
    assert changes(planned, DGX) == []
    assert seen(changes(planned, relinked(DGX, {(0, 3): 1}))) == [("links", planned.gpus[0].uuid)]
    assert [change.kind for change in changes(planned, without_gpu(DGX, 7))] == ["gpu"]


def test_a_file_written_by_hand_has_no_bus_ids_and_goes_by_device_file() -> None:
    old = Machine("n1", "x", (Gpu(0, 0, "GPU-a"), Gpu(1, 1, "GPU-b")), (Link(0, 1, 4, 56.248),))
    new = Machine("n1", "x", (Gpu(0, 0, "GPU-c"), Gpu(1, 1, "GPU-b")), (Link(0, 1, 4, 56.248),))
    assert seen(changes(old, new)) == [("replaced", "GPU-a")]


def test_the_worst_of_a_cluster_comes_first() -> None:
    old = {"n1": real("dgx-1v", "n1"), "n2": real("dgx-1v", "n2"), "n3": real("dgx-1v", "n3")}
    new = {"n1": with_gpu(old["n1"], 0, cpus="1"), "n2": relinked(old["n2"], {(0, 1): 0}), "n4": real("l40s", "n4")}
    assert [(change.node, change.kind) for change in cluster_changes(old, new)] == [
        ("n3", "node"),
        ("n2", "links"),
        ("n4", "node"),
        ("n1", "cpus"),
    ]
