# SPDX-License-Identifier: Apache-2.0
"""Keeps the evidence of an MPS fault for the jobs that lost their server: a job may end before the guard looks.

A fault hits all jobs on a GPU, and a victim's script often ends right after it. Its Epilog takes it out of the books,
and the last Epilog removes MPS with its logs. So the Epilog of a job that failed checks whether MPS had failed under it
(evidence). It leaves that for the guard (a record), which knows whose process was the cause.
"""

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from prolog_epilog.errors import ControlError, StateError
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants.state import Tenant

FORMAT = "berth-lost/1"
KEEP_SECONDS = 120.0
"""Seconds for which a record is kept for a guard that does not look."""
ALONE_SECONDS = 60.0
"""A job that was alone for so many seconds made the fault itself."""

_LOG_TAIL = 65536
_MOST_BYTES = 1 << 16
#: Matches the process that a server names as the cause of a fault: `Client process 7 encountered a fatal GPU error.`
#: (535, 550), `Client {PID: 7, Context: 1} encountered ...` (580, 595). The victims' lines have other words. The words
#: that a user sends to the control daemon stand in the daemon's own lines.
_CULPRIT = re.compile(r"^\[[^\]]* Server +\d+\] Client (?:process |\{PID: )(\d+)\b.*\bencountered\b")


@dataclass(frozen=True, slots=True)
class Loss:
    """A failure of MPS under a job: the GPUs, and the processes that MPS names as the cause."""

    uuids: tuple[str, ...]
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LossRecord:
    """The record that the Epilog of such a job leaves."""

    job: int
    uid: int
    start: int
    node: str
    gpu: int
    """The position of the first of the GPUs."""
    uuids: tuple[str, ...]
    pids: tuple[int, ...]


def causes(folder: Path) -> tuple[int, ...]:
    """Returns the processes that MPS's logs in this folder name as the cause of a fault, latest first."""
    found: dict[int, None] = {}
    try:
        logs = sorted(folder.rglob("*.log"))
    except OSError:
        return ()
    for log in logs:
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - _LOG_TAIL))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in reversed(lines):
            match = _CULPRIT.search(line)
            if match:
                found.setdefault(int(match[1]))
    return tuple(found)


def evidence(log: Path, uuids: tuple[str, ...], tenant: Tenant, status: Callable[[], str]) -> Loss | None:
    """Returns the loss if MPS failed under a tenant that ends badly; the caller holds the locks of the GPUs."""
    if tenant.alone_since and time.monotonic() - tenant.alone_since > ALONE_SECONDS:
        return None
    pids = tuple(pid for pid in causes(log) if pid not in tenant.known)
    return Loss(uuids, pids) if pids or tenant.lost or _has_failed(status) else None


def _has_failed(status: Callable[[], str]) -> bool:
    try:
        return status() in {"FAULT", "GONE"}
    except ControlError:
        return False


def leave(paths: Paths, record: LossRecord) -> None:
    """Leaves a record for the guard; old ones that no guard has read are removed."""
    files.own_folder(paths.lost)
    records(paths)
    text = json.dumps({"format": FORMAT, **asdict(record)})
    files.write(paths.lost / str(record.job), text + "\n")


def records(paths: Paths) -> list[LossRecord]:
    """Returns all records that can be read; removes old ones."""
    found = []
    try:
        names = sorted(path for path in paths.lost.iterdir() if path.name.isdecimal())
    except OSError:
        return []
    for path in names:
        with suppress(OSError, StateError, ValueError, KeyError, TypeError):
            if time.time() - path.lstat().st_mtime > KEEP_SECONDS:
                path.unlink()
                continue
            found.append(_read(path))
    return found


def _read(path: Path) -> LossRecord:
    content = json.loads(files.read(path, _MOST_BYTES) or "{}")
    if content.pop("format") != FORMAT:
        raise ValueError(path)
    return LossRecord(**{**content, "uuids": tuple(content["uuids"]), "pids": tuple(content["pids"])})


def forget(paths: Paths, job: int) -> None:
    """Removes a job's record, because it is dealt with."""
    with suppress(OSError):
        (paths.lost / str(job)).unlink()
