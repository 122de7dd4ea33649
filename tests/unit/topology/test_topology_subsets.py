# SPDX-License-Identifier: Apache-2.0
"""The table of best sets against a brute force that shares nothing with it."""

from __future__ import annotations

import random
import time
from dataclasses import replace
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
from topology.model import NEAR, Machine, Nic
from topology.sets.cuts import narrowest
from topology.sets.islands import islands
from topology.sets.subsets import Level, SubsetTable
from topology.sets.wiring import positions, wiring

LEVELS: tuple[Level, ...] = ("nvlink", "node")

CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
PAIRS = {(0, 5): 4, (1, 4): 4, (2, 7): 4, (3, 6): 4}


class Distances:
    """kB/s over the widest path of each pair, by looking for paths over ever narrower edges, and of each set's cut."""

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
        self.direct = {(link.a, link.b): round(link.gbps * 1e6) for link in machine.links if link.via == "direct"}
        self._owns: dict[tuple[int, ...], tuple[int, ...]] = {}

    def cut(self, gpus: tuple[int, ...]) -> int:
        """The narrowest cut, by all partings: the side of the first GPU, with any of the others but not with all."""
        found = []
        for count in range(len(gpus) - 1):
            for some in combinations(gpus[1:], count):
                side = {gpus[0], *some}
                across = [(a, b) for a, b in combinations(gpus, 2) if (a in side) != (b in side)]
                summed = sum(self.direct.get(pair, 0) for pair in across)
                found.append(max(summed, *(self.wide[pair] for pair in across)))
        return min(found, default=0)

    def own(self, gpus: tuple[int, ...]) -> tuple[int, ...]:
        """What a job feels of a set: its bandwidths, and how near its GPUs are if they need PCIe."""
        if gpus not in self._owns:
            pairs = list(combinations(gpus, 2))
            speeds = [self.wide[pair] for pair in pairs] or [0]
            linked = nx.Graph(pair for pair in pairs if self.machine.gbps[pair[0]][pair[1]])
            whole = len(gpus) == 1 or (len(linked) == len(gpus) and nx.is_connected(linked))
            near = (0, 0) if whole else self.near(gpus)
            self._owns[gpus] = (self.cut(gpus), min(speeds), sum(speeds), *near)
        return self._owns[gpus]

    def broken(self, free: set[int], gpus: tuple[int, ...]) -> int:
        taken = set(gpus)
        return sum(1 for one in self.islands if len(one & free) >= 2 and one & taken and (one & free) - taken)

    def near(self, gpus: tuple[int, ...]) -> tuple[int, int]:
        nears = [self.machine.near[a][b] for a, b in combinations(gpus, 2)] or [0]
        return min(nears), sum(nears)

    def of_one_socket(self, gpus: tuple[int, ...]) -> int:
        return sum(self.machine.near[a][b] >= NEAR["NODE"] for a, b in combinations(gpus, 2))

    def to_nics(self, gpus: tuple[int, ...]) -> int:
        rows = self.machine.nic_paths or ((),) * self.machine.size
        return sum(max((NEAR[word] for word in rows[gpu]), default=0) for gpu in gpus)

    def left(self, free: set[int], gpus: tuple[int, ...], size: int) -> tuple[int, ...]:
        """The best set of a size that remains."""
        return max(map(self.own, combinations(sorted(free - set(gpus)), size)), default=())

    def merit(self, free: set[int], gpus: tuple[int, ...]) -> tuple[object, ...]:
        """What decides among sets that are one as good as the other for their job; greater is better."""
        left = [self.left(free, gpus, size) for size in (2, 4)]
        lowest = tuple(-gpu for gpu in gpus)
        return (*left, -self.broken(free, gpus), self.of_one_socket(gpus), -self.to_nics(gpus), lowest)

    def merit_in_a_gang(self, gpus: tuple[int, ...]) -> tuple[object, ...]:
        own, lowest = self.own(gpus), tuple(-gpu for gpu in gpus)
        cut_into = self.broken(set(range(self.machine.size)), gpus)
        return (*own[:3], self.to_nics(gpus), *own[3:], -cut_into, self.of_one_socket(gpus), lowest)

    def best(self, free: set[int], k: int, level: str = "node") -> tuple[int, ...] | None:
        """The best set, of all that there are."""
        candidates = [
            gpus
            for gpus in combinations(sorted(free), k)
            if level == "node" or all(self.machine.gbps[a][b] > 0 for a, b in combinations(gpus, 2))
        ]
        most = max(map(self.own, candidates), default=())
        equal = [gpus for gpus in candidates if self.own(gpus) == most]
        return max(equal, key=lambda gpus: self.merit(free, gpus), default=None)


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
@settings(max_examples=examples(60), deadline=None)
@given(wired_machines(max_gpus=9), st.data())
def test_no_set_of_any_size_has_a_wider_cut_or_weakest_pair_or_a_greater_sum(
    machine: Machine, data: st.DataObject
) -> None:
    """Machines with and without NVLink, and every number of GPUs among the free ones."""
    free = data.draw(st.sets(st.integers(0, machine.size - 1), min_size=1))
    table, known = SubsetTable(machine), Distances(machine)
    for k in range(2, len(free) + 1):
        choice = table.best(bits(free), k)
        assert choice is not None
        told = tuple(round(gbps * 1_000_000) for gbps in (choice.cut_gbps, choice.min_gbps, choice.sum_gbps))
        assert told == max(known.own(gpus)[:3] for gpus in combinations(sorted(free), k))


