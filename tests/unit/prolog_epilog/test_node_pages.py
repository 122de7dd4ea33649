# SPDX-License-Identifier: Apache-2.0
"""The pages of each job on a file system of their own: made, filled, left over, seen from elsewhere, and removed."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prolog_epilog.injob.word import PAGE, beat_path, read_beats
from prolog_epilog.node import mounts
from prolog_epilog.node.mounts import is_seen, mount_small
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import pages
from tests.rights import needs_root
from tests.unit.node_world import ROOT

pytestmark = needs_root

UID = 65_534
KEEP_SIZE = 1


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    made = Paths(tmp_path)
    yield made
    for folder in made.words.iterdir() if made.words.is_dir() else ():
        mounts.unmount(folder)


@pytest.fixture
def mounting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A root that may mount, as slurmd's is."""
    trial = tmp_path / "trial"
    trial.mkdir()
    try:
        mount_small(trial, 1)
    except OSError as problem:
        pytest.skip(f"root may not mount here: {problem.strerror}")
    mounts.unmount(trial)
    monkeypatch.setattr(mounts, "mount_small", mount_small)
    monkeypatch.setattr(mounts, "is_seen", is_seen)
    # Process 1 may have other mounts than whoever runs the tests.
    monkeypatch.setattr(pages, "_FIRST", os.getpid())


def fill(page: Path) -> int:
    """Take blocks beyond the end of a page until there is no room, at most 16 MiB; how many bytes that were."""
    libc = ctypes.CDLL(None, use_errno=True)
    file, taken = os.open(page, os.O_RDWR), 0
    try:
        while taken < 16 << 20:
            if libc.fallocate(file, KEEP_SIZE, ctypes.c_long(PAGE + taken), ctypes.c_long(PAGE)):
                assert ctypes.get_errno() == errno.ENOSPC
                break
            taken += PAGE
    finally:
        os.close(file)
    assert page.stat().st_size == PAGE
    return taken


@pytest.mark.usefixtures("mounting")
def test_a_job_that_fills_its_pages_takes_no_room_of_others(paths: Paths) -> None:
    (mine,), lack = pages.make(paths, 41, ["GPU-a"], UID)
    assert lack == ""
    assert fill(beat_path(mine)) == 0
    others, lack = pages.make(paths, 42, ["GPU-a", "GPU-b"], UID)

    assert lack == ""
    assert [read_beats(one) for one in others] == [(), ()]
    assert {one.parent.stat().st_dev for one in (mine, *others)}.isdisjoint({paths.words.stat().st_dev})
    assert mine.parent.stat().st_dev != others[0].parent.stat().st_dev


@pytest.mark.usefixtures("mounting")
def test_after_the_job_nothing_is_left_even_of_a_page_that_is_open(paths: Paths) -> None:
    (mine,), _ = pages.make(paths, 41, ["GPU-a"], UID)
    with beat_path(mine).open("rb"):
        pages.remove(paths, 41)
        pages.remove(paths, 41)

    assert list(paths.words.iterdir()) == []


@pytest.mark.usefixtures("mounting")
def test_what_an_earlier_run_left_does_not_limit_a_later_one(paths: Paths) -> None:
    pages.make(paths, 41, ["GPU-a"], UID)
    later, lack = pages.make(paths, 41, ["GPU-a", "GPU-b", "GPU-c"], UID)

    assert (len(later), lack) == (3, "")
    pages.remove(paths, 41)
    assert list(paths.words.iterdir()) == []


@pytest.mark.usefixtures("mounting")
def test_a_job_with_mounts_of_its_own_has_its_pages_and_leaves_nothing(paths: Paths) -> None:
    """As with Slurm's plugins that give each job a /tmp: they copy the mounts when the Prolog is through."""
    (mine,), _ = pages.make(paths, 41, ["GPU-a"], UID)
    read = f"import sys; sys.stdout.write(open({str(beat_path(mine))!r}).read(8)); sys.stdout.flush(); input()"
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", read]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.read(8) == b"BERTHBT1"
        pages.remove(paths, 41)
        assert list(paths.words.iterdir()) == []
        job.communicate(b"\n")


@pytest.mark.usefixtures("mounting")
def test_a_guard_with_mounts_of_its_own_takes_a_jobs_pages_away(paths: Paths) -> None:
    """As with its unit: what it unmounts stays mounted for the node, until the folder is removed."""
    pages.make(paths, 41, ["GPU-a"], UID)
    remove = (
        "import pathlib; from prolog_epilog.node.paths import Paths; from prolog_epilog.tenants import pages;"
        f" pages.remove(Paths(pathlib.Path({str(paths.root)!r})), 41)"
    )
    command = ["unshare", "--mount", "--propagation", "slave", sys.executable, "-c", remove]
    subprocess.run(command, cwd=ROOT, check=True)

    assert list(paths.words.iterdir()) == []


@pytest.mark.usefixtures("mounting")
def test_mounts_that_the_guard_would_not_see_are_taken_back(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "is_seen", lambda _folder, _pid: False)
    (mine,), lack = pages.make(paths, 41, ["GPU-a"], UID)

    assert lack == "the guard does not see what slurmd mounts"
    assert not mine.parent.is_mount()
    assert read_beats(mine) == ()


def test_a_process_is_asked_for_the_mounts_that_it_has_itself(paths: Paths) -> None:
    paths.root.mkdir(exist_ok=True)

    assert is_seen(paths.root, os.getpid())
    assert not is_seen(paths.root, 1 << 22)


def test_where_root_may_not_mount_the_guard_takes_the_blocks_away(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_folder: Path, _files: int) -> None:
        raise OSError(errno.EPERM, "cannot mount a tmpfs")

    monkeypatch.setattr(mounts, "mount_small", refused)
    (mine,), lack = pages.make(paths, 41, ["GPU-a"], UID)
    assert lack == "cannot mount a tmpfs"
    assert fill(beat_path(mine)) == 16 << 20

    assert read_beats(mine) == ()
    assert beat_path(mine).stat().st_blocks * 512 == PAGE
    pages.remove(paths, 41)
    assert list(paths.words.iterdir()) == []


def test_no_folder_of_pages_can_be_listed_by_others(paths: Paths) -> None:
    """Nor one that was there."""
    paths.words.mkdir(parents=True, mode=0o755)
    pages.make(paths, 41, ["GPU-a"], UID)

    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (paths.words, paths.word(41))] == [0o711, 0o711]
