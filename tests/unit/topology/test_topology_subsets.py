"""The table of best sets against a brute force that shares nothing with it."""

from __future__ import annotations

import random
import time
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.strategies import machines, make_machine, wired_machines
from topology.errors import QuestionError, TooManySetsError
from topology.graph import node_graph
from topology.machines import machine, names
from topology.model import Machine
from topology.sets.islands import islands
from topology.sets.subsets import Level, SubsetTable
from topology.sets.wiring import positions

LEVELS: tuple[Level, ...] = ("nvlink", "node")

CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
PAIRS = {(0, 5): 4, (1, 4): 4, (2, 7): 4, (3, 6): 4}


class Distances:
    """kB/s over the widest path of each pair, by looking for paths over ever narrower edges; steps to a NIC."""

    def __init__(self, machine: Machine) -> None:
        graph = node_graph(machine)
        uuids = [gpu.uuid for gpu in machine.gpus]
        self.machine, self.islands = machine, brute_islands(machine)
        self.wide = dict.fromkeys(combinations(range(machine.size), 2), 0)
        for gbps in sorted({edge["gbps"] for *_, edge in graph.edges(data=True)}):
            wide = nx.Graph((u, v) for u, v, edge in graph.edges(data=True) if edge["gbps"] >= gbps)
            groups = list(nx.connected_components(wide.subgraph(wide.nodes - set(uuids))))
            next_to = [set(wide.adj[uuid]) if uuid in wide else set() for uuid in uuids]
            for a, b in self.wide:
                if uuids[b] in next_to[a] or any(group & next_to[a] and group & next_to[b] for group in groups):
                    self.wide[a, b] = round(gbps * 1_000_000)
        self.steps = []
        for uuid in uuids:
            far = nx.single_source_shortest_path_length(graph.subgraph(graph.nodes - set(uuids) | {uuid}), uuid)
            self.steps.append(min((far[nic] for nic in far if graph.nodes[nic]["kind"] == "nic"), default=0))

    def merit(self, free: set[int], gpus: tuple[int, ...]) -> tuple[int, int, int, int, int, int, int, tuple[int, ...]]:
        pairs = list(combinations(gpus, 2))
        speeds = [self.wide[pair] for pair in pairs] or [0]
        nears = [self.machine.near[a][b] for a, b in pairs] or [0]
        taken = set(gpus)
        cut = sum(
            1 for island in self.islands if len(island & free) >= 2 and island & taken and (island & free) - taken
        )
        nics = -sum(self.steps[gpu] for gpu in gpus)
        first, last = (nics, 0) if pairs else (0, nics)
        return (min(speeds), sum(speeds), first, -cut, min(nears), sum(nears), last, tuple(-gpu for gpu in gpus))

    def best(self, free: set[int], k: int, level: str) -> tuple[int, ...] | None:
        """The best set, of all that there are."""
        candidates = [
            gpus
            for gpus in combinations(sorted(free), k)
            if level == "node" or all(self.machine.gbps[a][b] > 0 for a, b in combinations(gpus, 2))
        ]
        return max(candidates, key=lambda gpus: self.merit(free, gpus), default=None)


def brute_islands(machine: Machine) -> list[frozenset[int]]:
    """Every clique of two or more GPUs that no other clique contains."""
    joined = [{b for b in range(machine.size) if machine.gbps[a][b] > 0} for a in range(machine.size)]
    found = []

    def grow(clique: frozenset[int], more: set[int], seen: set[int]) -> None:
        if not more and not seen and len(clique) > 1:
            found.append(clique)
        for gpu in sorted(more):
            grow(clique | {gpu}, more & joined[gpu], seen & joined[gpu])
            more, seen = more - {gpu}, seen | {gpu}

    grow(frozenset(), set(range(machine.size)), set())
    return found


def bits(gpus: tuple[int, ...] | set[int]) -> int:
    return sum(1 << gpu for gpu in gpus)


@settings(max_examples=examples(300), deadline=None)
@given(machines(), st.data())
def test_best_is_what_looking_at_every_set_finds(machine: Machine, data: st.DataObject) -> None:
    free = data.draw(st.sets(st.integers(0, machine.size - 1)))
    k = data.draw(st.integers(1, machine.size))
    level: Level = data.draw(st.sampled_from(LEVELS))
    choice = SubsetTable(machine).best(bits(free), k, level)
    assert (choice.gpus if choice else None) == Distances(machine).best(free, k, level)


