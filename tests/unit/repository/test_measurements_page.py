# SPDX-License-Identifier: Apache-2.0
"""A part of docs/results/tables.md that was not measured again is kept."""

from tests.bench.page import renewed, sections


def test_what_was_not_measured_again_stays_as_it_was() -> None:
    page = "# Title\n\nOld words.\n\n## `make a`\n\n1\n\n## `make b`\n\n2\n"

    after = renewed(page, "\n## `make b`\n\n3\n\n## `make c`\n\n4\n")

    assert list(sections(after)) == ["## `make a`", "## `make b`", "## `make c`"]
    assert "\n1\n" in after
    assert "\n3\n" in after
    assert "\n2\n" not in after
    assert "Old words" not in after
    assert renewed(after, "") == after
