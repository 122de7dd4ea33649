# SPDX-License-Identifier: Apache-2.0
"""The fabric that Slurm's files and the machines make together: what each level means, and who is believed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.strategies import make_machine
from topology.model import Discovered, Machine
from topology.network.fabric import NOBODY, Fabric
from topology.providers.slurm_fabric import SlurmFabric, read

FOUND = Discovered("2026-11-20T21:00:00Z", "nvml")


def node(name: str, domain: str = "", discovered: Discovered | None = FOUND) -> Machine:
    return dataclasses.replace(make_machine(1, {}), node=name, domain=domain, discovered=discovered)


def nodes(*names: str) -> list[Machine]:
    return [node(name) for name in names]


def conf(folder: Path, text: str) -> SlurmFabric:
    (folder / "topology.conf").write_text(text)
    return read(folder / "topology.conf")


def layout(slurm: SlurmFabric) -> dict[str, tuple[tuple[str, ...], str]]:
    return {leaf.name: (leaf.nodes, leaf.pod) for leaf in slurm.leaves}


# What the levels of a tree mean. The texts are Slurm's own examples where they are marked so.


def test_two_levels_are_leaves_and_one_pod(tmp_path: Path) -> None:
    """Slurm's man page, topology.conf(5)."""
    text = """
# Slurm's network topology configuration file for use with the topology/tree plugin
SwitchName=s0 Nodes=dev[0-5]
SwitchName=s1 Nodes=dev[6-11]
SwitchName=s2 Nodes=dev[12-17]
SwitchName=s3 Switches=s[0-2]
"""
    slurm = conf(tmp_path, text)
    assert slurm.kind == "tree"
    assert layout(slurm)["s1"] == (("dev6", "dev7", "dev8", "dev9", "dev10", "dev11"), "s3")
    fabric = Fabric.of(nodes(*(f"dev{i}" for i in range(18))), slurm)
    assert [fabric.level(pair) for pair in ([0, 5], [5, 6], [0, 17], [3])] == ["leaf", "pod", "pod", "node"]
    assert fabric.conflicts == ()


FOUR_LEVELS = """
SwitchName=leaf1 Nodes=n[1-2]
SwitchName=leaf2 Nodes=n[3-4]
SwitchName=leaf3 Nodes=n[5-6]
SwitchName=leaf4 Nodes=n[7-8]
SwitchName=leaf5 Nodes=n9
SwitchName=pod1 Switches=leaf[1-2]
SwitchName=pod2 Switches=leaf3
SwitchName=pod3 Switches=leaf4
SwitchName=core1 Switches=pod[1-2]
SwitchName=core2 Switches=pod3,leaf5
SwitchName=top Switches=core[1-2]
"""


def test_what_joins_pods_is_any(tmp_path: Path) -> None:
    fabric = Fabric.of(nodes(*(f"n{i}" for i in range(1, 10))), conf(tmp_path, FOUR_LEVELS))
    assert fabric.level([0, 1]) == "leaf"
    assert fabric.level([0, 1, 2, 3]) == "pod"
    # core1 joins them, and so does top: both are farther than a pod.
    assert fabric.level([0, 4]) == fabric.level([0, 6]) == "any"
    # leaf5 hangs on the core itself: its pod is the core, which it shares with no other leaf.
    assert fabric.pods[fabric.pod[8]] == "core2"
    assert fabric.level([6, 8]) == "any"


def test_parallel_spines_are_one_pod(tmp_path: Path) -> None:
    """Slurm's topology guide, the second example: each spine is a parent of each leaf."""
    text = "\n".join(
        [f"SwitchName=s{i} Nodes=tux[{4 * i}-{4 * i + 3}] LinkSpeed=900" for i in range(4)]
        + [f"SwitchName=s{i} Switches=s[0-3]  LinkSpeed=1800" for i in range(4, 8)]
    )
    assert {leaf.pod for leaf in conf(tmp_path, text).leaves} == {"s4"}


def test_of_two_parents_the_one_that_reaches_fewer_nodes_is_the_pod(tmp_path: Path) -> None:
    text = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=big Switches=a,b\nSwitchName=small Switches=a\n"
    assert {name: pod for name, (_, pod) in layout(conf(tmp_path, text)).items()} == {"a": "small", "b": "big"}


def test_a_leaf_without_parent_has_no_pod(tmp_path: Path) -> None:
    fabric = Fabric.of(nodes("n1", "n2"), conf(tmp_path, "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\n"))
    assert fabric.pod.tolist() == [NOBODY, NOBODY]
    assert fabric.level([0, 1]) == "any"


# Blocks.


