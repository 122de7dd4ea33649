"""A lying daemon, a mad user or a broken file must not crash slurmctld: the C parsers under libFuzzer."""

from __future__ import annotations

import re
import subprocess

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_of_fuzzing_finds_nothing(fuzzer: subprocess.Popen[str]) -> None:
    output, _ = fuzzer.communicate(timeout=240)

    assert fuzzer.returncode == 0, output[-3000:]
    done = re.search(r"stat::number_of_executed_units: *(\d+)", output)
    assert done, output[-3000:]
    assert int(done[1]) > 10_000
