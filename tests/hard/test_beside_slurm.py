# SPDX-License-Identifier: Apache-2.0
"""The deterministic world's model of slurmctld does what slurmctld does: kept scripts, and seeds."""

from __future__ import annotations

import os

import pytest

from tests.world.beside.__main__ import both
from tests.world.beside.draw import drawn
from tests.world.beside.kept import KEPT
from tests.world.beside.play import DifferenceError
from tests.world.beside.real import own_cluster

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
SEEDS = int(os.environ.get("BERTH_BESIDE", "20"))
STEPS = 12


@pytest.mark.hard
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_model_does_what_slurmctld_does(version: str) -> None:
    scripts = KEPT | {f"seed {seed}": drawn(seed, STEPS) for seed in range(SEEDS)}
    found: dict[str, str] = {}
    with own_cluster(version) as real:
        for name, script in scripts.items():
            try:
                both(real).play(script)
            except DifferenceError as problem:
                found[name] = str(problem)
                print(f"{name}: {problem}", flush=True)
            finally:
                real.clean()
    assert found == {}
