# SPDX-License-Identifier: Apache-2.0
"""Builds of fakes, and copies of them at a place that every user can reach and whose path holds no space.

A checkout may lie in a folder that is closed to other users, and LD_PRELOAD takes a space for the end of a path.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["copy_of", "make"]


@functools.cache
def _folder() -> Path:
    made, owner = Path(tempfile.mkdtemp(prefix="berth-fakes-", dir="/tmp")), os.getpid()
    made.chmod(0o755)

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made


@functools.cache
def copy_of(source: Path, name: str) -> Path:
    """A copy of a folder's files, without its subfolders, that every user may read and run; removed at the end."""
    target = _folder() / name
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file():
            shutil.copyfile(file, target / file.name)
            (target / file.name).chmod(0o755 if os.access(file, os.X_OK) else 0o644)
    for folder in [target, *target.parents]:
        if folder == _folder():
            break
        folder.chmod(0o755)
    return target


def make(folder: Path, *words: str) -> None:
    """Build what is older than its source; several processes of tests may ask for it at once."""
    with (folder / "Makefile").open() as makefile:
        fcntl.flock(makefile, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", folder, *words], check=True, capture_output=True, text=True)
