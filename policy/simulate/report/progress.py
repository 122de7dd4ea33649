# SPDX-License-Identifier: Apache-2.0
"""Prints how far a long study is: a line every half minute. A short study prints nothing."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

_EVERY_S = 30.0
_MINUTE = 60


class RunProgress:
    """Prints on standard error the number of runs that are done, also while one run takes long."""

    def __init__(self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._stream, self._clock = total, stream or sys.stderr, clock
        self._done = 0
        self._done_at = 0.0
        self._begin = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def tick(self, done: int) -> None:
        """Takes the number of runs that are done."""
        self._done, self._done_at = done, self._clock() - self._begin

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.show()

    def show(self) -> None:
        """Writes a line."""
        done = self._done
        spent = self._clock() - self._begin
        left = self._done_at / done * (self._total - done) - (spent - self._done_at) if done else 0.0
        rest = f", about {_span(left)} left" if left > 0 else ""
        self._stream.write(
            f"berth simulate: {done} of {self._total} run{'s' * (self._total > 1)} done in {_span(spent)}{rest}\n"
        )
        self._stream.flush()


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), _MINUTE)
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
