# SPDX-License-Identifier: Apache-2.0
"""Launchers of many processes that are told to start one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
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
        (["--log_dir", "of.py", "t.py"], ["--log_dir", "of.py", *ONE, "t.py"]),
        (["--standalone", "t.py"], ["--standalone", *ONE, "t.py"]),
        ([], []),
    ],
)
def test_torchrun(words: list[str], left: list[str]) -> None:
    assert one_process(["/env/bin/torchrun", *words], ["python"]) == ["/env/bin/torchrun", *left]
    for started in (RUN, ["python", "-mtorch.distributed.run"], ["python", "-OO", "-um", "torch.distributed.run"]):
        assert one_process(["-m", *words], [*started, *words]) == ["-m", *left]


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
        (["-m", "--nnodes=4", "a.py"], ["python", "-Ximporttime", "-mmy.tool", "--nnodes=4", "a.py"]),
        (["-c"], ["python", "-c", "pass"]),
        (["/usr/bin/mpirun", "-np", "4", "a.py"], ["python", "/usr/bin/mpirun", "-np", "4", "a.py"]),
        ([], []),
    ):
        assert one_process(list(words), original) == words


def start(folder: Path, **environment: str) -> tuple[str, str]:
    """What a launcher gets, and what is said of that; modules of the folder come before Berth's."""
    file = folder / "torchrun"
    file.write_text("import sys\nprint(*sys.argv[1:])\n")
    env = {**os.environ, "PYTHONPATH": f"{folder}:{FILE.parent}", "BERTH_PREFLIGHT": "1", **environment}
    done = subprocess.run([sys.executable, file, "t.py"], env=env, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_a_launcher_within_a_pre_flight_starts_one_process_unless_its_user_keeps_berth_out(tmp_path: Path) -> None:
    assert start(tmp_path) == (" ".join([*ONE, "t.py\n"]), "")
    assert start(tmp_path, BERTH_INJOB="off") == ("t.py\n", "")


def test_a_fault_of_ours_is_no_line_in_a_users_log(tmp_path: Path) -> None:
    (tmp_path / "berth_preflight.py").write_text("raise RuntimeError('a module of the user has this name')")

    assert start(tmp_path) == ("t.py\n", "")
