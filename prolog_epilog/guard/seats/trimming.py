# SPDX-License-Identifier: Apache-2.0
"""Keeps MPS's logs small, and reads them as they grow.

They lie in memory (/run), and a daemon that serves jobs for months begins no new ones. To ask its control program
instead would start a process each time.
"""

import ctypes
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from prolog_epilog.node import processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants.state import SetState

MOST_BYTES = 8 << 20
"""The most bytes that one log may take."""
KEPT_BYTES = 1 << 20
"""The bytes of its end that are kept when it is trimmed."""

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_BLOCK = 512


def trim(one: SetState, paths: Paths) -> list[str]:
    """Frees the room of the oldest lines of a set's logs; returns a sentence for each log that stays too large.

    A hole takes their place. MPS writes on where it was, no line of the end is lost, and readers of the growing log
    need not know of it.
    """
    told = []
    for log in paths.log(one.name).rglob("*.log"):
        with suppress(FileNotFoundError):
            problem = _trim(log)
            if problem:
                told.append(f"{log} grows without end ({problem}); end the jobs on {one.uuids[0]} when you can")
    return told


def _trim(log: Path) -> str:
    """Trims one log; returns the error, or an empty text."""
    try:
        file = os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as problem:
        return problem.strerror or str(problem)
    try:
        status = os.fstat(file)
        # The file's size says little once there are holes in it, so count its blocks.
        if status.st_blocks * _BLOCK <= MOST_BYTES:
            return ""
        old = (status.st_size - KEPT_BYTES) // 4096 * 4096
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(old))
        return os.strerror(ctypes.get_errno()) if failed else ""
    finally:
        os.close(file)


_FAULT = re.compile(rb"(?<!de)fault|illegal|fatal|exception", re.IGNORECASE)
_MOST = 65_536


@dataclass(slots=True)
class Logs:
    """The position up to which each log was read."""

    read: dict[Path, int] = field(default_factory=dict)

    def hints_at_fault(self, one: SetState, paths: Paths, boot: str) -> bool:
        """Tells whether MPS should be asked for its state: its daemon is gone, or a log hints at a new fault."""
        if one.daemon is not None and not processes.alive(one.daemon, boot):
            return True
        try:
            hints = [self._hints(log) for log in paths.log(one.name).glob("*.log")]
        except OSError:
            # The last tenant's Epilog removes the folder at this moment.
            return False
        return any(hints)

    def _hints(self, path: Path) -> bool:
        with suppress(OSError):
            size, known = path.stat().st_size, self.read.get(path, 0)
            self.read[path] = size
            if size == known:
                return False
            with path.open("rb") as file:
                file.seek(max(known if known < size else 0, size - _MOST))
                return _FAULT.search(file.read(_MOST)) is not None
        return False
