# SPDX-License-Identifier: Apache-2.0
"""berth doctor where Slurm places by blocks: does slurmctld have the blocks of the file, and go by them?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from policy.cli.doctor.blocks import not_in_force, torn
from policy.formats.errors import SlurmError
from tests.unit.policy_world import node
from topology.providers import slurm_fabric

CONF = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n"
SHOWN = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n"
ALL = SHOWN + "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n"
NODES = [node(f"n{number}") for number in range(1, 5)]


def checked(tmp_path: Path, shown: str = ALL, *, takes: bool = False, conf: str = CONF, down: str = "") -> str:
    """What is found where slurmctld shows these blocks, and takes a job on nodes of two blocks or not."""
    (file := tmp_path / "topology.conf").write_text(conf)
    asked: list[tuple[str, ...]] = []

    def printed(*words: str) -> bytes:
        asked.append(words)
        if words[0] == "scontrol":
            return shown.encode()
        assert "--test-only" in words
        if not takes:
            raise SlurmError("Requested node configuration is not available")
        return b""

    nodes = [replace(one, up=one.name != down) for one in NODES]
    found = not_in_force(slurm_fabric.read(file), nodes, printed)
    if down and len(asked) > 1:
        assert not any(down in word for word in asked[1])
    return found


def test_blocks_that_are_in_force_are_well(tmp_path: Path) -> None:
    assert checked(tmp_path) == ""
    assert checked(tmp_path, down="n1") == ""


def test_a_node_that_its_block_has_lost_is_named_with_the_cure(tmp_path: Path) -> None:
    found = checked(tmp_path, ALL.replace("Nodes=n[3-4] BlockSize=2", "Nodes=n3 BlockSize=2"))

    assert found.startswith("n4: in a block of ")
    assert found.endswith("run scontrol reconfigure")


def test_blocks_that_bind_no_job_are_told_though_they_look_right(tmp_path: Path) -> None:
    found = checked(tmp_path, takes=True)

    assert found.startswith("one job may have n1 and n3, which are in two blocks")
    assert found.endswith("run scontrol reconfigure")


@pytest.mark.parametrize("conf", [CONF.replace("BlockSizes=2", "BlockSizes=1"), "BlockName=b1 Nodes=n[1-4]\n"])
def test_where_slurm_gives_any_two_nodes_to_one_job_nothing_is_tried(tmp_path: Path, conf: str) -> None:
    assert checked(tmp_path, "", takes=True, conf=conf) == ""


def test_a_slurm_that_does_not_answer_is_told(tmp_path: Path) -> None:
    (file := tmp_path / "topology.conf").write_text(CONF)

    def silent(*_: str) -> bytes:
        raise SlurmError("scontrol did not answer")

    assert "scontrol did not answer" in not_in_force(slurm_fabric.read(file), NODES, silent)


@pytest.mark.parametrize(("order", "block"), [("1234", ""), ("3412", ""), ("2143", ""), ("1324", "b1"), ("5134", "")])
def test_a_block_whose_nodes_are_no_neighbours_is_named(tmp_path: Path, order: str, block: str) -> None:
    """Slurm numbers a job's ranks by its own order of nodes."""
    (file := tmp_path / "topology.conf").write_text(CONF)
    assert torn(slurm_fabric.read(file), [node(f"n{number}") for number in order]) == block
