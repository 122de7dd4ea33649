# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.reach FILE ...`: the unit tests that run a file, the quickest first.

After `make coverage` these are the tests that ran a line of it. Without its data they are the test files that name the
module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def names(path: str) -> re.Pattern[str]:
    """Returns what a file that imports a module has in its text."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    parent, _, name = (re.escape(one) for one in module.rpartition("."))
    return re.compile(rf"\b{re.escape(module)}\b|from {parent} import (?:\([^)]*|[^\n]*)\b{name}\b")


def naming(path: str) -> list[str]:
    """Returns the test files that name a module, by whatever import."""
    word = names(path)
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if word.search(file.read_text(encoding="utf-8"))]


def running(path: str) -> list[str]:
    """Returns the tests that ran a line of a file under `make coverage`, as pytest names them."""
    from tests.bench.mutants import Tests, node_id  # noqa: PLC0415 - needs the data of `make coverage`

    return [node_id(name) for name in Tests().running(path)]


def main(paths: Sequence[str]) -> int:
    """Prints the tests of each file; exit status 1 if a file has none, 2 if there is no such file."""
    from tests.bench.coverage import DATA  # noqa: PLC0415 - not for who wants help

    if not paths or {"-h", "--help"} & set(paths):
        sys.stdout.write(f"{__doc__}")
        return 0
    status, know = 0, DATA.exists()
    for one in paths:
        file = Path(one).resolve()
        if not (file.is_file() and file.is_relative_to(ROOT)):
            sys.stderr.write(f"{one} is no file of this checkout; name one by its path\n")
            return 2
        path = str(file.relative_to(ROOT))
        found = running(path) if know else naming(path)
        how = "tests run it" if know else "test files name it (make coverage finds the tests that run it)"
        sys.stdout.write("".join(f"{one}\n" for one in found))
        sys.stderr.write(f"{path}: {len(found)} {how}\n")
        status |= not found
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
