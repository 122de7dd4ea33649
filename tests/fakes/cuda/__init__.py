# SPDX-License-Identifier: Apache-2.0
"""Run programs against a simulated CUDA driver, with and without the library that comes between; see README.md."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.place import copy_of, make

__all__ = ["environment", "injob_library", "launcher", "library", "run", "uuid"]

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
_INJOB = _ROOT / "prolog_epilog" / "injob" / "c"


@functools.cache
def library() -> Path:
    """The simulated driver; made anew where its source is newer."""
    make(_HERE)
    return copy_of(_HERE / "build", "cuda") / "libcuda.so.1"


def launcher() -> Path:
    """A program that is linked with it."""
    return library().with_name("launcher")


@functools.cache
def injob_library() -> Path:
    """The library that comes between program and driver."""
    make(_INJOB)
    return copy_of(_ROOT / "build" / "injob", "injob") / "libberth_injob.so"


def uuid(gpu: int) -> str:
    """How the simulated driver names a GPU."""
    one = f"{0xF0 + gpu:02x}"
    return "GPU-" + "-".join(one * count for count in (4, 2, 2, 2, 6))


def environment(words: str = "", *, preload: bool = True, **more: str) -> dict[str, str]:
    """Environment of a program on the simulated GPU."""
    changed = {"LD_LIBRARY_PATH": str(library().parent), "BERTH_WORD": words, "PYTHONPATH": str(_ROOT)}
    if preload:
        changed["LD_PRELOAD"] = str(injob_library())
    return os.environ | changed | more


def run(code: str, words: str = "", *, preload: bool = True, **more: str) -> str:
    """Run Python in a process of its own, with tests.fakes.cuda.program's names; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", "from tests.fakes.cuda.program import *\n" + code],
        env=environment(words, preload=preload, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
