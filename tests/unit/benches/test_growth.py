# SPDX-License-Identifier: Apache-2.0
"""Costs by size, and how fast they grow."""

from __future__ import annotations

import pytest

from tests.bench.growth import COSTS, berthd, rows, simulated


def test_the_exponent_is_the_slope_from_the_least_to_the_greatest_size() -> None:
    figures = {one.name: one for one in rows("jobs", [10, 100, 1_000], [{"pass_ms": ms} for ms in (2.0, 9.0, 20.0)])}

    assert figures["jobs_100_pass_ms"].value == 9.0
    assert figures["jobs_100_pass_ms"].unit == "ms"
    assert figures["jobs_pass_ms_exponent"].value == pytest.approx(0.5)


def test_one_size_has_no_exponent() -> None:
    assert [one.name for one in rows("gpus", [8], [{"rss_mb": 3.0}])] == ["gpus_8_rss_mb"]


@pytest.mark.slow
def test_each_cost_is_measured() -> None:
    found = berthd(1_024, 20)

    assert tuple(found) == COSTS
    assert min(found.values()) > 0


@pytest.mark.slow
def test_simulations_are_measured() -> None:
    assert simulated(20)["simulation_s"] > 0
