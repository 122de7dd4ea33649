"""Logs to standard error, worded as Slurm words its own; journald or the container adds the time."""

import sys


def info(text: str) -> None:
    """Something that an admin may want to know later."""
    sys.stderr.write(f"berthd: {text}\n")
    sys.stderr.flush()


def error(text: object) -> None:
    """Something that an admin has to look at."""
    info(f"error: {text}")
