# SPDX-License-Identifier: Apache-2.0
"""The files of step times: the record, its older part, and beside them the table of current scores."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from topology.calibrate.records import append_lines
from topology.calibrate.steps import FORMAT, JobReport, Report, decode, encode, load
from topology.errors import TopologyError

_MOST_BYTES = 16 << 20
"""A longer record is renamed to `RECORD.1`, in place of the former one."""
_MOST_LINES = 2_000
"""The most lines that are decoded for some nodes."""


def reports_of(record: Path) -> tuple[Report, ...]:
    """Reads the files of a record, the older one first; raises TopologyError or OSError if one cannot be read."""
    older = record.with_name(f"{record.name}.1")
    return tuple(report for path in (*([older] if older.exists() else []), record) for report in load(path))


def reports_on(record: Path, nodes: Iterable[str]) -> list[JobReport]:
    """Returns the last reports of jobs on these nodes; empty if the record cannot be read.

    Cheap enough for the planner: of 16 MiB only lines that name such a node are decoded.
    """
    names = re.compile("|".join(re.escape(f'"{node}"') for node in nodes).encode())
    try:
        lines = record.read_bytes().splitlines()
        found = [line.decode() for line in lines[1:] if names.search(line)][-_MOST_LINES:]
        return [one for one in decode([lines[0].decode(), *found]) if isinstance(one, JobReport)] if found else []
    except (OSError, ValueError, TopologyError):
        return []


def place_of(steps: Path) -> Path:
    """Returns the path of the table of scores beside a record."""
    return steps.with_name(f"{steps.name}.scores")


def append(record: Path, reports: Sequence[Report]) -> None:
    """Adds reports to a record; raises OSError if it cannot be written."""
    if not reports:
        return
    with suppress(FileNotFoundError):
        if record.stat().st_size >= _MOST_BYTES:
            record.replace(record.with_name(f"{record.name}.1"))
    # Not readable for all users: it tells how long each user's runs take.
    append_lines(record, FORMAT, map(encode, reports), 0o640)
