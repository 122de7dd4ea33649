"""What Berth's policy says of its choice, and where it looks for jobs that may take any GPUs."""

import numpy as np
import pytest

from policy.cluster.cost import CostModel, one_factor
from policy.cluster.fleet import Fleet
from policy.formats.errors import NotNow
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.request.demand import ANY_SPREAD, Demand
from policy.simulate.pal_rounds.round_policies import _in_reach, in_rounds
from policy.simulate.world import Layout, build, view
from tests.unit.policy_world import book, node, reading
from topology.tables import code

FULL = 0xFF
LEAF = CostModel({"*": one_factor(leaf=1.3, pod=1.7, any=1.7)})


def chosen(kinds: dict[str, str], used: dict[str, int], k: int, n: int = 1, level: str = "node") -> Berth:
    look = reading([node(name, used=used.get(name, 0)) for name in kinds])
    return book(look, kinds).now(Demand(n, k, 1, 100, level, 600, np.ones(len(kinds), np.bool_)), BerthPolicy())


PAIRS = {"n1": "a6000", "n2": "a6000"}
TWO = "best of 2 nodes that fit, "
CHOICES = [
    ({"n1": "h100"}, {}, 8, "the only node that fits", "all its free GPUs; no NVLink island cut into"),
    (
        {"n1": "h100", "n2": "l40s"}, {}, 2, TWO + "by bandwidth",
        "best of 28 sets of its 8 free GPUs; 1 NVLink island cut into",
    ),
    (
        PAIRS, {"n2": 1}, 1, TWO + "2 equal in bandwidth, by islands kept whole",
        "best of 7 sets of its 7 free GPUs; 3 other NVLink islands kept whole",
    ),
    (
        {"n1": "h100", "n2": "h100"}, {"n2": 0b11}, 2, TWO + "2 equal in bandwidth, by free GPUs left over",
        "best of 15 sets of its 6 free GPUs; 1 NVLink island cut into",
    ),
    (
        {"n1": "a6000"}, {"n1": 0b1111_0000}, 1, "the only node that fits",
        "best of 4 sets of its 4 free GPUs; 1 other NVLink island kept whole, 1 cut into",
    ),
    ({"n1": "a6000"}, {"n1": 0xFC}, 2, "the only node that fits", "all its free GPUs; no NVLink island cut into"),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "used", "k", "why_there", "why_these"), CHOICES)
def test_a_choice_says_what_decided_it(
    kinds: dict[str, str], used: dict[str, int], k: int, why_there: str, why_these: str
) -> None:
    assert chosen(kinds, used, k).why == f"{why_there}; {why_these}"


@pytest.mark.parametrize(
    ("k", "n", "level", "text"),
    [
        (1, 1, "node", "no node has 1 free GPU now"),
        (2, 1, "node", "no node has 2 free GPUs now"),
        (1, 1, "nvlink", "no node has 1 free GPU now"),
        (2, 1, "nvlink", "no node has 2 free GPUs, all pairs joined by NVLink, now"),
        (1, 2, "any", "no 2 nodes have the same 1 free GPU"),
    ],
)
def test_who_finds_nothing_hears_what_is_missing(k: int, n: int, level: str, text: str) -> None:
    with pytest.raises(NotNow, match=f"^{text}$"):
        chosen({"n1": "h100", "n2": "h100"}, {"n1": FULL, "n2": FULL}, k, n, level)


def anywhere(scores: list[list[float]], free: list[int], k: int) -> Berth:
    """A job on any GPUs of nodes in one leaf, where two nodes cost 1.3 times as much as one."""
    fleet = build(Layout(len(scores), 4, nodes_per_leaf=len(scores)), {"compute": np.array(scores)}, LEAF)
    return in_rounds(BerthPolicy()).place(spread(fleet, k), view(fleet, np.array(free)))


def spread(fleet: Fleet, k: int) -> Demand:
    return Demand(ANY_SPREAD, k, 0, 0, "any", 3_600, fleet.ready)


@pytest.mark.parametrize(("slow", "nodes"), [(1.25, (0,)), (2.0, (1, 2))])
def test_one_node_is_better_than_two_while_it_is_not_slower_than_the_way_between_them(
    slow: float, nodes: tuple[int, ...]
) -> None:
    berth = anywhere([[slow] * 4, [1.0] * 4, [1.0] * 4], [0b1111, 0b0011, 0b0011], 4)

    assert berth.nodes == nodes
    assert berth.cost == pytest.approx(slow if nodes == (0,) else 1.3)


def test_two_nodes_are_taken_where_no_node_has_enough_and_nothing_where_all_together_have_not() -> None:
    ones = [[1.0] * 4, [1.0] * 4]

    assert anywhere(ones, [0b0111, 0b0011], 4).nodes == (0, 1)
    assert anywhere(ones, [0b1111, 0b1111], 8).nodes == (0, 1)
    with pytest.raises(NotNow, match=r"^fewer than 6 GPUs are free$"):
        anywhere(ones, [0b0111, 0b0011], 6)


def test_no_more_gpus_are_searched_than_can_be_those_of_the_freest_leaves_first() -> None:
    """Leaves of 100 nodes; the last one has most free, and nodes that do not fit are not looked at."""
    fleet = build(Layout(1_200, 4, nodes_per_leaf=100), {"compute": np.ones((1_200, 4))}, LEAF)
    free = np.full(1_200, 0b0111)
    free[1_100:] = 0b1111
    fits = np.ones(1_200, np.bool_)
    few = _in_reach(spread(fleet, 8), view(fleet, free), np.arange(1_200) < 1_000)
    assert few.free.tolist() == [*free[:1_000], *[0] * 200], "3,000 can be searched"

    free[:] = 0b1111
    free[:1_100:4] = 0b0111
    found = _in_reach(spread(fleet, 8), view(fleet, free), fits).free
    assert (found[1_100:] == 0b1111).all()
    assert 4_096 <= np.bitwise_count(found).sum() < 4_100
    wide = _in_reach(spread(fleet, 4_200), view(fleet, free), fits).free
    assert 4_200 <= np.bitwise_count(wide).sum() < 4_204


def test_codes_put_the_weakest_pair_before_the_sum_and_that_before_broken_islands() -> None:
    best = [code(50.0, 100.0, 0), code(50.0, 100.0, 1), code(50.0, 99.9, 0), code(49.9, 9_999.0, 0), code(0.0, 0.0, 63)]

    assert best == sorted(best, reverse=True)
    assert len(set(best)) == len(best)
    assert code(0.0, 0.0, 64) == code(0.0, 0.0, 63) == 0, "no more than 63 are told apart"
    assert all(one & 0xFF == 0 for one in best), "the low byte is the node's"
