# SPDX-License-Identifier: Apache-2.0
"""When a job without GPUs will probably start, so that planned jobs leave it its CPUs."""

from dataclasses import replace

import pytest

from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.book import Book
from policy.request.demand import Demand
from tests.unit.policy_world import NOW, book, node, reading, running, waiting

CPUS, MEM = 32, 64_000


def full(*ends_in: float, mem: int = 10_000) -> Book:
    """Nodes on each of which one job holds all CPUs, and ends so late; 0: there is none."""
    ends = {f"n{number}": end for number, end in enumerate(ends_in, 1)}
    nodes = [node(name, cpus_used=CPUS * (end > 0), mem_used=mem * (end > 0)) for name, end in ends.items()]
    jobs = [running(int(name[1:]), name, 0, end, cpus=CPUS, mem=mem) for name, end in ends.items() if end]
    return book(reading(nodes, jobs))


def asks(opened: Book, nodes: int, **changes: object) -> Demand:
    demand = Reader(opened.cluster.fleet).read(waiting(9, "n1", 1), NOW).demand
    return replace(demand, **{"n": nodes, "k": 0, "cpus": 20, "mem": 1_000, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("nodes", "where", "seconds"), [(1, (0,), 100), (2, (0, 1), 200), (3, (0, 1, 2), 300)])
def test_it_starts_when_as_many_nodes_as_it_needs_have_room(nodes: int, where: tuple[int, ...], seconds: float) -> None:
    opened = full(100, 200, 300)

    assert opened.soonest_without_gpus(asks(opened, nodes)) == (where, NOW + seconds)


def test_nodes_with_room_already_count() -> None:
    opened = full(0, 100, 200)

    assert opened.soonest_without_gpus(asks(opened, 2)) == ((0, 1), NOW + 100)
    assert opened.soonest_without_gpus(asks(opened, 3)) == ((0, 1, 2), NOW + 200)


def test_a_node_that_is_down_gives_it_no_room() -> None:
    opened = full(0, 100, 200)
    opened.cluster.up[0] = False

    assert opened.soonest_without_gpus(asks(opened, 2)) == ((1, 2), NOW + 200)


def test_it_starts_now_where_there_is_room_and_never_where_there_are_too_few_nodes() -> None:
    free = book(reading([node("n1"), node("n2")]))

    assert free.soonest_without_gpus(asks(free, 2)) == ((0, 1), 0.0)
    assert free.soonest_without_gpus(asks(free, 3)) is None


@pytest.mark.parametrize(
    ("more", "seconds"), [({"cpus": CPUS, "mem": MEM}, 100), ({"cpus": CPUS + 1}, None), ({"mem": MEM + 1}, None)]
)
def test_it_may_have_the_last_cpu_and_mebibyte_of_a_node(more: dict[str, int], seconds: float | None) -> None:
    opened = full(100)

    assert opened.soonest_without_gpus(asks(opened, 1, **more)) == (seconds and ((0,), NOW + seconds))
