# SPDX-License-Identifier: Apache-2.0
"""Virtual time for berthd's modules: none of them reads the machine's clock, and none waits."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from policy.daemon.write import asked
from tests.world.cluster import EPOCH

_MEMORY = "/dev/shm"


def folder_in_memory(name: str) -> Path:
    """A new folder that costs no disk anything, where the machine has one."""
    return Path(tempfile.mkdtemp(prefix=name, dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))


class VirtualTime:
    """Stands in a module for `time`."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.offset = EPOCH
        """The wall clock's, which an admin or ntpd may set."""
        self.per_look = 0.0
        """Seconds that each look at the monotonic clock takes: a slow machine."""

    def time(self) -> float:
        return self.offset + self.passed

    def monotonic(self) -> float:
        self.passed += self.per_look
        return self.passed

    def thread_time(self) -> float:
        return 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Replaced:
    """Attributes of modules that are others for a while."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, object]] = []

    @property
    def count(self) -> int:
        """Returns how many are others now."""
        return len(self._before)

    def set(self, module: Any, name: str, value: object) -> None:
        self._before.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def set_time(self, virtual: VirtualTime) -> None:
        """Give every module of `policy` that is loaded the virtual clock; no program can set a file's ctime."""
        self.set(asked, "_left_at", lambda mark: mark.stat().st_mtime)
        for name, module in list(sys.modules.items()):
            if name.startswith("policy.") and getattr(module, "time", None) is time:
                self.set(module, "time", virtual)

    def undo(self) -> None:
        for module, name, value in reversed(self._before):
            setattr(module, name, value)
        self._before.clear()
