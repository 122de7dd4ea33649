"""What a fault of MPS leaves of those whose server it was: a job may have ended before the guard looks.

A fault is everybody's on a GPU, and a victim's script often ends right after it. Its Epilog takes it out of the books,
and the last one takes MPS away with its logs. So the Epilog of a job that failed looks whether MPS had failed under it
(evidence), and leaves that for the guard (a record), which knows whose process was the cause.
"""

from __future__ import annotations

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

__all__ = ["Loss", "Record", "culprits", "evidence", "forget", "leave", "records"]

FORMAT = "berth-lost/1"
KEEP_SECONDS = 120.0
"""How long a record is kept for a guard that does not look."""
ALONE_SECONDS = 60.0
"""Whoever has been alone for so long made the fault itself."""

_LOG_TAIL = 65536
_MOST_BYTES = 1 << 16
#: MPS's log names the process of a memory fault; words differ by driver.
_CULPRIT = re.compile(r"client(?: process)?[ :]+(\d+)\b.*(?:fault|illegal|fatal|exception)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Loss:
    """MPS failed under a job: on which GPUs, and the processes that MPS names as the cause."""

    uuids: tuple[str, ...]
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """What the Epilog of such a job leaves."""

    job: int
    uid: int
    start: int
    node: str
    gpu: int
    """The position of the first of the GPUs."""
    uuids: tuple[str, ...]
    pids: tuple[int, ...]


def culprits(folder: Path) -> tuple[int, ...]:
    """Processes that MPS's logs in this folder name as the cause of a fault, latest first."""
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
    """Whether MPS failed under a tenant that ends badly; the caller holds the locks of the GPUs."""
    if tenant.alone_since and time.monotonic() - tenant.alone_since > ALONE_SECONDS:
        return None
    pids = tuple(pid for pid in culprits(log) if pid not in tenant.known)
    return Loss(uuids, pids) if pids or tenant.lost or _has_failed(status) else None


def _has_failed(status: Callable[[], str]) -> bool:
    try:
        return status() in {"FAULT", "GONE"}
    except ControlError:
        return False


def leave(paths: Paths, record: Record) -> None:
    """Leave a record for the guard; where none looks, old ones go with the next."""
    files.own_folder(paths.lost)
    records(paths)
    text = json.dumps({"format": FORMAT, **asdict(record)})
    files.write(paths.lost / str(record.job), text + "\n")


def records(paths: Paths) -> list[Record]:
    """All records that can be read; old ones are removed."""
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


def _read(path: Path) -> Record:
    content = json.loads(files.read(path, _MOST_BYTES) or "{}")
    if content.pop("format") != FORMAT:
        raise ValueError(path)
    return Record(**{**content, "uuids": tuple(content["uuids"]), "pids": tuple(content["pids"])})


def forget(paths: Paths, job: int) -> None:
    """What was to be done about it is done."""
    with suppress(OSError):
        (paths.lost / str(job)).unlink()
