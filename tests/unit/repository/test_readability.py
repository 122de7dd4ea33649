# SPDX-License-Identifier: Apache-2.0
"""Pages are written in short sentences; CONTRIBUTING.md names the measure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.readability import PAGES, ROOT, Lengths, lengths, prose
from tests.unit.repository.test_docs import REFERENCE

MEDIAN = 20
"""Words of the sentence in the middle of a page, at most. The changelog is a log and counts in the sum alone."""
LONG, SHARE = 25, 0.15
"""The share of all sentences that may have more words than this."""
CELL = 90
"""Words of the longest cell of a table, outside reference: what needs more is a section of its own."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_middle_sentence_is_short(page: Path) -> None:
    found = lengths(page.read_text())

    assert found.median <= MEDIAN, f"longest sentence {found.longest} words; see python -m tests.readability"


def test_few_sentences_are_long() -> None:
    every = Lengths(tuple(count for page in PAGES for count in lengths(page.read_text()).words))

    assert every.above(LONG) <= SHARE


def test_no_cell_of_a_table_is_a_page() -> None:
    long = {
        f"{page.relative_to(ROOT)}: {cell.strip()[:40]}": len(cell.split())
        for page in PAGES
        if page.name not in REFERENCE
        for row in re.findall(r"^\|.*\|$", page.read_text(), re.MULTILINE)
        for cell in row.split("|")
        if len(cell.split()) > CELL
    }

    assert long == {}


def test_sentences_are_counted_without_code_tables_and_headings() -> None:
    text = "# Title\n\nOne two `a b c` [three four](x.md). Five!\n* six\n* seven, e.g. `x.y` eight: nine\n\n| a | b |\n"
    text += "\n    code here\n\n```text\nmore code\n```\n"

    assert "Title" not in prose(text)
    assert lengths(text).words == (5, 1, 1, 2, 3)
    assert (lengths("").median, lengths("").longest, lengths("").above(25)) == (0.0, 0, 0.0)
