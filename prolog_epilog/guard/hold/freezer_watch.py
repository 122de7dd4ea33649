# SPDX-License-Identifier: Apache-2.0
"""Watches for thaws of guests by others than the guard: Slurm thaws a job each time before it sends SIGTERM to end it.

Nothing else on the node shows that Slurm ends a job, and a guest that ignores SIGTERM does not show it either. Slurm
first writes to the freezer of each of the job's steps. The kernel (inotify) reports that write here, at no cost in
between. It is only a hint: a user's own SIGCONT looks the same, so the caller asks Slurm.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prolog_epilog.node import cgroups, freezer

_MODIFY = 0x2  # IN_MODIFY
_GONE = 0x8000  # IN_IGNORED
_HEAD = struct.Struct("iIII")
_BYTES = 65_536


class FreezerWatch:
    """Watches the freezers of the steps of some jobs."""

    def __init__(self, root: Path = freezer.ROOT) -> None:
        self._root = root
        self.hears_us = cgroups.version(root) != "v2"
        """True if the guard's own freezing is reported too: in v1 Slurm and the guard write to the same files."""
        self._kernel = ctypes.CDLL(None, use_errno=True)
        # Without inotify only KillWait bounds what Slurm ends; the guard's own ends do not need it.
        self._handle: int = self._kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._jobs: dict[int, int] = {}
        self._watched: set[Path] = set()
        self._heeded: set[int] = set()
        """The jobs of the watched steps."""

    def watch(self, jobs: Iterable[int]) -> set[int]:
        """Watches these jobs; call it again and again, since steps come and go.

        Returns the jobs of which nothing was watched before: writes to their freezers until now were not seen.
        """
        if self._handle < 0:
            return set()
        before = self._heeded
        self._heeded = set()
        now: set[Path] = set()
        for job in jobs:
            for path in freezer.switches(job, self._root):
                now.add(path)
                self._heeded.add(job)
                if path not in self._watched:
                    mark = self._kernel.inotify_add_watch(self._handle, os.fsencode(path), _MODIFY)
                    if mark >= 0:
                        self._jobs[mark] = job
        # The kernel has removed the watches of files that are gone.
        self._watched = now
        return self._heeded - before

    def heard(self) -> set[int]:
        """Returns the jobs of which a step was thawed or frozen since the last call."""
        found: set[int] = set()
        if self._handle < 0:
            return found
        with suppress(BlockingIOError):
            while True:
                data = os.read(self._handle, _BYTES)
                place = 0
                while place < len(data):
                    mark, mask, _, length = _HEAD.unpack_from(data, place)
                    place += _HEAD.size + length
                    if mask & _GONE:
                        self._jobs.pop(mark, None)
                    elif mark in self._jobs:
                        found.add(self._jobs[mark])
        return found

    def close(self) -> None:
        """Stops watching."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