@settings(max_examples=examples(40), deadline=None)
@given(st.one_of(wired_machines(), machines(min_gpus=2, max_gpus=12)), st.data())
def test_the_narrowest_cut_is_that_of_all_partings(machine: Machine, data: st.DataObject) -> None:
    known = Distances(machine)
    some = st.sets(st.integers(0, machine.size - 1), min_size=1, max_size=8).map(lambda gpus: tuple(sorted(gpus)))
    gpus = data.draw(some)
    assert narrowest(wiring(machine), np.array([gpus])).tolist() == [known.cut(gpus)]


def test_the_narrowest_cuts_of_known_nodes() -> None:
    """An idle node: a DGX-1V's GPU has six NVLinks, one behind a switch its uplink; A6000 pairs meet over sockets."""
    found = {
        name: round(float(narrowest(wiring(machine(name, "n1")), np.arange(machine(name, "n1").size)[None])[0]) / 1e6)
        for name in names()
    }
    assert found == {
        "dgx-1v": 155,
        "dgx-a100": 309,
        "hgx-h100": 478,
        "hgx-b200": 956,
        "a6000-pairs": 16,
        "a100-4": 309,
        "h100-4": 478,
        "a100-pcie": 16,
        "l40s": 16,
        "gb200-tray": 956,
    }


def test_more_gpus_than_partings_can_be_compared_for_are_judged_by_their_paths() -> None:
    whole = narrowest(wiring(make_machine(24, {(a, a + 1): 4 for a in range(0, 24, 2)})), np.arange(24)[None])
    assert whole.tolist() == [15_754_000]


def test_a_quad_whose_fourth_gpu_hangs_on_one_link_is_not_taken() -> None:
    """A DGX-1V on which GPUs 0 and 5 are busy: 1, 2, 3 and 6 have more NVLink in all, and half of the rings."""
    choice = SubsetTable(machine("dgx-1v", "n1")).best(0b11011110, 4)
    assert choice is not None
    assert (choice.gpus, choice.cut_gbps) == ((2, 3, 6, 7), 51.562)


