# SPDX-License-Identifier: Apache-2.0
"""In which order Slurm gives ranks to the nodes of a job in segments, where a rack's trays are no neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hard.test_profiles import VERSIONS, configured
from tests.slurm.harness import Slurm
from tests.slurm.test_blocks import RESTART

CONF = "BlockName=b1 Nodes=n[1,3]\nBlockName=b2 Nodes=n[2,4]\nBlockSizes=2\n"
TURN_ON = f"""
printf '{CONF}' > /etc/slurm/topology.conf
echo TopologyPlugin=topology/block >> /etc/slurm/slurm.conf
{RESTART}"""
pytestmark = [pytest.mark.hard, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=VERSIONS)
def apart(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    yield from configured(str(request.param), "base", TURN_ON)


ASKED = pytest.mark.parametrize("asked", [("--group=16",), ("-p", "plain", "--segment=2"), ("-p", "plain")])


def order(slurm: Slurm, *asked: str) -> list[str]:
    """The nodes of four ranks, rank by rank."""
    step = "srun --label bash -c 'echo $SLURMD_NODENAME'"
    job = slurm.submit("-N4", "--ntasks-per-node=1", "--gpus-per-node=8", *asked, body=step)
    ranks = dict(line.split(": ") for line in slurm.finish(job, 60).splitlines())
    return [ranks[str(rank)] for rank in range(4)]


def doctor(slurm: Slurm) -> str:
    return slurm.target.bash("berth doctor", user="root", check=False).out


@ASKED
def test_ranks_follow_slurm_conf_and_a_group_of_two_nodes_crosses_two_blocks(
    apart: Slurm, asked: tuple[str, ...]
) -> None:
    assert order(apart, *asked) == ["n1", "n2", "n3", "n4"]
    assert "nodes of b1 are no neighbours for Slurm" in doctor(apart)


@ASKED
def test_ranks_follow_blocks_where_slurm_is_told_so(apart: Slurm, asked: tuple[str, ...]) -> None:
    if apart.version < (25, 11):
        pytest.skip("Slurm has BlockAsNodeRank from 25.11 on")
    named = "grep -q BlockAsNodeRank /etc/slurm/slurm.conf"
    apart.target.bash(
        f"{named} && exit\necho TopologyParam=BlockAsNodeRank >> /etc/slurm/slurm.conf\n{RESTART}", user="root"
    )
    apart.clear()
    apart.passes()
    assert order(apart, *asked) == ["n1", "n3", "n2", "n4"]
    assert "no neighbours" not in doctor(apart)
