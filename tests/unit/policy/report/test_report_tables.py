# SPDX-License-Identifier: Apache-2.0
"""How tables of the report are laid out for a terminal."""

import pytest

from policy.report import text
from policy.report.text import ReportTable


def test_numbers_stand_to_the_right_and_names_and_moments_to_the_left() -> None:
    rows = [["7", "2026-11-30 06:00", "1,200", "n1"], ["12 jobs", "-", "3", "2 nodes"]]
    table = ReportTable("Jobs", "all", ("job", "began", "GPU h", "nodes"), rows)
    # As its first row has them: a moment has 16 signs, and no number has.
    assert table.names() == {0, 1, 3}
    assert text._text(["head"], [table]).split("\n\n")[-1].splitlines() == [
        "Jobs",
        "  job      began             GPU h  nodes",
        "  7        2026-11-30 06:00  1,200  n1",
        "  12 jobs  -                     3  2 nodes",
        "  (all)",
    ]


@pytest.mark.parametrize(("last", "cut"), [("m0xx", False), ("m0xxx", True)])
def test_a_list_of_nodes_is_cut_after_forty_signs(last: str, *, cut: bool) -> None:
    names = [*(f"{sign}0" for sign in "abcdefghijkl"), last]
    whole = ",".join(names)
    assert len(whole) == (41 if cut else 40)
    assert text._folded(names) == (f"{whole[:40]}..." if cut else whole)
