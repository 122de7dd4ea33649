"""Writes moments for people and for Slurm's commands, whatever number stands in a record.

>>> bounded(2.0**63) == bounded(float("inf")) == 253402128000.0
True
>>> len(local_time(2**63 - 1)) == len(local_time(-1)) == len("2026-11-29T10:00:00")
True
"""

import time

_LAST = 253_402_128_000.0
"""Two days before the year 10000, so that no time zone has five digits of a year."""


def bounded(seconds: float) -> float:
    """Returns the nearest moment that can be written as a date, in seconds since 1970."""
    return min(max(0.0, seconds), _LAST)


def local_time(seconds: float | str) -> str:
    """Writes a moment as Slurm's commands do, by the clock of this host."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(bounded(float(seconds))))
