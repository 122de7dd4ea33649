# SPDX-License-Identifier: Apache-2.0
"""The campaign of seeded faults, for a few minutes: every kind of fault at least once is `make campaign MINUTES=30`."""

from __future__ import annotations

import os
import random
import secrets

import pytest

from tests.hard.faults.__main__ import Campaign
from tests.hard.faults.kinds import Faults
from tests.hard.faults.site import FaultySite
from tests.slurm.harness import Slurm

from .test_churn import slurm

__all__ = ["slurm"]
SECONDS = 180.0
SEED = int(os.environ.get("BERTH_TEST_SEED", "0")) or secrets.randbelow(10**6)
pytestmark = [pytest.mark.hard, pytest.mark.timeout(1_800)]


def test_no_invariant_breaks_while_all_around_berth_does(slurm: Slurm) -> None:
    print(f"BERTH_TEST_SEED={SEED}")
    report = Campaign(FaultySite(slurm), SEED, SECONDS).run()

    assert report.wrong == []
    assert report.jobs > 0
    assert report.strikes


def test_a_seed_gives_the_same_faults_and_each_kind_comes_before_any_comes_again(slurm: Slurm) -> None:
    one, same = (Faults(FaultySite(slurm, backup=True), random.Random(7)) for _ in range(2))
    drawn = [one.draw() for _ in one.names]

    assert sorted(fault.name for fault in drawn) == sorted(one.names)
    assert [(fault.name, fault.node) for fault in drawn] == [
        (fault.name, fault.node) for fault in (same.draw() for _ in same.names)
    ]
