"""`make demo-web` ends with all that it started, silently, whichever signal it gets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from containers import demo_web
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = """
import sys, time
open("told", "w").write(sys.argv[1])
if sys.argv[1] == "simulate" and sys.argv[-1].endswith("day-2.json"):
    open(sys.argv[-1], "w").close()
    sys.exit(0)
time.sleep(600)
"""
MAIN = "import sys; from containers import demo_web; demo_web._BERTH = (sys.executable, 'berth.py'); demo_web.main()"


@pytest.mark.parametrize("stage", ["simulate", "web"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_runs_on(tmp_path: Path, stage: str, number: int) -> None:
    (tmp_path / "berth.py").write_text(STAND_IN)
    words = [sys.executable, "-c", MAIN, "--nodes", "3" if stage == "simulate" else "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        told = tmp_path / "told"
        until("the program to start", lambda: told.exists() and told.read_text() == stage)
        # A terminal interrupts the whole group, `kill` ends the one process that its user knows.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        said = process.communicate(timeout=30)[1]

    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    # The stand-in has Python's own way to say that it was interrupted; `berth` says nothing.
    assert "demo_web" not in said


def test_a_program_that_fails_is_told_of() -> None:
    assert demo_web.run([sys.executable, "-c", "raise SystemExit(3)"]) == 3
