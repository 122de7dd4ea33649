# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from policy.formats.errors import FormatError
from policy.sharing.profiles import Measured, ProfileKey, Store
from policy.sharing.sources import PRIORS, from_sacct, profile_for

HEADER = "JobID|User|Account|JobName|End|ElapsedRaw|AllocTRES|TRESUsageInAve|TRESUsageInMax"
ANN = ProfileKey("ann", "lab", "train")


def lines(tres: str, *steps: str) -> list[str]:
    return [HEADER, f"7|ann|lab|train|1763700000|1200|cpu=4,{tres}||", *steps]


def step(name: str, seconds: int, busy: int, memory: str) -> str:
    return f"7.{name}|||x|1763700000|{seconds}|gres/gpu=1|gres/gpumem=1M,gres/gpuutil={busy}|gres/gpumem={memory}"


def test_steps_count_by_their_length_and_the_peak_is_the_largest() -> None:
    found = dict(from_sacct(lines("gres/gpu=1", step("batch", 900, 20, "2G"), step("0", 300, 100, "1048576K"))))

    one = found[ANN]
    assert one.busy == pytest.approx(0.4)
    assert (one.at, one.runs, one.memory) == (1_763_700_000, 1.0, 2_048.0)


def test_a_short_run_counts_less() -> None:
    ((_, one),) = from_sacct(lines("gres/gpu=1", step("0", 60, 50, "10M")))

    assert one.runs == pytest.approx(0.1)


@pytest.mark.parametrize("tres", ["gres/gpu=2", "gres/shard=30", "gres/seat=1", "gres/gpu=1,gres/shard=30"])
def test_who_was_not_alone_on_one_gpu_says_nothing(tres: str) -> None:
    assert not list(from_sacct(lines(tres, step("0", 900, 50, "10M"))))


def test_where_seats_are_known_an_owner_without_its_seat_may_have_had_a_guest() -> None:
    other = "8|bob|lab|serve|1763700000|1200|gres/gpu=1,gres/seat=1|gres/gpuutil=10|gres/gpumem=1G"

    found = dict(from_sacct([*lines("gres/gpu=1", step("0", 900, 50, "10M")), other]))

    assert list(found) == [ProfileKey("bob", "lab", "serve")]


def test_a_running_job_and_one_without_figures_are_left_out() -> None:
    running = "9|ann|lab|train|Unknown|100|gres/gpu=1|gres/gpuutil=10|gres/gpumem=1G"

    assert not list(from_sacct([*lines("gres/gpu=1"), running]))


@pytest.mark.parametrize(
    "text",
    [
        ["JobID|User"],
        [HEADER, "7|ann"],
        [HEADER, "7|ann|lab|a|b|1|1|x|y|z"],
        lines("gres/gpu=1", step("0", 900, 50, "many")),
    ],
)
def test_a_table_that_is_not_sacct_s_is_refused(text: list[str]) -> None:
    with pytest.raises(FormatError, match="accounting"):
        list(from_sacct(text))


def test_an_unknown_job_is_taken_for_one_of_its_class() -> None:
    assert profile_for(Store(), ANN, "memory") == PRIORS["memory"]
    assert profile_for(Store(), ANN, "nobody-knows") == PRIORS["mixed"]
    assert profile_for(Store(), ANN, "compute", gpu_mem=500).memory == 500
    assert profile_for(Store(), ANN).runs == 0


def test_a_prior_fills_only_what_nobody_measured() -> None:
    store = Store()
    store.add(ANN, Measured(at=5, runs=1, busy=0.3, memory=100))

    found = profile_for(store, ANN, "compute", gpu_mem=5_000)

    assert (found.busy, found.memory, found.bandwidth) == (0.3, 100, PRIORS["compute"].bandwidth)
