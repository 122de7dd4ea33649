# SPDX-License-Identifier: Apache-2.0
"""An optional process of berthd's: started with berthd, started again if it ends, and ended with berthd."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress

from policy.site import log


class Child:
    """One such process; when berthd is gone, its standard input ends."""

    def __init__(self, name: str, command: Sequence[str], again_after: float = 30.0) -> None:
        self._name = name
        self._command = command
        self._again_after = again_after
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0

    def tend(self, now: float) -> None:
        """Starts the process if it does not run; never waits for it."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._let_go(self._process)
            self._start_at = now + self._again_after
            log.error(f"{self._name} ended with {code}; it is started again in {self._again_after:.0f} s", 653)
        if self._process is None and now >= self._start_at:
            try:
                self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)
            except OSError as problem:
                self._start_at = now + self._again_after
                log.error(f"{self._name} cannot be started: {problem.strerror}", 653)

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            process = self._process
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(2)
            self._let_go(process)

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            process.stdin.close()
        self._process = None
