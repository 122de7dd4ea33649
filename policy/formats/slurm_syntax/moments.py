# SPDX-License-Identifier: Apache-2.0
"""Writes moments for people and for Slurm's commands, whatever number stands in a record.

>>> bounded(2.0**63) == bounded(float("inf")) == 253402128000.0
True
>>> len(local_time(2**63 - 1)) == len(local_time(-1)) == len("2026-11-29T10:00:00")
True
"""

import re
import time
from datetime import datetime, timedelta

_LAST = 253_402_128_000.0
"""Two days before the year 10000, so that no time zone has five digits of a year."""


def bounded(seconds: float) -> float:
    """Returns the nearest moment that can be written as a date, in seconds since 1970."""
    return min(max(0.0, seconds), _LAST)


def local_time(seconds: float | str) -> str:
    """Writes a moment as Slurm's commands do, by the clock of this host."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(bounded(float(seconds))))


_DAYS = {"today": 0, "midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
"""Slurm's words for moments of this day, by their hours."""
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SLURMS = re.compile(r"(?:(\d\d?)[/.]?(\d\d?)(?:[/.]?(\d\d))?)?(?:(?:(?<=\d)-|^)(\d\d?):(\d\d)(?::(\d\d))? ?(am|pm)?)?")
_NOW = re.compile(r"now(?:([+-])(\d+)(?:([smhdw])[a-z]*)?)?")


def moment_of(words: str, now: float) -> float:
    """Reads a moment as sacct's --starttime does, by the clock of this host; raises ValueError.

    A day without a year, or a time without a day, is the last one before now.

    >>> moment_of("now-2days", 1_000_000.0), moment_of("now", 5.0)
    (827200.0, 5.0)
    >>> local_time(moment_of("11/02/24-08:30", 0.0)), local_time(moment_of("2026-11-01", 0.0))
    ('2024-11-02T08:30:00', '2026-11-01T00:00:00')
    """
    word = words.strip().lower()
    here = datetime.fromtimestamp(now)  # noqa: DTZ006 - Slurm's words are by the clock of this host
    if found := _NOW.fullmatch(word):
        sign, count, unit = found.groups()
        return now + (int(count) * _UNITS[unit or "s"] * (-1 if sign == "-" else 1) if count else 0)
    if word in _DAYS:
        return here.replace(hour=_DAYS[word], minute=0, second=0, microsecond=0).timestamp()
    found = _SLURMS.fullmatch(word)
    if found is None or not word:
        return datetime.fromisoformat(words).timestamp()
    month, day, year, hour, minute, second, half = found.groups()
    read = here.replace(
        year=2000 + int(year) if year else here.year,
        month=int(month or here.month),
        day=int(day or here.day),
        hour=int(hour or 0) % (12 if half else 24) + (12 if half == "pm" else 0),
        minute=int(minute or 0),
        second=int(second or 0),
        microsecond=0,
    )
    if read > here and not year:
        read = read.replace(year=read.year - 1) if month else read - timedelta(days=1)
    return read.timestamp()
