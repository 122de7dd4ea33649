# SPDX-License-Identifier: Apache-2.0
"""The class of an application, by rule, from its profile."""

import pytest

from topology.calibrate.classes import ClassProfile, by_rule


@pytest.mark.parametrize(
    ("compute", "memory", "expected"),
    [(0.8, 0.2, "compute"), (0.5, 0.5, "mixed"), (0.2, 0.7, "memory"), (0.02, 0.01, "memory"), (0.0, 0.0, "memory")],
)
def test_a_single_profile_is_classed_by_what_it_keeps_busy(compute: float, memory: float, expected: str) -> None:
    assert by_rule(ClassProfile("one", compute, memory)) == expected
