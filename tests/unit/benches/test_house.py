# SPDX-License-Identifier: Apache-2.0
"""How the layout of the code is counted."""

from pathlib import Path

from tests.bench.house import code_lines, entered, texts

SOURCE = '''"""What it is.

More of it.
"""

import os  # read below


class Room:
    """Of a house."""

    door = """one
    two"""


def enter():
    # No code.
    return os.sep
'''


def test_lines_of_code_are_without_comments_docstrings_and_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text(SOURCE)
    (tmp_path / "room.c").write_text("/* one\n   two */\nint a; /* behind */\n\n// alone\nint b;\n")

    assert code_lines(tmp_path / "room.py") == 6
    assert code_lines(tmp_path / "room.c") == 2


def test_names_and_first_words_are_counted(tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / "policy").mkdir(exist_ok=True)
        (tmp_path / "policy" / name).write_text(SOURCE)

    found = texts(tmp_path)

    assert found["public class names taken twice"] == 1
    assert found["docstrings that begin with What"] == 2
    assert found["docstrings that begin with Of"] == 2
    assert found["lines of product"] == 2 * len(SOURCE.splitlines())
    assert found["lines of code in it"] == 2 * 6


def test_a_trace_has_the_lines_of_the_product_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "policy" / "a.py", tmp_path / "other.py"
    names: dict[str, object] = {}
    for path in (inside, outside):
        exec(compile(f"def {path.stem}():\n    x = 1\n    return x\n", str(path), "exec"), names)  # noqa: S102
    names["calls"] = {"both": lambda: (names["a"](), names["other"]())}  # type: ignore[operator]

    assert entered("both", names, str(tmp_path)) == ({str(inside): {1, 2, 3}}, [str(inside.parent)])
