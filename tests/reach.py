"""`python -m tests.reach FILE ...`: the unit tests that run a file, the quickest first.

After `make coverage` these are the tests that ran a line of it. Without its data they are the test files that name the
module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def naming(path: str) -> list[str]:
    """Returns the test files that name a module."""
    module = path.removesuffix(".py").replace("/", ".")
    parent, _, name = module.rpartition(".")
    words = (module, f"from {parent} import {name}")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [file for file in files if any(word in file.read_text(encoding="utf-8") for word in words)]
    return [str(file.relative_to(ROOT)) for file in found]


def running(path: str) -> list[str]:
    """Returns the tests that ran a line of a file under `make coverage`, as pytest names them."""
    from tests.bench.mutants import Tests, node_id  # noqa: PLC0415 - needs the data of `make coverage`

    return [node_id(name) for name in Tests().running(path)]


def main(paths: Sequence[str]) -> int:
    """Prints the tests of each file; exit status 1 if a file has none."""
    from tests.bench.coverage import DATA  # noqa: PLC0415 - not for who wants help

    if not paths or {"-h", "--help"} & set(paths):
        sys.stdout.write(f"{__doc__}")
        return 0
    status = 0
    for path in (str(Path(one).resolve().relative_to(ROOT)) for one in paths):
        found = running(path) if DATA.exists() else naming(path)
        how = "run it" if DATA.exists() else "name it (make coverage finds those that run it)"
        sys.stdout.write("".join(f"{one}\n" for one in found))
        sys.stderr.write(f"{path}: {len(found)} tests {how}\n")
        status |= not found
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
