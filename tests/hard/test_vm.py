# SPDX-License-Identifier: Apache-2.0
"""The test cluster on fresh Debian machines with systemd, cgroup v2 and AppArmor: `make test-vm`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITES = os.environ.get("BERTH_TEST_SUITES", "trixie,bookworm").split(",")
pytestmark = [pytest.mark.hard, pytest.mark.vm, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", params=SUITES)
def told(request: pytest.FixtureRequest) -> dict[str, str]:
    """What the guest found; run.py fails where it did not come to its end."""
    suite = str(request.param)
    subprocess.run([sys.executable, ROOT / "containers" / "vm" / "run.py", suite], check=True)
    results: dict[str, str] = json.loads((ROOT / "build" / "vm" / suite / "results.json").read_text())
    return results


def test_the_machine_is_one_as_the_promise_means_it(told: dict[str, str]) -> None:
    assert told["cgroup"] == "cgroup2fs"
    assert told["apparmor"] == "Y"
    assert told["engine"].endswith("systemd 2")


def test_jobs_open_their_own_gpus_and_no_others(told: dict[str, str]) -> None:
    for job in ("sbatch", "half1", "half2"):
        assert told[job] == told[f"{job}_given"]
    # Beside the group of process 1, also after the guest's `scontrol reconfigure`.
    assert re.fullmatch(r"/system\.slice/n1_slurmstepd\.scope/[^/]+/step_batch/user/task_0", told["sbatch_cgroup"])
    assert sorted(f"{told['half1']},{told['half2']}".split(",")) == list("01234567")


def test_jobs_without_gpus_open_none(told: dict[str, str]) -> None:
    assert told["without"] == told["srun_without"] == "none"


def test_srun_and_salloc_get_linked_gpus(told: dict[str, str]) -> None:
    # The bridged pairs of the A6000 machine (containers/config/gres.conf).
    assert told["srun"] in {"0,7", "1,6", "2,5", "3,4"}
    assert len(told["salloc"].split(",")) == 4


def test_slurmd_has_all_that_it_wants_of_cgroups(told: dict[str, str]) -> None:
    assert told["slurmd_error"] == "none"


def test_nothing_is_left_running(told: dict[str, str]) -> None:
    assert told["left_over"] == "nothing"
    assert told["engine_after"] == "inactive"
