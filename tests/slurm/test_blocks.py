# SPDX-License-Identifier: Apache-2.0
"""Slurm's topology/block, whose blocks bind a job's nodes, and options by which only Slurm can choose."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from policy.formats import segment as segments
from policy.formats.hostlist import expand
from tests.examples import SEED
from topology.network.blocks import Blocks

from .harness import Slurm, until
from .test_planner import fill, segment_of

NODES = ("n1", "n2", "n3", "n4")
BLOCKS = Blocks((2,), np.array([0, 0, 1, 1]))
CONF = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n"

RESTART = """
svc slurmctld restart
for i in $(seq 200); do scontrol ping | grep -q UP && break; sleep 0.1; done
scontrol reconfigure
"""


@pytest.fixture
def blocks(slurm: Slurm) -> Iterator[Slurm]:
    """The cluster with two blocks of two nodes."""
    if not slurm.can_reconfigure:
        pytest.skip("this cluster's configuration is not ours")
    slurm.target.bash(
        f"cp /etc/slurm/slurm.conf /tmp/slurm.conf.kept\n"
        f"printf '{CONF}' > /etc/slurm/topology.conf\n"
        f"echo TopologyPlugin=topology/block >> /etc/slurm/slurm.conf\n{RESTART}",
        user="root",
    )
    try:
        slurm.clear()
        until("berthd to read the blocks", lambda: "topology.conf" in berthd_log(slurm) or None)
        slurm.settle()
        yield slurm
    finally:
        slurm.target.bash(
            f"cp /tmp/slurm.conf.kept /etc/slurm/slurm.conf\nrm /etc/slurm/topology.conf\n{RESTART}", user="root"
        )
        slurm.clear()
        slurm.settle()


def berthd_log(slurm: Slurm) -> str:
    return slurm.target.bash("svc berthd log | grep 'leaves and pods from' | tail -1", user="root").out


def test_berth_and_slurm_agree_which_nodes_a_job_can_have_together(blocks: Slurm) -> None:
    for count in range(1, len(NODES) + 1):
        for chosen in combinations(range(len(NODES)), count):
            names = ",".join(NODES[node] for node in chosen)
            asked = ["sbatch", "--test-only", "-p", "plain", f"-N{count}", "-w", names, "--wrap", "true"]
            said = blocks.target.run(asked, user="alice", check=False)
            assert (said.rc == 0) is BLOCKS.allow(chosen), f"{names}: {said.err}"


def test_a_gang_waits_for_nodes_of_one_block_and_starts_there(blocks: Slurm) -> None:
    first, _ = fill(blocks, "n2", "n4")
    blocks.settle()
    # Two nodes are free, one in each block: Slurm would never start it on them.
    job = blocks.submit("-N2", "--gpus-per-node=8", "--locality=any", body="srun -N2 -n2 hostname; sleep 1")
    # berthd comes back soon to a submission that it could not answer in time.
    pinned = until("a place to be in sight", lambda: segment_of(blocks, job).get("nodes"))
    assert set(pinned.split(",")) in ({"n1", "n2"}, {"n3", "n4"})
    blocks.target.run(["scancel", str(first)], user="root")

    output = blocks.finish(job, 40)

    assert set(output.split()) == {"n1", "n2"}
    assert segment_of(blocks, job)["nodes"] == "n1,n2"


def test_segments_are_left_to_slurm_which_takes_no_node_list_beside_them(blocks: Slurm) -> None:
    job = blocks.submit("-N2", "--segment=1", "--gpus-per-node=8", body="srun -N2 -n2 hostname")

    assert len(set(blocks.finish(job, 40).split())) == 2
    assert left_to_slurm(blocks, job).startswith("with --segment only Slurm can choose; ")


def test_groups_of_one_node_start_in_two_blocks_where_a_gang_would_wait(blocks: Slurm) -> None:
    fill(blocks, "n2", "n4")
    blocks.settle()
    gang = ("-N2", "--gpus-per-node=8")
    waiting = blocks.submit(*gang, body="true")
    one_group = blocks.submit(*gang, "--group=16", body="true")
    groups = blocks.submit(*gang, "--group=8", body="srun -N2 -n2 hostname")

    assert set(blocks.finish(groups, 40).split()) == {"n1", "n3"}
    assert left_to_slurm(blocks, groups) == "in segments of one node, each in one NVLink domain, for groups of 8 GPUs"
    assert {blocks.show(job)["JobState"] for job in (waiting, one_group)} == {"PENDING"}


def test_a_group_of_two_nodes_lies_in_one_block(blocks: Slurm) -> None:
    asked = ("-N4", "--ntasks-per-node=1", "--gpus-per-node=8", "--group=16")
    job = blocks.submit(*asked, body="srun --label hostname")

    ranks = dict(line.split(": ") for line in blocks.finish(job, 40).splitlines())
    assert [ranks[str(rank)] for rank in range(4)] == list(NODES)
    assert left_to_slurm(blocks, job).startswith("in segments of 2 nodes")


def test_segments_change_neither_what_slurm_takes_nor_how_many_nodes_it_gives(blocks: Slurm) -> None:
    """On one partition with Berth, on another without: the same request, drawn, with groups and with segments."""
    draw = random.Random(SEED)
    for _ in range(40):
        nodes, gpus = draw.randint(1, 4), draw.choice((1, 2, 4, 8))
        asked = [f"-N{nodes}", f"--gpus-per-node={gpus}"]
        own = [f"--segment={draw.choice([size for size in (1, 2) if nodes % size == 0])}"] * draw.randint(0, 1)
        group = [f"--group={draw.choice((1, 2, 4, 8, 12, 16, 32))}"]
        plain = would_start(blocks, "-p", "plain", *asked, *own)
        assert plain is not None
        assert would_start(blocks, *asked, *own, *group) == plain, (asked, own, group)


def test_doctor_tells_whether_slurm_goes_by_its_blocks(blocks: Slurm) -> None:
    """From 25.05 on a node's block can be applied again, and slurmctld may then forget that it is in one."""
    assert said_of_blocks(blocks) == ("ok", "slurmctld places by 2 blocks")
    for name, block in zip(NODES, ("b1", "b1", "b2", "b2"), strict=True):
        again = ["scontrol", "update", f"NodeName={name}", f"Topology=default:{block}"]
        blocks.target.run(again, user="root", check=False)
    crossing = would_start(blocks, "-p", "plain", "-N2", "-w", "n2,n3") is not None

    found, text = said_of_blocks(blocks)
    assert (found, "scontrol reconfigure" in text) == (("FAIL", True) if crossing else ("ok", False))
    blocks.target.run(["scontrol", "reconfigure"], user="root")
    blocks.settle()
    assert said_of_blocks(blocks)[0] == "ok"


