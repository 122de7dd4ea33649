# SPDX-License-Identifier: Apache-2.0
"""Share files: what is written comes back, and nobody else can have written them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.errors import NodeFormatError, StateError
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import share_file
from prolog_epilog.tenants.share_file import ShareRecord

FULL = ShareRecord(
    job=42,
    uid=1000,
    gpus=(0,),
    minors=(2,),
    uuids=("GPU-1",),
    share=30,
    mem_mib=12288,
    way="mps",
    level="server-ceiling",
    level_text="30 % of the SMs, by the server",
    environment={"CUDA_MPS_PIPE_DIRECTORY": "/run/berth/mps/GPU-1/pipe", "X": "a\nb=[c] $(reboot)"},
    unset=("CUDA_MPS_LOG_DIRECTORY",),
    prepend={"PYTHONPATH": "/usr/share/berth/injob"},
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = Paths(tmp_path / "run")
    files.prepare(found)
    return found


def test_a_share_comes_back_and_spank_can_read_it(paths: Paths) -> None:
    share_file.write(paths, FULL)

    assert share_file.read(paths, 42) == FULL
    path = paths.job(42)
    assert path.stat().st_mode & 0o777 == 0o644
    assert paths.jobs.stat().st_mode & 0o777 == 0o711
    assert path.read_text().split("\n")[:4] == ["berth-share/1", "job=42", "uid=1000", "status=ok"]
    assert "set.X=a%0Ab=%5Bc%5D%20$(reboot)" in path.read_text().split("\n")
    assert [name.name for name in paths.jobs.iterdir()] == ["42"]
    assert list(share_file.jobs(paths)) == [42]


@given(st.text(min_size=1))
def test_any_reason_comes_back_fit_for_a_terminal(why: str) -> None:
    found = share_file.parse(share_file.text(ShareRecord(1, 0, why=why)))

    assert found.degraded
    assert found.why == "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in why)[:512]


@pytest.mark.parametrize(
    "contents",
    [
        "",
        "berth-share/2\njob=42\n",
        "berth-share/1\njob=42\nuid=0\nstatus=ok",
        "berth-share/1\njob=42\nstatus=ok\n",
        "berth-share/1\njob=x\nuid=0\nstatus=ok\n",
        "berth-share/1\njob=42\nuid=0\nstatus=ok\nset.A=a b\n",
        "berth-share/1\njob=43\nuid=0\nstatus=ok\n",
        "berth-share/1\n" + "a=b\n" * 5000,
    ],
)
def test_a_damaged_file_is_refused(paths: Paths, contents: str) -> None:
    paths.job(42).write_text(contents)

    with pytest.raises((NodeFormatError, StateError)):
        share_file.read(paths, 42)


def test_a_longer_file_than_spank_reads_is_not_written(paths: Paths) -> None:
    with pytest.raises(NodeFormatError, match="longer than 16384 bytes"):
        share_file.write(paths, ShareRecord(42, 0, environment={"X": "y" * 20_000}))
    assert list(paths.jobs.iterdir()) == []


def test_a_link_is_not_followed(tmp_path: Path, paths: Paths) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    paths.job(42).symlink_to(treasure)

    with pytest.raises(StateError, match="symbolic links"):
        share_file.read(paths, 42)
    share_file.write(paths, FULL)
    assert treasure.read_text() == "gold"
    assert not paths.job(42).is_symlink()


def test_a_linked_folder_is_not_followed(tmp_path: Path, paths: Paths) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    paths.jobs.rmdir()
    paths.jobs.symlink_to(treasure)

    with pytest.raises(StateError, match="is not a folder that only root may change; remove it"):
        share_file.write(paths, FULL)
    assert list(treasure.iterdir()) == []


def test_a_folder_that_others_can_write_is_refused(paths: Paths) -> None:
    paths.jobs.chmod(0o777)

    with pytest.raises(StateError, match="is not a folder that only root may change; remove it"):
        share_file.write(paths, FULL)


def test_old_files_of_jobs_that_could_not_share_go(paths: Paths) -> None:
    old = time.time() - share_file.KEEP_SECONDS - 1
    for share in (ShareRecord(1, 0, why="no"), ShareRecord(2, 0, why="no"), ShareRecord(3, 0)):
        share_file.write(paths, share)
    draft = paths.jobs / ".4.12345"
    draft.touch()
    for path in (paths.job(1), paths.job(3), draft):
        os.utime(path, (old, old))

    share_file.remove_old(paths)

    assert sorted(share_file.jobs(paths)) == [2, 3]
    assert not draft.exists()


def test_nothing_there_is_nothing(tmp_path: Path, paths: Paths) -> None:
    nowhere = Paths(tmp_path / "nowhere")

    assert share_file.read(nowhere, 1) is None
    assert share_file.read(paths, 1) is None
    assert share_file.jobs(nowhere) == {}
    share_file.remove(nowhere, 1)
    share_file.remove(paths, 1)
