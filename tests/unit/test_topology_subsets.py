"""The table of best sets against a brute force that shares nothing with it."""

from __future__ import annotations

import random
import time
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.strategies import machines, make_machine
from topology.errors import QuestionError, TooManySetsError
from topology.islands import islands, positions
from topology.model import Machine
from topology.subsets import Level, SubsetTable

LEVELS: tuple[Level, ...] = ("nvlink", "node")

CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
PAIRS = {(0, 5): 4, (1, 4): 4, (2, 7): 4, (3, 6): 4}


def exact(machine: Machine, a: int, b: int) -> Fraction:
    return Fraction(round(machine.gbps[a][b] * 1_000_000))


def brute_islands(machine: Machine) -> list[frozenset[int]]:
    """Every clique of two or more GPUs that no other clique contains."""
    everyone = range(machine.size)
    cliques = [
        frozenset(gpus)
        for k in range(2, machine.size + 1)
        for gpus in combinations(everyone, k)
        if all(machine.gbps[a][b] > 0 for a, b in combinations(gpus, 2))
    ]
    return [clique for clique in cliques if not any(clique < other for other in cliques)]


def merit(
    machine: Machine, free: set[int], gpus: tuple[int, ...], known: list[frozenset[int]]
) -> tuple[Fraction, Fraction, int, int, int, tuple[int, ...]]:
    pairs = list(combinations(gpus, 2))
    speeds = [exact(machine, a, b) for a, b in pairs] or [Fraction(0)]
    nears = [machine.near[a][b] for a, b in pairs] or [0]
    taken = set(gpus)
    cut = sum(1 for island in known if len(island & free) >= 2 and island & taken and (island & free) - taken)
    return (min(speeds), sum(speeds, Fraction(0)), -cut, min(nears), sum(nears), tuple(-gpu for gpu in gpus))


def brute_best(machine: Machine, free: set[int], k: int, level: str) -> tuple[int, ...] | None:
    candidates = [
        gpus
        for gpus in combinations(sorted(free), k)
        if level == "node" or all(machine.gbps[a][b] > 0 for a, b in combinations(gpus, 2))
    ]
    known = brute_islands(machine)
    return max(candidates, key=lambda gpus: merit(machine, free, gpus, known), default=None)


def bits(gpus: tuple[int, ...] | set[int]) -> int:
    return sum(1 << gpu for gpu in gpus)


@settings(max_examples=examples(300), deadline=None)
@given(machines(), st.data())
def test_best_is_what_looking_at_every_set_finds(machine: Machine, data: st.DataObject) -> None:
    free = data.draw(st.sets(st.integers(0, machine.size - 1)))
    k = data.draw(st.integers(1, machine.size))
    level: Level = data.draw(st.sampled_from(LEVELS))
    choice = SubsetTable(machine).best(bits(free), k, level)
    assert (choice.gpus if choice else None) == brute_best(machine, free, k, level)


@settings(max_examples=examples(4), deadline=None)
@given(machines(min_gpus=8, max_gpus=8))
def test_best_is_right_for_every_free_set_and_every_k(machine: Machine) -> None:
    table, known = SubsetTable(machine), brute_islands(machine)
    for mask in range(1, 1 << machine.size):
        free = set(positions(mask))
        for k in range(1, len(free) + 1):
            choice = table.best(mask, k)
            assert choice is not None
            _, best = max((merit(machine, free, gpus, known), gpus) for gpus in combinations(sorted(free), k))
            assert choice.gpus == best


@settings(max_examples=examples(100), deadline=None)
@given(machines(min_gpus=2), st.data())
def test_a_choice_says_of_itself_what_is_true(machine: Machine, data: st.DataObject) -> None:
    free = data.draw(st.sets(st.integers(0, machine.size - 1), min_size=2))
    k = data.draw(st.integers(1, len(free)))
    choice = SubsetTable(machine).best(bits(free), k)
    assert choice is not None
    least, total, cut, near_min, near_sum, _ = merit(machine, free, choice.gpus, brute_islands(machine))
    assert choice.min_gbps == float(least / 1_000_000)
    assert choice.sum_gbps == float(total / 1_000_000)
    assert (-choice.broken, choice.near_min, choice.near_sum) == (cut, near_min, near_sum)
    assert positions(choice.mask) == choice.gpus


@settings(max_examples=examples(100), deadline=None)
@given(machines(min_gpus=2), st.data())
def test_keys_order_choices_as_best_does(machine: Machine, data: st.DataObject) -> None:
    """What is best among all GPUs is at least as good as what is best without one of them."""
    k = data.draw(st.integers(1, machine.size - 1))
    without = data.draw(st.integers(0, machine.size - 1))
    everything = (1 << machine.size) - 1
    table = SubsetTable(machine)
    whole, part = table.best(everything, k), table.best(everything & ~(1 << without), k)
    assert whole is not None
    assert part is not None
    # Islands are counted among free GPUs, so only what comes before them is comparable.
    assert whole.key[:2] >= part.key[:2]


