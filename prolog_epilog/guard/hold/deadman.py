# SPDX-License-Identifier: Apache-2.0
"""The guard's dead-man: a process that thaws what the guard froze, once the guard is gone or hangs. It does no more.

It is forked before the guard opens the driver. When the guard ends, for whatever reason, the pipe between them closes.
A guard that hangs does not renew its leases.
"""

import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog.errors import NodeError
from prolog_epilog.node import freezer
from prolog_epilog.node.paths import Paths

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class DeadMan:
    """The dead-man's process, and the end of the pipe that the guard must keep open."""

    pid: int
    pipe: int

    def lives(self) -> bool:
        """Tells whether the process still watches; a dead one is reaped."""
        with suppress(ChildProcessError):
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        return False

    def dismiss(self) -> None:
        """Lets the dead-man thaw everything and end."""
        os.close(self.pipe)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start(paths: Paths, root: Path = freezer.ROOT) -> DeadMan:
    """Forks the dead-man; call this before there are threads."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(writing)
            _watch(paths, root, reading)
        finally:
            os._exit(0)
    os.close(reading)
    return DeadMan(pid, writing)


def _watch(paths: Paths, root: Path, pipe: int) -> None:
    # The signals that end the guard must not end this process: the guard ends first, then this.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.setsid()
    gone = False
    while not gone:
        gone = bool(select.select([pipe], [], [], _LOOK_SECONDS)[0])
        with suppress(OSError, NodeError):
            freezer.thaw_expired(paths, root, every=gone)
