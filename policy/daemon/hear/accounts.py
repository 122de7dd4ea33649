# SPDX-License-Identifier: Apache-2.0
"""Writes the causes of failures into Slurm's accounting: only slurmdbd changes a job that has ended.

The planner does not wait for slurmdbd: sacctmgr runs beside it, and is killed if it takes too long.
"""

import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from policy.site import log

AFTER = 5.0
"""Seconds to wait before a job is written: by then slurmdbd has the job's end from slurmctld."""

_AT_ONCE = 4
_MOST_WAITING = 1_000
_SECONDS = 30.0

Start = Callable[[list[str]], "subprocess.Popen[bytes]"]


@dataclass(slots=True)
class _Note:
    due: float
    job_id: int
    words: list[str]


def _start(words: list[str]) -> "subprocess.Popen[bytes]":
    nothing = subprocess.DEVNULL
    return subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing)


class Accounts:
    """The texts that wait to be written; a few sacctmgr run at a time."""

    def __init__(self, start: Start = _start) -> None:
        self._start = start
        self._waiting: deque[_Note] = deque(maxlen=_MOST_WAITING)
        self._running: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._said = False

    def note(self, job_id: int, admin_comment: str, config: Mapping[str, str], at: float) -> None:
        """Has a job's text written, if the site has accounting."""
        if not config.get("AccountingStorageType", "").endswith("slurmdbd"):
            return
        cluster = config.get("ClusterName", "")
        words = ["sacctmgr", "-i", "-Q", "modify", "job", "where", f"jobid={job_id}", f"cluster={cluster}"]
        earlier = [one for one in self._waiting if one.job_id == job_id]
        for one in earlier:
            self._waiting.remove(one)
        self._waiting.append(_Note(at + AFTER, job_id, [*words, "set", f"AdminComment={admin_comment}"]))

    def tend(self, at: float) -> None:
        """Starts sacctmgr for the texts that are due, and kills each one that takes too long."""
        left = []
        for until, process in self._running:
            if process.poll() is None and at < until:
                left.append((until, process))
                continue
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.returncode and not self._said:
                self._said = True
                log.error("sacctmgr cannot write causes of failures into the accounting; is SlurmUser its admin?", 625)
        self._running = left
        while self._waiting and self._waiting[0].due <= at and len(self._running) < _AT_ONCE:
            words = self._waiting.popleft().words
            try:
                self._running.append((at + _SECONDS, self._start(words)))
            except OSError as problem:
                log.error(
                    f"sacctmgr cannot be run: {problem.strerror}; causes of failures are not in the accounting", 625
                )
                self._waiting.clear()
