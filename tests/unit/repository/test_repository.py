# SPDX-License-Identifier: Apache-2.0
"""The house rules that a machine can check."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [
    path
    for folder in ("topology", "policy", "prolog_epilog", "slurm_plugins", "containers", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".c", ".h", ".sh"} and "__pycache__" not in path.parts
]
FOLDERS = {
    *(".ci", "berth", "containers", "deploy", "docs", "packaging", "policy", "prolog_epilog", "requirements"),
    *("slurm_plugins", "tests", "topology"),
}  # fmt: skip


def test_every_room_is_small_enough_to_know() -> None:
    assert len(SOURCES) > 50

    # 600, and the line of the licence.
    too_long = {
        str(path.relative_to(ROOT)): lines for path in SOURCES if (lines := len(path.read_text().split("\n"))) > 601
    }
    assert too_long == {}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git tells what is in the tree")
def test_the_tree_holds_its_own_folders_and_no_large_file() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]

    assert {name.partition("/")[0] for name in names if "/" in name} == FOLDERS
    assert [name for name in names if (ROOT / name).stat().st_size > 1_000_000] == []


def test_every_file_of_c_and_python_names_its_licence() -> None:
    more = (path for folder in ("berth", "packaging") for path in (ROOT / folder).rglob("*.py"))
    paths = [*(path for path in SOURCES if path.suffix in {".c", ".h", ".py"}), *more]
    # A line that names the program's interpreter stands before it.
    heads = {path.name: "".join(path.read_text().split("\n", 2)[:2]) for path in paths}

    assert len(paths) > 1_000
    assert [name for name, head in heads.items() if "SPDX-License-Identifier: Apache-2.0" not in head] == []


@pytest.mark.parametrize(
    "target", ["setup", "demo", "test", "test-fast", "lint", "bench", "cluster-up", "cluster-down"]
)
def test_make_help_explains_each_target(target: str) -> None:
    text = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert re.search(rf"^  make {target}\s+\S", text, re.MULTILINE)


def test_every_flag_is_in_the_users_guide_and_the_formats() -> None:
    options = (ROOT / "slurm_plugins" / "config" / "options.c").read_text()
    flags = set(re.findall(r'"((?:locality|group|app-class|gpu-[a-z]+|preflight|movable|retry))"', options))

    assert len(flags) == 9
    for page in ("user/jobs.md", "develop/formats.md"):
        text = (ROOT / "docs" / page).read_text()
        assert [flag for flag in sorted(flags) if f"`--{flag}" not in text] == []


def test_the_node_side_needs_nothing_but_the_standard_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["dependencies"] == []
    assert project["optional-dependencies"]["node"] == ["nvidia-ml-py>=12.560"]


def test_locks_hold_hashes_and_no_addresses() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text


@pytest.mark.parametrize("unit", ["policy/daemon/berthd.service", "prolog_epilog/berth-guard.service"])
def test_what_runs_for_ever_is_bounded_by_its_unit(unit: str) -> None:
    text = (ROOT / unit).read_text()

    assert re.search(r"^MemoryMax=[0-9]+G$", text, re.MULTILINE)
    assert re.search(r"^TasksMax=[0-9]+$", text, re.MULTILINE)
