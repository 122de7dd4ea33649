# SPDX-License-Identifier: Apache-2.0
"""Room for gangs: nodes that no job uses."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from policy.simulate.pal_rounds import rooms
from policy.simulate.pal_rounds.rooms import empty_nodes
from policy.simulate.result import Stretch


def test_the_example_works() -> None:
    assert doctest.testmod(rooms).failed == 0


def test_only_the_time_at_this_load_counts_and_each_node_once() -> None:
    stretches = [
        Stretch("whole", 0.0, 100.0, tuple(range(8))),
        Stretch("small", 10.0, 40.0, (8,)),
        Stretch("beside", 20.0, 40.0, (9, 16)),
    ]

    # 9 of 24 GPUs for 10 s with one of three nodes empty, then 11 for 20 s with none.
    assert empty_nodes(stretches, 3, 8, 24, (0.3, 0.5)) == pytest.approx(((70 * 2 / 3 + 10 / 3) / 100, 100.0))
    assert empty_nodes(stretches, 3, 8, 24, (0.37, 0.4)) == pytest.approx((1 / 3, 10.0))
    assert empty_nodes([], 3, 8, 24) == (0.0, 0.0)


def test_it_agrees_with_counting_at_each_moment() -> None:
    draw = np.random.default_rng(7)
    stretches = []
    for number in range(300):
        start = int(draw.integers(0, 900))
        gpus = tuple(sorted(draw.choice(40, int(draw.integers(1, 9)), replace=False).tolist()))
        stretches.append(Stretch(str(number), float(start), float(start + int(draw.integers(1, 9))), gpus))
    shares = []
    for moment in range(1_000):
        taken = [gpu for one in stretches if one.start <= moment < one.end for gpu in one.gpus]
        if 0.1 <= len(taken) / 40 <= 0.4:
            shares.append(1 - len({gpu // 8 for gpu in taken}) / 5)

    share, seconds = empty_nodes(stretches, 5, 8, 40, (0.1, 0.4))

    assert seconds == len(shares)
    assert np.isclose(share, np.mean(shares))
