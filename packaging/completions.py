#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the completion of `berth` for a shell, from its own parsers: completions.py bash|zsh|fish.

It needs shtab, and so is run when packages are built, not where Berth is installed.
"""

import sys
from pathlib import Path

import shtab

ROOT = Path(__file__).resolve().parents[1]
SHELLS = ("bash", "zsh", "fish")


def completion(shell: str) -> str:
    """Returns the text of the file that the shell loads."""
    # From the tree beside this file, not from an installed Berth.
    sys.path.insert(0, str(ROOT))
    from policy.cli.main import build_parser  # noqa: PLC0415 - after the path is set

    return str(shtab.complete(build_parser(), shell))


def main() -> int:
    """Prints what one shell loads."""
    if len(sys.argv) != 2 or sys.argv[1] not in SHELLS:
        sys.stderr.write(f"usage: completions.py {'|'.join(SHELLS)}\n")
        return 2
    sys.stdout.write(completion(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
