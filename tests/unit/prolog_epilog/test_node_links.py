# SPDX-License-Identifier: Apache-2.0
"""Links and pipes where root writes: nothing is followed, nothing is waited for, and what they point at stays as it is.

Users can write in none of Berth's folders; a site may let others write where [node] log and [guard] metrics lie, and on
a controller /run/berth itself is Slurm's user's. (berth-notice's log: test_berth_notice.py.)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prolog_epilog.errors import NodeError, StateError
from prolog_epilog.guard.seats import metrics
from prolog_epilog.here import Here
from prolog_epilog.job.slurm import Scontrol
from prolog_epilog.node import files, freezer, logfile
from prolog_epilog.node.devices import NodeGpu
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.sharing import tenancy, time_slices
from prolog_epilog.tenants import arrivals, quarantine, share_file
from prolog_epilog.tenants.arrivals import Arrival
from prolog_epilog.tenants.share_file import ShareRecord
from prolog_epilog.tenants.state import Tenant

CONTENT = "root's\n"
SHARE = ShareRecord(7, os.geteuid(), gpus=(1,), minors=(1,), uuids=("GPU-1",), tier="guaranteed", way="time", node="n1")


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """A folder of root's with a file, elsewhere."""
    folder = tmp_path / "treasure"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text(CONTENT)
    return folder


def untouched(treasure: Path) -> bool:
    return [(one.name, one.read_text()) for one in treasure.iterdir()] == [
        ("secret", CONTENT)
    ] and treasure.stat().st_mode & 0o777 == 0o700


def words_of(paths: Paths) -> None:
    here = Here(NodeConfig(), Scontrol(), lambda _: None, str(paths.root))
    if not tenancy._with_words(here, SHARE, {}).word:
        raise StateError("the job has no word")


WRITERS: dict[str, Callable[[Paths], object]] = {
    "jobs": lambda paths: share_file.write(paths, SHARE),
    "gpus": lambda paths: time_slices.attach(paths, [NodeGpu(1, 1, "GPU-1")], Tenant(7, 1000, 30)),
    "mps": files.prepare,
    "words": words_of,
    "frozen": lambda paths: freezer.lease(paths, 7),
    "arrivals": lambda paths: arrivals.announce(paths, Arrival(7, ("GPU-1",), planned=True)),
    "culprits": lambda paths: quarantine.set_apart(paths, 1000),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_in_place_of_one_of_our_folders_is_refused(tmp_path: Path, treasure: Path, name: str) -> None:
    paths = Paths(tmp_path / "run")
    files.prepare(paths)
    folder = paths.root / name
    if folder.is_dir():
        folder.rmdir()
    folder.symlink_to(treasure)

    with pytest.raises(NodeError):
        WRITERS[name](paths)

    assert untouched(treasure)
    assert folder.is_symlink()


def test_a_link_in_place_of_the_log_is_not_followed(tmp_path: Path, treasure: Path) -> None:
    log = tmp_path / "log"
    log.symlink_to(treasure / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        logfile.append(str(log), "a line")
    log.unlink()
    log.symlink_to(treasure / "new")
    with pytest.raises(OSError, match="symbolic links"):
        logfile.append(str(log), "a line")

    assert untouched(treasure)


def test_a_pipe_that_nobody_reads_in_place_of_the_log_holds_nothing_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)
    with pytest.raises(OSError, match="No such device"):
        logfile.append(str(log), "a line")
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="not a plain file"):
            logfile.append(str(log), "a line")
        assert os.read(reader, 10) == b""
    finally:
        os.close(reader)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_in_the_way_of_the_older_log_is_replaced_and_not_followed(
    tmp_path: Path, treasure: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(logfile, "MOST_BYTES", 20)
    log = tmp_path / "log"
    log.write_text("x" * 30 + "\n")
    if is_there:
        (tmp_path / "log.1").symlink_to(treasure / "secret")
    logfile.append(str(log), "the last of the old one")
    logfile.append(str(log), "the first of the new one")

    assert (tmp_path / "log.1").read_text().endswith("the last of the old one\n")
    assert log.read_text() == "the first of the new one\n"
    assert untouched(treasure)


@pytest.mark.parametrize("name", ["berth.prom", ".berth.prom.{pid}", "berth.prom.{pid}.tmp"])
def test_a_link_beside_the_metrics_is_replaced_and_not_followed(tmp_path: Path, treasure: Path, name: str) -> None:
    (tmp_path / name.format(pid=os.getpid())).symlink_to(treasure / "secret")
    path = tmp_path / "berth.prom"

    assert metrics.write(str(path), [], {(1, "GPU-1", "audit"): 1}, 0.05) == ""

    assert untouched(treasure)
    assert not path.is_symlink()
    assert "berth_guard_shares" in path.read_text()


def test_a_word_whose_page_is_a_link_is_made_anew(tmp_path: Path, treasure: Path) -> None:
    paths = Paths(tmp_path / "run")
    files.prepare(paths)
    words_of(paths)
    for page in paths.word(7).iterdir():
        page.unlink()
        page.symlink_to(treasure / "secret")

    words_of(paths)

    assert untouched(treasure)
    assert not any(page.is_symlink() for page in paths.word(7).iterdir())


def test_a_link_in_place_of_a_share_file_is_neither_read_nor_written(tmp_path: Path, treasure: Path) -> None:
    paths = Paths(tmp_path / "run")
    files.prepare(paths)
    paths.job(7).symlink_to(treasure / "secret")

    with pytest.raises(NodeError):
        share_file.read(paths, 7)
    share_file.write(paths, replace(SHARE, word=""))

    assert untouched(treasure)
    assert share_file.read(paths, 7) == SHARE
