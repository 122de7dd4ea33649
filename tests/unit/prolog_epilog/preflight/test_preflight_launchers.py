"""Launchers of many processes that are told to start one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

FILE = Path(__file__).parents[4] / "prolog_epilog" / "injob" / "site" / "berth_preflight.py"
_SPEC = importlib.util.spec_from_file_location("berth_preflight", FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
one_process = _MODULE.one_process
ONE = ["--nnodes=1", "--nproc-per-node=1", "--node-rank=0"]
RUN = ["python", "-u", "-m", "torch.distributed.run"]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--nproc_per_node=8", "t.py"], ["--nproc_per_node=8", *ONE, "t.py"]),
        (["--nproc-per-node", "gpu", "-m", "pkg.train"], ["--nproc-per-node", "gpu", *ONE, "-m", "pkg.train"]),
        (["t.py", "--nproc-per-node", "8"], [*ONE, "t.py", "--nproc-per-node", "8"]),
        (["--no-python", "./train"], ["--no-python", "./train"]),
        ([], []),
    ],
)
def test_torchrun(words: list[str], left: list[str]) -> None:
    assert one_process(["/env/bin/torchrun", *words], ["python"]) == ["/env/bin/torchrun", *left]
    assert one_process(["-m", *words], [*RUN, *words]) == ["-m", *left]


def test_accelerate() -> None:
    words = ["launch", "--multi_gpu", "--num_processes", "32", "t.py"]
    one = ["--num_processes=1", "--num_machines=1", "--machine_rank=0"]
    assert one_process(["accelerate", *words], ["python"]) == [
        *("accelerate", "launch", "--num_processes", "32", *one, "t.py")
    ]
    assert one_process(["accelerate", "env"], ["python"]) == ["accelerate", "env"]


@given(st.sampled_from(["torchrun", "accelerate"]), st.lists(st.text(max_size=12), max_size=6))
def test_the_programs_own_words_are_never_touched(name: str, words: list[str]) -> None:
    head = ["launch"] if name == "accelerate" else []

    assert one_process([name, *head, "train.py", *words], ["python"])[-1 - len(words) :] == ["train.py", *words]


def test_a_program_of_another_name_is_left_alone() -> None:
    for words, original in (
        (["train.py", "--nnodes=4"], ["python", "train.py", "--nnodes=4"]),
        (["-m", "--nnodes=4", "a.py"], ["python", "-m", "my.tool", "--nnodes=4", "a.py"]),
        (["-m"], ["python", "-m"]),
        (["-c"], ["python", "-c", "pass"]),
        (["/usr/bin/mpirun", "-np", "4", "a.py"], ["python", "/usr/bin/mpirun", "-np", "4", "a.py"]),
        ([], []),
    ):
        assert one_process(list(words), original) == words
