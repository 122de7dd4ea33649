# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of kinds of nodes asks for, and what it says of its pairs."""

from collections import Counter

from tests.bench import kinds
from tests.bench.kinds import AGAIN, BOUND
from tests.bench.look_ahead import PLAIN, TREE, WITH, WITHOUT
from tests.bench.placement_pairs import METRICS, Pair

EVERY = range(27)


def pair(trace: int, ours: float, again: float = 100.0, wait: float = 60.0) -> Pair:
    means = {
        PLAIN: 120.0,
        TREE: 100.0,
        PLAIN + AGAIN: 120.0,
        TREE + AGAIN: again,
        WITH: ours,
        WITHOUT: 100.0,
        BOUND: 50,
    }
    waits = {"wait of 1": 60.0, "wait of >8": 60.0, "gpu_wait_s": 60.0, "longest_wait_s": 60.0, "late": 0.02}
    figures = {name: {**dict.fromkeys(METRICS, mean), **waits} for name, mean in means.items()}
    figures[WITH]["wait of >8"] = wait
    return Pair("l40s", "tripled", trace, 1, figures)


def test_each_pair_is_asked_for_once_and_each_beginning_has_all_traces() -> None:
    asked = list(kinds.asked(["l40s", "a100-4"], ["tripled", "drawn"], [1, 2]))
    assert len(asked) == len(set(asked)) == 2 * 2 * 2 * len(EVERY)
    assert Counter(trace for *_, trace, _ in asked[: len(EVERY)]) == dict.fromkeys(EVERY, 1)
    assert set(Counter(cell[:2] for cell in asked[: len(EVERY)]).values()) <= {6, 7}


def test_a_row_compares_with_the_better_plain_slurm() -> None:
    row = kinds.row("l40s", [pair(trace, 80.0, wait=90.0) for trace in range(4)])
    assert (row["plain"], row["pairs"], row["late; plain"]) == ("tree", "4", "2.0; 2.0 %")
    assert row["Berth"] == "0.800 (0.800 to 0.800)"
    assert row[BOUND] == "0.500 (0.500 to 0.500)"
    assert row["largest class, by chance"] == ">8: 1.50 (1.50 to 1.50), 1.00"


def test_the_worst_pair_stands_beside_that_of_plain_slurm_and_itself() -> None:
    row = kinds.row("l40s", [pair(0, 80.0), pair(1, 130.0), pair(2, 90.0, again=50.0)])
    assert row["worst pair; plain beside itself"] == "1.30; 2.00"


def test_all_sets_and_cells_are_summed_up() -> None:
    rows = [row[""] for row in kinds.summed_up([pair(trace, 80.0) for trace in (0, 9)])]
    assert rows == ["l40s, tripled", "l40s", "sia", "helios", "all"]