@settings(max_examples=examples(200), deadline=None)
@given(wired_machines(), st.data())
def test_best_is_what_looking_at_every_set_of_a_machine_that_could_be_built_finds(
    machine: Machine, data: st.DataObject
) -> None:
    free = data.draw(st.sets(st.integers(0, machine.size - 1), min_size=1))
    k = data.draw(st.integers(1, min(len(free), 4)))
    level: Level = data.draw(st.sampled_from(LEVELS))
    choice = SubsetTable(machine).best(bits(free), k, level)
    assert (choice.gpus if choice else None) == Distances(machine).best(free, k, level)


@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)
@given(wired_machines(), st.data())
def test_no_set_of_any_size_has_a_wider_weakest_pair_or_a_greater_sum(machine: Machine, data: st.DataObject) -> None:
    """Machines of 2 to 16 GPUs, some without NVLink, and every number of GPUs among the free ones."""
    free = data.draw(st.sets(st.integers(0, machine.size - 1), min_size=1))
    table, wide = SubsetTable(machine), np.zeros((machine.size, machine.size), np.int64)
    for (a, b), kbps in Distances(machine).wide.items():
        wide[a, b] = kbps
    for k in range(2, len(free) + 1):
        sets = np.array(list(combinations(sorted(free), k)))
        pairs = np.stack([wide[sets[:, a], sets[:, b]] for a, b in combinations(range(k), 2)])
        weakest, total = max(zip(pairs.min(axis=0).tolist(), pairs.sum(axis=0).tolist(), strict=True))
        choice = table.best(bits(free), k)
        assert choice is not None
        assert (choice.min_gbps, choice.sum_gbps) == (weakest / 1_000_000, total / 1_000_000)


@pytest.mark.parametrize("name", names())
def test_best_is_right_for_every_k_of_every_named_machine(name: str) -> None:
    node = machine(name, "n1")
    table, known = SubsetTable(node), Distances(node)
    draw = random.Random(1)
    for free in [set(range(node.size)), *(set(draw.sample(range(node.size), node.size * 3 // 4)) for _ in range(6))]:
        for k in range(1, len(free) + 1):
            choice = table.best(bits(free), k)
            assert choice is not None
            assert choice.gpus == max(combinations(sorted(free), k), key=lambda some: known.merit(free, some))


def test_two_gpus_without_nvlink_hang_off_one_socket() -> None:
    found = SubsetTable(machine("l40s", "n1")).best(0b1111, 2)
    assert found is not None
    assert (found.gpus, found.min_gbps) == ((2, 3), 31.508)  # the NIC is beside these


@settings(max_examples=examples(4), deadline=None)
@given(machines(min_gpus=8, max_gpus=8))
def test_best_is_right_for_every_free_set_and_every_k(machine: Machine) -> None:
    table, known = SubsetTable(machine), Distances(machine)
    for mask in range(1, 1 << machine.size):
        free = set(positions(mask))
        for k in range(1, len(free) + 1):
            choice = table.best(mask, k)
            assert choice is not None
            _, best = max((known.merit(free, gpus), gpus) for gpus in combinations(sorted(free), k))
            assert choice.gpus == best


@settings(max_examples=examples(100), deadline=None)
@given(machines(min_gpus=2), st.data())
def test_a_choice_says_of_itself_what_is_true(machine: Machine, data: st.DataObject) -> None:
    free = data.draw(st.sets(st.integers(0, machine.size - 1), min_size=2))
    k = data.draw(st.integers(1, len(free)))
    choice = SubsetTable(machine).best(bits(free), k)
    assert choice is not None
    least, total, nics, cut, near_min, near_sum, *_ = Distances(machine).merit(free, choice.gpus)
    assert choice.min_gbps == least / 1_000_000
    assert choice.sum_gbps == total / 1_000_000
    assert -choice.nic_steps == nics or k == 1
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
    known, everyone = Distances(machine), set(range(machine.size))
    expected = sorted(combinations(range(machine.size), k), key=lambda gpus: known.merit(everyone, gpus), reverse=True)
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
