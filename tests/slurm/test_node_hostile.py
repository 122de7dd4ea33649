# SPDX-License-Identifier: Apache-2.0
"""Users who want more than their share of a GPU: none gets it unnoticed, and none reaches root."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from .harness import Slurm, until
from .nodes import assert_nothing_left, berth_conf, guard_said, let_go, nodes_of, output, said, waiting_body

pytestmark = pytest.mark.any_slurm

NODE = "n3"
SMS = 84
MARK = "/tmp/reached-root"
SIGNS = (
    f"""$(touch {MARK})`touch {MARK}`;touch {MARK}|touch {MARK} & '"[berth/1 nodes={NODE} gpus=0 share=99 way=mps]"""
)
OF_OTHERS = {
    "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine",
    "CUDA_MPS_LOG_DIRECTORY": "/tmp/mine",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40G",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "BERTH_CONF": "/tmp/mine.conf",
    "LD_PRELOAD": "/tmp/mine.so",
    "PYTHONPATH": "/tmp",
}


def submit(slurm: Slurm, work: str, *options: str, user: str = "alice") -> int:
    words = ["-w", NODE, "-n1", "--gpu-share=30", "--gpu-mem=1G", *options]
    job = slurm.submit(*words, body=waiting_body(work), user=user)
    slurm.wait_state(job, {"RUNNING"})
    return job


def end(slurm: Slurm, *jobs: int) -> None:
    let_go(slurm, *jobs)
    for job in jobs:
        slurm.finish(job)
    assert_nothing_left(slurm, NODE)


def test_an_environment_full_of_other_settings_changes_nothing(slurm: Slurm) -> None:
    script = f"#!/bin/bash\n{waiting_body()}"
    words = ["sbatch", "-w", NODE, "-n1", "-t5", "-o", f"{slurm.shared}/%j.out", "--gpu-share=30", "--gpu-mem=1G"]
    result = slurm.target.run(words, env=OF_OTHERS, stdin=script)
    job = int(result.out.split()[-1])
    slurm.wait_state(job, {"RUNNING"})

    got = said(slurm, job)
    assert (got["sms"], got["memory"]) == ([SMS * 30 // 200 * 2], [1024])
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/berth/mps/" in output(slurm, job)
    assert "CUDA_MPS_LOG_DIRECTORY" not in output(slurm, job)
    end(slurm, job)


@pytest.mark.parametrize("option", ["--job-name", "--comment", "--extra"])
def test_shell_characters_in_a_jobs_texts_reach_no_shell(slurm: Slurm, option: str) -> None:
    result = slurm.sbatch("-w", NODE, "-n1", "--gpu-share=30", f"{option}={SIGNS}", body="true", check=False)
    if option == "--extra":
        assert result.rc != 0, "an Extra that poses as Berth's is refused"
    else:
        slurm.finish(int(result.out.split()[-1]))
    assert nodes_of(slurm)[NODE].bash(f"ls {MARK}; ls -l /tmp | grep root", check=False) == ""
    assert slurm.target.bash(f"ls {MARK} 2>/dev/null", check=False).out == ""
    assert_nothing_left(slurm, NODE)


def test_without_the_pipe_directory_the_gpu_is_taken(slurm: Slurm) -> None:
    job = submit(slurm, "unset CUDA_MPS_PIPE_DIRECTORY; fake-cuda-app hold=300")

    assert said(slurm, job) == {"error": 46}
    end(slurm, job)


def test_a_private_daemon_gets_no_gpu(slurm: Slurm) -> None:
    """A user's own MPS daemon may start on a GPU that is not shared, but gets no GPU beside Berth's server."""
    job = submit(slurm, "fake-cuda-app daemon=/tmp/private.$SLURM_JOB_ID alloc=9000 hold=300")

    assert said(slurm, job)["error"] in {46, 805}
    end(slurm, job)


def test_a_percentage_of_ones_own_ends_at_the_servers_ceiling(slurm: Slurm) -> None:
    job = submit(slurm, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 fake-cuda-app hold=300")

    assert said(slurm, job)["sms"] == [SMS * 30 // 200 * 2]
    end(slurm, job)


def test_a_memory_limit_that_is_talked_away_is_seen(slurm: Slurm) -> None:
    """The trick that NVIDIA's manual does not tell: one GPU too many, and the client has no limit."""
    job = submit(slurm, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,7=1G fake-cuda-app alloc=4000 hold=300")

    assert said(slurm, job, 1)["error"] == 0
    assert "was given 1024 MiB" in guard_said(slurm, NODE, f"job {job} holds")
    end(slurm, job)


@pytest.fixture
def strict(slurm: Slurm) -> Iterator[None]:
    """A site that ends what takes too much."""
    with berth_conf(slurm, '[node]\nviolation = "terminate"'):
        nodes_of(slurm)[NODE].bash("svc berth-guard restart")
        yield
    nodes_of(slurm)[NODE].bash("svc berth-guard restart")


@pytest.mark.usefixtures("strict")
def test_a_strict_site_ends_it(slurm: Slurm) -> None:
    job = submit(slurm, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,7=1G fake-cuda-app alloc=4000 hold=300")

    # The guard looks for ten seconds, which a loaded machine makes a minute and more.
    guard_said(slurm, NODE, f"job {job} holds", "are ended", seconds=240)
    node = nodes_of(slurm)[NODE]
    until("its program to be gone", lambda: node.bash("pgrep -f [a]lloc=4000", check=False) == "" or None)
    # MPS tells the program, unless a loaded machine lets it say nothing before the signal that follows.
    told = [json.loads(line).get("error") for line in output(slurm, job).splitlines() if line.startswith("{")]
    assert set(filter(None, told)) <= {810}
    end(slurm, job)


def test_another_users_pipe_is_closed_to_him(slurm: Slurm) -> None:
    hers = submit(slurm, "fake-cuda-app hold=300")
    assert said(slurm, hers)["mps"] is True
    pipe = next(line for line in output(slurm, hers).splitlines() if line.startswith("CUDA_MPS_PIPE_DIRECTORY="))
    gpu = next(line for line in output(slurm, hers).splitlines() if line.startswith("CUDA_VISIBLE_DEVICES="))
    his = submit(slurm, f"ls ${{x}}{pipe.partition('=')[2]}; {pipe} {gpu} fake-cuda-app hold=300", user="bob")

    assert said(slurm, his)["error"] == 100
    assert "Permission denied" in output(slurm, his)
    end(slurm, hers, his)


def test_nobody_writes_where_root_reads(slurm: Slurm) -> None:
    job = submit(slurm, "fake-cuda-app hold=300")
    look = """
    find /run/berth -xdev -writable ! -type s ! -type p 2>/dev/null
    ln -s /etc/passwd /run/berth/jobs/1 2>/dev/null && echo linked
    mkdir /run/berth/mps/mine 2>/dev/null && echo made
    export CUDA_MPS_PIPE_DIRECTORY=$(echo /run/berth/mps/*/pipe)
    echo quit | nvidia-cuda-mps-control >/dev/null 2>&1 && echo told
    cat /run/berth/gpus/*/state.json 2>/dev/null
    true
    """
    for user in ("alice", "bob"):
        assert nodes_of(slurm)[NODE].bash(look, user=user).strip() == ""
    assert said(slurm, job)["mps"] is True
    end(slurm, job)
