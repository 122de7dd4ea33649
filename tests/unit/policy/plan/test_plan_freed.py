# SPDX-License-Identifier: Apache-2.0
"""What is planned when one node comes free: by records of now, and never on a place that is kept."""

from dataclasses import replace

from policy.plan.ledger.claims import claim_on
from tests.unit.policy.plan.test_plan_events import World, full_nodes, moves
from tests.unit.policy_world import NOW, node, running, waiting


def test_a_job_that_was_changed_since_the_last_pass_is_planned_as_it_is_now() -> None:
    jobs = [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 600)]
    jobs += [waiting(5, "n2", 0xFF, priority=9), waiting(6, "n2", 0xFF, priority=1)]
    world = World(full_nodes(2), jobs)
    world.full()
    world.jobs[6] = replace(world.jobs[6], priority=99)

    [move] = moves(world.end(1))

    assert (move.job.id, move.berth.names) == (6, ("n1",))


def test_a_place_that_is_kept_for_a_job_on_its_way_is_nobodys_when_its_node_comes_free() -> None:
    world = World(full_nodes(2), [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 600), waiting(5, "n2", 0xFF)])
    world.full()
    assert world.plan.book is not None
    [entry] = world.plan.queue
    world.plan.kept = (claim_on(world.plan.book.fleet, entry.demand, [0], 0xFF, NOW),)

    assert world.end(1) == [], "job 5 would have it"


def test_a_gang_that_gets_its_nodes_leaves_the_next_empty_one_to_the_job_behind_it() -> None:
    gang = waiting(5, "n1", 0xFF, priority=9, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"})
    three = running(3, "n3", 0xFF, 9_000, nodes=("n3", "n4", "n5"), required=("n3", "n4", "n5"))
    others = [running(number, f"n{number}", 0xFF, 3_000) for number in (1, 2)]
    world = World(full_nodes(5), [*others, three, gang, waiting(6, "n1", 0xFF, priority=1)])
    world.full()

    changes = moves(world.end(3))

    assert [(move.job.id, len(move.berth.names), move.start) for move in changes] == [(5, 2, 0.0), (6, 1, 0.0)]


def test_an_empty_node_without_the_cpus_for_the_first_in_line_goes_to_the_next() -> None:
    """A job without GPUs holds 31 of the 32 CPUs of n1. Only a job on several nodes gathers nodes that come free."""
    wide = waiting(5, "n2", 0xFF, priority=9, segment={"cpus": "8"})
    world = World(full_nodes(2), [running(1, "n1", 0xFF, 9_000), running(2, "n2", 0xFF, 3_000), wide])
    world.jobs[6] = waiting(6, "n2", 0b1, priority=1)
    world.full()
    del world.jobs[1]
    world.nodes["n1"] = replace(world.nodes["n1"], gpus_used=0, cpus_used=31)
    look = world.read()

    [move] = moves(world.plan.freed(world.tracker, world.tracker.update(look), look.jobs))

    assert (move.job.id, move.berth.names, move.start) == (6, ("n1",), 0.0)


def test_jobs_for_which_room_was_made_get_what_comes_free_before_all_others() -> None:
    jobs = [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 600)]
    jobs += [waiting(5, "n2", 0xFF, priority=9), waiting(6, "n2", 0xFF, priority=1)]
    world = World(full_nodes(2), jobs)
    world.plan.first = frozenset({6})
    world.full()

    [move] = moves(world.end(1))

    assert (move.job.id, move.berth.names) == (6, ("n1",))


def test_a_component_whose_node_was_taken_goes_to_no_node_of_another_component() -> None:
    """Both nodes have changed, and n2 has room for both components."""
    both = [waiting(50, "n1", 0b11, het=50), waiting(51, "n2", 0b11, het=50)]
    world = World([node("n1"), node("n2")], both)
    world.full()
    world.jobs[1] = running(1, "n1", 0xFF, 3_000)
    for name, used in (("n1", 0xFF), ("n2", 0b1_0000)):
        world.nodes[name] = node(name, used=used)
    look = world.read()

    assert moves(world.plan.freed(world.tracker, world.tracker.update(look), look.jobs)) == []
