# SPDX-License-Identifier: Apache-2.0
"""Logs to standard error, worded as Slurm words its own; journald or the container adds the time.

A line ends with the id of its message (policy.formats.messages). For journald it begins with its level, `<3>` or `<6>`.
"""

import os
import sys
from functools import cache

from policy.formats.errors import BerthError
from policy.formats.messages import one_line, tagged

MOST = 4_096
"""The most characters of a line: a fault may contain a whole request."""

OTHER, FILE = 600, 709
"""Message numbers of lines without one of their own: in general, and about a file of the topology side."""


def info(text: str, number: int = OTHER) -> None:
    """Logs an event that an admin may want to know later."""
    _write(text, number, "<6>")


def error(text: object, number: int | None = None) -> None:
    """Logs an error that an admin has to look at."""
    _write(f"error: {text}", number_of(text) if number is None else number, "<3>")


def _write(text: str, number: int, level: str) -> None:
    sys.stderr.write(f"{level if _to_journald() else ''}berthd: {one_line(tagged(text[:MOST], number))}\n")
    sys.stderr.flush()


@cache
def _to_journald() -> bool:
    """Tells whether standard error goes to journald, by JOURNAL_STREAM (systemd.exec(5))."""
    try:
        stream = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{stream.st_dev}:{stream.st_ino}"


def number_of(text: object) -> int:
    """Returns the message number of an error: its own, or that of its kind."""
    if isinstance(text, BerthError):
        return text.number
    return FILE if isinstance(text, Exception) else OTHER
