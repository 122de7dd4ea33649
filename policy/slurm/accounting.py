# SPDX-License-Identifier: Apache-2.0
"""Runs sacct day by day, so that neither slurmdbd nor sacct has to hold more, and opens its saved output."""

import gzip
import os
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import EIO
from pathlib import Path
from typing import IO, cast

from policy.formats.errors import SlurmError
from policy.formats.slurm_syntax.moments import local_time
from policy.slurm.command_failures import not_started

_DAY_S = 86_400.0
_CLOCK_S = 3_600.0
"""Seconds that are read in addition at both ends.

sacct takes local time, in which an hour is missing or double when the clock changes.
"""
_GZIP = b"\x1f\x8b"


def days(
    since: float, until: float, columns: Sequence[str], separator: str = "|"
) -> Iterator[tuple[float, float, Iterable[str]]]:
    """Yields begin and end of each day, and sacct's lines about it, the header first.

    A run over midnight is in both days. Names of jobs may contain `|`, but no control characters.
    """
    begin = since
    while begin < until:
        end = min(begin + _DAY_S, until)
        with _sacct(begin - _CLOCK_S, end + _CLOCK_S, columns, separator) as lines:
            yield begin, end, lines
        begin = end


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """Opens a text file, which may be compressed with gzip; raises OSError, also where that is cut off."""
    with path.open("rb") as file:
        unpacked = gzip.open if file.read(2) == _GZIP else open
    try:
        with unpacked(path, "rt", encoding="utf-8", errors="replace") as lines:
            yield cast("IO[str]", lines)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise OSError(EIO, "its packed content is cut off or damaged") from None


@contextmanager
def _sacct(begin: float, end: float, columns: Sequence[str], separator: str) -> Iterator[Iterable[str]]:
    """Yields sacct's lines while it writes them."""
    words = ["sacct", "-aDP", "-S", local_time(begin), "-E", local_time(end), "-o", ",".join(columns)]
    if separator != "|":
        words.append(f"--delimiter={separator}")
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
    try:
        running = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        )
    except OSError as problem:
        raise not_started("sacct", problem, "install Slurm's client commands here, or use --from FILE") from None
    with running:
        assert running.stdout is not None  # noqa: S101 - narrows the type
        assert running.stderr is not None  # noqa: S101 - narrows the type
        try:
            first = running.stdout.readline()
            if first:
                yield _chain(first, running.stdout)
            said = running.stderr.read().strip()
            code = running.wait()
        except BaseException:
            running.kill()
            raise
    if code or not first:
        raise SlurmError(f"sacct did not answer: {said or f'it ended with {code}'}; is slurmdbd set up and up?")


def _chain(first: str, rest: IO[str]) -> Iterator[str]:
    yield first
    yield from rest
