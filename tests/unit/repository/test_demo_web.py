"""`make demo-web` leaves nothing running, whoever ends it, and ends without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]


def of_session(session: int) -> list[int]:
    """Returns the processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("at", ["simulates", "berth web: http"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_runs_on_and_no_traceback_is_shown(tmp_path: Path, at: str, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "containers.demo_web", "--nodes", "2", "--port", "0"]
    said = tmp_path / "said"
    with said.open("w") as out:
        demo = subprocess.Popen(
            words,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        until(f"the demo to say {at!r}", lambda: at in said.read_text() or None, 120)
        if number == signal.SIGINT:
            os.killpg(demo.pid, number)  # Ctrl-C reaches all of a terminal's foreground
        else:
            demo.send_signal(number)
        demo.wait(60)
        until("all that the demo started to end", lambda: not of_session(demo.pid) or None, 20)
    finally:
        if left := of_session(demo.pid):
            for one in left:
                os.kill(one, signal.SIGKILL)
            pytest.fail(f"{len(left)} processes of the demo run on after {number.name}")
    assert "Traceback" not in said.read_text(), said.read_text()
