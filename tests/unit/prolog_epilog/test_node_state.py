# SPDX-License-Identifier: Apache-2.0
"""Files under /run/berth: whole or not at all, believed only where nobody else could write them, locked in time."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from prolog_epilog.errors import Busy, StateError
from prolog_epilog.failed import spool
from prolog_epilog.injob import word
from prolog_epilog.job.job import NodeJob
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.node.processes import Proven
from prolog_epilog.tenants import state
from prolog_epilog.tenants.state import SetState, Tenant

ROOT = Path(__file__).parents[3]
A, B = "GPU-a", "GPU-b"
STATE = SetState(
    boot="boot",
    uuids=(A, B),
    modes=(0, 3),
    method="ceiling",
    multi_user=False,
    daemon=Proven(10, 20, "/usr/bin/nvidia-cuda-mps-control", "boot"),
    servers=(Proven(11, 21, "/usr/bin/nvidia-cuda-mps-server", "boot"),),
    tenants=(Tenant(1, 1000, 30, 2048), Tenant(2, 1000, 50)),
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(root=tmp_path / "berth")
    files.prepare(made)
    return made


def test_state_comes_back_as_it_was_from_every_gpu_of_the_set(paths: Paths) -> None:
    state.store(paths, STATE)
    assert state.load(paths, A) == state.load(paths, B) == STATE
    assert list(state.everything(paths)) == [STATE]
    assert state.load(paths, "GPU-c") is None
    state.forget(paths, STATE.uuids)
    assert list(state.everything(paths)) == []


def test_tenants_of_an_earlier_release_are_packed_jobs_that_share_their_gpus(paths: Paths) -> None:
    state.store(paths, STATE)
    content = json.loads(paths.state(A).read_text())
    told = {"uid", "share", "mem_mib"}
    tenants = {job: {key: one[key] for key in told} for job, one in content["tenants"].items()}
    paths.state(A).write_text(json.dumps({**content, "tenants": tenants}))
    assert state.load(paths, A) == STATE


def test_a_set_written_half_is_no_set(paths: Paths) -> None:
    state.store(paths, STATE)
    paths.state(A).unlink()
    assert state.load(paths, B) is None
    # The first GPU is shared alone by now: the pointer of the second means nothing.
    state.store(paths, replace(STATE, uuids=(A,), modes=(0,)))
    assert state.load(paths, B) is None


def test_a_job_is_in_a_set_once(paths: Paths) -> None:
    again = STATE.with_tenant(Tenant(1, 1000, 60))
    assert [(tenant.job, tenant.share) for tenant in again.tenants] == [(2, 50), (1, 60)]
    assert [tenant.job for tenant in again.without(1).tenants] == [2]


def test_the_name_of_a_set_is_short_and_knows_no_order() -> None:
    assert state.set_name([A]) == A
    assert state.set_name([A, B]) == state.set_name([B, A, A])
    assert len(state.set_name([f"GPU-{i}" for i in range(16)])) < 41


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "berth-mps/9"}', '{"format": "berth-mps/1"}'])
def test_a_state_that_cannot_be_read_is_named(paths: Paths, content: str) -> None:
    files.own_folder(paths.gpu(A))
    files.write(paths.state(A), content)
    with pytest.raises(StateError, match=r"GPU-a/state.json"):
        state.load(paths, A)


def test_names_that_leave_the_folder_are_refused(paths: Paths) -> None:
    for name in ("../x", "a/b", "", "x" * 65, ".."):
        with pytest.raises(StateError):
            paths.gpu(name)


def test_a_link_in_place_of_a_file_is_neither_read_nor_followed(paths: Paths, tmp_path: Path) -> None:
    target = tmp_path / "shadow"
    target.write_text("secret")
    files.own_folder(paths.gpu(A))
    paths.state(A).symlink_to(target)
    with pytest.raises(StateError):
        state.load(paths, A)
    files.write(paths.state(A), "{}")
    assert target.read_text() == "secret"
    assert not paths.state(A).is_symlink()


def test_a_file_that_others_may_write_is_refused(paths: Paths) -> None:
    state.store(paths, STATE)
    paths.state(A).chmod(0o666)
    with pytest.raises(StateError, match="only root may change"):
        state.load(paths, A)


def test_a_huge_file_is_refused(paths: Paths) -> None:
    files.write(paths.identity, "x" * 100)
    with pytest.raises(StateError, match="larger than 50"):
        files.read(paths.identity, limit=50)


def test_a_folder_of_somebody_elses_making_is_refused(paths: Paths, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(StateError):
        files.own_folder(open_to_all)
    link = tmp_path / "link"
    link.symlink_to(paths.gpus)
    with pytest.raises(StateError):
        files.own_folder(link)


def test_a_jobs_programs_can_pass_whatever_umask_slurmd_has(tmp_path: Path) -> None:
    paths, other = Paths(root=tmp_path / "run" / "berth"), Paths(root=tmp_path / "other")
    before = os.umask(0o077)
    try:
        files.prepare(paths)
        word.create(paths.word(7), [A], os.getuid(), os.getgid())
        spool.add(other, NodeJob(7, 1000, "n1", "", (), {}), "1:0")
    finally:
        os.umask(before)
    through = (paths.jobs, paths.gpus, paths.mps, paths.words, paths.word(7))
    for folder, mode in ((paths.root, 0o755), (other.root, 0o755), *((one, 0o711) for one in through)):
        assert folder.stat().st_mode & 0o777 == mode, folder


def test_berthds_folder_is_left_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "berth"
    root.mkdir()
    root.chmod(0o750)
    files.prepare(Paths(root=root))
    assert root.stat().st_mode & 0o777 == 0o750


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a full file system")
def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        file = small / "state"
        files.write(file, "old")
        with pytest.raises(StateError, match="No space left"):
            files.write(file, "x" * 200_000)
        assert file.read_text() == "old"
        assert [path.name for path in small.iterdir()] == ["state"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_removed_folder_takes_no_link_along(paths: Paths, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    folder = paths.mps_set(A)
    folder.mkdir()
    (folder / "link").symlink_to(elsewhere)
    files.remove_folder(folder)
    files.remove_folder(folder)
    assert (elsewhere / "kept").exists()
    assert not folder.exists()


def test_only_the_named_users_may_pass() -> None:
    # Not below pytest's own folder, which other users cannot pass.
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        Path(top).chmod(0o711)
        folder = Path(top, "pipe")
        folder.mkdir(0o700)
        (folder / "control").touch(0o666)
        if not files.grant(folder, [1000, 1002]):
            pytest.skip("this file system keeps no access lists")
        files.grant(folder, [1000, 1001])
        assert folder.stat().st_mode & 0o007 == 0
        if os.geteuid() == 0:
            look = ["/usr/bin/test", "-e", str(folder / "control")]
            reached = {uid: not subprocess.run(look, user=uid, check=False).returncode for uid in (1000, 1001, 1002)}
            assert reached == {1000: True, 1001: True, 1002: False}


def test_without_access_lists_everybody_passes_and_nobody_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    assert not files.grant(tmp_path, [1000])
    assert tmp_path.stat().st_mode & 0o777 == 0o711


def test_a_held_lock_is_waited_for_in_time(paths: Paths) -> None:
    with files.locked(paths, [A, B], 1):
        start = time.monotonic()
        with pytest.raises(Busy, match=B), files.locked(paths, [B], 0.1):
            pass
        assert 0.1 <= time.monotonic() - start < 20
    with files.locked(paths, [B], 0.1):
        pass


def test_the_folder_goes_with_its_last_holder_and_locks_still_exclude(paths: Paths) -> None:
    with state.held(paths, [A], 1):
        pass
    assert not paths.gpu(A).exists()
    with state.held(paths, [A], 1):
        state.store(paths, replace(STATE, uuids=(A,), modes=(0,)))
    assert paths.lock(A).exists()


def test_what_was_written_half_goes_with_the_folder(paths: Paths) -> None:
    files.own_folder(paths.gpu(A), files.THROUGH)
    (paths.gpu(A) / ".state.json.4711").write_text("{")
    assert state.abandoned(paths) == [A]
    with state.held(paths, [A], 1):
        pass
    assert state.abandoned(paths) == []
    assert list(paths.gpus.iterdir()) == []


def test_a_lock_whose_file_is_removed_again_and_again_still_excludes(paths: Paths, tmp_path: Path) -> None:
    """Many processes count in a file under a lock that each removes at its end."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    code = f"""
from pathlib import Path
from prolog_epilog.tenants import state
from prolog_epilog.node.paths import Paths
paths, counter = Paths(root=Path({str(paths.root)!r})), Path({str(counter)!r})
for _ in range(12):
    with state.held(paths, ["GPU-a"], 60):
        counter.write_text(str(int(counter.read_text()) + 1))
"""
    workers = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(4)]
    assert [worker.wait(60) for worker in workers] == [0] * 4
    assert counter.read_text() == "48"
