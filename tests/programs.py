# SPDX-License-Identifier: Apache-2.0
"""Programs that tests write."""

from __future__ import annotations

import sys
from pathlib import Path


def python_program(path: Path, code: str) -> None:
    """Write a Python program for this interpreter, whose own path may hold spaces or be too long for a `#!` line."""
    # The second line starts Python when sh reads it, and is a string when Python reads it.
    path.write_text(f'#!/bin/sh\n"exec" "{sys.executable}" "$0" "$@"\n{code}')
    path.chmod(0o755)
