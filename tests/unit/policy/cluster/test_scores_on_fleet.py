# SPDX-License-Identifier: Apache-2.0
"""A score belongs to a GPU's position, whatever number the driver gives its device."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.fleet import scores_on
from tests.examples import examples
from tests.unit.policy_world import fleet, machine, node, reading
from topology.scores import Score


@given(st.permutations(range(4)), st.lists(st.integers(0, 9), min_size=4, max_size=4, unique=True), st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_scores_lie_at_positions_where_minor_numbers_have_gaps_or_another_order(
    order: list[int], minors: list[int], by_uuid: bool
) -> None:
    known = fleet(reading([node("n1"), node("n2")]))
    kind = machine("n2", "l40s", 4)
    moved = replace(kind, gpus=tuple(replace(gpu, minor=minors[gpu.position]) for gpu in kind.gpus))
    known = replace(known, machines=(known.machines[0], moved))
    # A name that is none of these GPUs' is another GPU's; without one, node and position count.
    scores = [
        Score("n2", gpu, moved.gpus[gpu].uuid if by_uuid else "", "compute", 1.0 + gpu / 10, 3, 0.01) for gpu in order
    ]

    table = scores_on(known, [*scores, Score("n2", 0, "GPU-gone", "compute", 9.0, 3, 0.01)])["compute"]

    assert table[1, :4].tolist() == [1.0, 1.1, 1.2, 1.3], f"GPU K has score 1.K; minors {minors}"
    assert table[0].tolist() == [1.0] * table.shape[1]
