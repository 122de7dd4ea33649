# SPDX-License-Identifier: Apache-2.0
"""The current scores: the calibrated table, refreshed by the step times of jobs, in a file beside their record.

The calibrated table itself stays as it is, so that no report counts twice. The arithmetic may take long on a large
cluster, so the planner leaves it to a program of the lowest priority, once an hour if the record has changed.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from policy.site import log
from policy.site.step_records import place_of

_EVERY_S = 3_600.0
_COMMAND = (sys.executable, "-m", "policy.cli.main", "scores", "refresh")


def table_now(calibrated: Path, steps: Path | None) -> Path:
    """Returns the table to plan with: the one beside the record, unless the calibrated one is newer."""
    if steps is not None:
        now = place_of(steps)
        with suppress(OSError):
            if now.stat().st_mtime_ns >= calibrated.stat().st_mtime_ns:
                return now
    return calibrated


class ScoresNow:
    """Starts the program when it is due, and logs if it failed; one that still runs an hour later is killed."""

    def __init__(self, steps: Path | None, scores: Path | None, command: tuple[str, ...] = _COMMAND) -> None:
        self._steps = steps if scores is not None else None
        self._command = ["nice", "-n", "19", *command, str(scores), "--steps", str(steps)]
        self._next = 0.0
        self._seen: tuple[int, int] | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def step(self, at: float) -> None:
        """Does what is due; called in each pass. `at` is in seconds since 1970."""
        if self._child is not None and (code := self._child.poll()) is not None:
            if code:
                log.error(f"berth scores refresh ended with status {code}; the scores stay as they are", 637)
            self._child = None
        if self._steps is None or at < self._next:
            return
        if self._child is not None:
            self._child.kill()  # an hour is more than it needs; the next pass finds it ended
            return
        self._next = at + _EVERY_S
        try:
            status = self._steps.stat()
        except OSError:
            return
        seen = status.st_ino, status.st_size
        if seen == self._seen:
            return
        self._seen = seen
        try:
            # Linear algebra takes all cores unless it is told to take fewer.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, env=environment)
        except OSError as problem:
            log.error(f"berth scores refresh cannot be started: {problem.strerror}; the scores stay as they are", 637)
