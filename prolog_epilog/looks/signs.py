# SPDX-License-Identifier: Apache-2.0
"""Signs of life of the processes of a job, from /proc: work of a processor, bytes read and written, a debugger."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_LISTENS = "0A"


class ProcessSigns(NamedTuple):
    """The work of a process since it began, with the children that it has reaped."""

    cpu_s: float
    moved: int
    """Bytes that it read and wrote, pipes included."""
    attended: bool
    """True if it has a terminal, a debugger, or was stopped: a person is at work on it."""


def signs_of(pid: int) -> ProcessSigns | None:
    """Returns the signs of a process; None if it is gone."""
    folder = PROC / str(pid)
    try:
        fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        values = dict(line.split(":", 1) for line in (folder / "io").read_text(encoding="ascii").splitlines())
        status = (folder / "status").read_text(encoding="utf-8", errors="replace")
        traced = "\nTracerPid:\t0\n" not in status
        cpu = sum(map(int, fields[11:15])) / _TICKS
        attended = traced or fields[0] in "tT" or fields[4] != "0"
        return ProcessSigns(cpu, int(values["rchar"]) + int(values["wchar"]), attended)
    except (OSError, ValueError, IndexError, KeyError):
        return None


def serves(pids: Iterable[int]) -> bool:
    """Tells whether one of these processes waits for connections, as a service or a notebook does.

    The sockets of a network namespace are read once, as thousands may be listed there.
    """
    listening: dict[int, set[str]] = {}
    for pid in pids:
        with suppress(OSError):
            space = (PROC / f"{pid}/ns/net").stat().st_ino
            if space not in listening:
                listening[space] = _listening(pid)
            found = listening[space]
            if found and any(str(one.readlink()) in found for one in (PROC / f"{pid}/fd").iterdir()):
                return True
    return False


def _listening(pid: int) -> set[str]:
    """Returns the sockets of a process's network namespace that wait for connections, as its descriptors name them."""
    lines = [line for kind in ("tcp", "tcp6") for line in (PROC / f"{pid}/net/{kind}").read_text().splitlines()]
    return {f"socket:[{row[9]}]" for row in map(str.split, lines) if len(row) > 9 and row[3] == _LISTENS}
