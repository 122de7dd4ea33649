"""Shows the progress of a long study: a bar on a terminal, or a line now and then in a log.

Short studies show nothing.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

_PATIENCE_S = 2.0
_LINE_EVERY_S, _BAR_EVERY_S = 30.0, 0.5
_BAR = 30
_MINUTE = 60


class RunProgress:
    """Shows on standard error how many runs are done, also while one run takes long."""

    def __init__(self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._stream, self._clock = total, stream or sys.stderr, clock
        self._done = 0
        self._done_at = 0.0
        self._begin = clock()
        self._tty = self._stream.isatty()
        self._drawn = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def tick(self, done: int) -> None:
        """Takes the number of runs that are done."""
        self._done, self._done_at = done, self._clock() - self._begin

    def _watch(self) -> None:
        pause = _PATIENCE_S if self._tty else _LINE_EVERY_S
        while not self._over.wait(pause):
            self.show()
            pause = _BAR_EVERY_S if self._tty else _LINE_EVERY_S

    def show(self) -> None:
        """Draws the bar, or writes a line."""
        done = self._done
        spent = self._clock() - self._begin
        left = self._done_at / done * (self._total - done) - (spent - self._done_at) if done else 0.0
        rest = f", about {_span(left)} left" if left > 0 else ""
        text = f"{done} of {self._total} run{'s' * (self._total > 1)} done in {_span(spent)}{rest}"
        if self._tty:
            full = _BAR * done // self._total
            self._stream.write(f"\r\x1b[K[{'#' * full}{'.' * (_BAR - full)}] {text}")
            self._drawn = True
        else:
            self._stream.write(f"berth simulate: {text}\n")
        self._stream.flush()


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), _MINUTE)
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
