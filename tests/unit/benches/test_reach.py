# SPDX-License-Identifier: Apache-2.0
"""What `python -m tests.reach` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import reach
from tests.bench import coverage

IMPORTS = {
    "test_whole": "import policy.plan.book\n",
    "test_first": "from policy.plan import book\n",
    "test_among": "from policy.plan import (\n    answer,\n    book as books,\n)\n",
    "test_inside": "def test() -> None:\n    from policy.plan.book import Book\n",
    "test_text": 'NAME = "policy.plan.book"\n',
    "test_room": "from policy.plan import answer\n",
    "test_other": "from policy.plan import bookkeeping\n# the book policy.plan.bookkeeping\n",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one module, and tests that import it in all ways."""
    for path in ("policy/plan/__init__.py", "policy/plan/book.py", "policy/plan/alone.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "tests").mkdir()
    for name, text in IMPORTS.items():
        (tmp_path / "tests" / f"{name}.py").write_text(text)
    monkeypatch.setattr(reach, "ROOT", tmp_path)
    monkeypatch.setattr(coverage, "DATA", tmp_path / "no data")
    return tmp_path


def named(*names: str) -> list[str]:
    return [f"tests/test_{name}.py" for name in names]


def test_a_test_is_named_however_it_names_the_module(tree: Path) -> None:
    assert reach.naming("policy/plan/book.py") == named("among", "first", "inside", "text", "whole")


def test_a_package_is_named_by_what_is_taken_from_it(tree: Path) -> None:
    assert reach.naming("policy/plan/__init__.py") == named(
        "among", "first", "inside", "other", "room", "text", "whole"
    )


def test_a_file_without_tests_says_so(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reach.main([str(tree / "policy/plan/book.py"), str(tree / "policy/plan/alone.py")]) == 1

    said = capsys.readouterr()
    assert said.out.splitlines() == named("among", "first", "inside", "text", "whole")
    assert "policy/plan/book.py: 5 test files name it (make coverage finds the tests that run it)\n" in said.err
    assert "policy/plan/alone.py: 0 test files name it" in said.err


@pytest.mark.parametrize("path", ["policy/plan/boook.py", "/etc/passwd", "policy"])
def test_what_is_no_file_of_the_checkout_is_told(
    path: str, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tree)

    assert reach.main([path]) == 2

    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{path} is no file of this checkout; name one by its path\n")
