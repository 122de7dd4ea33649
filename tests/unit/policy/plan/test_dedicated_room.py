# SPDX-License-Identifier: Apache-2.0
"""Room for gangs: they prefer empty nodes, and small jobs leave nodes empty as long as there is room elsewhere."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import claim_on
from policy.request.demand import Demand
from tests.unit.policy_world import book, node, reading

POLICY = BerthPolicy()
MASKS = st.integers(0, 0xFF)


def opened(used: list[int], kind: str = "h100") -> Book:
    nodes = [node(f"n{place}", used=mask) for place, mask in enumerate(used)]
    return book(reading(nodes), {one.name: kind for one in nodes})


def demand(on: Book, n: int, k: int) -> Demand:
    return Demand(n, k, k, 100, "any", 3_600, on.fleet.ready.copy())


@pytest.mark.parametrize("kind", ["h100", "l40s", "a6000"])
def test_a_gang_that_could_squeeze_in_takes_empty_nodes(kind: str) -> None:
    on = opened([0xF0, 0, 0xF0, 0, 0xF0], kind)
    assert POLICY.place(demand(on, 2, 4), on.cluster.now(3_600)).nodes == (1, 3)
    # With one too few of them it takes what else there is.
    assert set(POLICY.place(demand(on, 3, 4), on.cluster.now(3_600)).nodes) > {1, 3}


def test_it_does_not_leave_its_leaf_for_an_empty_node() -> None:
    on = opened([0xF0, 0xF0, 0, 0])
    fleet = replace(on.fleet, fabric=replace(on.fleet.fabric, leaf=np.array([0, 0, 1, 2]), pod=np.zeros(4, np.int64)))
    one = Book(replace(on.cluster, fleet=fleet))
    assert POLICY.place(demand(one, 2, 4), one.cluster.now(3_600)).nodes == (0, 1)


@given(st.lists(MASKS, min_size=2, max_size=6), st.integers(1, 4))
def test_a_small_job_opens_no_empty_node_while_another_has_room(used: list[int], k: int) -> None:
    on = opened(used)
    free = [8 - mask.bit_count() for mask in used]
    if not any(k <= room for room in free):
        return
    [place] = POLICY.place(demand(on, 1, k), on.cluster.now(3_600)).nodes
    if any(k <= room < 8 for room in free):
        assert free[place] < 8


@given(st.lists(st.integers(1, 4), max_size=20))
def test_small_jobs_leave_as_many_nodes_empty_as_packing_them_can(sizes: list[int]) -> None:
    """Best fit never needs more than 1.7 times the nodes that the best packing does."""
    on = opened([0] * 12)
    for k in sizes:
        wanted = demand(on, 1, k)
        berth = on.now(wanted, POLICY)
        on.claim(claim_on(on.fleet, wanted, berth.nodes, berth.mask, on.cluster.at))
    full = -(-sum(sizes) // 8)
    assert 12 - on.cluster.empty_nodes <= full * 1.7 + 1
    assert on.cluster.free_gpus == 96 - sum(sizes)


def test_empty_are_nodes_that_take_jobs_and_hold_none() -> None:
    nodes = [node("n0"), node("n1", used=1), node("n2", up=False), node("n3", gpus=0, seats=0)]
    one = book(reading(nodes), {"n0": "h100", "n1": "h100", "n2": "h100"})
    assert one.cluster.empty_nodes == 1
