# SPDX-License-Identifier: Apache-2.0
"""The gateway on berth-slurm, with a program of the test's own in its place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from policy.slurm.by_library.libslurm import LibslurmGateway
from tests.unit.policy.slurm.stand_in import StandIn


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.fixture
def gateway(stand_in: StandIn) -> Iterator[LibslurmGateway]:
    gateway = LibslurmGateway(stand_in.path)
    yield gateway
    gateway.close()
