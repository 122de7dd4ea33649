# SPDX-License-Identifier: Apache-2.0
"""Places that are not free yet: where the plan looks for them."""

import numpy as np
import pytest

from policy.placement.berth import BerthPolicy
from policy.plan.ledger.later_places import on_busy_nodes
from policy.request.demand import Demand
from tests.unit.policy_world import NOW, book, node, reading, running

FULL, HALF = 0xFF, 0x0F


@pytest.mark.parametrize(
    ("gpus", "among", "found"),
    [
        (8, [True, True, True], ((0,), NOW + 900)),  # n2 is free sooner, and jobs behind could use its other half
        (8, [False, True, True], ((1,), NOW + 60)),
        (8, [False, False, True], None),
        (4, [False, True, True], None),
        (4, [True, True, True], ((0,), NOW + 900)),
    ],
)
def test_a_later_place_is_sought_where_nothing_is_free_and_else_where_too_little_is(
    gpus: int, among: list[bool], found: tuple[tuple[int, ...], float] | None
) -> None:
    nodes = [node("n1", used=FULL), node("n2", used=HALF), node("n3")]
    opened = book(reading(nodes, [running(1, "n1", FULL, 900), running(2, "n2", HALF, 60)]))
    demand = Demand(1, gpus, cpus=1, mem=1, level="any", limit=3_600, candidates=opened.fleet.ready)

    place = on_busy_nodes(opened, demand.within(np.array(among)), BerthPolicy())

    assert (place and (place.berth.nodes, place.start)) == found
