# SPDX-License-Identifier: Apache-2.0
"""Tells whether a limit in slurmdbd could refuse a job because it lies on more nodes than it needs.

A split on more nodes holds the same GPUs, and more nodes, CPUs and memory. So a limit of any account, user or QOS that
names another TRES than GPUs or licences may refuse it, whichever user the job belongs to. sacctmgr runs beside the
planner. Until it has answered, and if it fails, a limit counts as there.
"""

import subprocess
import tempfile
from collections.abc import Callable
from typing import IO

from policy.formats.slurm_facts import Reading

LOOK_EVERY = 60.0
"""Seconds between two looks."""

_SECONDS = 30.0
"""Seconds that sacctmgr may take."""

_BOTH = "GrpTRES,GrpTRESMins,GrpTRESRunMins,MaxTRES,MaxTRESMins"
_OF_QOS = f"{_BOTH},MaxTRESPA,MaxTRESPU,MaxTRESRunMinsPA,MaxTRESRunMinsPU"
_SAME_ON_MORE_NODES = ("gres/", "license/")

Start = Callable[[list[str], IO[bytes]], "subprocess.Popen[bytes]"]


def _start(words: list[str], out: IO[bytes]) -> "subprocess.Popen[bytes]":
    nothing = subprocess.DEVNULL
    return subprocess.Popen(words, stdin=nothing, stdout=out, stderr=nothing)


class SplitLimits:
    """Reads the limits once a minute, and remembers whether one may refuse a split."""

    def __init__(self, start: Start = _start) -> None:
        self._start = start
        self._due = float("-inf")
        self._until = 0.0
        self._running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self._may_refuse = True

    def may_refuse(self, reading: Reading) -> bool:
        """Tells whether a limit may refuse a split; never waits."""
        if not reading.limits_enforced:
            return False
        if self._running and (all(one.poll() is not None for one, _ in self._running) or self._until <= reading.at):
            self._may_refuse = _bounds(self._outputs())
        if not self._running and not 0 <= self._due - reading.at <= LOOK_EVERY:
            self._look(reading)
        return self._may_refuse

    def _look(self, reading: Reading) -> None:
        self._due, self._until = reading.at + LOOK_EVERY, reading.at + _SECONDS
        associations = ("assoc", "where", f"cluster={reading.cluster}")
        for what, columns in ((("qos",), _OF_QOS), (associations, _BOTH)):
            out = tempfile.TemporaryFile()  # noqa: SIM115 - open until its process has ended
            try:
                words = ["sacctmgr", "-nP", "show", *what, f"format={columns}"]
                self._running.append((self._start(words, out), out))
            except OSError:
                out.close()
                self._may_refuse = True

    def _outputs(self) -> list[str]:
        """Returns the output of each command; empty for one that failed."""
        found = []
        for process, out in self._running:
            if process.poll() is None:
                process.kill()
                process.wait()
            out.seek(0)
            found.append("" if process.returncode else out.read().decode("utf-8", "replace"))
            out.close()
        self._running = []
        return found


def _bounds(outputs: list[str]) -> bool:
    # There is always a QOS and an association of the root account, unless they are hidden from this user.
    if len(outputs) < 2 or not all(outputs):
        return True
    limits = (word for text in outputs for line in text.splitlines() for word in line.replace("|", ",").split(","))
    return any(word and not word.startswith(_SAME_ON_MORE_NODES) for word in limits)
