# SPDX-License-Identifier: Apache-2.0
"""Builds C programs and libraries for tests, once for each content of their files, and keeps them under build/."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PLUGINS", "built"]

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "slurm_plugins"
KEPT = ROOT / "build" / "test-programs"
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-error=cpp")
OLD_AFTER = 20
"""Number of builds of one program that stay."""


def built(name: str, sources: Sequence[Path], include: Sequence[Path] = (PLUGINS,), flags: Sequence[str] = ()) -> Path:
    """Returns the path of a program, or with `-shared` of a library, that is made of these C files.

    Warnings are errors, as in the plugins' own Makefile. Processes that ask for the same build wait for the first.
    """
    words = [*FLAGS, *flags, *(f"-I{folder}" for folder in include)]
    folder = KEPT / name / _key([*words, *map(str, sources)], sources, include)
    target = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            unfinished = target.with_suffix(".new")
            subprocess.run(["gcc", *words, "-o", str(unfinished), *map(str, sources)], check=True)
            unfinished.rename(target)
            _remove_old(folder.parent)
    return target


def _key(words: Sequence[str], sources: Sequence[Path], include: Sequence[Path]) -> str:
    """Returns a digest of the compiler, the command, the sources and each header that they may read."""
    digest = hashlib.sha256(repr((words, _compiler())).encode())
    for folder in include:
        digest.update(_headers(folder))
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _compiler() -> tuple[str, int]:
    """Returns path and time of the compiler: coverage and sanitizers put one of their own before it in PATH."""
    found = shutil.which("gcc")
    assert found, "gcc is not installed: make setup"
    return found, Path(found).stat().st_mtime_ns


@functools.cache
def _headers(folder: Path) -> bytes:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.[ch]")):
        if path.suffix == ".h":
            digest.update(str(path).encode() + path.read_bytes())
    return digest.digest()


def _remove_old(folder: Path) -> None:
    """Removes builds that were asked for long ago."""
    by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in by_age[OLD_AFTER:]:
        shutil.rmtree(path, ignore_errors=True)
