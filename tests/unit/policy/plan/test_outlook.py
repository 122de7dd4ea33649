# SPDX-License-Identifier: Apache-2.0
"""Searches for places that come free later: how often, and what is remembered of them."""

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.queue.outlook import Outlook, PastSearch
from tests.examples import examples
from tests.unit.policy.plan.test_plan_events import World, full_nodes
from tests.unit.policy_world import NOW, running, waiting


@pytest.mark.parametrize(
    ("before_it", "limit", "every"),
    [(0, 60, 1.0), (7, 60, 1.0), (8, 60, 5.0), (0, 7_200, 120.0)],
)
def test_the_first_in_line_look_for_sooner_places_more_often(before_it: int, limit: int, every: float) -> None:
    big = waiting(5, "n1", 0xFF, limit=limit, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"})
    world = World(full_nodes(2), [*(running(place, f"n{place}", 0xFF, 10_000) for place in (1, 2)), big])
    world.full()
    [entry] = world.plan.queue
    searched: dict[int, PastSearch] = {}

    def looks(after: float) -> bool:
        book = world.tracker.book()
        book.advance(NOW + after)
        return Outlook(book, BerthPolicy(), searched).has_turn(entry, before_it)

    assert looks(0.0)
    assert not looks(every - 0.1)
    assert looks(every)
    assert not looks(every + 0.1), "a look begins the time anew"


@settings(max_examples=examples(60), deadline=None)
@given(
    ends=st.lists(st.integers(1, 12), min_size=4, max_size=4),
    changes=st.lists(st.sampled_from(["time", "end", "start"]), min_size=1, max_size=4),
)
def test_a_search_with_a_memory_finds_what_a_first_one_finds(ends: list[int], changes: list[str]) -> None:
    """Whether only the time has gone on, a job has ended or another one has started."""
    big = waiting(5, "n1", 0xFF, limit=3_600, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"})
    jobs = [running(number, f"n{number}", 0xFF, 100 * end) for number, end in enumerate(ends, 1)]
    world = World(full_nodes(4), [*jobs, replace(big, id=50)])
    world.full()
    [entry] = world.plan.queue
    memory = PastSearch()
    for number, change in enumerate(changes):
        world.at += 60
        if change == "end" and world.jobs.pop(number + 1, None) is not None:
            world.nodes[f"n{number + 1}"] = replace(world.nodes[f"n{number + 1}"], gpus_used=0, seats_used=0)
        elif change == "start" and number + 1 in world.jobs:
            world.jobs[number + 1] = running(number + 1, f"n{number + 1}", 0xFF, 5_000)
        world.tracker.update(world.read())
        outlook = Outlook(world.tracker.book(), BerthPolicy(), {})

        assert outlook._places(entry.demand, memory) == outlook._places(entry.demand, PastSearch())


def test_where_only_the_time_has_gone_on_nothing_is_searched_again() -> None:
    big = waiting(5, "n1", 0xFF, limit=3_600, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"})
    world = World(full_nodes(2), [*(running(place, f"n{place}", 0xFF, 900 * place) for place in (1, 2)), big])
    world.full()
    [entry] = world.plan.queue
    memory = PastSearch()

    def asked(after: float) -> int:
        book = world.tracker.book()
        book.advance(NOW + after)
        with mock.patch.object(Book, "soonest", autospec=True, side_effect=Book.soonest) as soonest:
            Outlook(book, BerthPolicy(), {})._places(entry.demand, memory)
        return soonest.call_count

    assert [asked(after) for after in (0.0, 60.0, 899.0, 1_800.0)] == [1, 0, 0, 1]
