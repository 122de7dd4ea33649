# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own programs, libraries and headers of CUDA 12 and 13, as published in Python wheels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.all import ROOT

__all__ = ["VERSIONS", "cuda_files"]

LOCK = ROOT / "requirements/cuda.lock"
VERSIONS = ("12", "13")


def cuda_files(folder: Path) -> dict[str, Path]:
    """Unpacks the wheels below `folder`; returns a folder for each version. Skips the test where they cannot be had."""
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(folder)]
    done = subprocess.run([*fetch, "-r", str(LOCK)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NVIDIA's wheels cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    for wheel in folder.glob("*.whl"):
        with ZipFile(wheel) as archive:
            archive.extractall(folder / ("12" if "_cu12-" in wheel.name else "13"))
    return {version: folder / version for version in VERSIONS}