def said_of_blocks(slurm: Slurm) -> tuple[str, str]:
    said = slurm.target.bash("berth doctor", user="root", check=False).out
    found = re.search(r"^(ok|FAIL) +blocks: (.*)$", said, re.MULTILINE)
    assert found is not None, said
    return found[1], found[2]


def would_start(slurm: Slurm, *asked: str) -> int | None:
    """The number of nodes on which Slurm would start it, None where it refuses."""
    said = slurm.target.run(["sbatch", "--test-only", *asked, "--wrap", "true"], user="alice", check=False)
    found = re.search(r"processors on nodes (\S+)", said.err)
    return len(expand(found[1])) if said.rc == 0 and found else None


@pytest.mark.parametrize("option", ["--contiguous", "--spread-job", "--ntasks-per-socket=1", "--exclusive=user"])
def test_what_only_slurm_can_choose_by_is_left_to_it(slurm: Slurm, option: str) -> None:
    # Not --gpus: together with --spread-job it ends slurmctld 24.11 itself, with or without Berth.
    job = slurm.submit("-N1", "--gres=gpu:2", option, body="true")
    slurm.finish(job)

    assert left_to_slurm(slurm, job).startswith(f"with {option.removesuffix('=1')} only Slurm can choose; ")


@pytest.mark.parametrize("option", ["--threads-per-core=1", "--ntasks-per-core=1", "--hint=nomultithread"])
def test_options_about_cores_are_planned_for(slurm: Slurm, option: str) -> None:
    job = slurm.submit("-N1", "-n2", "--gpus=2", option, body="true")
    slurm.finish(job)

    assert segment_of(slurm, job)["state"] == "placed"


def test_what_only_slurm_can_choose_by_is_not_placed_later_either(slurm: Slurm) -> None:
    """berthd takes over jobs that came while it was away, and knows no more of them than the plugin wrote down."""
    holders = fill(slurm, *NODES)
    slurm.berthd("pause")
    job = slurm.submit("-N1", "--gpus=2", "--contiguous", body="true")
    plain = slurm.submit("-N1", "--gpus=2", body="true")
    slurm.berthd("resume")
    until("berthd to take over what it can", lambda: segment_of(slurm, plain)["state"] == "waiting" or None, 30)
    slurm.target.run(["scancel", *map(str, holders)], user="root")

    slurm.finish(job)

    assert left_to_slurm(slurm, job) == "berthd did not answer"
    assert slurm.show(job)["ReqNodeList"] == "(null)"


def left_to_slurm(slurm: Slurm, job: int) -> str:
    values = segments.fields(slurm.show(job)["AdminComment"]) or {}
    assert values["state"] == "passed", values
    return values["why"].partition(" [BERTH-")[0]
