# SPDX-License-Identifier: Apache-2.0
"""A lying daemon, a mad user or a broken file must not crash slurmctld: the C parsers under libFuzzer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_minute_of_fuzzing_finds_nothing() -> None:
    seconds = os.environ.get("FUZZ_SECONDS", "60")
    command = ["make", "--no-print-directory", "-C", str(Path(__file__).parent), "run", f"SECONDS={seconds}"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)

    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    units = re.search(r"stat::number_of_executed_units: *(\d+)", output)
    assert units, output[-3000:]
    assert int(units[1]) > 1_000
