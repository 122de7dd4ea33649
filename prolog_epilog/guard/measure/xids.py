# SPDX-License-Identifier: Apache-2.0
"""The GPU faults that the guard has heard of, kept for the jobs that they end: `/run/berth/xids`, one line each."""

import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from prolog_epilog.errors import StateError
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.node.xid_list import DEVICE_XIDS, DRAINING_XIDS

_MOST_BYTES = 1 << 16


def note(path: Path, uuid: str, number: int) -> None:
    """Notes a fault that the driver reported now; if it cannot be kept, only the jobs' logs tell why they failed."""
    line = f"{int(time.time())} {uuid} {number}\n"
    with suppress(OSError, StateError):
        if os.path.lexists(path) and path.lstat().st_size > _MOST_BYTES:
            files.write(path, line)
            return
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def last(path: Path) -> dict[str, tuple[int, int]]:
    """Returns the newest fault of each GPU after which it has to be looked after: when it came, and its number."""
    return {uuid: (at, number) for at, uuid, number in _lines(path) if number in DRAINING_XIDS}


def since(path: Path, uuids: Collection[str], start: int) -> tuple[int, ...]:
    """Returns the hardware faults of these GPUs since `start`; other faults may be a neighbour's on the same GPU."""
    found = {number for at, uuid, number in _lines(path) if uuid in uuids and at >= start}
    return tuple(sorted(found & DEVICE_XIDS))


def _lines(path: Path) -> Iterator[tuple[int, str, int]]:
    with suppress(StateError):
        for line in (files.read(path) or "").splitlines():
            at, uuid, number = [*line.split(" "), "", ""][:3]
            if at.isdigit() and number.isdigit():
                yield int(at), uuid, int(number)


def of_gpus(paths: Paths, positions: Collection[int], start: int) -> tuple[int, ...]:
    """Returns the same for positions; nothing if no GPU was shared since the node's boot, as none was watched then."""
    try:
        gpus = json.loads(files.read(paths.identity) or "{}").get("gpus", [])
        uuids = {str(gpu["uuid"]) for gpu in gpus if gpu["position"] in positions}
    except (StateError, ValueError, KeyError, TypeError, AttributeError):
        return ()
    return since(paths.xids, uuids, start)
