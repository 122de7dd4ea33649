# SPDX-License-Identifier: Apache-2.0
"""Jobs that share a GPU, from `sbatch --gpu-share` to the last Epilog: neighbours, limits, and clean nodes after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from policy.formats.wire import unescape

from .harness import Slurm, seen, until
from .nodes import (
    assert_nothing_left,
    berth_conf,
    let_go,
    nodes_of,
    output,
    place,
    said,
    waiting_body,
)

pytestmark = pytest.mark.any_slurm

NODE = "n2"
SMS = 132
GPU_MIB = 81_559
OPT_IN = "[node]\nmulti_user = true\n[sharing]\nmulti_user = true"


@contextmanager
def one_gpu(slurm: Slurm) -> Iterator[None]:
    """Holds all GPUs of a node but the first, so that packed jobs of this node meet on one GPU."""
    slurm.hold_gpus(NODE, range(1, 8))
    yield


def submit(slurm: Slurm, share: int, *options: str, user: str = "alice") -> int:
    return slurm.submit("-w", NODE, "-n1", f"--gpu-share={share}", *options, body=waiting_body(), user=user)


def runs(slurm: Slurm, *jobs: int) -> None:
    for job in jobs:
        slurm.wait_state(job, {"RUNNING"})


def waits(slurm: Slurm, job: int) -> None:
    slurm.settle()
    assert slurm.state(job) == "PENDING"


def test_two_share_a_gpu_and_a_third_waits_until_one_ends(slurm: Slurm) -> None:
    with one_gpu(slurm):
        first, second = submit(slurm, 30, "--gpu-mem=12G"), submit(slurm, 50)
        third = submit(slurm, 40)
        runs(slurm, first, second)

        assert place(slurm, first) == place(slurm, second) == (NODE, "0")
        assert (said(slurm, first)["sms"], said(slurm, second)["sms"]) == ([SMS * 30 // 200 * 2], [SMS // 2])
        assert said(slurm, first)["server"] == said(slurm, second)["server"]
        assert said(slurm, first)["memory"] == [12_288]
        assert [one.gpus for job in (first, second) for one in seen(output(slurm, job))] == [(0,), (0,)]
        waits(slurm, third)

        let_go(slurm, second)
        runs(slurm, third)
        assert said(slurm, third)["percent"] == 40
        let_go(slurm, first, third)
        slurm.finish(first)
        slurm.finish(third)
    assert_nothing_left(slurm, NODE)


def test_a_share_pays_for_the_memory_that_it_holds_and_is_held_to_the_multiprocessors_that_it_asked(
    slurm: Slurm,
) -> None:
    with one_gpu(slurm):
        # 60 GiB of the 78.6 GiB that packed jobs may use.
        large, fits = submit(slurm, 2, "--gpu-mem=60G"), submit(slurm, 20)
        runs(slurm, large, fits)
        record = slurm.show(large)
        assert record["TresPerNode"] == "gres/shard:g0:77"
        held = slurm.target.run(["scontrol", "show", "job", "-d", str(large)]).out
        assert "JOB_GRES=shard:g0:77\n" in held
        assert " share=77 asked_share=2 mem=61440 way=mps]" in record["Extra"]
        assert (said(slurm, large)["percent"], said(slurm, large)["memory"]) == (2, [61_440])
        small = submit(slurm, 10)
        waits(slurm, small)
        let_go(slurm, large)
        runs(slurm, small)
        let_go(slurm, small, fits)
        for job in (large, small, fits):
            slurm.finish(job)
    assert_nothing_left(slurm, NODE)


def test_tasks_of_an_array_are_counted_by_their_memory_too(slurm: Slurm) -> None:
    with one_gpu(slurm):
        array = submit(slurm, 1, "--gpu-mem=30G", "-a", "1-3")
        asked = ["squeue", "-h", "-r", "-j", str(array), "-o", "%T %b"]
        running = "RUNNING gres/shard:g0:39"
        until("two tasks to run", lambda: slurm.target.run(asked).out.count(running) == 2 or None)
        slurm.settle()
        assert slurm.target.run(asked).out.count(running) == 2
        slurm.target.run(["scancel", str(array)], user="root")
    assert_nothing_left(slurm, NODE)


def test_what_holds_the_share_is_told_by_berth_why_as_the_node_has_it(slurm: Slurm) -> None:
    job = submit(slurm, 30, "--gpu-mem=4G")
    runs(slurm, job)
    why = until(
        "the guard's word to reach the job",
        lambda: text if "enforced" in (text := slurm.target.run(["berth", "why", "-v", str(job)]).out) else None,
    )
    file = nodes_of(slurm)[NODE].bash(f"grep ^level_text= /run/berth/jobs/{job}")
    line = next(line for line in why.splitlines() if line.startswith("enforced"))
    assert f"({NODE}:open-ceiling)" in line
    assert unescape(file.strip().partition("=")[2]) in line
    let_go(slurm, job)
    slurm.finish(job)


def test_without_a_word_about_memory_it_is_limited_to_its_part(slurm: Slurm) -> None:
    result = slurm.target.run(["srun", "-w", NODE, "-n1", "--gpu-share=10", "fake-cuda-app", "alloc=9000"], check=False)

    assert f'"memory": [{(GPU_MIB - 1024) * 10 // 100}]' in result.out
    assert '"error": 2}' in result.out


def test_two_users_meet_only_where_the_site_lets_them(slurm: Slurm) -> None:
    with one_gpu(slurm):
        hers, his = submit(slurm, 30), submit(slurm, 30, user="bob")
        runs(slurm, hers)
        waits(slurm, his)
        let_go(slurm, hers)
        runs(slurm, his)
        let_go(slurm, his)
        slurm.finish(his)
    assert_nothing_left(slurm, NODE)


def test_two_users_of_a_site_that_opted_in_share_one_server(slurm: Slurm) -> None:
    with berth_conf(slurm, OPT_IN), one_gpu(slurm):
        hers, his = submit(slurm, 30, "--gpu-mem=4G"), submit(slurm, 40, user="bob")
        runs(slurm, hers, his)

        assert said(slurm, hers)["server"] == said(slurm, his)["server"]
        assert (said(slurm, hers)["percent"], said(slurm, his)["percent"]) == (30, 40)
        assert said(slurm, hers)["memory"] == [4_096]
        let_go(slurm, hers, his)
        slurm.finish(hers)
        slurm.finish(his)
    assert_nothing_left(slurm, NODE)


def test_a_share_of_two_gpus(slurm: Slurm) -> None:
    job = slurm.submit("-w", NODE, "-n1", "--gpu-share=20", "--gpus=2", body=waiting_body())
    runs(slurm, job)

    assert len(said(slurm, job)["uuids"]) == 2
    assert len(seen(output(slurm, job))[0].gpus) == 2
    let_go(slurm, job)
    slurm.finish(job)
    assert_nothing_left(slurm, NODE)


def test_tasks_of_an_array_share_what_fits(slurm: Slurm) -> None:
    with one_gpu(slurm):
        array = submit(slurm, 30, "--array=1-4")
        tasks = slurm.target.bash(
            f"for i in $(seq 150); do t=$(squeue -h -r -j {array} -t R -o %A); [ $(echo $t | wc -w) = 3 ] && break;"
            " sleep 0.2; done; echo $t"
        ).out.split()
        assert len(tasks) == 3
        assert {place(slurm, int(task)) for task in tasks} == {(NODE, "0")}
    slurm.clear()
    assert_nothing_left(slurm, NODE)


@pytest.mark.parametrize("how", ["scancel", "timeout", "node's slurmd is killed"])
def test_whatever_ends_a_job_its_share_is_taken_back(slurm: Slurm, how: str) -> None:
    job = submit(slurm, 30)
    runs(slurm, job)
    said(slurm, job, 1)
    if how == "scancel":
        slurm.target.run(["scancel", str(job)])
    elif how == "timeout":
        slurm.target.run(["scontrol", "update", f"JobId={job}", "TimeLimit=0:01"], user="root", check=False)
        slurm.target.run(["scancel", "-s", "KILL", "-f", str(job)], check=False)
    else:
        nodes_of(slurm)[NODE].bash("svc slurmd kill")
        let_go(slurm, job)
    slurm.wait_state(job, {"CANCELLED", "TIMEOUT", "COMPLETED", "FAILED"}, 60)
    assert_nothing_left(slurm, NODE)


def test_a_job_with_whole_gpus_after_it_finds_the_gpu_as_it_was(slurm: Slurm) -> None:
    with one_gpu(slurm):
        job = submit(slurm, 30)
        runs(slurm, job)
        whole = slurm.submit("-w", NODE, "-n1", "--gpus=1", body="fake-cuda-app alloc=100")
        waits(slurm, whole)
        let_go(slurm, job)
        text = slurm.finish(whole)
    assert '"mps": false' in text
    assert '"error": 0' in text
