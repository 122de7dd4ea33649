# SPDX-License-Identifier: Apache-2.0
"""Programs that Berth's own run on a node: each is waited for, and for no longer than it may take."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from prolog_epilog.errors import TookTooLong
from prolog_epilog.node import children
from tests.waiting import until


def test_its_end_is_seen_where_another_thread_took_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the driver's, say, blocks no signal: the kernel gives it SIGCHLD, which then is gone."""
    real, asked = os.waitpid, 0

    def ends_just_after(pid: int, options: int) -> tuple[int, int]:
        nonlocal asked
        asked += 1
        if asked == 1:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            until("the signal to be taken", lambda: signal.SIGCHLD not in signal.sigpending(), every=0.01)
            return 0, 0
        return real(pid, options)

    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        monkeypatch.setattr(os, "waitpid", ends_just_after)
        assert children.run(["/bin/true"], children.CLEAN, 20.0).code == 0
    finally:
        over.set()
        other.join()


def test_one_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(TookTooLong, match=r"did not end within 0\.1 s"):
        children.run(["/bin/sleep", "60"], children.CLEAN, 0.1)
    assert time.monotonic() - began < 30.0


TWO_WRITERS = "write() { for i in 1 2 3 4 5 6 7 8 9; do for j in 1 2 3 4 5 6 7 8 9; do echo $1; done; done; }"


def test_what_two_of_its_processes_write_at_once_is_kept() -> None:
    script = f"{TWO_WRITERS}; for n in 1 2 3 4 5 6 7 8 9; do write out & write err >&2 & done; wait"
    end = children.run(["/bin/sh", "-c", script], children.CLEAN, 60.0, capture=True)
    assert sorted(end.output.split()) == ["err"] * 729 + ["out"] * 729
