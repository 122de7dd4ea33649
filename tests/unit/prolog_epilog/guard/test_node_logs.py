# SPDX-License-Identifier: Apache-2.0
"""The node's logs: whole lines from many writers, and never more room than a bound."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from prolog_epilog.guard.seats import trimming
from prolog_epilog.guard.seats.trimming import Logs
from prolog_epilog.mps.trouble import causes
from prolog_epilog.node import files, logfile
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants.state import SetState, store

ONE = SetState("boot", ("GPU-1",), (0,), "ceiling", multi_user=False)
LINE = b"[2026-11-22 05:00:00.000 Server 80] " + b"x" * 63 + b"\n"


def test_lines_of_many_writers_are_whole_and_take_no_more_than_the_bound_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "MOST_BYTES", 4_000)
    log = tmp_path / "log"

    def write(number: int) -> None:
        for count in range(200):
            logfile.append(str(log), f"{number}\t{count}\t" + "y" * 40)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    # The very last line may have turned it.
    assert {path.name for path in tmp_path.iterdir()} | {"log"} == {"log", "log.1"}
    for path in tmp_path.iterdir():
        # While one turns it the others write on; it was far more that they wrote.
        assert path.stat().st_size <= 4 * 4_000
        assert all(line.endswith("y" * 40) for line in path.read_text().splitlines())
        assert path.stat().st_mode & 0o777 == 0o640


def test_a_program_with_signs_that_are_no_text_is_logged_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "log"
    logfile.append(str(log), "a\udcffb")
    assert log.read_text() == "a\\udcffb\n"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setattr(trimming, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(trimming, "KEPT_BYTES", 64 << 10)
    made = Paths(tmp_path / "run")
    files.prepare(made)
    store(made, ONE)
    made.log(ONE.name).mkdir(parents=True)
    return made


def room(log: Path) -> int:
    return log.stat().st_blocks * 512


@pytest.mark.parametrize("appends", [True, False])
def test_a_log_of_mps_gives_its_oldest_room_back_and_is_read_on(paths: Paths, appends: bool) -> None:
    log = paths.log(ONE.name) / "server.log"
    logs, cause = Logs(), LINE.partition(b"x")[0] + b"Client {PID: 4711, Context: 1} encountered a fatal GPU error.\n"
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if appends else 0)
    # As MPS holds it: open for as long as it runs.
    writer = os.open(log, flags, 0o600)
    try:
        for _ in range(5):
            os.write(writer, LINE * 15_000)
            logs.hints_at_fault(ONE, paths, "boot")
            assert trimming.trim(ONE, paths) == []
            assert room(log) < 1 << 20
            tail = log.read_bytes()[-len(LINE) * 10 :]
            assert tail == LINE * 10
        os.write(writer, cause)
        trimming.trim(ONE, paths)
        assert logs.hints_at_fault(ONE, paths, "boot")
        assert causes(paths, "GPU-1") == (4_711,)
        assert not logs.hints_at_fault(ONE, paths, "boot")
    finally:
        os.close(writer)


def test_a_small_log_is_left_alone_and_a_link_is_not_followed(paths: Paths, tmp_path: Path) -> None:
    small, elsewhere = paths.log(ONE.name) / "control.log", tmp_path / "elsewhere"
    small.write_bytes(LINE * 100)
    elsewhere.write_bytes(LINE * 20_000)
    (paths.log(ONE.name) / "server.log").symlink_to(elsewhere)

    [said] = trimming.trim(ONE, paths)

    assert "server.log grows without end (Too many levels of symbolic links)" in said
    assert small.read_bytes() == LINE * 100
    assert elsewhere.read_bytes() == LINE * 20_000


def test_a_file_system_that_cannot_is_named(paths: Paths) -> None:
    log = paths.log(ONE.name) / "server.log"
    log.write_bytes(LINE * 20_000)
    # As of a file system without holes.
    code = (
        "import ctypes, sys\n"
        "from prolog_epilog.guard.seats import trimming\n"
        "class Libc:\n"
        "    def fallocate(self, *_):\n"
        "        ctypes.set_errno(95)\n"
        "        return -1\n"
        "trimming.MOST_BYTES, trimming.KEPT_BYTES = 1 << 20, 1 << 16\n"
        "trimming.ctypes.CDLL = lambda *_, **__: Libc()\n"
        "from pathlib import Path\n"
        "print(trimming._trim(Path(sys.argv[1])))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Operation not supported"
    assert log.stat().st_size == len(LINE) * 20_000
