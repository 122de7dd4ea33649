"""What is told about a set of GPUs: its weakest pair, and all pairs together."""

from itertools import combinations

import pytest

from tests.unit.policy_world import machine
from topology.sets.tables import pairs
from topology.sets.wiring import Wiring, wiring


@pytest.mark.parametrize("gpus", [(0, 1, 2), (0, 2, 4), (0, 1, 6, 7)])
def test_a_set_is_as_wide_as_its_weakest_pair(gpus: tuple[int, ...]) -> None:
    wired = wiring(machine("n1", "a6000"))
    single = [widest(wired, pair)[0] for pair in combinations(gpus, 2)]

    assert widest(wired, gpus) == pytest.approx((min(single), sum(single)))
    assert widest(wired, (0, 1))[0] > widest(wired, (0, 2))[0], "only one of these pairs is linked"
    assert widest(wired, gpus[:1]) == (0.0, 0.0)


def widest(wired: Wiring, gpus: tuple[int, ...]) -> tuple[float, float]:
    return pairs(wired, gpus).paths
