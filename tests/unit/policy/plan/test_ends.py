# SPDX-License-Identifier: Apache-2.0
"""When running jobs end, for those that wait: at their time limits."""

import numpy as np
import pytest

from policy.plan.ledger.book import Book
from policy.plan.ledger.tracker import SOON
from tests.unit.policy.plan.test_plan_crowd import FULL
from tests.unit.policy_world import NOW, book, node, reading, running

NODES = [node("n1"), *(node(f"n{number}", used=FULL) for number in (2, 3, 4))]


def moments(there: Book, name: str) -> list[float]:
    """In how many seconds something comes free on a node."""
    times = there.cluster.times[there.fleet.index[name]]
    return sorted(set((times[np.isfinite(times)] - NOW).tolist()) - {0.0})


def test_a_running_job_ends_at_its_limit_and_one_beyond_it_soon() -> None:
    jobs = [running(2, "n2", FULL, 500), running(3, "n3", FULL, SOON + 1), running(4, "n4", FULL, SOON - 3)]
    there = book(reading(NODES, jobs))

    assert moments(there, "n2") == pytest.approx([500.0])
    assert moments(there, "n3") == pytest.approx([SOON + 1])
    assert moments(there, "n4") == pytest.approx([SOON])
