# SPDX-License-Identifier: Apache-2.0
"""Which waiting jobs close their partitions to Slurm's main pass."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cluster.fleet import Fleet
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, PartitionFacts
from policy.plan.jobs.waiting import Waiting
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.queue.closers import closers, in_the_way
from tests.unit.policy_world import NOW, fleet, node, reading, waiting

NAMES = ("n1", "n2", "n3", "n4")
PARTITIONS = (PartitionFacts("gpu", default=True), PartitionFacts("half"))


def world(*unnamed: str) -> Fleet:
    nodes = [node(name, partitions=frozenset({"gpu", "half"} if name < "n3" else {"gpu"})) for name in NAMES]
    return replace(fleet(reading(nodes, partitions=PARTITIONS)), unnamed=frozenset(unnamed))


def line(known: Fleet, *jobs: JobFacts, starting: tuple[int, ...] = ()) -> list[Waiting]:
    """The jobs in their order; those of `starting` can start now."""
    queue = [Reader(known).read(job, NOW) for job in jobs]
    for entry in queue:
        entry.last.place, entry.last.start = entry.nodes, 0.0 if entry.job.id in starting else NOW + 60
    return queue


def test_the_first_job_closes_its_partition_while_nothing_can_start() -> None:
    known = world()
    queue = line(known, waiting(1, "n1", 1), waiting(2, "n1", 2), waiting(3, "n2", 1))
    assert closers(queue, known) == {"gpu": queue[0].job}


def test_a_job_that_waits_alone_closes_nothing() -> None:
    known = world()
    assert closers(line(known, waiting(1, "n1", 1)), known) == {}


def test_a_job_behind_which_another_can_start_stands_in_the_way() -> None:
    known = world()
    jobs = [waiting(1, "n1", 1), waiting(2, "n2", 1), waiting(3, "n3", 1), waiting(4, "n4", 1)]
    queue = line(known, *jobs, starting=(3,))
    assert in_the_way(queue, known, {1, 2, 4}) == jobs[:2]
    assert in_the_way(queue, known, {3, 4}) == []
    assert in_the_way(line(known, *jobs), known, {1, 2}) == []


def test_the_next_one_closes_behind_those_that_start_unless_its_node_is_taken() -> None:
    known = world()
    first, starts = waiting(1, "n1", 1), waiting(2, "n2", 1)
    behind = [waiting(3, "n1", 2), waiting(4, "n2", 2), waiting(5, "n3", 1)]
    assert closers(line(known, first, *behind, starting=(1,)), known)["gpu"].id == 3
    assert closers(line(known, first, starts, *behind, starting=(2,)), known)["gpu"].id == 4


def test_a_start_in_another_partition_counts_where_the_nodes_are_shared() -> None:
    known = world()
    ours = [waiting(1, "n1", 1), waiting(2, "n2", 1)]
    other = waiting(3, "n2", 2, partition="half")
    assert in_the_way(line(known, *ours, other, starting=(3,)), known, {1}) == ours[:1]
    apart = [waiting(1, "n1", 1, partition="half"), waiting(2, "n3", 1)]
    assert in_the_way(line(known, *apart, starting=(2,)), known, {1}) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": "gpu,half"},
        {"excluded": ("n4",)},
        {"reservation": "r"},
        {"het": 7},
        {"tasks": "1-3", "state": "ARRAY"},
        {"reason": "JobHeldUser"},
    ],
)
def test_such_jobs_keep_their_required_nodes(changes: dict[str, object]) -> None:
    known = world()
    queue = line(known, waiting(1, "n1", 1, **changes), waiting(2, "n1", 2), waiting(3, "n2", 1))
    assert 1 not in {job.id for job in closers(queue, known).values()}


def test_a_job_that_can_start_itself_stands_in_the_way_of_one_behind_it() -> None:
    known = world()
    jobs = [waiting(1, "n1", 1), waiting(2, "n2", 1)]
    assert in_the_way(line(known, *jobs, starting=(1, 2)), known, {1}) == jobs[:1]
    assert in_the_way(line(known, *jobs, starting=(1,)), known, {1}) == []


@pytest.mark.parametrize("reason", ["JobHeldUser", "BeginTime", "Dependency"])
def test_a_job_that_slurm_does_not_test_yet_changes_nothing(reason: str) -> None:
    """Such as a guest without a seat, or a held job without a place."""
    known = world()
    held = replace(
        waiting(1, "n1", 1, reason=reason), gpus=None, required=(), plan=JobPlan({"state": "later", "n": "1"})
    )
    behind = [waiting(2, "n1", 1), waiting(3, "n2", 1)]
    assert closers(line(known, held, *behind), known)["gpu"].id == 2
    pinned = waiting(1, "n1", 1, reason=reason)
    assert closers(line(known, pinned, *behind), known)["gpu"].id == 2
    assert closers(line(known, behind[0], replace(held, id=3)), known) == {}


def test_behind_the_rest_of_an_array_the_first_job_of_another_node_closes() -> None:
    known = world()
    rest = waiting(1, "n1", 1, tasks="2-9", state="ARRAY", array=1)
    behind = [waiting(2, "n1", 2), waiting(3, "n2", 1), waiting(4, "n3", 1)]
    assert closers(line(known, rest, *behind), known)["gpu"].id == 3


def test_no_job_closes_a_partition_with_a_node_that_its_list_would_not_name() -> None:
    known = world("n4")
    queue = line(known, waiting(1, "n1", 1), waiting(2, "n1", 2))
    assert closers(queue, known) == {}
    half = [waiting(number, "n1", number, partition="half") for number in (1, 2)]
    assert list(closers(line(known, *half), known)) == ["half"]


def test_a_job_that_slurm_places_closes_the_partition_itself() -> None:
    known = world()
    placed_by_slurm = replace(waiting(1, "n1", 1), wants_gpus=False, gpus=None, plan=None, required=())
    assert closers(line(known, placed_by_slurm, waiting(2, "n1", 1), waiting(3, "n1", 2)), known) == {}


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=12), st.sets(st.integers(0, 11)))
def test_nothing_that_can_start_is_behind_a_job_that_closes(jobs: list[tuple[str, bool]], before: set[int]) -> None:
    """Whatever closed before: of the jobs that close then, none waits before one that can start."""
    known = world()
    starting = tuple(number for number, (_, starts) in enumerate(jobs) if starts)
    facts = [waiting(number, name, 1 << number % 8) for number, (name, _) in enumerate(jobs)]
    queue = line(known, *facts, starting=starting)
    opened = {job.id for job in in_the_way(queue, known, before)}
    closing = (before - opened) | {job.id for job in closers(queue, known).values()}
    last = max(starting, default=-1)
    assert not {number for number in closing if number < last and number not in starting}
