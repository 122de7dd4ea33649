# SPDX-License-Identifier: Apache-2.0
"""The parts of nodes that a reservation takes, as scontrol tells them."""

import shutil
from pathlib import Path

import pytest

from policy.slurm.by_command.recorded import recorded_gateway
from tests.unit.policy.slurm.test_gateway import DATA, VERSIONS

PARTS = """\
ReservationName=t StartTime=1795215486 EndTime=1795219086 Duration=01:00:00 Nodes=n[3-4] NodeCnt=2 CoreCnt=6 \
Features=(null) PartitionName=(null) Flags=FLEX,IGNORE_JOBS,MAGNETIC   NodeName=n3 CoreIDs=0-1,8   NodeName=n4 \
CoreIDs=0-1,8 TRES=cpu=6,gres/gpu=4,gres/gpu:g0=2,gres/gpu:g1=2 Users=alice,bob Groups=(null) Accounts=-lab \
Comment=NodeName=n5 CoreIDs=3
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_parts_of_a_reservation_are_read(tmp_path: Path, version: str) -> None:
    folder = Path(shutil.copytree(DATA / f"slurm-{version}", tmp_path / "recording"))
    (folder / "scontrol-show-reservation").write_text(PARTS)

    [found] = recorded_gateway(folder).read(ended=False).reservations

    assert found.cores == (("n3", 0b1_0000_0011), ("n4", 0b1_0000_0011))
    assert found.gpus == (("", 4), ("g0", 2), ("g1", 2))
    assert found.flags == {"FLEX", "IGNORE_JOBS", "MAGNETIC"}
    assert (found.users, found.accounts, found.groups) == (("alice", "bob"), ("-lab",), ())
