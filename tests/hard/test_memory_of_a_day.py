# SPDX-License-Identifier: Apache-2.0
"""berthd's memory stays level while jobs come and go, and Slurm's queue stays as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.load.__main__ import WORKLOADS
from tests.bench.load.day import day
from tests.bench.load.workload import load

pytestmark = pytest.mark.hard


def test_half_an_hour_of_ends_leaves_no_more_in_memory_than_its_first_six_minutes() -> None:
    workload = replace(load(WORKLOADS / "small.yaml"), keep_ended_s=60.0)
    _, first, *_, last = day(workload, hours=0.5, every=0.1)
    assert last.records < 1.02 * first.records + 50, "Slurm on paper keeps more records than at the beginning"
    assert last.megabytes < 1.05 * first.megabytes, (
        f"what berthd reaches grew from {first.megabytes:.2f} to {last.megabytes:.2f} MB in {last.at - first.at:.1f} h"
    )
