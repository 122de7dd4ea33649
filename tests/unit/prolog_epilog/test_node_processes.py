# SPDX-License-Identifier: Apache-2.0
"""A process is believed to be ours only by number, start time, program and boot together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prolog_epilog.node import processes

BOOT = "boot"

LIBC_SIGNALS = 0b11 << 31
"""Signals 32 and 33 are the C library's own: whether they are ignored is inherited, and no Python can change it."""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process
        process.kill()


def await_program(pid: int, name: str) -> processes.Proven:
    until = time.monotonic() + 10
    while True:
        found = processes.prove(pid, BOOT)
        if found and found.program.endswith(name):
            return found
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_running_process_is_proven_and_a_changed_fact_denies_it(sleeper: subprocess.Popen[bytes]) -> None:
    found = await_program(sleeper.pid, "sleep")
    assert processes.alive(found, BOOT)
    assert not processes.alive(replace(found, started=found.started + 1), BOOT)
    assert not processes.alive(replace(found, program="/bin/cat"), BOOT)
    assert not processes.alive(found, "another boot")


def test_the_dead_and_the_unburied_are_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    found = await_program(sleeper.pid, "sleep")
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.alive(found, BOOT)
    sleeper.wait()
    assert processes.prove(sleeper.pid, BOOT) is None


def test_a_name_with_brackets_and_blanks_hides_nothing(tmp_path: Path) -> None:
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "60"]) as process:
        assert await_program(process.pid, "sleep").started > 0
        process.kill()


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        found = processes.prove(process.pid, BOOT)
        assert found
        assert processes.end(found, BOOT, 0.2)
        assert process.wait() == -signal.SIGKILL


def test_ending_a_process_that_is_another_one_by_now_harms_nobody(sleeper: subprocess.Popen[bytes]) -> None:
    found = await_program(sleeper.pid, "sleep")
    assert processes.end(replace(found, started=found.started - 1), BOOT, 0.2)
    assert sleeper.poll() is None
    assert processes.end(replace(found, pid=1 << 22), BOOT, 0.2)


def test_a_detached_program_has_its_own_session_and_nothing_of_ours() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pid = processes.start_detached(["/bin/sleep", "60"], {"ONLY": "this"})
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        # Proven at once: the call returns when the process has become the program.
        found = processes.prove(pid, BOOT)
        assert found
        assert found.program.endswith("sleep")
        assert os.getsid(pid) != os.getsid(0)
        assert Path(f"/proc/{pid}/environ").read_bytes() == b"ONLY=this\0"
        # The loader opens libraries for a moment.
        until = time.monotonic() + 10
        while sorted(path.name for path in Path(f"/proc/{pid}/fd").iterdir()) != ["0", "1", "2"]:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert processes.user_of(pid) == os.geteuid()
        status = Path(f"/proc/{pid}/status").read_text().split("\n")
        signals = [int(line.split()[1], 16) for line in status if line.startswith(("SigBlk", "SigIgn"))]
        assert [mask & ~LIBC_SIGNALS for mask in signals] == [0, 0]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_a_program_that_cannot_be_started_says_why() -> None:
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        processes.start_detached(["/nothing-here"], {})
    with pytest.raises(PermissionError):
        processes.start_detached(["/etc"], {})


def test_children_are_found() -> None:
    with subprocess.Popen(["/bin/sh", "-c", "/bin/sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout
        child = int(shell.stdout.readline())
        assert processes.children(shell.pid) == (child,)
        os.kill(child, signal.SIGKILL)
    assert processes.children(shell.pid) == ()
    assert processes.user_of(shell.pid) is None
