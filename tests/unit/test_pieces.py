"""Jobs on a piece of a node keep together, and leave other leaves to jobs on several nodes: for a bounded time."""

from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from policy.book import Book, claim_on
from policy.decide import decide
from policy.demand import Demand
from policy.errors import NotNow
from policy.facts import JobFacts, NodeFacts
from policy.picture import Picture
from policy.pieces import MOST, leaf_order, patience
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.placement.registry import create
from policy.reasons import why
from policy.settings import Settings
from tests.unit.policy_world import NOW, fleet, node, running, submit, waiting
from tests.unit.test_plan_crowd import FULL, given
from tests.unit.test_plan_events import World, moves
from topology.fabric import Fabric

LEAF = 2


def world_of(nodes: list[NodeFacts], jobs: list[JobFacts], slow: tuple[int, ...] = ()) -> World:
    """Leaves of two nodes; on some nodes all GPUs take twice as long."""
    world = World(nodes, jobs)
    flat = world.picture.fleet
    table = np.ones((len(nodes), 8))
    table[list(slow)] = 2.0
    fabric = replace(Fabric.flat(flat.names), leaf=np.arange(len(nodes)) // LEAF, pod=np.zeros(len(nodes), np.int64))
    scores = dict.fromkeys(("compute", "mixed", "memory"), table) if slow else {}
    world.picture = Picture(replace(flat, fabric=fabric, scores=scores))
    return world


def planned(world: World) -> Book:
    world.full()
    assert world.plan.book is not None
    return world.plan.book


def busy(*used: int) -> list[NodeFacts]:
    return [node(f"n{number}", used=mask) for number, mask in enumerate(used, 1)]


def gang(**changes: object) -> JobFacts:
    """It needs two whole nodes, is first in line, and pinned to n5 and n6."""
    facts = {"priority": 9, "required": ("n5", "n6"), "segment": {"n": "2", "nodes": "n5,n6", "level": "leaf"}}
    return waiting(50, "n5", FULL, **{**facts, **changes})


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
    world.picture = Picture(replace(fleet(world.read(), kinds), fabric=world.picture.fleet.fabric))

    assert given(planned(world), "2") == ("n4",)
    assert given(planned(world), "1") == ("n1",)


def test_where_leaves_are_not_known_and_for_other_policies_nothing_changes() -> None:
    jobs = [running(1, "n1", 0x0F, 600), running(2, "n3", 0x3F, 600)]
    world = World(busy(0x0F, 0, 0x3F, 0), jobs)
    assert given(planned(world), "2") == ("n3",)

    other = planned(world_of(busy(0x0F, 0, 0x3F, 0), jobs))
    request = submit(tres_per_job="gres/gpu:2", time_limit="60")
    assert decide(request, other, create("packed"), Settings(), NOW).fields["nodes"] == "n3"


def crowded(**changes: object) -> World:
    """One GPU of n1 is free beside two pieces, and all of n3; n5 and n6 are a gang's. A piece of two waits for n1."""
    jobs = [
        running(1, "n1", 0x0F, 900),
        running(2, "n1", 0x70, 900),
        running(3, "n2", FULL, 900),
        running(4, "n4", FULL, 5_000),
        running(5, "n5", FULL, 300),
        running(6, "n6", FULL, 300),
        gang(),
    ]
    piece = waiting(60, "n1", 0b11, **{"submitted": int(NOW - 10), **changes})
    return world_of(busy(0x7F, FULL, 0, FULL, FULL, FULL), [*jobs, piece])


@pytest.mark.parametrize(("waits_for", "moved"), [(10, []), (MOST - 10, []), (MOST + 10, [("n3",)])])
def test_a_piece_leaves_the_other_leaves_to_gangs_before_it_but_not_for_ever(
    waits_for: float, moved: list[tuple[str, ...]]
) -> None:
    """Two GPUs are free on n3 alone. The gang cannot have n3 now, but its like would never get a leaf otherwise."""
    world = crowded(submitted=int(NOW - waits_for), limit=86_400)

    assert [move.berth.names for move in moves(world.full())] == moved


def test_half_of_its_time_limit_is_the_longest_that_a_short_job_waits() -> None:
    assert (patience(120.0), patience(86_400.0)) == (60.0, MOST)
    world = crowded(submitted=int(NOW - 61), limit=120)

    assert [move.berth.names for move in moves(world.full())] == [("n3",)]


def test_a_piece_whose_turn_it_is_waits_for_nobody() -> None:
    world = crowded(priority=10)

    assert [move.berth.names for move in moves(world.full())] == [("n3",)]


def test_without_a_gang_that_waits_a_piece_starts_where_it_can() -> None:
    world = crowded()
    del world.jobs[50]

    assert [move.berth.names for move in moves(world.full())] == [("n3",)]


def test_a_gang_that_could_not_have_those_nodes_keeps_nobody_from_them() -> None:
    world = crowded()
    world.nodes = {
        name: replace(one, features=frozenset({"big"}) if name in {"n5", "n6"} else frozenset())
        for name, one in world.nodes.items()
    }
    world.jobs[50] = gang(segment={"n": "2", "nodes": "n5,n6", "level": "leaf"}, features="big")
    fabric = world.picture.fleet.fabric
    world.picture = Picture(replace(fleet(world.read()), fabric=fabric))

    assert [move.berth.names for move in moves(world.full())] == [("n3",)]


def test_an_epilogs_notice_is_planned_by_the_same_rule() -> None:
    """n4's job ends: the leaf is free, and the gang's if it cannot have n5 and n6 sooner."""
    world = crowded()
    world.full()

    assert [move.job.id for move in moves(world.end(2))] == [60], "n1 is on the leaf of its like"
    other = crowded()
    other.full()
    assert 60 not in [move.job.id for move in moves(other.end(4))]


def test_its_owner_is_told_for_whom_it_waits_and_how_long() -> None:
    world = crowded(limit=120)
    book = planned(world)
    entry = next(entry for entry in world.plan.queue if entry.job.id == 60)

    reason = why(entry, book, world.picture.book(), BerthPolicy())

    assert reason is not None
    assert reason.kind == "fair_share"
    assert reason.text == "GPUs that fit are free, and kept for jobs on several nodes before it, for 50 s more at most"


def test_a_promise_to_a_gang_that_stands_idle_for_hours_is_nobodys_loss() -> None:
    """The gang waits for n6 for three hours; n5 is empty until then."""
    jobs = [
        running(1, "n1", FULL, 20_000),
        running(2, "n2", FULL, 20_000),
        running(3, "n3", FULL, 20_000),
        running(4, "n4", FULL, 20_000),
        running(6, "n6", FULL, 10_000),
        gang(),
    ]
    book = planned(world_of(busy(FULL, FULL, FULL, FULL, 0, FULL), jobs))

    assert given(book, "1", minutes=60) == ("n5",)


NODES = st.integers(0, 5)
STEP = st.one_of(
    st.tuples(st.just("claim"), NODES, st.integers(1, FULL)),
    st.tuples(st.just("gather"), NODES, st.integers(0, 900)),
    st.tuples(st.just("want"), NODES, NODES),
    st.tuples(st.just("begin"), st.integers(0, 40), st.just(0)),
)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(steps=st.lists(STEP, max_size=8), k=st.integers(1, 8), limit=st.sampled_from([60, 600, 6_000]))
def test_what_was_found_never_outlives_the_picture(steps: list[tuple[str, int, int]], k: int, limit: int) -> None:
    """Who has looked after each change sees what one sees who never looked before."""
    book = planned(world_of(busy(0x0F, 0, FULL, 0, 0x03, 0), [running(1, "n1", 0x0F, 600)]))
    policy = BerthPolicy()
    everywhere = np.ones(6, np.bool_)
    demand = Demand(1, k, 1, 100, "node", limit, everywhere)
    for what, first, second in steps:
        if what == "claim":
            book.claim(claim_on(book.fleet, demand, [first], second, NOW))
        elif what == "gather":
            book.gather([first], NOW + second)
        elif what == "want":
            book.want((np.arange(6) == first) | (np.arange(6) == second))
        else:
            book.begin(first)
        fresh = Book(book.cluster)
        left, others = (one.behind_gangs(demand, policy).candidates.tolist() for one in (book, fresh))
        assert left == others
        assert found(book, demand) == found(fresh, demand)


def found(book: Book, demand: Demand) -> Berth | None:
    """Where a job goes that comes now."""
    try:
        return book.now_together(book.behind_gangs(demand, BerthPolicy()), BerthPolicy())
    except NotNow:
        return None
