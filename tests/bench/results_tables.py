# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/results/tables: one CSV file each, whose first lines say its command, machine and day.

    # command: make bench NAME=node
    # machine: x86_64, 2 cores, Linux 6.18
    # date: 2026-11-21
    #
    # What a reader would ask about a figure.
    figure,value,unit,peer,peer's value,ratio,must,reached
    prolog_ms,39.8,ms,an empty Python program,9.53,4.18,<= 100,yes

`pandas.read_csv(file, comment="#")` reads such a file.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
TABLES = FOLDER / "tables"
COLUMNS = ("figure", "value", "unit", "peer", "peer's value", "ratio", "must", "reached")


@dataclass(frozen=True, slots=True)
class Kept:
    """One figure as the tables keep it."""

    value: float
    peer_value: float | None
    must: str
    reached: str


@dataclass(frozen=True, slots=True)
class Table:
    """One data file: its notes (command, machine, date and more), what it says of its figures, and its rows."""

    name: str
    notes: Mapping[str, str]
    remark: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def command(self) -> str:
        return self.notes["command"]

    @property
    def link(self) -> str:
        """Where the file is, seen from docs/results."""
        return f"tables/{self.name}.csv"

    @property
    def missed(self) -> list[Sequence[str]]:
        """The figures that missed their bound."""
        return [row for row in self.rows if row[-1] == "no"] if tuple(self.columns) == COLUMNS else []

    def figures(self) -> dict[str, Kept]:
        return {
            name: Kept(float(value), float(peer) if peer else None, must, reached)
            for name, value, _, _, peer, _, must, reached in self.rows
        }

    def value(self, name: str) -> float:
        return self.figures()[name].value

    def peer(self, name: str) -> float:
        value = self.figures()[name].peer_value
        if value is None:
            raise LookupError(f"{self.name}: {name} has no peer")
        return value

    def text(self) -> str:
        """Returns the file's text."""
        head = [f"{key}: {value}" for key, value in self.notes.items()]
        for paragraph in filter(None, self.remark.split("\n\n")):
            head += ["", *textwrap.wrap(paragraph, 116, break_on_hyphens=False)]
        written = io.StringIO()
        written.writelines(f"# {line}".rstrip() + "\n" for line in head)
        csv.writer(written, lineterminator="\n").writerows([self.columns, *self.rows])
        return written.getvalue()


def parsed(name: str, text: str) -> Table:
    """Reads a file's text."""
    head = re.match(r"(?:#.*\n)*", text)[0]  # type: ignore[index]  # matches nothing at least
    keys, _, remark = "".join(f"{line[2:]}\n" for line in head.splitlines()).partition("\n\n")
    notes = dict(line.split(": ", 1) for line in keys.splitlines())
    columns, *rows = csv.reader(io.StringIO(text[len(head) :]))
    return Table(name, notes, remark.strip(), columns, rows)


@cache
def tables() -> tuple[Table, ...]:
    """Returns all tables by name."""
    return tuple(parsed(path.stem, path.read_text(encoding="utf-8")) for path in sorted(TABLES.glob("*.csv")))


def table(name: str) -> Table:
    """Returns one table by its file's name."""
    for one in tables():
        if one.name == name:
            return one
    raise LookupError(f"docs/results/tables has no {name}.csv")


@dataclass(frozen=True, slots=True)
class Page:
    """A page of docs/results that has tables of its own."""

    name: str
    text: str

    def rows(self, *columns: str) -> list[list[str]]:
        """Returns the cells of the first table that begins with these columns."""
        lines = iter(self.text.splitlines())
        for line in lines:
            if _cells(line)[: len(columns)] == list(columns):
                next(lines)
                found = []
                for row in lines:
                    if not row.startswith("|"):
                        break
                    found.append(_cells(row))
                return found
        raise LookupError(f"{self.name}: no table begins with {', '.join(columns)}")


def page(name: str) -> Page:
    return Page(name, (FOLDER / name).read_text(encoding="utf-8"))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
