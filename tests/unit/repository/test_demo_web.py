# SPDX-License-Identifier: Apache-2.0
"""`make demo-web` leaves nothing running, whoever ends it, and ends without a traceback."""

from __future__ import annotations

import os
import re
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


WITHOUT = ("mypy", "pandas", "pyarrow", "pytest", "rich", "sklearn")
"""Packages that the quick start's environment does not have."""
REFUSES = f"""
import sys
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {WITHOUT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}")
sys.meta_path.insert(0, Refuses())
"""


def small_environment(folder: Path) -> dict[str, str]:
    """The environment of a Python that lacks these packages."""
    (folder / "sitecustomize.py").write_text(REFUSES)
    return {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}


def test_the_quick_start_and_make_demo_web_have_one_environment() -> None:
    page, makefile = ((ROOT / name).read_text() for name in ("docs/user/quickstart.md", "Makefile"))
    assert "berth-try/bin/pip install '.[daemon,report]'" in page
    assert "pip install --quiet --disable-pip-version-check '.[daemon,report]'" in makefile
    assert "berth-try/bin/python -m containers.demo_web" in makefile


@pytest.mark.slow
def test_the_quick_starts_simulation_has_plots_without_what_developers_have(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "user" / "quickstart.md").read_text()
    [draw] = re.findall(r"^awk .*?jobs\.csv$", page, re.MULTILINE | re.DOTALL)
    [play] = re.findall(r"^berth-try/bin/berth (simulate .*)$", page, re.MULTILINE)
    subprocess.run(["sh", "-c", draw.replace("i <= 400", "i <= 60")], cwd=tmp_path, check=True)
    words = [sys.executable, "-m", "policy.cli.main", *play.split(), "--workers", "1"]

    subprocess.run(words, cwd=tmp_path, env=small_environment(tmp_path), check=True, stdout=subprocess.DEVNULL)

    assert (tmp_path / "jobs.html").read_text().count("<svg") >= 3


@pytest.mark.slow
@pytest.mark.parametrize("at", ["simulates", "berth web: http"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_runs_on_and_no_traceback_is_shown(tmp_path: Path, at: str, number: signal.Signals) -> None:
    # A shell that starts the tests in the background has them ignore SIGINT.
    words = ["env", "--default-signal=INT", sys.executable, "-m", "containers.demo_web", "--nodes", "2", "--port", "0"]
    said = tmp_path / "said"
    with said.open("w") as out:
        demo = subprocess.Popen(
            words,
            cwd=tmp_path,
            env=small_environment(tmp_path),
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
