# SPDX-License-Identifier: Apache-2.0
"""How much of a difference between two policies is chance."""

import numpy as np
import pytest

from policy.simulate.report.chance import figure, largest_by_chance, ratio, resampled, wait_of
from policy.simulate.report.summary import Line, Summary

JCT = figure("avg_jct_s")


def line(policy: str, jcts: dict[tuple[str, int], float], waits: dict[str, list[float]] | None = None) -> Line:
    """Runs by trace and seed; `waits` has for each class the mean wait of 40 jobs in each run."""
    runs = [
        Summary(
            policy,
            seed,
            {"avg_jct_s": jct, "avg_wait_s": jct},
            wait_by_gpus={name: 40 * some[place] for name, some in (waits or {}).items()},
            jobs_by_gpus=dict.fromkeys(waits or {}, 40),
            trace=trace,
        )
        for place, ((trace, seed), jct) in enumerate(jcts.items())
    ]
    return Line(policy, tuple(runs))


def drawn(traces: int, draws: int, spread: float, seed: int) -> dict[tuple[str, int], float]:
    chance = np.random.default_rng(seed)
    sizes = chance.normal(0.0, 1.0, traces)
    keys = [(f"t{trace}", draw) for trace in range(traces) for draw in range(draws)]
    return {key: 1e4 * float(np.exp(sizes[int(key[0][1:])] + chance.normal(0.0, spread))) for key in keys}


def test_a_ratio_is_the_geometric_mean_of_pairs_of_one_trace_and_draw() -> None:
    plain = drawn(4, 3, 0.3, 1)
    ours = {key: value * (0.5 if key[1] else 2.0) for key, value in plain.items()}

    found = ratio(line("berth", ours), line("slurm", plain), JCT)

    assert found.value == pytest.approx((0.5 * 0.5 * 2.0) ** (1 / 3))
    assert found.pairs == 12
    assert found.lower == pytest.approx(found.upper), "each trace says the same"


def test_an_interval_is_over_traces_as_draws_of_one_trace_are_alike() -> None:
    """Each trace has a gain of its own, and many draws of it: single pairs would make the interval too narrow."""
    logs = np.repeat(np.random.default_rng(3).normal(0.0, 0.2, 6), 50)
    traces = np.repeat(np.arange(6), 50).tolist()

    over_traces, over_pairs = resampled(logs, traces).std(), resampled(logs).std()

    assert over_traces > 4 * over_pairs


@pytest.mark.parametrize("traces", [1, 5])
@pytest.mark.parametrize(("factor", "is_chance"), [(1.0, True), (0.95, True), (0.5, False)])
def test_what_differs_as_plain_slurm_does_from_itself_is_chance(traces: int, factor: float, is_chance: bool) -> None:
    """Ten draws of plain Slurm differ by 30 %; all of ours are as much shorter than the same draw."""
    plain = drawn(traces, 10, 0.3, 5)

    found = ratio(line("berth", {key: factor * value for key, value in plain.items()}), line("slurm", plain), JCT)

    assert found.value == pytest.approx(factor)
    assert 1.05 < found.null < 1.6
    assert found.is_chance is is_chance


def test_the_largest_of_many_classes_differs_more_by_chance_than_one() -> None:
    chance = np.random.default_rng(8)
    waits = {str(size): np.exp(chance.normal(9.0, 0.4, 10)).tolist() for size in range(8)}
    plain = line("slurm", dict.fromkeys([("t", draw) for draw in range(10)], 1.0), waits)

    one = largest_by_chance(plain, [wait_of("0")])
    every = largest_by_chance(plain, [wait_of(name) for name in waits])

    assert 1.0 < one < every
