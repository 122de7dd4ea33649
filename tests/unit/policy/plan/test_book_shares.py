# SPDX-License-Identifier: Apache-2.0
"""When a packed job can start on a given GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import Claim
from policy.request.demand import Demand
from tests.unit.policy_world import NOW
from tests.unit.share_world import book, node, packed, packed_waiting


def asked(opened: Book) -> Demand:
    """The demand of a job that wants 30 % of GPU 0 of n1 for an hour."""
    return Reader(opened.cluster.fleet).read(packed_waiting(2, "n1", 0, 30), NOW).demand


@pytest.mark.parametrize(("seconds", "start"), [(4_600, NOW + 1_000), (4_599, None)])
def test_it_waits_for_another_to_end_and_is_over_before_a_reservation_begins(seconds: int, start: float | None) -> None:
    opened = book([node("n1", shared=(80,))], [packed(1, "n1", 0, 80, ends_in=1_000)])
    opened.cluster.reserved_from[0] = NOW + seconds

    assert opened.start_of(asked(opened), [0], 1) == start


@pytest.mark.parametrize(("more", "start"), [(0, 0.0), (1, None)])
def test_it_may_have_all_the_memory_of_a_node_and_no_more(more: int, start: float | None) -> None:
    opened = book([node("n1")])
    demand = replace(asked(opened), mem=int(opened.cluster.fleet.mem[0]) + more)

    assert opened.start_of(demand, [0], 1) == start


@pytest.mark.parametrize(("more", "start"), [(0, 0.0), (1, None)])
def test_it_may_have_all_the_cpus_of_a_node_and_no_more(more: int, start: float | None) -> None:
    opened = book([node("n1")])
    demand = replace(asked(opened), cpus=int(opened.cluster.fleet.cpus[0]) + more)

    assert opened.start_of(demand, [0], 1) == start


@pytest.mark.parametrize(("limit", "start"), [(600, 0.0), (601, NOW + 4_200)])
def test_beside_a_share_on_a_gpu_that_is_planned_for_a_job_no_other_outlasts_that_jobs_wait(
    limit: int, start: float
) -> None:
    opened = book([node("n1")])
    share = replace(asked(opened), limit=300)
    opened.claim(Claim((0,), 1, 1, 100, NOW + 600, NOW + 4_200))
    opened.claim(Claim((0,), 1, 1, 100, NOW, NOW + 300, share.share))

    assert opened.start_of(replace(share, limit=limit), [0], 1) == start
