# SPDX-License-Identifier: Apache-2.0
"""What a benchmark leaves becomes a table with its command, its machine and its day."""

from pathlib import Path

import pytest

from tests.bench import table
from tests.bench.page import found
from tests.bench.table import at_most


def test_what_was_measured_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FOLDER", tmp_path / "bench")
    table.report("node", "A node", [at_most("prolog_ms", 39.84, 30, "ms", "Python", 9.96)], {"rounds": "15"})

    (one,) = found(tmp_path)

    assert one.command == "make bench NAME=node"
    assert one.notes["machine"] == table.machine()
    assert one.notes["rounds"] == "15"
    assert one.notes["date"].startswith("20")
    assert one.rows == [["prolog_ms", "39.8", "ms", "Python", "9.96", "4", "<= 30", "no"]]
    assert one.missed == one.rows
    assert one.remark.startswith("Prolog and Epilog as slurmd calls them")
