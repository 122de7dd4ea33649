# SPDX-License-Identifier: Apache-2.0
"""The launchers that packages lay down do what users run, worker processes and all, and not only `--version`."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
STAGE = runpy.run_path(str(ROOT / "packaging" / "stage.py"))
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
TRACE = "job_id,num_gpus,submit_time,duration\n" + "".join(f"{n},{1 + n % 4},{n},600\n" for n in range(6))


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A folder with each launcher, whose Python is this one."""
    for name, target in SCRIPTS.items():
        module, _, function = target.partition(":")
        launcher = tmp_path / name
        launcher.write_text(STAGE["launcher"](sys.executable, module, function))
        launcher.chmod(0o755)
    return tmp_path


def ran(launcher: Path, *words: str) -> str:
    # By the interpreter's name: a path with a space cannot stand after #!.
    words = (sys.executable, str(launcher), *words)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=launcher.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words[1:3])} ended with status {done.returncode}: {done.stderr[-600:]}"
    return done.stdout


def test_simulate_plays_its_default_policies_in_worker_processes(bin_folder: Path) -> None:
    (bin_folder / "trace.csv").write_text(TRACE)
    told = ran(bin_folder / "berth", "simulate", "trace.csv", "--nodes", "2", "--gpus-per-node", "4", "--workers", "2")
    assert all(name in told for name in ("slurm", "packed", "berth")), told


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_launcher_that_a_worker_process_loads_as_a_module_runs_nothing(bin_folder: Path, name: str) -> None:
    runpy.run_path(str(bin_folder / name), run_name="__mp_main__")


def test_topo_shows_a_known_machine(bin_folder: Path) -> None:
    assert "GPU" in ran(bin_folder / "berth", "topo", "show", "machine:hgx-h100")
