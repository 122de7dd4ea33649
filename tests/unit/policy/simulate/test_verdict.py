# SPDX-License-Identifier: Apache-2.0
"""The sentence that a simulation's report begins with."""

import pytest

from policy.simulate.report.summary import Summary
from policy.simulate.report.verdict import verdict


def run(policy: str, wait: float, jct: float, by_gpus: dict[str, float] | None = None, seed: int = 1) -> Summary:
    return Summary(policy, seed, {"avg_wait_s": wait, "avg_jct_s": jct}, wait_by_gpus=by_gpus or {})


def test_it_says_what_berth_saves_and_for_whom() -> None:
    slurm = run("slurm", 1000.0, 4000.0, {"1": 100.0, "9 to 16": 900.0})
    berth = run("berth", 890.0, 3960.0, {"1": 110.0, "9 to 16": 780.0})

    assert verdict([slurm, berth]) == (
        "Berth would have saved 11 % of waiting and 1 % of the time from submission to end, beside plain Slurm; most "
        "for jobs on 9 to 16 GPUs; jobs on 1 GPU would have waited longer. One draw of the arrivals does not tell how "
        "much of that is chance."
    )


def test_it_says_when_berth_costs_something() -> None:
    assert verdict([run("slurm", 100.0, 1000.0), run("berth", 120.0, 900.0)]) == (
        "Berth would have saved 10 % of the time from submission to end, but cost 20 % more of waiting, beside plain "
        "Slurm. One draw of the arrivals does not tell how much of that is chance."
    )


def test_over_several_draws_it_tells_an_interval_and_what_chance_alone_does() -> None:
    """Waits are halved in each draw; times to the end are now longer and now shorter."""
    slurm = [run("slurm", 100.0 + seed, 1000.0, seed=seed) for seed in range(8)]
    berth = [run("berth", 50.0, (900.0, 1110.0)[seed % 2], seed=seed) for seed in range(8)]

    assert verdict([*slurm, *berth]) == (
        "Berth would have saved 52 % of waiting (51 to 52 %), beside plain Slurm. 8 pairs of the same arrivals."
    )
    berth = [run("berth", 100.0 + seed, (700.0, 1500.0)[seed % 2], seed=seed) for seed in range(8)]
    assert verdict([*slurm, *berth]) == (
        "Berth would have made no difference beyond chance, beside plain Slurm. No more than chance: 2 % more of the "
        "time from submission to end (-23 to 36 %). 8 pairs of the same arrivals."
    )


def test_it_compares_with_the_better_plain_slurm() -> None:
    rows = [run("slurm", 100.0, 1000.0), run("slurm-tree", 80.0, 900.0), run("berth", 40.0, 900.0)]

    assert "saved 50 % of waiting, beside plain Slurm with topology/tree" in verdict(rows)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([run("berth", 1.0, 1.0)], "Only one policy"),
        ([run("slurm", 100.0, 100.0), run("berth", 100.5, 99.5)], "no difference of one percent"),
        ([run("pal", 100.0, 100.0), run("packed", 200.0, 100.0)], "packed would have cost 100 % more of waiting"),
        ([run("recorded", 5.0, 5.0), run("berth", 1.0, 1.0)], "Only one policy"),
    ],
)
def test_it_names_what_there_is_to_compare(rows: list[Summary], said: str) -> None:
    assert said in verdict(rows)
