# SPDX-License-Identifier: Apache-2.0
"""A commit draws its own examples, and the same ones in each run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import examples


def git(folder: Path, *words: str) -> str:
    name = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    return subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(examples, "__file__", str(tmp_path / "examples.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def commit(folder: Path, text: str) -> None:
    (folder / "file").write_text(text)
    git(folder, "add", "file")
    git(folder, "commit", "-q", "-m", "file: change")


def test_a_commit_has_one_seed_and_the_next_one_another(folder: Path) -> None:
    git(folder, "init", "-q")
    commit(folder, "one")
    first = examples.drawn_seed()
    (folder / "file").write_text("not committed")

    assert examples.drawn_seed() == first
    commit(folder, "two")
    assert examples.drawn_seed() != first


def test_without_git_each_run_has_a_seed_of_its_own(folder: Path) -> None:
    assert len({examples.drawn_seed() for _ in range(3)}) == 3
