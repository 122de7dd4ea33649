# SPDX-License-Identifier: Apache-2.0
"""Measures how long the sentences of the pages are; `python -m tests.readability` prints a line for each page.

The number of words in a sentence is the part of every public formula of readability (Flesch, Fog, LIX) that a writer
can change; the other part, long words, is mostly names here. Code, tables and headings are left out.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])


class Lengths(NamedTuple):
    """The words in each sentence of a page."""

    words: tuple[int, ...]

    @property
    def median(self) -> float:
        """Words of the sentence in the middle; 0 for a page of tables."""
        return statistics.median(self.words) if self.words else 0.0

    @property
    def longest(self) -> int:
        """Words of the longest sentence."""
        return max(self.words, default=0)

    def above(self, most: int) -> float:
        """Returns the share of sentences that have more words than `most`."""
        return sum(count > most for count in self.words) / max(1, len(self.words))


def prose(text: str) -> str:
    """Returns a page without code, tables and headings; a span of code counts as one word."""
    for pattern, flags, instead in (
        (r"^```.*?^```", re.DOTALL, ""),
        (r"^(?: {4}|\t| *\||#).*$", 0, ""),
        (r"`[^`\n]*`", 0, "code"),
        (r"!?\[([^\]]*)\]\([^)]*\)", 0, r"\1"),
    ):
        text = re.sub(pattern, instead, text, flags=re.MULTILINE | flags)
    return text


def lengths(text: str) -> Lengths:
    """Counts the words of each sentence. A sentence ends with a mark and a blank, a paragraph or an item of a list."""
    pieces = re.split(r"\n\s*\n|^\s*(?:[*-]|\d+\.) ", prose(text), flags=re.MULTILINE)
    found = [sentence for piece in pieces for sentence in re.split(r"[.!?][\"')*_]*\s+", " ".join(piece.split()))]
    counts = (len(re.findall(r"[^\s]*\w[^\s]*", sentence)) for sentence in found)
    return Lengths(tuple(count for count in counts if count))


def main() -> None:
    """Prints the pages, those with the longest sentences first."""
    rows = [(lengths(page.read_text()), page.relative_to(ROOT)) for page in PAGES]
    for one, name in sorted(rows, key=lambda row: (-row[0].median, row[1])):
        print(f"{_line(one)}  {name}")
    for reader in sorted({_reader(name) for _, name in rows}):
        print(f"{_line(together(one for one, name in rows if _reader(name) == reader))}  all of {reader}")
    print(f"{_line(together(one for one, _ in rows))}  all pages")


def _line(one: Lengths) -> str:
    figures = f"median {one.median:4.1f}  above 25: {one.above(25):4.0%}  longest {one.longest:3}"
    return f"{sum(one.words):6,} words  {figures}"


def together(pages: Iterable[Lengths]) -> Lengths:
    """Returns the sentences of several pages as one."""
    return Lengths(tuple(count for one in pages for count in one.words))


def _reader(name: Path) -> str:
    """The folder of docs, or `project` for a page of the root."""
    return name.parts[1] if len(name.parts) > 2 else "project"


if __name__ == "__main__":
    main()
