"""Logs to standard error, worded as Slurm words its own; journald or the container adds the time.

A line ends with the id of its message (policy.formats.messages).
"""

import sys

from policy.formats.errors import BerthError
from policy.formats.messages import one_line, tagged

MOST = 4_096
"""Characters of a line: a fault may tell a whole request."""

OTHER, FILE = 600, 709
"""Numbers of lines without one of their own: any, and those about a file of the topology side."""


def info(text: str, number: int = OTHER) -> None:
    """Something that an admin may want to know later."""
    sys.stderr.write(f"berthd: {one_line(tagged(text[:MOST], number))}\n")
    sys.stderr.flush()


def error(text: object, number: int | None = None) -> None:
    """Something that an admin has to look at."""
    info(f"error: {text}", number_of(text) if number is None else number)


def number_of(text: object) -> int:
    """Returns the number that an error brings with it, or that of its kind."""
    if isinstance(text, BerthError):
        return text.number
    return FILE if isinstance(text, Exception) else OTHER
