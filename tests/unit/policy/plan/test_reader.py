# SPDX-License-Identifier: Apache-2.0
"""What the reader of waiting jobs remembers, and what it lets go of."""

from dataclasses import replace

import pytest

from policy.formats.slurm_facts import JobFacts, PartitionFacts
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.relocation.movable_jobs import Movers
from policy.request.settings import RelocationRules, Sharing
from tests.unit.policy_world import NOW, reading, running, waiting
from tests.unit.policy_world import node as plain
from tests.unit.share_world import fleet, node, packed_waiting

SHARING = Sharing(profiles="/profiles", least_speed=90, company_wait=60)


def named(job_id: int, **changes: object) -> JobFacts:
    return replace(packed_waiting(job_id, "n1", 0, 30, **changes), name=f"sweep-{job_id}")


def reader() -> Reader:
    return Reader(fleet(reading([node("n1"), node("n2")]), SHARING))


def entries(one: Reader) -> int:
    return max(len(held) for held in vars(one).values() if isinstance(held, dict))


def test_jobs_with_names_of_their_own_are_forgotten_when_they_are_gone() -> None:
    one = reader()
    for job_id in range(2_000):
        one.read(named(job_id), NOW)
    one.forget({5})
    assert entries(one) < 100

    for job_id in range(2_000, 3_000):
        one.read(named(job_id), NOW)
        one.forget({job_id})
    assert entries(one) < 400


def test_of_a_long_queue_few_are_known_that_have_gone() -> None:
    """An entry takes 2 kB, and with 30,000 waiting jobs as many were kept that had started long ago."""
    one = reader()
    for job_id in range(3_000):
        one.read(named(job_id), NOW)
    one.forget(set(range(1_000, 3_000)))
    assert len(one._known) <= 2_000 + 100


def test_nodes_that_a_job_keeps_away_from_for_a_time_are_forgotten_with_it() -> None:
    one = reader()
    for job_id in range(2_000):
        one.read(named(job_id, segment={"avoids": f"n1@{NOW + 60},x{job_id}@{NOW + 60}"}), NOW)
    one.forget({5})
    assert entries(one) < 100


def test_jobs_that_differ_in_company_alone_have_the_same_nodes_and_shapes_of_their_own() -> None:
    one = reader()
    first, second = one.read(named(1), NOW), one.read(named(2), NOW)

    assert first.demand.candidates is second.demand.candidates
    shapes = [first.shape, second.shape, first.demand_at(NOW - 90)[1], second.demand_at(NOW - 90)[1]]
    assert len(set(shapes)) == 4
    assert one.read(replace(named(1), id=3), NOW).shape == first.shape


def test_what_is_known_of_those_who_wait_outlives_the_others() -> None:
    one = reader()
    stays = one.read(named(1), NOW)
    for job_id in range(2, 2_000):
        one.read(named(job_id), NOW)
    one.forget({1})

    assert one.read(stays.job, NOW) is stays
    again = [one.read(named(job_id), NOW) for job_id in range(2, 50)]
    twin = one.read(replace(named(1), id=3_000), NOW)
    assert (twin.shape, twin.share.number) == (stays.shape, stays.share.number)
    numbers = {number for entry in [stays, *again] for number in (entry.shape[-1], entry.share.number)}
    assert len(numbers) == 2 * 49


def test_running_jobs_that_may_be_moved_are_forgotten_when_they_are_gone() -> None:
    movers = Movers(RelocationRules(enabled=True))
    segment = {"state": "placed", "n": "1", "k": "1", "f.movable": "", "nodes": "n1", "gpus": "0"}
    on = fleet(reading([node("n1")]))
    for job_id in range(1_000):
        movers.of(reading([node("n1")], [running(job_id, "n1", 0b1, 60, segment={**segment, "mem": str(job_id)})]), on)

    assert movers._reader is not None
    assert 0 < entries(movers._reader[1]) < 100


@pytest.mark.parametrize("line", [(1, 2), (2, 1)])
def test_of_several_partitions_a_job_on_one_node_may_use_all_and_one_on_several_nodes_each(
    line: tuple[int, ...],
) -> None:
    look = reading(
        [plain("n1", partitions=frozenset({"a"})), plain("n2", partitions=frozenset({"b"}))],
        partitions=(PartitionFacts("a", default=True), PartitionFacts("b")),
    )
    one = Reader(fleet(look))
    jobs = {n: waiting(n, "n1", 1, partition="a,b", segment={"n": str(n)}) for n in line}

    found = {n: [pool.tolist() for pool in one.read(jobs[n], NOW).demand.pools] for n in line}

    assert found == {1: [], 2: [[True, False], [False, True]]}
