# SPDX-License-Identifier: Apache-2.0
"""How far chance makes the GPU time of counted runs differ."""

import numpy as np

from policy.report.counts.gpu_time import GpuTime


def test_one_long_run_says_less_than_many_short_ones_of_as_much_time() -> None:
    one, many = GpuTime(), GpuTime()
    one.add(360_000.0)
    for _ in range(100):
        many.add(3_600.0)

    assert one.figures() == {"runs": 1, "gpu_hours": 100.0, "spread_hours": 100.0}
    assert many.figures() == {"runs": 100, "gpu_hours": 100.0, "spread_hours": 10.0}


def test_weeks_that_are_drawn_differ_as_much_as_it_says() -> None:
    draw = np.random.default_rng(1)
    weeks = [draw.exponential(7_200.0, draw.poisson(50)) for _ in range(400)]
    held = [GpuTime() for _ in weeks]
    for one, runs in zip(held, weeks, strict=True):
        for gpu_s in runs:
            one.add(float(gpu_s))
    figures = [one.figures() for one in held]

    measured = np.std([one["gpu_hours"] for one in figures])
    told = np.median([one["spread_hours"] for one in figures])

    assert 0.8 < told / measured < 1.25
