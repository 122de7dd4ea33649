"""Launchers of many processes that are told to start one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.preflight.launchers import NAMES, cut, cut_own_words

ONE = ["--nnodes=1", "--nproc-per-node=1", "--node-rank=0"]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--nproc_per_node=8", "t.py"], ["t.py"]),
        (["--standalone", "--nproc-per-node", "gpu", "-m", "pkg.train"], ["--standalone", "-m", "pkg.train"]),
        (["--nnodes", "1:4", "--rdzv_endpoint", "n1:29500", "t.py"], ["--rdzv_endpoint", "n1:29500", "t.py"]),
        (["--node_rank=$R", "t.py", "--nproc-per-node", "8"], ["t.py", "--nproc-per-node", "8"]),
        ([], []),
    ],
)
def test_torchrun(words: list[str], left: list[str]) -> None:
    assert cut("torchrun", words) == [*ONE, *left]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["-np", "32", "./t", "-np", "2"], ["./t", "-np", "2"]),
        (["--np", "32", "-x", "PATH", "--mca", "btl", "tcp", "./t"], ["-x", "PATH", "--mca", "btl", "tcp", "./t"]),
        (["--map-by", "ppr:8:node", "--oversubscribe", "./t"], ["--oversubscribe", "./t"]),
        (["-n", "4", "-ppn", "2", "-genv", "A", "1", "./t"], ["-genv", "A", "1", "./t"]),
        (["-N", "8", "-H", "a:8,b:8", "./t"], ["-H", "a:8,b:8", "./t"]),
    ],
)
def test_mpirun(words: list[str], left: list[str]) -> None:
    for name in ("mpirun", "mpiexec"):
        assert cut(name, words) == ["-np", "1", *left]


def test_accelerate_and_deepspeed() -> None:
    assert cut(
        "accelerate", ["launch", "--multi_gpu", "--num_processes", "32", "--mixed_precision", "bf16", "t.py"]
    ) == [*("launch", "--num_processes=1", "--num_machines=1", "--machine_rank=0", "--mixed_precision", "bf16", "t.py")]
    assert cut("accelerate", ["env"]) == ["env"]
    assert cut("deepspeed", ["--num_gpus=8", "--hostfile", "h", "-H", "h", "t.py", "--num_gpus=8"]) == [
        *("--num_gpus=1", "--num_nodes=1", "t.py", "--num_gpus=8")
    ]


@given(st.sampled_from(NAMES), st.lists(st.text("-=abn1.py ", max_size=12), max_size=8))
def test_a_second_cut_changes_nothing(name: str, words: list[str]) -> None:
    """A shim and the program's own start may both do it."""
    once = cut(name, words)

    assert sorted(cut(name, once)) == sorted(once)


@given(st.sampled_from(NAMES), st.lists(st.text(max_size=12), max_size=6))
def test_the_programs_own_words_are_never_touched(name: str, words: list[str]) -> None:
    head = ["launch"] if name == "accelerate" else []

    assert cut(name, [*head, "train.py", *words])[-1 - len(words) :] == ["train.py", *words]


def test_a_program_of_another_name_is_left_alone() -> None:
    for words, original in (
        (["train.py", "--nnodes=4"], ["python", "train.py", "--nnodes=4"]),
        (["-m", "--nnodes=4"], ["python", "-m", "my.tool", "--nnodes=4"]),
        (["-c"], ["python", "-c", "pass"]),
        (["/usr/bin/mpirun", "-np", "4"], ["python", "/usr/bin/mpirun", "-np", "4"]),
        ([], []),
    ):
        assert cut_own_words(list(words), original) == words
