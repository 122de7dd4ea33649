# SPDX-License-Identifier: Apache-2.0
"""Reads tables with a header, plain or gzipped; errors name the file, the line and the column."""

import csv
import gzip
import io
import math
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from policy.formats.errors import FormatError, nearest

STDIN = "-"

_GZIP = b"\x1f\x8b"

_SHOWN = 40
"""The most characters of a wrong value that an error shows."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InputRow:
    """One line of a table."""

    source: str
    line: int
    columns: dict[str, int]
    cells: Sequence[str]

    def __getitem__(self, column: str) -> str:
        return self.cells[self.columns[column]].strip()

    def get(self, column: str) -> str:
        """Returns the value; empty if the table has no such column."""
        place = self.columns.get(column)
        return "" if place is None else self.cells[place].strip()

    def wrong(self, column: str, expected: str) -> FormatError:
        """Returns the error for a wrong value."""
        found = self[column]
        shown = f'not "{found[:_SHOWN]}"' if found else "but it is empty"
        return FormatError(f"{self.source}, line {self.line}, column {column}: {expected} is expected, {shown}")

    def number(self, column: str, least: float = 0.0) -> float:
        """Returns a finite number that is at least `least`."""
        try:
            value = float(self[column])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            raise self.wrong(column, f"a number from {least:g} on")
        return value

    def whole(self, column: str, least: int = 0) -> int:
        """Returns a whole number that is at least `least`; `4.0` is one too."""
        value = self.number(column, least)
        if value != int(value):
            raise self.wrong(column, f"a whole number from {least} on")
        return int(value)


@dataclass(frozen=True, slots=True)
class InputTable:
    """A header, and the lines below it, which are read on demand."""

    source: str
    header: tuple[str, ...]
    rows: Iterator[InputRow]

    def need(self, *columns: str) -> None:
        """Refuses a table that lacks one of these columns."""
        for column in columns:
            if column not in self.header:
                hint = nearest(column, self.header)
                raise FormatError(f"{self.source}, line 1: there is no column {column}{hint}")


def read_table(source: str) -> InputTable:
    """Opens a CSV file, or one with `|` as `sacct -P` writes it; `-` is standard input, `.gz` is unpacked."""
    return parse_table(_lines(source), "standard input" if source == STDIN else source)


def parse_table(lines: Iterable[str], source: str) -> InputTable:
    """Returns a table made of lines."""
    numbered = _numbered(lines)
    first, head = next(numbered, (1, ""))
    if not head:
        raise FormatError(f"{source}: it is empty; a line with column names is expected")
    mark = "|" if "|" in head else ","
    header = tuple(name.strip() for name in _cells(head, mark))
    twice = {name for name in header if name and header.count(name) > 1}
    if twice:
        raise FormatError(f"{source}, line {first}: column {min(twice)} is there twice")
    columns = {name: place for place, name in enumerate(header)}
    return InputTable(source, header, _rows(numbered, source, columns, len(header), mark))


def _rows(
    numbered: Iterator[tuple[int, str]], source: str, columns: dict[str, int], width: int, mark: str
) -> Iterator[InputRow]:
    for line, text in numbered:
        cells = _cells(text, mark)
        surplus = len(cells) - width
        if surplus > 0 and mark == "|" and (place := columns.get("JobName")) is not None:
            # sacct does not quote, so a separator in a job's name looks like one more column.
            cells[place : place + surplus + 1] = [mark.join(cells[place : place + surplus + 1])]
        if len(cells) != width:
            raise FormatError(f"{source}, line {line}: {width} values are expected, {len(cells)} are there")
        yield InputRow(source, line, columns, cells)


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for line, text in enumerate(lines, 1):
        bare = text.rstrip("\r\n")
        if bare.strip():
            yield line, bare.removeprefix("\ufeff") if line == 1 else bare


def _cells(text: str, mark: str) -> list[str]:
    # sacct never quotes: a quotation mark in a job's name is a plain character there.
    return text.split(mark) if mark == "|" or '"' not in text else next(csv.reader([text]))


def _lines(source: str) -> Iterator[str]:
    if source == STDIN:
        yield from sys.stdin
        return
    try:
        with Path(source).open("rb") as raw:
            # The content decides, because a plain file may be named .gz; and a pipe can be opened only once.
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            with io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, encoding="utf-8") as text:
                yield from text
    except UnicodeDecodeError as error:
        raise FormatError(f"{source}: it is not UTF-8 text") from error
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"cannot read {source}: {getattr(error, 'strerror', None) or error}") from error
