# SPDX-License-Identifier: Apache-2.0
"""Reads the tables of docs/results: figures with units and peers, and the rows of any table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
COLUMNS = ("figure", "value", "unit", "peer", "peer's value", "ratio", "must", "reached")


@dataclass(frozen=True, slots=True)
class Kept:
    """One figure as the tables keep it."""

    value: float
    peer_value: float | None
    must: str
    reached: str


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a page: its heading, and what stands below it."""

    heading: str
    text: str

    @property
    def anchor(self) -> str:
        """The part's anchor, as GitHub and MyST make it."""
        slug = re.sub(r"[^\w\- ]", "", self.heading.replace("`", "").strip().lower())
        return slug.replace(" ", "-")

    @property
    def command(self) -> str:
        return self.heading.strip("`")

    @property
    def notes(self) -> dict[str, str]:
        """Names machine, seeds and date, as the line above the figures has them."""
        line = self.text.strip().partition("\n")[0].rstrip(".")
        return dict(one.split(" ", 1) for one in line.split("; ") if " " in one)

    def rows(self, *columns: str, missing_ok: bool = False) -> list[list[str]]:
        """Returns the cells of the first table that begins with these columns; nothing if it may be missing."""
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
        if missing_ok:
            return []
        raise LookupError(f"{self.heading}: no table begins with {', '.join(columns)}")

    def figures(self) -> dict[str, Kept]:
        found = {}
        for name, value, _, _, peer, _, must, reached in self.rows(*COLUMNS):
            found[name.strip("`")] = Kept(float(value), float(peer) if peer else None, must, reached.strip("*"))
        return found

    def value(self, name: str) -> float:
        return self.figures()[name].value

    def peer(self, name: str) -> float:
        value = self.figures()[name].peer_value
        if value is None:
            raise LookupError(f"{self.heading}: {name} has no peer")
        return value


@cache
def parts_of(page: str) -> tuple[Part, ...]:
    """Returns the parts of a page, one for each heading of the second level."""
    parts = re.split(r"^## (.+)$", (FOLDER / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return tuple(Part(title, below) for title, below in zip(parts[1::2], parts[2::2], strict=True))


@cache
def part(heading: str, page: str = "tables.md") -> Part:
    """Returns the part of a page below a heading; without a heading the whole page."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    if not heading:
        return Part(text.partition("\n")[0].removeprefix("# "), text)
    for one in parts_of(page):
        if one.heading == heading:
            return one
    raise LookupError(f"{page}: no part is called {heading}")


def bench(call: str) -> Part:
    """Returns the part of one benchmark, by what `make` is called with."""
    return part(f"`make {call}`")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
