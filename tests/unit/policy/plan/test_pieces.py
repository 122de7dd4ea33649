# SPDX-License-Identifier: Apache-2.0
"""Jobs on a piece of a node keep together, and leave other leaves to jobs on several nodes."""

from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from policy.cluster.fleet import leaf_order
from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.placement.keep_together import Leaves, clearly_better
from policy.placement.registry import create
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import claim_on
from policy.plan.ledger.tracker import Tracker
from policy.request.demand import Demand
from policy.request.settings import Settings
from policy.request.share import Share
from tests.examples import examples
from tests.unit.deciding import decide
from tests.unit.policy.plan.test_plan_crowd import FULL, given
from tests.unit.policy.plan.test_plan_events import World, moves
from tests.unit.policy_world import NOW, fleet, node, running, submit, waiting
from topology.network.fabric import Fabric

LEAF = 2
PIECES = [(node, mask) for node in (1, 2) for mask in (0x0F, 0xF0)]


def world_of(nodes: list[NodeFacts], jobs: list[JobFacts], slow: tuple[int, ...] = ()) -> World:
    """Leaves of two nodes; on some nodes all GPUs take twice as long."""
    world = World(nodes, jobs)
    flat = world.tracker.fleet
    table = np.ones((len(nodes), 8))
    table[list(slow)] = 2.0
    fabric = replace(Fabric.flat(flat.names), leaf=np.arange(len(nodes)) // LEAF, pod=np.zeros(len(nodes), np.int64))
    scores = dict.fromkeys(("compute", "mixed", "memory"), table) if slow else {}
    world.tracker = Tracker(replace(flat, fabric=fabric, scores=scores))
    return world


def planned(world: World) -> Book:
    world.full()
    assert world.plan.book is not None
    return world.plan.book


def busy(*used: int) -> list[NodeFacts]:
    return [node(f"n{number}", used=mask) for number, mask in enumerate(used, 1)]


def test_leaves_are_filled_in_one_order_those_with_slow_gpus_first() -> None:
    fabric = replace(Fabric.flat([f"n{number}" for number in range(1, 5)]), leaf=np.array([0, 0, 1, 1]))
    table = np.ones((4, 8))
    table[3, 5] = 1.5

    assert leaf_order(fabric, {}).tolist() == [0, 0, 1, 1]
    assert leaf_order(fabric, {"compute": table}).tolist() == [1, 1, 0, 0]


def test_a_piece_goes_where_other_pieces_are_though_a_node_elsewhere_is_fuller() -> None:
    """n1 has four GPUs left and n3 two. Six and two and those that run fit on the first leaf."""
    jobs = [running(1, "n1", 0x0F, 600), running(2, "n3", 0x3F, 600)]
    book = planned(world_of(busy(0x0F, 0, 0x3F, 0), jobs))

    assert given(book, "2") == ("n1",)


def test_another_leaf_is_opened_when_pieces_need_it() -> None:
    jobs = [running(1, "n1", 0x0F, 600), running(2, "n2", 0x0F, 600), running(3, "n3", 0x3F, 600)]
    nodes = busy(0x0F, 0x0F, 0x3F, 0)

    assert given(planned(world_of(nodes, jobs)), "2") == ("n1",), "8 of 16 held there, 6 elsewhere and 2 make 16"
    assert given(planned(world_of(nodes, jobs)), "3") == ("n1",), "17: both leaves would do, n1 is as full as n2"
    waits = waiting(5, "n1", FULL >> 3, segment={"k": "5"})
    assert given(planned(world_of(nodes, [*jobs, waits])), "2") == ("n3",), "with 5 GPUs waited for, the fullest"
    held = replace(waits, reason="Dependency")
    assert given(planned(world_of(nodes, [*jobs, held])), "2") == ("n1",), "nobody knows when that one may start"


def test_nobody_has_to_be_with_its_like_where_gpus_are_clearly_better() -> None:
    """n1 and n2 are slow. Where most GPUs are taken, the fast ones would be another's just as well."""
    jobs = [running(1, "n1", 0x0F, 600)]

    assert given(planned(world_of(busy(0x0F, 0, 0, 0), jobs, slow=(0, 1))), "1") != ("n1",)
    crowd = [*jobs, running(2, "n2", FULL, 600), running(3, "n3", FULL, 600)]
    assert given(planned(world_of(busy(0x0F, FULL, FULL, 0), crowd, slow=(0, 1))), "1") == ("n1",)


def test_better_links_are_worth_another_leaf() -> None:
    """Of n1's eight GPUs the two that are free have no NVLink between them."""
    jobs = [running(1, "n1", 0b1101_0111, 600), running(2, "n2", FULL, 600), running(3, "n3", FULL, 600)]
    world = world_of(busy(0b1101_0111, FULL, FULL, 0), jobs)
    kinds = {"n1": "a6000", "n2": "a6000", "n3": "h100", "n4": "h100"}
    world.tracker = Tracker(replace(fleet(world.read(), kinds), fabric=world.tracker.fleet.fabric))

    assert given(planned(world), "2") == ("n4",)
    assert given(planned(world), "1") == ("n1",)


def test_where_leaves_are_not_known_and_for_other_policies_nothing_changes() -> None:
    jobs = [running(1, "n1", 0x0F, 600), running(2, "n3", 0x3F, 600)]
    world = World(busy(0x0F, 0, 0x3F, 0), jobs)
    assert given(planned(world), "2") == ("n3",)

    other = planned(world_of(busy(0x0F, 0, 0x3F, 0), jobs))
    request = submit(tres_per_job="gres/gpu:2", time_limit="60")
    assert decide(request, other, create("packed"), Settings(), NOW).fields["nodes"] == "n3"


def test_without_room_among_its_like_a_piece_starts_elsewhere_at_once() -> None:
    """n1 and n2 have one GPU left, and a job on two nodes that cannot start either is before it in line."""
    jobs = [
        running(1, "n1", 0x7F, 900),
        running(2, "n2", FULL, 900),
        running(5, "n5", FULL, 300),
        running(6, "n6", FULL, 300),
        waiting(50, "n5", FULL, priority=9, required=("n5", "n6"), segment={"n": "2", "nodes": "n5,n6"}),
        waiting(60, "n1", 0b11),
    ]
    world = world_of(busy(0x7F, FULL, 0, FULL, FULL, FULL), [*jobs, running(4, "n4", FULL, 5_000)])

    assert [move.berth.names for move in moves(world.full()) if move.job.id == 60] == [("n3",)]


NODES = st.integers(0, 5)
STEP = st.one_of(
    st.tuples(st.just("claim"), NODES, st.integers(1, FULL)),
    st.tuples(st.just("await"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("drain"), NODES, st.just(0)),
)


@hypothesis.settings(max_examples=examples(200), deadline=None)
@hypothesis.given(steps=st.lists(STEP, max_size=8), k=st.integers(1, 8))
def test_which_leaves_are_open_is_as_new_whatever_was_asked_before(steps: list[tuple[str, int, int]], k: int) -> None:
    """Who has looked after each change sees what one sees who never looked before."""
    book = planned(world_of(busy(0x0F, 0, FULL, 0, 0x03, 0), [running(1, "n1", 0x0F, 600)]))
    demand = Demand(1, k, 1, 100, "node", 600, np.ones(6, np.bool_))
    for what, first, second in steps:
        if what == "claim":
            book.claim(claim_on(book.fleet, demand, [first], second, NOW))
        elif what == "await":
            book.await_pieces(first)
        else:
            book.cluster.up[first] = False
            book.advance(NOW)
        assert found(book, demand) == found(Book(book.cluster), demand)


def found(book: Book, demand: Demand) -> Berth | None:
    """Where a job goes that comes now."""
    try:
        return book.now_together(demand, BerthPolicy())
    except NotNow:
        return None


@hypothesis.settings(max_examples=examples(200), deadline=None)
@hypothesis.given(
    used=st.lists(st.integers(0, FULL), min_size=6, max_size=6),
    slow=st.sets(NODES, max_size=6),
    k=st.integers(1, 8),
    mixed=st.booleans(),
)
def test_the_search_elsewhere_is_spared_only_where_it_finds_nothing_better(
    used: list[int], slow: set[int], k: int, mixed: bool
) -> None:
    world = world_of(busy(*used), [], slow=tuple(slow))
    if mixed:
        kinds = {f"n{number}": "a6000" if number % 2 else "h100" for number in range(1, 7)}
        flat = world.tracker.fleet
        world.tracker = Tracker(replace(fleet(world.read(), kinds), fabric=flat.fabric, scores=flat.scores))
    book = planned(world)
    demand = Demand(1, k, 1, 100, "node", 600, np.ones(6, np.bool_), app_class="compute")
    nodes = book._leaves.nodes(demand, book.cluster)
    if nodes is None:
        return
    try:
        here, anywhere = book.now(demand.within(nodes), BerthPolicy()), book.now(demand, BerthPolicy())
    except NotNow:
        return
    expected = anywhere if clearly_better(anywhere, here, crowded=book.cluster.crowded) else here
    assert found(book, demand) == expected


class Counting(BerthPolicy):
    """Counts the searches."""

    asked = 0

    def place(self, demand: Demand, view: View) -> Berth:
        self.asked += 1
        return super().place(demand, view)


def test_among_machines_of_one_kind_one_search_is_enough() -> None:
    """Two linked GPUs are free among the job's like, and no pair of the fleet has better links."""
    policy = Counting()
    book = planned(world_of(busy(0x0F, 0, 0x3F, 0), [running(1, "n1", 0x0F, 600)]))
    demand = Demand(1, 2, 1, 100, "node", 600, np.ones(4, np.bool_), app_class="compute")

    assert book.now_together(demand, policy).names == ("n1",)
    assert policy.asked == 1


@pytest.mark.parametrize(("fast", "place", "searches"), [(1, "n1", 1), (2, "n3", 2)])
def test_a_search_for_faster_gpus_is_worth_it_where_one_node_has_as_many_as_the_job_takes(
    fast: int, place: str, searches: int
) -> None:
    """All GPUs take twice as long, but for some of n3's."""
    world = world_of(busy(0x0F, 0, 0, 0), [running(1, "n1", 0x0F, 600)])
    table = np.full((4, 8), 2.0)
    table[2, :fast] = 1.0
    world.tracker = Tracker(replace(world.tracker.fleet, scores={"compute": table}))
    policy = Counting()
    demand = Demand(1, 2, 1, 100, "node", 600, np.ones(4, np.bool_), app_class="compute")

    assert planned(world).now_together(demand, policy).names == (place,)
    assert policy.asked == searches


@pytest.mark.parametrize(("used", "open_nodes"), [(0, [True, True, False, False]), (FULL, None)])
def test_a_job_may_go_anywhere_once_all_leaves_are_open(used: int, open_nodes: list[bool] | None) -> None:
    pieces = [running(number, f"n{node}", mask, 600) for number, (node, mask) in enumerate(PIECES)] if used else []
    book = planned(world_of(busy(used, used, 0, 0), pieces))

    found = Leaves().nodes(Demand(1, 2, 1, 100, "node", 600, np.ones(4, np.bool_)), book.cluster)

    assert (None if found is None else found.tolist()) == open_nodes


def test_new_scores_show_faster_gpus_elsewhere() -> None:
    world = world_of(busy(0x0F, 0, 0, 0), [running(1, "n1", 0x0F, 600)], slow=(0, 1, 2, 3))
    book, leaves = planned(world), Leaves()
    demand = Demand(1, 2, 1, 100, "node", 600, np.ones(4, np.bool_), app_class="compute")
    here = book.now_together(demand, BerthPolicy())
    assert not leaves.may_be_better(demand, here, book.cluster)

    fast = np.full((4, 8), 2.0)
    fast[3] = 1.0
    newer = replace(book.cluster, fleet=replace(book.fleet, scores={"compute": fast}))
    assert leaves.may_be_better(demand, here, newer)


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 2},
        {"k": 0},
        {"cpus": None, "mem": None},
        {"share": Share(30, None)},
        {"pools": (np.ones(4, np.bool_), np.ones(4, np.bool_))},
    ],
)
def test_only_a_job_on_whole_gpus_that_leaves_others_of_its_node_is_kept_with_its_like(
    changes: dict[str, object],
) -> None:
    piece = Demand(1, 2, 1, 100, "node", 600, np.ones(4, np.bool_))

    assert piece.is_piece
    assert not replace(piece, **changes).is_piece  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gain", "crowded", "better"), [(0.05, False, False), (0.15, False, True), (0.15, True, False)]
)
def test_gpus_that_are_a_little_faster_are_worth_no_other_leaf(gain: float, crowded: bool, better: bool) -> None:
    here = found(planned(world_of(busy(0x0F, 0), [])), Demand(1, 2, 1, 100, "node", 600, np.ones(2, np.bool_)))
    assert here

    assert clearly_better(replace(here, cost=here.cost * (1 - gain)), here, crowded=crowded) is better


@pytest.mark.parametrize(("k", "place"), [(1, "n1"), (2, "n3")])
def test_nodes_that_a_job_may_not_use_have_no_room_for_its_like(k: int, place: str) -> None:
    """It may use n1 and n3: seven GPUs of them are held, and n1 has eight. One more fits there, two open n3's leaf."""
    jobs = [running(1, "n1", 0x07, 600), running(2, "n3", 0x0F, 600)]
    book = planned(world_of(busy(0x07, 0, 0x0F, 0), jobs))
    berth = found(book, Demand(1, k, 1, 100, "node", 600, np.array([True, False, True, False])))

    assert berth
    assert berth.names == (place,)
