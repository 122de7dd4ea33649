# SPDX-License-Identifier: Apache-2.0
"""Which running jobs are moved, for whom, and when nobody is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.fleet import Fleet
from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.ledger.tracker import Tracker
from policy.plan.relocation.worth import MARGIN, MOST_FOR_ONE, Mover, Proposal, WaitingGang, off_slow, open_for, price
from policy.request.demand import Demand
from policy.request.settings import RelocationRules
from tests.examples import examples
from tests.unit.policy_world import NOW, fleet, node, reading, running

RULES = RelocationRules(enabled=True, grace=30, restart=30, cost=60)
POLICY = BerthPolicy()
HOUR = 3_600.0


def world(nodes: list[NodeFacts], jobs: list[JobFacts], kind: str = "h100", leaves: tuple[int, ...] = ()) -> Book:
    """The book of some running jobs."""
    look = reading(nodes, jobs)
    one = fleet(look, {each.name: kind for each in nodes})
    if leaves:
        one = replace(one, fabric=replace(one.fabric, leaf=np.array(leaves), pod=np.zeros(len(leaves), np.int64)))
    tracker = Tracker(one)
    tracker.update(look)
    return tracker.book()


def demand(on: Fleet, n: int, k: int, level: str = "any", limit: int = 3_600) -> Demand:
    return Demand(n, k, k, 100, level, limit, on.ready.copy())


def mover(on: Fleet, number: int, where: int, mask: int, cost: float = 60.0, **changes: float) -> Mover:
    left, lost = changes.get("left", 8 * HOUR), changes.get("lost", 0.0)
    return Mover(number, demand(on, 1, mask.bit_count()), (where,), mask, cost, lost, left)


def gang(on: Fleet, n: int, k: int, level: str = "any", expected: float = NOW + HOUR) -> WaitingGang:
    return WaitingGang(99, demand(on, n, k, level), expected)


def ids(proposal: Proposal | None) -> list[int]:
    return sorted(move.mover.id for move in proposal.moves) if proposal else []


def one_in_the_way() -> Book:
    """Two nodes: a job of one GPU on the first, seven on the second, and so no whole node is free."""
    jobs = [running(1, "n1", 0b1, 9_000), running(2, "n2", 0x7F, 9_000)]
    return world([node("n1", used=0b1), node("n2", used=0x7F)], jobs)


def test_the_job_in_the_way_goes_where_there_is_room_and_the_gang_gets_the_node() -> None:
    book = one_in_the_way()
    found = open_for(gang(book.fleet, 1, 8), book, [mover(book.fleet, 1, 0, 0b1)], POLICY, RULES)

    assert found is not None
    assert (ids(found), found.berth and found.berth.names, found.moves[0].berth.names) == ([1], ("n1",), ("n2",))
    assert found.moves[0].berth.mask == 0x80
    assert "moving a job lets another have its 8 GPUs 3540 s sooner" in found.reason


def test_who_did_not_say_so_is_not_moved() -> None:
    book = one_in_the_way()
    assert open_for(gang(book.fleet, 1, 8), book, [], POLICY, RULES) is None


def test_who_has_nowhere_to_go_stays() -> None:
    book = world([node("n1", used=0b11), node("n2", used=0x7F)], [running(2, "n2", 0x7F, 9_000)])
    assert open_for(gang(book.fleet, 1, 8), book, [mover(book.fleet, 2, 1, 0x7F)], POLICY, RULES) is None


@pytest.mark.parametrize(("expected", "moves"), [(30.0, False), (80.0, False), (300.0, True)])
def test_nobody_is_moved_for_one_that_starts_soon_by_itself(expected: float, *, moves: bool) -> None:
    book = one_in_the_way()
    found = open_for(gang(book.fleet, 1, 8, expected=NOW + expected), book, [mover(book.fleet, 1, 0, 1)], POLICY, RULES)
    assert (found is not None) == moves


def test_nobody_is_moved_for_one_that_can_start_now() -> None:
    book = world([node("n1", used=0b1), node("n2")], [running(1, "n1", 0b1, 9_000)])
    assert open_for(gang(book.fleet, 1, 8), book, [mover(book.fleet, 1, 0, 0b1)], POLICY, RULES) is None


def test_work_since_the_last_checkpoint_is_a_part_of_the_price() -> None:
    book = one_in_the_way()
    cheap, dear = mover(book.fleet, 1, 0, 1), mover(book.fleet, 1, 0, 1, lost=8 * HOUR)
    assert price(dear, RULES) == price(cheap, RULES) + 8 * HOUR
    assert open_for(gang(book.fleet, 1, 8), book, [dear], POLICY, RULES) is None


def test_of_several_the_cheapest_go() -> None:
    nodes = [node("n1", used=0b11), node("n2", used=0b1), node("n3", used=0x0F)]
    jobs = [running(1, "n1", 0b11, 9_000), running(2, "n2", 0b1, 9_000), running(3, "n3", 0x0F, 9_000)]
    book = world(nodes, jobs)
    movers = [mover(book.fleet, 1, 0, 0b11), mover(book.fleet, 2, 1, 0b1), mover(book.fleet, 3, 2, 0x0F)]

    assert ids(open_for(gang(book.fleet, 1, 8), book, movers, POLICY, RULES)) == [2]
    assert ids(open_for(gang(book.fleet, 1, 8), book, movers[::2], POLICY, RULES)) == [1]


def test_a_leaf_is_opened_for_a_gang_that_insists_on_one() -> None:
    nodes = [node("n1"), node("n2", used=0b1), node("n3"), node("n4", used=0x3F)]
    jobs = [running(1, "n2", 0b1, 9_000), running(2, "n4", 0x3F, 9_000)]
    book = world(nodes, jobs, leaves=(0, 0, 1, 1))
    movers = [mover(book.fleet, 1, 1, 0b1), mover(book.fleet, 2, 3, 0x3F)]
    found = open_for(gang(book.fleet, 2, 8, "leaf"), book, movers, POLICY, RULES)

    assert found is not None
    assert found.berth is not None
    assert (ids(found), found.berth.names, found.moves[0].berth.names) == ([1], ("n1", "n2"), ("n4",))
    # Anywhere it could start now.
    assert open_for(gang(book.fleet, 2, 8), book, movers, POLICY, RULES) is None


def test_an_nvlink_island_is_opened_and_the_job_in_it_keeps_its_level() -> None:
    """On a machine of NVLink pairs: GPUs 0 and 3 are taken, 1 and 2 are no pair."""
    nodes = [node("n1", used=0b11111001)]
    jobs = [running(1, "n1", 0b1000, 9_000), running(2, "n1", 0b11110001, 9_000)]
    book = world(nodes, jobs, "a6000")
    assert open_for(gang(book.fleet, 1, 2, "nvlink"), book, [mover(book.fleet, 1, 0, 0b1000)], POLICY, RULES)
    # A pair would have to give up its link.
    linked = Mover(2, demand(book.fleet, 1, 2), (0,), 0b110000, 60.0, 0.0, HOUR)
    assert open_for(gang(book.fleet, 1, 2, "nvlink"), book, [linked], POLICY, RULES) is None


def test_places_planned_for_others_are_theirs() -> None:
    """The only GPU that the job could go to is claimed by one that waits."""
    book = one_in_the_way()
    book.cluster.gpus_now[1] = 0
    assert open_for(gang(book.fleet, 1, 8), book, [mover(book.fleet, 1, 0, 1)], POLICY, RULES) is None


def slow_world() -> Book:
    book = world([node("n1", used=0b1), node("n2")], [running(1, "n1", 0b1, 9_000)])
    scores = np.ones((2, 8))
    scores[0, 0] = 1.4
    book.fleet = replace(book.fleet, scores={"compute": scores})
    book.cluster = replace(book.cluster, fleet=book.fleet)
    return book


def test_a_sensitive_job_leaves_a_slow_gpu_while_enough_of_it_is_left() -> None:
    book = slow_world()
    found = off_slow(book, [mover(book.fleet, 1, 0, 1, left=HOUR)], POLICY, RULES)
    assert found is not None
    assert found.gain == pytest.approx(HOUR * 0.4 / 1.4)
    assert "its slowest GPU takes 1.40 of the usual time" in found.reason
    assert off_slow(book, [mover(book.fleet, 1, 0, 1, left=600)], POLICY, RULES) is None


JOBS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 3), st.booleans(), st.integers(0, 2_000)),
    max_size=10,
)


@settings(max_examples=examples(150), deadline=None)
@given(JOBS, st.sampled_from([(1, 8), (1, 4), (2, 8), (2, 4)]), st.sampled_from(["any", "nvlink", "leaf"]))
def test_whatever_is_proposed_is_free_paid_for_and_wanted(
    drawn: list[tuple[int, int, int, bool, int]], shape: tuple[int, int], level: str
) -> None:
    used, jobs, movers_of = [0] * 4, [], []
    for number, (where, first, width, movable, cost) in enumerate(drawn, 1):
        mask = (1 << width) - 1 << first & 0xFF
        if used[where] & mask:
            continue
        used[where] |= mask
        jobs.append(running(number, f"n{where}", mask, 9_000))
        if movable:
            movers_of.append((number, where, mask, cost))
    book = world([node(f"n{i}", used=used[i]) for i in range(4)], jobs, "h100", (0, 0, 1, 1))
    movers = [mover(book.fleet, number, where, mask, float(cost)) for number, where, mask, cost in movers_of]
    wanted = gang(book.fleet, *shape, level)
    before = book.cluster.gpus_now.copy()
    found = open_for(wanted, book, movers, POLICY, RULES)

    assert (book.cluster.gpus_now == before).all()
    if found is None:
        return
    assert found.berth is not None
    assert {move.mover.id for move in found.moves} <= {one.id for one in movers}
    assert 1 <= len(found.moves) <= MOST_FOR_ONE
    assert found.gain > found.cost * MARGIN
    assert found.cost == pytest.approx(sum(price(move.mover, RULES) for move in found.moves))
    left = {place: used[place] for place in range(4)}
    for move in found.moves:
        for place in move.mover.nodes:
            left[place] &= ~move.mover.mask
    # The gang's place is free once they have left; theirs are free already, and nobody's twice.
    taken = dict.fromkeys(found.berth.nodes, found.berth.mask)
    assert all(left[place] & mask == 0 for place, mask in taken.items())
    for move in found.moves:
        for place in move.berth.nodes:
            assert not (used[place] | taken.get(place, 0)) & move.berth.mask
            taken[place] = taken.get(place, 0) | move.berth.mask
    if level == "leaf" and shape[0] == 2:
        assert {place // 2 for place in found.berth.nodes} in ({0}, {1})
