# SPDX-License-Identifier: Apache-2.0
"""A job that pays for one part of a GPU and would hold another does not start, and its user reads why."""

from __future__ import annotations

import pytest

from .harness import Slurm, until
from .nodes import assert_nothing_left, nodes_of, output

NODE = "n3"
HELD = "job_requeued_in_held_state"


def planned(slurm: Slurm, *options: str) -> int:
    """Submits a job of alice's that has its place and may not start yet."""
    return slurm.submit("-w", NODE, "-n1", "--begin=now+600", *options, body="echo RAN")


def as_through_a_hole(slurm: Slurm, job: int, change: str) -> None:
    """Changes a job as root, whose updates pass the plugin: so would a user who found a hole in it."""
    slurm.target.run(["scontrol", "update", f"JobId={job}", *change.split(), "StartTime=now"], user="root")


def held(slurm: Slurm, job: int) -> str:
    """Waits until the job is held; what its owner reads."""
    until(f"job {job} to be held", lambda: slurm.show(job).get("Reason") == HELD or None)

    def row() -> str | None:
        rows = slurm.target.run(["berth", "why", "-v", str(job)], check=False).out.splitlines()
        return next((line for line in rows if line.startswith("held ")), None)

    return until(f"berth why {job} to say why", row)


def ran(slurm: Slurm, job: int) -> list[str]:
    """Returns what the job printed: slurmd may launch it before it is requeued, and Berth stops it there."""
    return [line for line in output(slurm, job).splitlines() if " error: " not in line]


@pytest.mark.parametrize(
    ("options", "change", "says"),
    [
        ("--gpus=1", "TresPerNode=gres/shard:g0:1", "Slurm gives it 1 % of GPU 0, and its place is GPU 0"),
        ("--gpus=1", "TresPerNode=gres/seat:g0:1", "Slurm gives it a seat on GPU 0, and its place is GPU 0"),
        ("--gpus=2 --gpu-tier=guaranteed", "TresPerNode=gres/shard:g0:1", "Slurm gives it 1 % of GPU 0"),
    ],
)
def test_a_job_that_pays_for_less_than_it_would_hold_is_held(
    slurm: Slurm, options: str, change: str, says: str
) -> None:
    job = planned(slurm, *options.split())
    as_through_a_hole(slurm, job, change)

    assert says in held(slurm, job)
    assert "cancel it and submit it again" in held(slurm, job)
    assert ran(slurm, job) == []
    assert (
        f"UserId={slurm.target.run(['id', '-u']).out.strip()} was held on {NODE}"
        in slurm.target.bash("svc berthd log", user="root").out
    )
    slurm.target.run(["scancel", str(job)])
    assert_nothing_left(slurm, NODE)


def test_a_packed_job_that_pays_for_less_is_held(slurm: Slurm) -> None:
    """Slurm may start it at once; so here an administrator writes what a hole would have left."""
    words = ["-n1", "-w", NODE, "-t5", "-o", f"{slurm.shared}/%j.out", "--gres=shard:g0:1"]
    extra = f"[berth/1 nodes={NODE} gpus=0 share=90 mem=30000 way=mps]"
    script = "#!/bin/bash\necho RAN\n"
    done = slurm.target.run(["sbatch", *words, "--uid=alice", f"--extra={extra}"], user="root", stdin=script)
    job = int(done.out.split()[-1])

    until(f"job {job} to be held", lambda: slurm.show(job).get("Reason") == HELD or None)
    assert ran(slurm, job) == []
    share = nodes_of(slurm)[NODE].bash(f"cat /run/berth/jobs/{job}")
    assert "Slurm%20gave%20the%20job%201%20%25%20of%20GPU%200%20here,%20and%20its%20Extra%20says%2090%20%25" in share
    slurm.target.run(["scancel", str(job)])
    assert_nothing_left(slurm, NODE)


def test_an_administrator_may_move_a_job_and_place_one_by_hand(slurm: Slurm) -> None:
    job = planned(slurm, "--gpus=1")
    as_through_a_hole(slurm, job, "TresPerNode=gres/gpu:g5:1")
    assert "RAN" in slurm.finish(job)

    words = ["sbatch", "-n1", "-w", NODE, "-t5", "-o", f"{slurm.shared}/%j.out", "--gres=shard:g0:1"]
    by_hand = int(slurm.target.run(words, user="root", stdin="#!/bin/bash\necho RAN\n").out.split()[-1])
    assert "RAN" in slurm.finish(by_hand)


def test_a_job_in_a_partition_that_berth_skips_has_shards_where_an_administrator_says_so(slurm: Slurm) -> None:
    words = ["-p", "plain", "-n1", "-w", NODE, "--gres=shard:g0:5"]
    refused = slurm.sbatch(*words, user="alice", check=False)
    assert "shard and seat are not asked for by hand" in refused.text
    job = slurm.submit(*words, body="echo RAN", user="root")
    assert "RAN" in slurm.finish(job)
