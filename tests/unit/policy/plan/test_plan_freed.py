"""What is planned when one node comes free: by records of now, and never on a place that is kept."""

from dataclasses import replace

from policy.plan.claims import claim_on
from tests.unit.policy.plan.test_plan_events import World, full_nodes, moves
from tests.unit.policy_world import NOW, running, waiting


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
