# SPDX-License-Identifier: Apache-2.0
"""Whether the program's main thread moves between two steps, as the hooks' watching thread sees it; without PyTorch."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from prolog_epilog.injob import torch_hooks
from prolog_epilog.injob.torch_hooks import LATE_S, Hooks
from prolog_epilog.injob.word import AT, MOVED


class Watched:
    """Hooks that look at this program; the last step ended so many seconds ago."""

    def __init__(self, since: float) -> None:
        self.numbers = [0] * 32
        self.numbers[AT] = time.monotonic_ns() - round(since * 1e9)
        self.job: Any = SimpleNamespace(place=SimpleNamespace(numbers=self.numbers))
        # Only what looks at the program is needed, not PyTorch.
        self.hooks: Any = Hooks.__new__(Hooks)
        self.hooks._place = None

    def looks(self, times: int = 5) -> int:
        """Looks from another thread while this one waits at one place."""

        def look() -> None:
            for _ in range(times):
                self.hooks._note_moves(self.job)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return self.numbers[MOVED]


def test_nothing_is_looked_at_while_steps_come_in_time() -> None:
    assert Watched(LATE_S / 2).looks() == 0


def test_a_program_that_waits_at_one_place_does_not_move() -> None:
    assert Watched(2 * LATE_S).looks() in {1, 2}, "it may be on its way to that place"


def test_a_program_that_goes_on_moves() -> None:
    watched, here, main = Watched(2 * LATE_S), sys._getframe(), threading.main_thread().ident or 0
    watched.looks(1)
    looked = threading.Lock()
    looked.acquire()

    def look() -> None:
        while sys._current_frames()[main] is not here:
            time.sleep(0.001)
        watched.hooks._note_moves(watched.job)
        looked.release()

    threading.Thread(target=look).start()
    looked.acquire()

    assert watched.numbers[MOVED] == 2


def test_a_debugger_moves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, next(iter(torch_hooks.ATTENDED)), SimpleNamespace())

    assert Watched(2 * LATE_S).looks(9) == 9


def test_before_its_first_step_there_is_no_slot() -> None:
    Watched(2 * LATE_S).hooks._note_moves(SimpleNamespace(place=None))
