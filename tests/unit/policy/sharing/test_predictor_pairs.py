# SPDX-License-Identifier: Apache-2.0
"""What the predictor says of a pair from either side, of promises and chances alike, and of odd profiles."""

import numpy as np
import pytest

from policy.sharing import predictor
from tests.bench.measured_pairs import shipped

JOBS = np.array([predictor.profile(*job) for job in ((0.1, 0.02, 2_000), (0.5, 0.3, 3_500), (0.97, 0.7, 4_000))])
OTHERS = JOBS[:2]


def test_an_owner_beside_a_guest_is_a_guest_beside_an_owner_from_the_other_side() -> None:
    one, other = (predictor.predict(shipped(), *jobs, 0.85) for jobs in ((JOBS, OTHERS), (OTHERS, JOBS)))

    assert one.guest == pytest.approx(other.host.T)
    assert one.guest_least == pytest.approx(other.host_least.T)
    assert (one.guest_least < one.guest).all()


@pytest.mark.parametrize("level", [0.7, 0.85, 0.95])
def test_what_is_promised_at_a_level_is_kept_with_that_chance(level: float) -> None:
    least = predictor.predict(shipped(), JOBS, OTHERS, level).host_least
    for owner, guest in np.ndindex(*least.shape):
        chance = predictor.chances(shipped(), JOBS, OTHERS, float(least[owner, guest]))
        assert chance[owner, guest] == pytest.approx(level, abs=0.01)
    assert (predictor.chances(shipped(), JOBS, OTHERS, 0.01) >= 0.99).all()


def test_profiles_are_rounded_to_what_repeated_measurements_differ_by() -> None:
    found = predictor.rounded(np.array([[0.029, 0.071, 0.26], [0.031, 0.069, 0.24]]))
    assert found == pytest.approx(np.array([[0.02, 0.08, 0.3], [0.04, 0.06, 0.2]]))


def test_memory_counts_in_doublings_of_two_gib_and_none_as_one_mib() -> None:
    assert [predictor.profile(0, 0, mib)[2] for mib in (0, 0.5, 1, 2_048, 8_192)] == [-11, -11, -11, 0, 2]
