"""The programs that packages install run commands that start processes of their own."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SLOW_COMMAND = ["simulate", "trace.csv", "--nodes", "2", "--gpus-per-node", "4", "--workers", "2", "--json"]


@pytest.mark.slow
def test_simulate_runs_its_default_policies_from_a_package(tmp_path: Path) -> None:
    text = str(runpy.run_path(str(ROOT / "packaging" / "stage.py"))["launcher"]("policy.cli.main", "main"))
    program = tmp_path / "berth"
    program.write_text(text)
    (tmp_path / "trace.csv").write_text("job_id,num_gpus,submit_time,duration\n1,1,0,100\n2,2,0,100\n")

    done = subprocess.run(
        [sys.executable, program, *SLOW_COMMAND],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["runs"]) == 3
