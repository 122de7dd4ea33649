# SPDX-License-Identifier: Apache-2.0
"""Nodes that join a running cluster, and leave it: slurmctld does not call that a change of their partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Slurm
from .own_slurm import OwnSlurm

SCRIPT = Path(__file__).with_name("joining_script.py")
FILES = {"slurm.conf": "MaxNodeCount=4"}
NODES = {"m1": "CPUs=2 RealMemory=1000"}


@pytest.fixture
def own(slurm: Slurm) -> Iterator[OwnSlurm]:
    one = OwnSlurm(slurm, "/tmp/berth-joining", 7850)
    one.start(FILES, NODES)
    yield one
    one.stop()


def test_a_partition_has_the_nodes_that_joined_since_and_not_those_that_left(own: OwnSlurm) -> None:
    environment = {"SLURM_CONF": f"{own.folder}/slurm.conf"}
    script = SCRIPT.read_text()
    told = own.target.run(["python3", "-"], user="root", env=environment, stdin=script, timeout=90).out

    assert [json.loads(line) for line in told.splitlines()] == [
        ["at first", ["m1"], {"m1": "all"}],
        ["joined", ["late", "m1"], {"late": "all", "m1": "all"}],
        ["left", ["m1"], {"m1": "all"}],
    ]
