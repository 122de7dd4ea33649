# SPDX-License-Identifier: Apache-2.0
"""Jobs with a part of a GPU, as the plugin writes them into Slurm. They stay held: what nodes do is another matter."""

from __future__ import annotations

import pytest

from policy.formats import segment as segments

from .harness import Slurm, job_id
from .scripted import later, place, scripted

SHARE = {"share": "30", "mem": "12288", "way": "mps"}
EXTRA = "[berth/1 nodes=n1 gpus=2 share=30 mem=12288 way=mps]"
ONE_GPU = [
    "",
    "--gpus=1",
    "--gres=gpu:1",
    "--gpus-per-task=1 -n1",
    "--gpus=1 --cpus-per-gpu=3",
    "--gpus=1 --mem-per-gpu=500",
]
CLEARED = {"TresPerJob", "TresPerTask", "CpusPerTres", "MemPerTres"}


def submit(slurm: Slurm, form: str) -> dict[str, str]:
    return slurm.show(slurm.submit("-H", "--gpu-share=30", *form.split()))


@pytest.mark.parametrize("form", ONE_GPU)
def test_a_packed_job_asks_for_percent_of_exactly_its_gpu(slurm: Slurm, form: str) -> None:
    with scripted(slurm, place("n1", "2", **SHARE)):
        record = submit(slurm, form)
    assert (record["ReqNodeList"], record["TresPerNode"], record["Extra"]) == ("n1", "gres/shard:g2:30", EXTRA)
    assert not CLEARED & record.keys()
    assert record["NumCPUs"] == ("3" if "cpus" in form else "1")
    assert record.get("MinMemoryNode", "") == ("500M" if "mem" in form else "")


def test_a_share_of_several_gpus_on_several_nodes(slurm: Slurm) -> None:
    with scripted(slurm, place("n1,n2", "2,3", share="40", way="time")):
        record = submit(slurm, "-N2 --gpus-per-node=2")
    assert record["TresPerNode"] == "gres/shard:g2:40,gres/shard:g3:40"
    # What was asked stands beside what is counted.
    assert record["Extra"] == "[berth/1 nodes=n1,n2 gpus=2,3 share=40 asked_share=30 way=time]"


def test_until_its_place_is_known_a_packed_job_asks_for_a_whole_gpu(slurm: Slurm) -> None:
    with scripted(slurm, later(1, 1, share="30")):
        record = submit(slurm, "--array=1-2 --gpus=1 --mem-per-gpu=500")
    assert (record["TresPerNode"], record["MinMemoryNode"]) == ("gres/gpu:1", "500M")
    assert not (CLEARED | {"Extra"}) & record.keys()


def test_a_packed_job_that_waits_for_its_gpu_whole_has_its_memory_by_node(slurm: Slurm) -> None:
    """The pin replaces the request for whole GPUs by a share; the memory that went with the GPUs has to stay."""
    with scripted(slurm, place("n1", "2", mem_per_node="500")):
        record = slurm.show(slurm.submit("-H", "--gpu-share=30", "--gpus=1", "--mem-per-gpu=500"))
    assert (record["TresPerNode"], record["MinMemoryNode"]) == ("gres/gpu:g2:1", "500M")
    assert "MemPerTres" not in record


def test_a_reply_with_a_share_for_whole_gpus_is_dropped(slurm: Slurm) -> None:
    with scripted(slurm, place("n1", "2", **SHARE)):
        record = slurm.show(slurm.submit("-H", "--gpus=1"))
    assert record["TresPerJob"] == "gres/gpu:1"
    assert "Extra" not in record


@pytest.mark.parametrize("form", ["", "--gpus=1"])
def test_without_berthd_it_gets_a_whole_gpu_and_is_told_so(slurm: Slurm, form: str) -> None:
    slurm.berthd("stop")
    result = slurm.sbatch("-H", "--gpu-share=30", *form.split())
    record = slurm.show(job_id(result))
    assert "the job asks for whole GPUs" in result.err
    assert record["TresPerJob"] == "gres/gpu:1"
    assert (segments.fields(record["AdminComment"]) or {})["f.gpu-share"] == "30"


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_the_step_of_an_allocation_asks_for_no_gpu_beside_the_share(slurm: Slurm, command: str) -> None:
    slurm.berthd("stop")
    words = [command, "--gpu-share=30", "--gpus=1", *(["srun"] if command == "salloc" else []), "/usr/bin/env"]
    result = slurm.target.run(words)
    assert "CUDA_VISIBLE_DEVICES=0" in result.out.splitlines()
    assert "SLURM_GPUS=1" not in result.out.splitlines()


def test_several_gpus_beside_a_share_are_for_sbatch(slurm: Slurm) -> None:
    result = slurm.target.run(["srun", "--gpu-share=30", "--gpus=2", "true"], check=False)
    assert result.rc != 0
    assert "use sbatch" in result.err


@pytest.mark.parametrize("outer", ["salloc", "sbatch"])
def test_what_is_submitted_inside_a_job_does_not_inherit_its_flags(slurm: Slurm, outer: str) -> None:
    slurm.berthd("stop")
    inner = "sbatch -H --gpus=1 -o /dev/null --wrap true"
    if outer == "salloc":
        job = job_id(slurm.target.run(["salloc", "--gpu-share=30", "--movable", *inner.split()]))
    else:
        said = slurm.finish(slurm.submit("--gpu-share=30", "--movable", body=inner))
        job = int(said.split()[-1])
    fields = segments.fields(slurm.comment(job))
    assert fields is not None
    assert not [name for name in fields if name.startswith("f.")]
