# SPDX-License-Identifier: Apache-2.0
"""When a job on several nodes will probably start: it needs the same GPUs free on each of them."""

from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.request.demand import Demand
from tests.examples import examples
from tests.unit.policy_world import NOW, book, node, reading, running

LOW, HIGH = 0x0F, 0xF0


def halves(*ends: tuple[int, int]) -> Book:
    """Nodes whose lower and upper four GPUs come free after so many seconds."""
    jobs = [
        running(10 * number + place, f"n{number}", half, seconds)
        for number, both in enumerate(ends, 1)
        for place, (half, seconds) in enumerate(zip((LOW, HIGH), both, strict=True))
    ]
    return book(reading([node(f"n{number}", used=0xFF) for number in range(1, len(ends) + 1)], jobs))


def gang(opened: Book, n: int) -> Demand:
    return Demand(n, 4, cpus=1, mem=1, level="any", limit=3_600, candidates=opened.fleet.ready)


class Counting(BerthPolicy):
    """Counts the searches."""

    asked = 0

    def place(self, demand: Demand, view: View) -> Berth:
        self.asked += 1
        return super().place(demand, view)


def test_a_gang_starts_when_its_nodes_have_the_same_gpus_free_not_when_each_has_enough() -> None:
    """From 200 s on both have four GPUs, but other ones; n3 comes free at times of no use to it."""
    opened = halves((100, 500), (400, 200), (9_000, 8_000))

    berth, start = opened.soonest(gang(opened, 2), BerthPolicy())

    assert (berth.names, berth.mask, start) == (("n1", "n2"), LOW, NOW + 400)


@pytest.mark.parametrize("apart", [1, 40])
def test_where_the_first_nodes_have_the_same_gpus_nothing_later_is_searched(apart: int) -> None:
    """It is searched for a place now, and for one at the first moment at which two nodes have the same GPUs."""
    policy = Counting()
    opened = halves(*((100 * number, 100 * number + 50) for number in range(1, apart + 3)))

    assert opened.soonest(gang(opened, 2), policy)[1] == NOW + 200
    assert policy.asked == 2


@hypothesis.settings(max_examples=examples(100), deadline=None)
@hypothesis.given(
    minutes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=8), n=st.integers(2, 4)
)
def test_a_gang_starts_at_the_first_moment_that_has_a_place(minutes: list[tuple[int, int]], n: int) -> None:
    ends = [(60 * low, 60 * high) for low, high in minutes]
    opened = halves(*ends)
    moments = sorted({NOW + seconds for both in ends for seconds in both})

    def has_place(moment: float) -> bool:
        free = [sum(half for half, end in zip((LOW, HIGH), both, strict=True) if NOW + end <= moment) for both in ends]
        return any(sum(one & half == half for one in free) >= n for half in (LOW, HIGH))

    expected = next((moment for moment in moments if has_place(moment)), None)
    if expected is None:
        with pytest.raises(NotNow):
            opened.soonest(gang(opened, n), BerthPolicy())
    else:
        assert opened.soonest(gang(opened, n), BerthPolicy())[1] == expected


@pytest.mark.parametrize("whole", [True, False])
@hypothesis.settings(max_examples=examples(100), deadline=None)
@hypothesis.given(
    minutes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8), n=st.integers(2, 3)
)
def test_a_gang_on_whole_nodes_starts_at_the_first_moment_that_has_a_place(
    whole: bool, minutes: list[tuple[int, int]], n: int
) -> None:
    """With all of a node's GPUs, or with the node: it is searched for at fewer moments."""
    opened = halves(*((60 * low, 60 * high) for low, high in minutes))
    needs = replace(gang(opened, n), k=8, cpus=None if whole else 1, mem=None if whole else 1)
    policy = BerthPolicy()

    def has_place(moment: float) -> bool:
        try:
            return bool(opened._best_at(moment, needs, policy).nodes)
        except NotNow:
            return False

    found = [moment for moment in np.unique(opened.cluster.times).tolist() if moment > NOW and has_place(moment)]
    if has_place(0.0):
        assert opened.soonest(needs, policy)[1] == 0.0
    elif found:
        assert opened.soonest(needs, policy)[1] == found[0]
    else:
        with pytest.raises(NotNow):
            opened.soonest(needs, policy)
