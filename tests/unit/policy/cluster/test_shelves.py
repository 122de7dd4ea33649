# SPDX-License-Identifier: Apache-2.0
"""Shared GPUs in arrays: the same answers as one by one, a cluster's thousands at once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cluster.shared.fragmentation import DEFAULT
from policy.cluster.shared.shelves import ShelfRequest, Shelves
from policy.cluster.shared.tenants import PlannedTenant, Tenants
from policy.request.share import EVERYBODY, NOBODY, Share
from tests.unit.policy.plan.test_shares import fragmentation
from tests.unit.share_world import book, node
from topology.sets.tables import MOST_GPUS

ROW = st.tuples(
    st.sampled_from([0b1, 0b10, 0b11, 0b100]), st.sampled_from([10, 40, 60]), st.integers(0, 30),
    st.sampled_from([EVERYBODY, EVERYBODY, 7, NOBODY]), st.integers(0, 4), st.integers(1, 4),
)  # fmt: skip
NODES = st.lists(st.lists(ROW, max_size=4), min_size=1, max_size=3)


def tenants_of(rows: list[tuple[int, int, int, int, int, int]]) -> Tenants:
    return Tenants(
        tuple(PlannedTenant(mask, part, mem, whose, at, at + time) for mask, part, mem, whose, at, time in rows)
    )


@given(NODES, NODES, st.sampled_from([10, 50]), st.sampled_from([1, 2]), st.integers(0, 5), st.sampled_from([0, 40]))
def test_shelves_know_what_their_tenants_know(
    before: list[list[tuple[int, int, int, int, int, int]]],
    after: list[list[tuple[int, int, int, int, int, int]]],
    percent: int,
    k: int,
    start: int,
    capacity: int,
) -> None:
    shelves, share = Shelves(), Share(percent, 10)
    fits = np.ones(4, np.bool_)
    for world in (before, after):
        tenants = {3 - place: tenants_of(rows) for place, rows in enumerate(world)}
        shelves.bring(tenants)
        nodes, masks = shelves.open_to(share, k, fits, np.full(4, capacity), start, start + 2.0)
        expected = [
            (node, mask)
            for node in sorted(tenants)
            for mask in tenants[node].open_to(share, k, capacity, start, start + 2)
        ]
        assert list(zip(nodes.tolist(), masks.tolist(), strict=True)) == expected
        left = shelves.left(np.arange(4), start)
        for place in range(4):
            parts = tenants.get(place, Tenants()).left(start)
            assert left[place].tolist() == [parts.get(gpu, 0) for gpu in range(MOST_GPUS)]


def test_what_is_remembered_of_a_node_is_not_used_when_the_node_has_changed() -> None:
    shelves, asked = Shelves(), ShelfRequest(1, 30, 2, DEFAULT)
    for free, cpus, percent in ((0b1110, 9, 50), (0b1110, 3, 50), (0b100, 9, 50), (0b100, 9, 20)):
        cluster = book([node("n1")]).cluster
        seen = replace(cluster.now(60), free=np.array([free]), cpus=np.array([cpus]))
        tenants = {0: Tenants((PlannedTenant(1, percent, 0, EVERYBODY, 0.0, 90.0),))}
        places = np.array([0, 0]), np.array([1, 0])
        shelves.bring(tenants)
        fresh = Shelves()
        fresh.bring(tenants)
        remembered = shelves.added(asked, seen, *places, 1.0)

        assert remembered.tolist() == fresh.added(asked, seen, *places, 1.0).tolist()
        count = free.bit_count()
        left = [100 - percent, *[100] * count]
        joined = fragmentation([70 - percent, *[100] * count], cpus - 2, DEFAULT) - fragmentation(left, cpus, DEFAULT)
        assert remembered[0] == pytest.approx(joined)
