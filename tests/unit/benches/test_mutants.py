"""What `make mutants` changes."""

from __future__ import annotations

from tests.bench.coverage import ROOT
from tests.bench.mutants import FILES


def test_each_file_that_is_to_be_changed_is_there() -> None:
    assert [path for path in FILES if not (ROOT / path).is_file()] == []
