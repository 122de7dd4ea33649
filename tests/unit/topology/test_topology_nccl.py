# SPDX-License-Identifier: Apache-2.0
"""Sets of GPUs as Berth orders them, beside the rings that NCCL's own search finds on them (docs/research/links.md)."""

from __future__ import annotations

import pytest

from tests.bench.links import (
    SPLIT_BY_NCCL,
    berth,
    part_of_best,
    rings_of,
    slurm,
    tables_folder,
    worse_states,
    wrong_kinds,
)
from topology.machines import machine, names
from topology.sets.subsets import SubsetTable

FOLDER = tables_folder()


def cut(name: str, k: int) -> float:
    node = machine(name, "n1")
    best = SubsetTable(node).best((1 << node.size) - 1, k)
    return best.cut_gbps if best else 0.0


@pytest.mark.skipif(FOLDER is None, reason="BERTH_DATA names no folder with nccl-tables")
@pytest.mark.parametrize("name", names())
def test_no_other_free_set_has_a_faster_ring(name: str) -> None:
    node, rings = machine(name, "n1"), rings_of(FOLDER, name)
    worse = {
        k: worse_states(rings, node.size, k, berth(node)) for k in range(2, node.size) if (name, k) not in SPLIT_BY_NCCL
    }

    assert {k: states for k, states in worse.items() if states} == {}


@pytest.mark.skipif(FOLDER is None, reason="BERTH_DATA names no folder with nccl-tables")
@pytest.mark.parametrize(("k", "most"), [(2, 0), (4, 1), (6, 0), (8, 0)])
def test_idle_nodes_of_two_kinds_are_in_the_order_of_nccl(k: int, most: int) -> None:
    """One pair of kinds without NVLink is not, for four GPUs."""
    assert len(wrong_kinds({name: rings_of(FOLDER, name) for name in names()}, cut, k)) <= most


def test_slurms_order_turned_round_would_leave_less_to_gain() -> None:
    """By the narrowest cut, where NCCL's figures are not at hand."""
    node, rings = machine("dgx-1v", "n1"), rings_of(None, "dgx-1v")
    coded, turned, ours = (
        part_of_best(rings, node.size, 2, choose) for choose in (slurm(node, 1), slurm(node, -1), berth(node))
    )

    assert coded < turned < ours == 1.0
