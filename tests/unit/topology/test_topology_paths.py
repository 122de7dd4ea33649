"""What is told about a set of GPUs: its weakest pair, and all pairs together."""

from itertools import combinations

import pytest

from tests.unit.policy_world import machine
from topology.tables import paths


@pytest.mark.parametrize("gpus", [(0, 1, 2), (0, 2, 4), (0, 1, 6, 7)])
def test_a_set_is_as_wide_as_its_weakest_pair(gpus: tuple[int, ...]) -> None:
    pairs_linked = machine("n1", "a6000")
    single = [paths(pairs_linked, pair)[0] for pair in combinations(gpus, 2)]

    assert paths(pairs_linked, gpus) == pytest.approx((min(single), sum(single)))
    assert paths(pairs_linked, (0, 1))[0] > paths(pairs_linked, (0, 2))[0], "only one of these pairs is linked"
    assert paths(pairs_linked, gpus[:1]) == (0.0, 0.0)