def test_a_pair_below_one_switch_is_nearer_than_one_across_however_deep_it_hangs() -> None:
    words = ["PIX", "PXB", "PXB", "PXB", "PXB", "PXB"]
    paired = replace(
        make_machine(4, {}, words=words), nics=(Nic("mlx5_0"),), nic_paths=(("PXB",), ("PXB",), ("PIX",), ("PIX",))
    )
    table = SubsetTable(paired)
    assert table.best(0b1111, 2).gpus == (0, 1)  # type: ignore[union-attr]
    assert positions(table.ranked(2)[0]) == (2, 3), "a gang needs the NIC more"


def test_a_job_of_one_node_leaves_the_gpus_beside_the_nic_to_gangs() -> None:
    """One NIC on an HGX A100 with four GPUs, in the socket of GPUs 0 and 1: no pair of two sockets, and not its own."""
    table = SubsetTable(machine("a100-4", "n1"))
    assert [table.best(free, 2).gpus for free in (0b1111, 0b1110, 0b0111)] == [(2, 3), (2, 3), (0, 1)]  # type: ignore[union-attr]
    assert positions(table.ranked(2)[0]) == (0, 1)


@pytest.mark.parametrize("name", names())
def test_best_is_right_for_every_k_of_every_named_machine(name: str) -> None:
    node = machine(name, "n1")
    table, known = SubsetTable(node), Distances(node)
    draw = random.Random(1)
    for free in [set(range(node.size)), *(set(draw.sample(range(node.size), node.size * 3 // 4)) for _ in range(6))]:
        for k in range(1, len(free) + 1):
            choice = table.best(bits(free), k)
            assert choice is not None
            assert choice.gpus == known.best(free, k)


def test_two_gpus_without_nvlink_hang_off_one_socket() -> None:
    found = SubsetTable(machine("l40s", "n1")).best(0b1111, 2)
    assert found is not None
    assert (found.gpus, found.min_gbps) == ((0, 1), 31.508)  # the NIC is beside the others


@settings(max_examples=examples(4), deadline=None)
@given(machines(min_gpus=8, max_gpus=8))
def test_best_is_right_for_every_free_set_and_every_k(machine: Machine) -> None:
    table, known = SubsetTable(machine), Distances(machine)
    for mask in range(1, 1 << machine.size):
        free = set(positions(mask))
        for k in range(1, len(free) + 1):
            choice = table.best(mask, k)
            assert choice is not None
            assert choice.gpus == known.best(free, k)


@settings(max_examples=examples(100), deadline=None)
@given(machines(min_gpus=2), st.data())
def test_a_choice_says_of_itself_what_is_true(machine: Machine, data: st.DataObject) -> None:
    free = data.draw(st.sets(st.integers(0, machine.size - 1), min_size=2))
    k = data.draw(st.integers(1, len(free)))
    choice = SubsetTable(machine).best(bits(free), k)
    assert choice is not None
    known = Distances(machine)
    told = tuple(round(gbps * 1_000_000) for gbps in (choice.cut_gbps, choice.min_gbps, choice.sum_gbps))
    assert told == known.own(choice.gpus)[:3]
    assert choice.broken == known.broken(free, choice.gpus)
    assert positions(choice.mask) == choice.gpus


@settings(max_examples=examples(100), deadline=None)
@given(machines(), st.data())
def test_ranked_holds_every_set_once_in_the_order_of_merit(machine: Machine, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, machine.size))
    expected = sorted(combinations(range(machine.size), k), key=Distances(machine).merit_in_a_gang, reverse=True)
    assert [positions(mask) for mask in SubsetTable(machine).ranked(k)] == expected


@settings(max_examples=examples(100), deadline=None)
@given(machines())
def test_islands_are_the_maximal_cliques(machine: Machine) -> None:
    assert {frozenset(positions(mask)) for mask in islands(machine.shape)} == set(brute_islands(machine))


@pytest.mark.parametrize(
    ("free", "k", "expected"),
    [
        # Of the double links, those of one quad leave the other quad whole.
        ({0, 1, 2, 3, 4, 5, 6, 7}, 2, (0, 3)),
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
