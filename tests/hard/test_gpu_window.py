# SPDX-License-Identifier: Apache-2.0
"""The windows for a machine with a GPU, from end to end: a simulated GPU, and NVIDIA's real control program of MPS."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.all import ROOT
from tests.real.packages import unpacked

pytestmark = [
    pytest.mark.hard,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="MPS is started as slurmd starts it: as root"),
]

WINDOW = (
    "facts", "mps-help", "mps-limits", "mps-faults", "mps-many-users", "mps-berth", "two-products",
    "green-contexts", "inside-pytorch", "calibration", "calibration-own", "owner-and-guest",
)  # fmt: skip
GUARD = (
    "owner-memory", "owner-and-guest", "standing-still", "own-gate", "killed-clients", "two-loops", "calibrate-node",
)  # fmt: skip
MAY_MISS = {"two-products", "two-loops", "owner-and-guest"}
"""Steps whose figures a GPU has to show: a simulated one on busy processors may miss them."""
WHOLE_S = 600
STATUS = re.compile(r"(\S+) rc=(\d+) (\d+) s")


def ran(script: str, driver: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Run a window; returns each step's exit status and seconds, as the archive has them."""
    why = unpacked(driver)
    if isinstance(why, str):
        pytest.skip(f"NVIDIA's {driver} cannot be had: {why}")
    out = folder / "out"
    words = [sys.executable, "-m", "tests.gpu.simulated", driver, "bash", f"tests/gpu/{script}"]
    variables = os.environ | {"OUT": str(out), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [archive] = out.glob("*.tgz")
    with tarfile.open(archive) as files:
        status = files.extractfile("./status.txt")
        assert status
        text = status.read().decode()
        print(text)
        names = {Path(name).stem for name in files.getnames()}
    found = {name: (int(code), int(seconds)) for name, code, seconds in STATUS.findall(text)}
    assert found.keys() <= names
    return found


def wrong(steps: dict[str, tuple[int, int]]) -> dict[str, int]:
    return {name: code for name, (code, _) in steps.items() if code and not (code == 1 and name in MAY_MISS)}


def test_each_step_of_the_window_ends_well(tmp_path: Path) -> None:
    steps = ran("window.sh", "r550", tmp_path)

    assert tuple(steps) == WINDOW
    assert wrong(steps) == {}
    assert sum(seconds for _, seconds in steps.values()) < WHOLE_S


def test_each_step_of_the_guards_window_ends_well(tmp_path: Path) -> None:
    steps = ran("window_guard.sh", "r550", tmp_path)

    assert tuple(steps) == GUARD
    assert wrong(steps) == {}
    assert sum(seconds for _, seconds in steps.values()) < WHOLE_S


def test_a_step_that_hangs_or_fails_costs_only_itself(tmp_path: Path) -> None:
    code = (
        f"ARCHIVE=x.tgz; OUT={tmp_path}/out; WINDOW_S=20; cd {ROOT}; . tests/gpu/window_steps.sh;"
        ' step 5 hangs sleep 60; step 5 fails false; mkdir "$W/daemon"; sleep 300 & pid=$!;'
        ' step 5 leaves bash -c "echo $pid $W/daemon >> $W/started"; ! kill -0 $pid && [ ! -e "$W/daemon" ];'
        ' echo "ended: $?"; WINDOW_S=1; step 5 late true'
    )
    done = subprocess.run(
        ["bash", "-c", code], env=os.environ | {"PY": sys.executable}, capture_output=True, text=True, check=False
    )

    assert [(name, int(status)) for name, status, _ in STATUS.findall(done.stdout)] == [
        ("hangs", 124), ("fails", 1), ("leaves", 0), ("late", 124)
    ]  # fmt: skip
    assert "ended: 0" in done.stdout
