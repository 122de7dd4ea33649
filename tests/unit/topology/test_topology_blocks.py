# SPDX-License-Identifier: Apache-2.0
"""Which nodes Slurm's topology/block gives to one job, and where berthd therefore places gangs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.placement.registry import create
from policy.plan.ledger.tracker import open_book
from policy.request.settings import Settings
from tests.strategies import make_machine
from tests.unit.deciding import Decision, decide
from tests.unit.policy_world import NOW, fleet, node, reading, submit
from topology.network.blocks import IN_NO_BLOCK, Blocks
from topology.network.fabric import Fabric
from topology.providers.slurm_fabric import SlurmFabric, read

FOUR_BLOCKS = "".join(f"BlockName=b{b} Nodes=n[{4 * b + 1}-{4 * b + 4}]\n" for b in range(4))
NAMES = tuple(f"n{i}" for i in range(1, 17))


def conf(folder: Path, text: str) -> SlurmFabric:
    (folder / "topology.conf").write_text(text)
    return read(folder / "topology.conf")


def of_file(folder: Path, text: str, names: tuple[str, ...] = NAMES) -> Fabric:
    machines = [dataclasses.replace(make_machine(1, {}), node=name) for name in names]
    return Fabric.of(machines, conf(folder, text))


def blocks(*sizes: int, of: int = 4, count: int = 4) -> Blocks:
    return Blocks(sizes, np.repeat(np.arange(count), of))


def test_sizes_are_those_of_the_file_or_slurms_own(tmp_path: Path) -> None:
    assert conf(tmp_path, f"{FOUR_BLOCKS}BlockSizes=4,8\n").block_sizes == (4, 8)
    assert conf(tmp_path, FOUR_BLOCKS).block_sizes == (4, 8, 16, 32, 64)
    assert conf(tmp_path, "SwitchName=s Nodes=n[1-4]").block_sizes == ()


def test_only_a_topology_of_blocks_has_a_rule(tmp_path: Path) -> None:
    assert of_file(tmp_path, "SwitchName=s Nodes=n[1-16]\n").blocks is None


def test_the_rule_follows_the_nodes_into_another_order(tmp_path: Path) -> None:
    fabric = of_file(tmp_path, f"{FOUR_BLOCKS}BlockSizes=4,16\n").over(("n9", "elsewhere", "n1"))

    assert fabric.blocks is not None
    assert fabric.blocks.block.tolist() == [2, IN_NO_BLOCK, 0]


@pytest.mark.parametrize(
    ("sizes", "nodes", "allowed"),
    [
        # Found on Slurm 24.11 and 26.05: tests/slurm/test_blocks.py.
        ((4, 16), [0, 1, 2, 3], True),
        ((4, 16), [3, 4], False),
        ((4, 16), [0, 1, 2, 3, 4], True),
        ((4, 16), [0, 1, 2, 4, 5], True),
        ((4, 16), [0, 1, 4, 5, 8], False),
        ((4, 8), [0, 1, 2, 3, 4], True),
        ((4, 8), [4, 5, 6, 7, 8], False),
        ((4, 8), [0, 1, 2, 3, 4, 5, 6, 7, 8], True),
        ((4,), [3, 4], False),
    ],
)
def test_one_block_or_as_few_as_can_hold_it(sizes: tuple[int, ...], nodes: list[int], *, allowed: bool) -> None:
    assert blocks(*sizes).allow(nodes) is allowed


def test_nodes_in_no_block_are_nobodys() -> None:
    some = Blocks((2, 4), np.array([0, 0, IN_NO_BLOCK]))

    assert not some.allow([2])
    assert some.groups(1, np.arange(3)).tolist() == [0, 0, IN_NO_BLOCK]


@given(
    st.integers(1, 16), st.sets(st.integers(0, 15), min_size=1), st.sampled_from([(4,), (4, 8), (4, 16), (4, 8, 16)])
)
def test_any_nodes_of_a_group_are_allowed_together(count: int, nodes: set[int], sizes: tuple[int, ...]) -> None:
    able = np.array(sorted(nodes))
    rule = blocks(*sizes)
    groups = rule.groups(count, able)
    for group in set(groups.tolist()) - {IN_NO_BLOCK}:
        inside = able[groups == group]
        if inside.size >= count:
            assert rule.allow(inside[:count].tolist())
            assert rule.allow(inside[-count:].tolist())


# Places


def ask(fabric: Fabric, used: dict[str, int], policy: str = "berth", **fields: str) -> Decision:
    look = reading([node(name, used=used.get(name, 0)) for name in fabric.names])
    known = fleet(look, fabric=fabric)
    return decide(submit(**fields), open_book(known, look), create(policy), Settings(), NOW)


def gang(nodes: int, **fields: str) -> dict[str, str]:
    return {"tres_per_node": "gres/gpu:8", "min_nodes": str(nodes), "max_nodes": str(nodes), **fields}


def test_a_gang_is_never_placed_where_slurm_would_not_start_it(tmp_path: Path) -> None:
    fabric = of_file(tmp_path, f"{FOUR_BLOCKS}BlockSizes=4,16\n")
    # One node is free in each block but the third, which has two.
    busy = {name: 0xFF for name in NAMES if name not in {"n1", "n5", "n9", "n10", "n13"}}

    decision = ask(fabric, busy, **gang(2, **{"flag.locality": "any"}))

    assert decision.fields["nodes"] == "n9,n10"


def test_a_gang_bigger_than_a_block_takes_few_blocks(tmp_path: Path) -> None:
    fabric = of_file(tmp_path, f"{FOUR_BLOCKS}BlockSizes=4,16\n")
    busy = dict.fromkeys(("n1", "n2", "n5", "n6", "n9"), 0xFF)

    decision = ask(fabric, busy, **gang(6))

    assert decision.fields["nodes"] == "n10,n11,n13,n14,n15,n16"


def test_a_policy_that_knows_no_blocks_places_nothing_across_them(tmp_path: Path) -> None:
    fabric = of_file(tmp_path, f"{FOUR_BLOCKS}BlockSizes=4,16\n")
    busy = {name: 0xFF for name in NAMES if name not in {"n1", "n5"}}

    decision = ask(fabric, busy, policy="packed", **gang(2))

    assert decision.claim is None


def test_a_node_in_no_block_is_not_placed_on(tmp_path: Path) -> None:
    fabric = of_file(tmp_path, "BlockName=b0 Nodes=n[1-4]\n")
    look = reading([node(name) for name in ("n1", "n5")])
    known = fleet(look, fabric=fabric)

    assert known.ready.tolist() == [True, False]
    assert "n5 is in no block" in known.not_ready[1]