@settings(max_examples=examples(100), deadline=None)
@given(machines(), st.data())
def test_ranked_holds_every_set_once_in_the_order_of_merit(machine: Machine, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, machine.size))
    known, everyone = brute_islands(machine), set(range(machine.size))
    expected = sorted(
        combinations(range(machine.size), k), key=lambda gpus: merit(machine, everyone, gpus, known), reverse=True
    )
    assert [positions(mask) for mask in SubsetTable(machine).ranked(k)] == expected


@settings(max_examples=examples(100), deadline=None)
@given(machines())
def test_islands_are_the_maximal_cliques(machine: Machine) -> None:
    assert {frozenset(positions(mask)) for mask in islands(machine.shape)} == set(brute_islands(machine))


@pytest.mark.parametrize(
    ("free", "k", "expected"),
    [
        # Of the double links, 0-4 and 1-5 cut into the two quads alone; others cut a pair across as well.
        ({0, 1, 2, 3, 4, 5, 6, 7}, 2, (0, 4)),
        ({0, 1, 2, 3, 4, 5, 6, 7}, 4, (0, 1, 2, 3)),
        ({1, 2, 3, 4, 5, 6, 7}, 4, (4, 5, 6, 7)),
        # 0 joins two islands, 3 and 6 are in one each.
        ({0, 3, 4, 6}, 1, (3,)),
        # 5 is joined to nothing that is free.
        ({2, 3, 5}, 1, (5,)),
    ],
)
def test_cube_mesh(free: set[int], k: int, expected: tuple[int, ...]) -> None:
    choice = SubsetTable(make_machine(8, CUBE_MESH)).best(bits(free), k)
    assert choice is not None
    assert choice.gpus == expected


def test_bridged_pairs_are_taken_whole_and_single_gpus_come_from_broken_ones() -> None:
    table = SubsetTable(make_machine(8, PAIRS))
    assert [table.best(0xFF, k).gpus for k in (2, 4)] == [(0, 5), (0, 1, 4, 5)]  # type: ignore[union-attr]
    # 5 has lost its partner: taking it breaks nothing.
    alone = table.best(0xFE, 1)
    assert alone is not None
    assert (alone.gpus, alone.broken) == ((5,), 0)


def test_level_nvlink_wants_every_pair_joined() -> None:
    table = SubsetTable(make_machine(8, PAIRS))
    assert [table.best(0xFF, k, "nvlink") is not None for k in (1, 2, 3)] == [True, True, False]
    assert [table.best(0xFF, k, "node") is not None for k in (0, 8, 9)] == [False, True, False]
    assert table.best(0b11, 2, "nvlink") is None
    assert table.best(0b11, 2) is not None


def test_a_level_that_does_not_exist_inside_a_node_is_refused() -> None:
    with pytest.raises(QuestionError, match="leaf"):
        SubsetTable(make_machine(2, {})).best(3, 1, "leaf")  # type: ignore[arg-type]


def test_busy_bits_beyond_the_machine_are_ignored() -> None:
    choice = SubsetTable(make_machine(2, {})).best(0b1111, 2)
    assert choice is not None
    assert choice.gpus == (0, 1)


def test_machines_of_equal_shape_share_one_table() -> None:
    assert SubsetTable.of(make_machine(8, PAIRS)) is SubsetTable.of(make_machine(8, dict(PAIRS)))
    assert SubsetTable.of(make_machine(8, PAIRS)) is not SubsetTable.of(make_machine(8, CUBE_MESH))


def test_too_many_sets_are_refused_with_a_sentence() -> None:
    with pytest.raises(TooManySetsError, match="64 GPUs have 7624512 sets of 5"):
        SubsetTable(make_machine(64, {})).best((1 << 64) - 1, 5)
    whole = SubsetTable(make_machine(64, {})).best(1 << 63 | 1, 2)
    assert whole is not None
    assert whole.gpus == (0, 63)


def test_sixteen_gpus_take_less_than_two_milliseconds() -> None:
    chance = random.Random(7)
    counts = {pair: chance.choice([0, 1, 2]) for pair in combinations(range(16), 2)}
    table = SubsetTable(make_machine(16, counts))
    table.best(0xFFFF, 8)  # ranks the sets, once for a shape
    times = []
    for _ in range(50):
        free = chance.getrandbits(16) | 0x00FF
        begin = time.perf_counter()
        table.best(free, 8)
        times.append(time.perf_counter() - begin)
    # The median, because the machine that runs this does other things too.
    assert sorted(times)[25] < 0.002