def blocks(folder: Path, count: int, sizes: str) -> list[str]:
    lines = [f"BlockName=b{i} Nodes=n[{4 * i}-{4 * i + 3}]" for i in range(count)]
    return [leaf.pod for leaf in conf(folder, "\n".join([*lines, sizes])).leaves]


def test_blocks_are_leaves_and_the_next_size_makes_pods(tmp_path: Path) -> None:
    assert blocks(tmp_path, 4, "BlockSizes=4,8,16") == ["b0..b1", "b0..b1", "b2..b3", "b2..b3"]
    # As Slurm: what is left over is an aggregated block too, unless it is one block alone.
    assert blocks(tmp_path, 5, "BlockSizes=4,8") == ["b0..b1", "b0..b1", "b2..b3", "b2..b3", ""]
    assert blocks(tmp_path, 6, "BlockSizes=4,16") == ["b0..b3"] * 4 + ["b4..b5"] * 2
    assert blocks(tmp_path, 2, "BlockSizes=4") == blocks(tmp_path, 2, "") == ["", ""]


RACKS = "BlockName=b1 Nodes=n[1-3]\nBlockName=b2 Nodes=n[4-6]\nBlockSizes=3,6\n"


def test_a_block_is_an_nvlink_domain_only_where_a_machine_says_so(tmp_path: Path) -> None:
    slurm = conf(tmp_path, RACKS)
    plain = Fabric.of([node(f"n{i}", discovered=None) for i in range(1, 7)], slurm)
    assert plain.domain.tolist() == [NOBODY] * 6
    assert plain.level([0, 2]) == "leaf"
    # n2 was written by hand and says nothing: it is in the rack's domain.
    racks = [node("n1", "x.1"), node("n2", discovered=None), node("n3", "x.1"), *nodes("n4", "n5", "n6")]
    fabric = Fabric.of(racks, slurm)
    assert fabric.domain.tolist() == [0, 0, 0, NOBODY, NOBODY, NOBODY]
    assert fabric.domains == ("x.1",)
    assert [fabric.level(pair) for pair in ([0, 1], [0], [3], [3, 4], [0, 3])] == [
        "nvlink", "nvlink", "node", "leaf", "pod",
    ]  # fmt: skip
    assert fabric.conflicts == ()


def test_a_node_that_was_found_outside_its_blocks_domain_stays_outside_and_is_reported(tmp_path: Path) -> None:
    fabric = Fabric.of([node("n1", "x.1"), *nodes("n2"), node("n3", "x.1")], conf(tmp_path, RACKS))
    assert fabric.domain.tolist() == [0, NOBODY, 0]
    (sentence,) = fabric.conflicts
    assert "block b1" in sentence
    assert "line 1" in sentence
    assert "n2 reported no NVLink domain" in sentence


def test_a_block_of_two_domains_gives_neither_to_the_rest(tmp_path: Path) -> None:
    fabric = Fabric.of([node("n1", "x.1"), node("n2", "y.1"), node("n3", discovered=None)], conf(tmp_path, RACKS))
    assert fabric.domain.tolist() == [0, 1, NOBODY]
    (sentence,) = fabric.conflicts
    assert "block b1" in sentence
    assert "its nodes are in 2 NVLink domains" in sentence


# Machines and the file together.


def test_nodes_of_other_kinds_and_unnamed_ones_do_no_harm(tmp_path: Path) -> None:
    slurm = conf(tmp_path, "SwitchName=a Nodes=cpu[1-50],n1\nSwitchName=b Nodes=cpu[51-99]\n")
    fabric = Fabric.of(nodes("n1", "n2"), slurm)
    assert fabric.leaves == ("a",)
    assert fabric.leaf.tolist() == [0, NOBODY]
    assert len(fabric.conflicts) == 1
    assert "does not name n2" in fabric.conflicts[0]


def test_a_file_of_another_cluster_is_reported(tmp_path: Path) -> None:
    fabric = Fabric.of(nodes("n1"), conf(tmp_path, "SwitchName=a Nodes=m1\n"))
    assert fabric.leaf.tolist() == [NOBODY]
    assert "names none of the 1 nodes" in fabric.conflicts[0]


def test_a_domain_across_the_border_of_a_leaf_is_reported(tmp_path: Path) -> None:
    slurm = conf(tmp_path, "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\nSwitchName=t Switches=a,b\n")
    crossing = Fabric.of([node("n1"), node("n2", "x.1"), node("n3", "x.1"), node("n4")], slurm)
    assert [sentence.split(",")[0] for sentence in crossing.conflicts] == [
        "1 NVLink domain lies across the border of a leaf"
    ]
    # Two leaves in one rack, or two racks on one leaf, are no contradiction.
    whole = Fabric.of([node(f"n{i}", "x.1") for i in range(1, 5)], slurm)
    assert whole.conflicts == ()
