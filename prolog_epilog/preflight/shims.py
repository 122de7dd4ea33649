"""Puts Berth between a pre-flight's script and the launchers that it calls by name.

It does so in two ways, because PATH changes with each environment that a script loads: programs in front of PATH, and
bash functions, which precede anything on PATH. If both miss, a Python launcher is caught at its start (sitecustomize).
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from prolog_epilog.preflight.launchers import NAMES

READY = "BERTH_READY"
"""Environment variable of a pre-flight: the file that `berth ready` makes."""


def write(folder: Path, program: Sequence[str]) -> Path:
    """Writes one small program for each launcher; returns the folder that holds them."""
    shims = folder / "bin"
    shims.mkdir(mode=0o700)
    for name in NAMES:
        shim = shims / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(program)} launch {name} "$@"\n')
        shim.chmod(0o700)
    return shims


def functions(program: Sequence[str]) -> dict[str, str]:
    """Returns the environment variables that bash takes for functions of these names."""
    return {f"BASH_FUNC_{name}%%": f'() {{ {shlex.join(program)} launch {name} "$@"; }}' for name in NAMES}


def find(name: str, path: str, shims: str) -> str:
    """Returns the launcher itself, past the shims; empty if there is none."""
    for folder in path.split(":"):
        file = os.path.join(folder or ".", name)  # noqa: PTH118 - as execvp would
        if folder != shims and os.path.isfile(file) and os.access(file, os.X_OK):  # noqa: PTH113 - see above
            return file
    return ""
