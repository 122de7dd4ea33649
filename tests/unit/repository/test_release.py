# SPDX-License-Identifier: Apache-2.0
"""A release: what refuses it, what it says, and that what is bundled is named with its license."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "packaging" / "release.py"
RELEASE = runpy.run_path(str(SCRIPT))
STAGE = runpy.run_path(str(ROOT / "packaging" / "stage.py"))


def git(tree: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tree, check=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A committed tree of version 1.2.3, with the program that makes releases."""
    (tmp_path / "packaging").mkdir()
    (tmp_path / "docs" / "admin").mkdir(parents=True)
    (tmp_path / "packaging" / "release.py").write_text(SCRIPT.read_text())
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 1.2.3 (unreleased)\n\nNew.\n\n## 1.2.2 (2026-01-01)\n\nOld.\n"
    )
    (tmp_path / "docs" / "admin" / "releases.md").write_text(
        "# Releases\n\n| a |\n\n## Slurm's releases\n\n| release |\n|---|\n| 24.11 |\n\n## Newer\n\n| other |\n"
    )
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "all")
    return tmp_path


def refusal(tree: Path, version: str) -> str:
    words = [sys.executable, str(tree / "packaging" / "release.py"), version]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


def test_a_tree_with_changes_is_no_release(tree: Path) -> None:
    (tree / "new.txt").write_text("")

    assert "the tree is not clean; commit or remove these first:\n?? new.txt" in refusal(tree, "1.2.3")


@pytest.mark.parametrize(
    ("version", "said"), [("1.2.4", "pyproject.toml is not of 1.2.4"), ("next", "name the version")]
)
def test_the_tree_has_to_be_of_the_version(tree: Path, version: str, said: str) -> None:
    assert said in refusal(tree, version)


def test_a_clean_tree_tells_its_revision_and_time(tree: Path) -> None:
    scope: dict[str, Any] = runpy.run_path(str(tree / "packaging" / "release.py"))

    revision, epoch = scope["checked"]("1.2.3")

    assert re.fullmatch("[0-9a-f]{12}", revision)
    assert abs(epoch - time.time()) < 60


def test_notes_are_the_part_of_the_changelog_and_the_table_of_releases(tree: Path) -> None:
    scope: dict[str, Any] = runpy.run_path(str(tree / "packaging" / "release.py"))

    notes = scope["notes"]("1.2.3", time.gmtime(0))

    assert notes == "# Berth 1.2.3 (1970-01-01)\n\nNew.\n\n## Releases of Slurm\n\n| release |\n|---|\n| 24.11 |\n"


def test_a_slurm_is_for_the_suite_that_is_named_with_it() -> None:
    slurms = ["/opt/a=/srv/a@trixie", "/opt/b@bookworm", "/opt/c"]

    assert RELEASE["words_for"]("trixie", slurms) == ["--in", "trixie", "--slurm", "/opt/a=/srv/a", "--slurm", "/opt/c"]


def test_two_builds_are_compared_by_name_and_bytes(tmp_path: Path) -> None:
    for turn, texts in (("one", {"a.deb": "a", "b.deb": "b", "x.changes": "1"}), ("two", {"a.deb": "a", "b.deb": "c"})):
        (tmp_path / turn).mkdir()
        for name, text in texts.items():
            (tmp_path / turn / name).write_text(text)

    assert RELEASE["differs"](tmp_path / "one", tmp_path / "two") == ["b.deb"]
    assert RELEASE["differs"](tmp_path / "one", tmp_path / "one") == []


def test_an_ssh_key_signs_the_sums(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    (tmp_path / "SHA256SUMS").write_text("sums\n")
    (tmp_path / "signers").write_text(f"release {(tmp_path / 'key.pub').read_text()}")

    RELEASE["sign"](tmp_path / "SHA256SUMS", str(tmp_path / "key"))

    words = ["ssh-keygen", "-Y", "verify", "-f", "signers", "-I", "release", "-n", "file", "-s", "SHA256SUMS.sig"]
    subprocess.run(words, cwd=tmp_path, input=b"sums\n", check=True, capture_output=True)


def bundled() -> set[tuple[str, str]]:
    """Each package of ours, and the name of what it brings."""
    blocks, locks = STAGE["blocks"], STAGE["LOCKS"]
    found = set()
    for package, (extra, others) in locks.items():
        elsewhere = {name for other in others for name, _ in blocks(other)}
        found |= {(package, name) for name, _ in blocks(extra) if name not in elsewhere}
    return found


def test_what_packages_bundle_is_named_with_its_license() -> None:
    notice = (ROOT / "NOTICE").read_text()
    listed = set(re.findall(r"^(berth-\w+) +(\S+) +\S", notice, re.MULTILINE))
    copyright_text = re.sub(r"\s+", " ", (ROOT / "packaging" / "deb" / "copyright").read_text())

    assert listed == bundled()
    assert [name for _, name in bundled() if not re.search(rf"\b{name}\b", copyright_text)] == []


def test_the_license_of_nvidias_module_comes_from_its_code(tmp_path: Path) -> None:
    info = tmp_path / "nvidia_ml_py-1.dist-info"
    info.mkdir()
    (tmp_path / "pynvml.py").write_text("#####\n# Copyright\n#\n# Redistribution is permitted.\n#####\n\n# Code\n")

    STAGE["license_of"](info)

    assert (info / "LICENSE").read_text() == "Copyright\n\nRedistribution is permitted.\n"


def test_a_package_without_a_license_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "other-1.dist-info").mkdir()

    with pytest.raises(SystemExit, match="has no license"):
        STAGE["license_of"](tmp_path / "other-1.dist-info")
