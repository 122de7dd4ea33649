# SPDX-License-Identifier: Apache-2.0
"""Run Python against a simulated GPU machine; README.md describes the machine files."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fakes.place import make

__all__ = ["MACHINES", "environment", "library", "run"]

_HERE = Path(__file__).parent
MACHINES = _HERE / "machines"
_ROOT = _HERE.parents[2]

_PROLOGUE = "import json, sys\nimport pynvml as nvml\n"
_EPILOGUE = "\njson.dump(answer, sys.stdout)\n"


@functools.cache
def library() -> Path:
    """The built library; made anew where its source is newer."""
    make(_HERE)
    return _HERE / "build" / "libnvidia-ml.so.1"


def environment(machine: Path, through: Path | None = None) -> dict[str, str]:
    """Environment in which pynvml sees this machine, through the built library or another one."""
    return os.environ | {
        "LD_LIBRARY_PATH": str((through or library()).parent),
        "BERTH_FAKE_NVML": str(machine),
        "PYTHONPATH": str(_ROOT),
    }


def run(machine: Path, code: str, through: Path | None = None) -> Any:
    """Run code that leaves its result in `answer`, in a process of its own with real pynvml as `nvml`."""
    done = subprocess.run(
        [sys.executable, "-c", _PROLOGUE + code + _EPILOGUE],
        env=environment(machine, through),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)
