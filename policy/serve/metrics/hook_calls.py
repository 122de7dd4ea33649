# SPDX-License-Identifier: Apache-2.0
"""Counts the calls of the job_submit plugin by reading its hook log (docs/develop/formats.md, section 6) as it grows.

The log has slurmctld's view: also the calls that berthd never got, or answered too late.
"""

import contextlib
import os
from pathlib import Path

from policy.site.metrics_state import Histogram

OUTCOMES = ("place", "later", "pass", "refuse", "dead", "timeout", "bad", "open", "large")
"""Outcomes in the hook log; from `dead` on the job goes on without Berth, or is refused by `fail = closed`."""

BOUNDS = (0.000_25, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25)
"""The histogram's bounds in seconds; the plugin's deadline is 0.05 s unless the site sets another."""

_MOST_AT_ONCE = 1 << 20
"""Bytes that are read at a time, each half second."""


class HookCalls:
    """The calls since this process started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._place = 0
        self._rest = b""
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.took = Histogram(BOUNDS)
        # Calls before this process are left out: a log may have grown for months.
        self._open(at_its_end=True)

    def look(self) -> None:
        """Counts the lines that came since the last look; follows a log that was cut or replaced.

        A log that cannot be read is closed and opened again: a look must not end the server that takes it.
        """
        try:
            self._look()
        except OSError:
            self.close()

    def _look(self) -> None:
        if self._file < 0:
            self._open(at_its_end=False)
        if self._file < 0:
            return
        here = os.fstat(self._file)
        if here.st_size < self._place:
            self._place, self._rest = 0, b""
        data = os.pread(self._file, _MOST_AT_ONCE, self._place)
        self._place += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._count(line)
        if not data and self._is_replaced(here.st_ino):
            self.close()

    def close(self) -> None:
        """Closes the log."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._place, self._rest = -1, 0, b""

    def _open(self, *, at_its_end: bool) -> None:
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._place = os.fstat(self._file).st_size if at_its_end else 0

    def _count(self, line: bytes) -> None:
        words = line.split(b"\t")
        # Other lines come from another release.
        if len(words) >= 3 and words[1].isdigit() and (outcome := words[2].decode("ascii", "replace")) in self.outcomes:
            self.outcomes[outcome] += 1
            self.took.observe(int(words[1]) / 1_000_000)

    def _is_replaced(self, inode: int) -> bool:
        try:
            return self._path.stat().st_ino != inode
        except OSError:
            return False  # the plugin may still write into the file that was moved away
