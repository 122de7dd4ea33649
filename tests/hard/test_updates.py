# SPDX-License-Identifier: Apache-2.0
"""Changes by `scontrol update` at random, on plain Slurm and with Berth: they are taken, and the job runs the same."""

from __future__ import annotations

import os

import pytest

from tests.differential.outcome import prepare
from tests.differential.updates import at_random, differing

from .test_differential import FOLDER, Pair, pair

__all__ = ["pair"]

COUNT = int(os.environ.get("BERTH_DIFFERENTIAL", "300"))
SEED = int(os.environ.get("BERTH_DIFFERENTIAL_SEED", "1"))


@pytest.mark.hard
@pytest.mark.timeout(2 * 3600)
def test_changes_become_the_same_as_on_plain_slurm(pair: Pair) -> None:
    for target in pair:
        prepare(target, FOLDER)
    assert differing(pair, at_random(SEED, COUNT), folder=FOLDER) == {}


@pytest.mark.hard
@pytest.mark.timeout(3600)
def test_changes_leave_the_same_record_as_on_plain_slurm(pair: Pair) -> None:
    for target in pair:
        prepare(target, FOLDER)
    assert differing(pair, at_random(SEED, COUNT), folder=FOLDER, run=False) == {}
