# SPDX-License-Identifier: Apache-2.0
"""berthd and berth-guard by their units under systemd, from Debian packages beside Debian's own Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = ("berthd", "berth-guard")
WAYS = [["--container"], pytest.param([], marks=pytest.mark.vm)]
pytestmark = [pytest.mark.hard, pytest.mark.timeout(5_400)]


@pytest.fixture(scope="module", params=WAYS, ids=["container", "machine"])
def told(request: pytest.FixtureRequest) -> dict[str, str]:
    """Returns the results of the trial (containers/vm/units.py); run.py fails where it did not come to its end."""
    words: list[str] = request.param
    program = str(ROOT / "containers" / "vm" / "run.py")
    runs = [sys.executable, program, "trixie", "--trial", "units", *words]
    subprocess.run([*runs, "--time-limit", "5000"], check=True)
    folder = "trixie-units-container" if words else "trixie-units"
    found: dict[str, str] = json.loads((ROOT / "build" / "vm" / folder / "results.json").read_text())
    # The next one takes the packages that lie there.
    os.environ["BERTH_PACKAGES_BUILT"] = "1"
    return found


def test_bounds_and_user_are_those_of_the_units(told: dict[str, str]) -> None:
    assert told["berthd_user"] == "slurm"
    assert [told[f"{unit}_memory_max"] for unit in UNITS] == [str(2 << 30), str(1 << 30)]
    assert [told[f"{unit}_pids_max"] for unit in UNITS] == ["1024", "512"]


def test_exposure_is_as_low_as_the_security_page_says(told: dict[str, str]) -> None:
    assert float(told["berthd_exposure"]) <= 1.5
    assert float(told["berth-guard_exposure"]) <= 7.5


def test_jobs_are_placed_and_share_gpus_under_the_units(told: dict[str, str]) -> None:
    assert (told["whole_state"], told["whole_placed"]) == ("COMPLETED", "True")
    assert told["share_state"] == "COMPLETED"


def test_an_upgrade_keeps_a_share_that_is_held_and_restarts_nothing_by_itself(told: dict[str, str]) -> None:
    assert told["upgrade_version"].startswith("2~")
    names = ("says", "leaves_daemons", "same_gpu", "refuses_removal")
    assert {name: told[f"upgrade_{name}"] for name in names} == dict.fromkeys(names, "True")
    assert (told["upgrade_changes"], told["upgrade_changes_later"]) == ("nothing", "nothing")
    assert (told["upgrade_second_state"], told["upgrade_held_state"]) == ("COMPLETED", "COMPLETED")
    assert told["upgrade_ends"] == "reached"


def test_code_in_berthds_place_can_do_what_berthd_needs_and_nothing_else(told: dict[str, str]) -> None:
    assert told["sandbox_let_through"] == "nothing"
    assert told["sandbox_missing"] == "nothing"


def test_what_takes_too_much_memory_is_ended_and_the_unit_goes_on(told: dict[str, str]) -> None:
    for unit in UNITS:
        assert told[f"{unit}_hog"] == "-9"
        assert told[f"{unit}_after_hog"] == "active True"


def test_killed_or_hung_units_come_back_and_a_stopped_berthd_leaves_no_pin(told: dict[str, str]) -> None:
    assert all(int(told[f"{unit}_restarts"]) >= 1 for unit in UNITS)
    if told["emulated"] == "False":
        assert 20 <= float(told["watchdog_seconds"]) <= 120
    assert told["pin_after_stop"] == "(null)"
    assert [told[f"{unit}_result"] for unit in UNITS] == ["success"] * 2
