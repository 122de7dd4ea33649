# SPDX-License-Identifier: Apache-2.0
"""What one ended job means to the plan, arrays, jobs without GPUs, and waits for a level."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.formats.flags import parse_locality
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, NodeFacts, PartitionFacts, Reading
from policy.formats.slurm_syntax.array_tasks import waiting_tasks
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.changes import Change, Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.demand import binding
from policy.request.locality import Insistence, SizeRule, parse_rules, settle
from policy.request.settings import Settings
from tests.examples import examples
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, fleet, node, reading, running, submit, waiting
from topology.network.fabric import Fabric


class World:
    """A cluster that is read again and again, as the planner does."""

    def __init__(self, nodes: list[NodeFacts], jobs: list[JobFacts], **facts: object) -> None:
        self.facts = facts
        self.nodes = {one.name: one for one in nodes}
        self.jobs = {job.id: job for job in jobs}
        self.at = NOW
        self.tracker = Tracker(fleet(self.read()))
        self.plan = Plan(BerthPolicy(), Settings())

    def read(self) -> Reading:
        return reading(list(self.nodes.values()), list(self.jobs.values()), at=self.at, **self.facts)

    def full(self) -> list[Change]:
        look = self.read()
        self.tracker.update(look)
        return self.plan.replan(self.tracker.book(), look.jobs)

    def end(self, job_id: int) -> list[Change] | None:
        """A job ends, and its Epilog says so."""
        job = self.jobs.pop(job_id)
        for name in job.nodes:
            one = self.nodes[name]
            used = one.gpus_used & ~(job.gpus or 0)
            self.nodes[name] = replace(one, gpus_used=used, cpus_used=used.bit_count(), completing=True)
        look = self.read()
        changed = self.tracker.update(look)
        return self.plan.freed(self.tracker, changed, look.jobs)


def moves(changes: list[Change] | None) -> list[Move]:
    assert changes is not None
    return [change for change in changes if isinstance(change, Move)]


def full_nodes(count: int) -> list[NodeFacts]:
    return [node(f"n{place}", used=0xFF) for place in range(1, count + 1)]


def test_what_an_ended_job_frees_goes_to_the_first_in_line_wherever_it_is_pinned() -> None:
    jobs = [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 600)]
    jobs += [waiting(5, "n1", 0b1100_0000, priority=1), waiting(6, "n2", 0b11, priority=9)]
    world = World(full_nodes(2), jobs)
    world.full()

    [move] = moves(world.end(1))

    assert (move.job.id, move.berth.names, move.start) == (6, ("n1",), 0.0)


def test_a_job_that_is_pinned_where_room_came_costs_no_update() -> None:
    world = World(full_nodes(2), [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 600), waiting(5, "n1", 0b11)])
    world.full()

    assert world.end(1) == []


def test_a_gang_that_is_next_keeps_later_jobs_off_the_node_that_it_waits_for() -> None:
    gang = waiting(5, "n1", 0xFF, priority=9, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"})
    jobs = [running(1, "n1", 0xFF, 600), running(2, "n2", 0xFF, 700), gang, waiting(6, "n2", 0b11, priority=1)]
    world = World(full_nodes(2), jobs)
    world.full()

    assert world.end(1) == [], "two hours of job 6 would hold the gang up"


def test_a_new_pin_that_slurm_shows_is_not_planned_again() -> None:
    world = World(full_nodes(2), [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 600), waiting(5, "n2", 0b11)])
    world.full()
    [move] = moves(world.end(1))
    world.jobs[5] = replace(
        world.jobs[5],
        required=("n1",),
        gpus=move.berth.mask,
        plan=JobPlan({**world.jobs[5].known.texts, "nodes": "n1"}),
    )
    look = world.read()

    assert world.plan.freed(world.tracker, world.tracker.update(look), look.jobs) == []


def test_a_job_that_came_since_the_last_pass_is_not_robbed_of_its_place() -> None:
    world = World(full_nodes(2), [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 600), waiting(5, "n2", 0xFF)])
    world.full()
    world.jobs[7] = waiting(7, "n1", 0xFF, priority=99)

    assert world.end(1) == [], "job 7 was given n1 by the answerer, and comes before job 5"


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 3, 15, 255]), st.integers(1, 9)), min_size=1, max_size=9),
    st.permutations(range(4)),
)
def test_no_gpu_is_promised_twice_whatever_ends(pins: list[tuple[int, int, int]], ends: list[int]) -> None:
    jobs = [running(place + 1, f"n{place}", 0xFF, 600 * (place + 1)) for place in range(4)]
    jobs += [
        waiting(10 + number, f"n{place}", mask, priority=priority)
        for number, (place, mask, priority) in enumerate(pins)
    ]
    world = World([node(f"n{place}", used=0xFF) for place in range(4)], jobs)
    world.full()
    for place in ends:
        for move in moves(world.end(place + 1)):
            names = move.berth.names
            segment = {**move.job.known.texts, "nodes": ",".join(names)}
            world.jobs[move.job.id] = replace(move.job, required=names, gpus=move.berth.mask, plan=JobPlan(segment))
        promised: dict[str, int] = {}
        for entry in world.plan.queue:
            if entry.last.start == 0.0:
                for index in entry.last.place:
                    name = world.tracker.fleet.names[index]
                    assert not promised.get(name, 0) & entry.last.mask
                    assert not world.nodes[name].gpus_used & entry.last.mask
                    promised[name] = promised.get(name, 0) | entry.last.mask


# Arrays


def array(tasks: str, **changes: object) -> JobFacts:
    return waiting(50, "n1", 0b11, **{"state": "ARRAY", "array": 50, "tasks": tasks, **changes})


def test_tasks_of_an_array_get_places_of_their_own_and_one_stays_with_the_arrays() -> None:
    world = World([node("n1"), node("n2", used=0xF0)], [array("1-9")])

    found = moves(world.full())

    assert [move.task for move in found] == [2, 3, 4, 5, 6]
    taken = [(name, gpu) for move in found for name in move.berth.names for gpu in move.berth.gpus]
    assert len(set(taken)) == len(taken) == 10
    assert not {("n1", 0), ("n1", 1)} & set(taken)


def test_an_array_runs_no_more_tasks_at_once_than_its_owner_said() -> None:
    runs = running(51, "n2", 0b11, 600, array=50, task=1)

    found = moves(World([node("n1"), node("n2", used=0b11)], [runs, array("2-9", at_once=3)]).full())

    assert [move.task for move in found] == [3]


def test_an_arrays_first_task_moves_too_where_its_place_is_taken() -> None:
    found = moves(World([node("n1", used=0xFF), node("n2")], [running(1, "n1", 0xFF, 600), array("1-2")]).full())

    assert [(move.task, move.berth.names) for move in found] == [(None, ("n2",)), (2, ("n2",))]


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("3", [3]), ("1-3,7%2", [1, 2, 3, 7]), ("0-6:3", [0, 3, 6]), ("1-2,...", [1, 2]), ("", []), ("N/A", [])],
)
def test_the_tasks_that_wait(text: str, tasks: list[int]) -> None:
    assert waiting_tasks(text) == tasks


# Jobs without GPUs


def without(job_id: int, cpus: int, **changes: object) -> JobFacts:
    facts = {"state": "PENDING", "nodes": (), "required": (), "start": None, "end": None, "wants_gpus": False}
    return running(job_id, "n1", 0, 0, **{**facts, "cpus": cpus, "mem": 100, "reason": "Resources", **changes})


def test_a_job_without_gpus_that_is_first_in_line_keeps_its_cores() -> None:
    """All 32 cores of the only node are the next job's; what comes behind it would take one away for long."""
    jobs = [running(1, "n1", 0b1, 60), without(4, 32, priority=9), waiting(5, "n1", 0b110, priority=1, limit=7_200)]
    world = World([node("n1", used=0b1)], jobs)
    world.full()

    assert [(entry.job.id, entry.last.start) for entry in world.plan.queue] == [(4, NOW + 60), (5, NOW + 60 + 3_600)]


def test_a_job_without_gpus_is_never_pinned() -> None:
    assert World([node("n1"), node("n2")], [without(4, 8)]).full() == []


def test_a_node_without_gpus_serves_jobs_without_gpus() -> None:
    look = reading([node("c1", gpus=0, seats=0), node("n1")], [without(4, 32, priority=9), waiting(5, "n1", 1)])
    plan = Plan(BerthPolicy(), Settings())
    tracker = Tracker(fleet(look, {"n1": "h100"}))
    tracker.update(look)

    assert plan.replan(tracker.book(), look.jobs) == []
    assert {entry.job.id: entry.last.place for entry in plan.queue} == {4: (0,), 5: (1,)}


# Several partitions


def test_a_job_for_several_partitions_may_be_placed_in_each_of_them() -> None:
    nodes = [node("n1", used=0xFF), node("n2", partitions=frozenset({"debug"}))]
    job = waiting(5, "n1", 0b11, partition="gpu,debug")
    look = replace(
        reading(nodes, [running(1, "n1", 0xFF, 600), job]),
        partitions=(PartitionFacts("gpu", default=True), PartitionFacts("debug")),
    )
    tracker = Tracker(fleet(look))
    tracker.update(look)

    [move] = moves(Plan(BerthPolicy(), Settings()).replan(tracker.book(), look.jobs))

    assert move.berth.names == ("n2",)


# Levels


def gang_world(insists: str, at: float) -> list[Move]:
    """Two leaves of two nodes; one node of each is free, and the gang is pinned to a leaf's two."""
    nodes = [node("n1"), node("n2", used=0xFF), node("n3"), node("n4", used=0xFF)]
    job = waiting(
        5, "n1", 0xFF, required=("n1", "n2"), submitted=int(NOW),
        segment={"n": "2", "nodes": "n1,n2", "insists": insists, "wait": "600", "level": insists},
    )  # fmt: skip
    jobs = [running(1, "n2", 0xFF, 3_000), running(2, "n4", 0xFF, 9_000), job]
    look = reading(nodes, jobs, at=at)
    flat = fleet(look)
    leaf = np.array([0, 0, 1, 1])
    made = replace(flat, fabric=replace(Fabric.flat(flat.names), leaf=leaf, pod=np.zeros(4, np.int64)))
    tracker = Tracker(made)
    tracker.update(look)
    return moves(Plan(BerthPolicy(), Settings()).replan(tracker.book(), look.jobs))


def test_a_gang_waits_for_its_leaf_as_long_as_it_said_and_not_a_second_longer() -> None:
    assert gang_world("leaf", NOW + 599) == []
    [move] = gang_world("leaf", NOW + 600)

    assert (move.berth.names, move.berth.level, move.start) == (("n1", "n3"), "pod", 0.0)
    assert "its wait for one leaf has ended" in move.reason


def test_a_level_that_is_free_now_needs_no_wait() -> None:
    [move] = gang_world("pod", NOW)

    assert move.berth.names == ("n1", "n3")


def test_the_wait_begins_when_the_job_may_start() -> None:
    plan = Plan(BerthPolicy(), Settings())
    segment = {"insists": "nvlink", "wait": "600", "level": "nvlink"}
    job = waiting(5, "n3", 0b11, submitted=int(NOW), reason="Dependency", segment=segment)
    kinds = {"n3": "a6000"}
    look = reading([node("n3", used=0b1010_1010)], [running(1, "n3", 0b1010_1010, 90_000), job])
    tracker = Tracker(fleet(look, kinds))
    for at, reason in ((NOW + 5_000, "Dependency"), (NOW + 6_000, "Resources"), (NOW + 6_599, "Resources")):
        look = replace(look, at=at, jobs=(look.jobs[0], replace(job, reason=reason)))
        tracker.update(look)
        assert plan.replan(tracker.book(), look.jobs) == []
    look = replace(look, at=NOW + 6_601)
    tracker.update(look)

    assert len(plan.replan(tracker.book(), look.jobs)) == 1


def test_what_a_job_insists_on_is_its_own_word_then_the_sites_within_the_cap() -> None:
    rules = parse_rules("2:nvlink@5 9:leaf", 600)

    assert rules == (SizeRule(2, Insistence("nvlink", 300)), SizeRule(9, Insistence("leaf", 600)))
    assert settle(None, 1, rules, 600, None) is None
    assert settle(None, 4, rules, 600, None) == Insistence("nvlink", 300)
    assert settle(None, 64, rules, 600, 60) == Insistence("leaf", 60)
    assert settle(parse_locality("pod@1-0"), 64, rules, 600, None) == Insistence("pod", 86_400)


@pytest.mark.parametrize(
    ("level", "nodes", "bound"), [("any", 1, "node"), ("pod", 1, "node"), ("nvlink", 3, "nvlink"), ("node", 3, "any")]
)
def test_a_level_that_the_nodes_give_anyway_is_no_condition(level: str, nodes: int, bound: str) -> None:
    assert binding(level, nodes) == bound


# Jobs without a place


def test_a_job_without_a_place_gets_one_as_soon_as_there_is_one() -> None:
    job = waiting(5, "n1", 0, required=(), segment={"state": "later", "k": "2", "nodes": "", "gpus": ""})

    assert World([node("n1", up=False)], [job]).full() == []
    [move] = moves(World([node("n1")], [job]).full())

    assert (move.berth.names, move.start, move.reason) == (("n1",), 0.0, "it can start there now")


def test_a_big_job_gathers_nodes_as_they_empty_before_their_time_limits_tell() -> None:
    """It is pinned to n1 and n2, whose jobs may run for hours; n3 and n4 fall empty one after the other."""
    big = waiting(5, "n1", 0xFF, priority=9, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"})
    jobs = [running(place, f"n{place}", 0xFF, 10_000 * place) for place in (1, 2, 3, 4)]
    small = waiting(6, "n1", 0b11, priority=1, limit=90_000)
    world = World(full_nodes(4), [*jobs, big, small])
    world.full()
    world.at += 400
    del world.jobs[4]
    world.nodes["n4"] = replace(world.nodes["n4"], gpus_used=0, cpus_used=0)

    found = moves(world.full())

    assert [(move.job.id, move.berth.names) for move in found] == [(5, ("n1", "n4"))]
    assert found[0].reason == "it is expected to end sooner there"


def test_the_second_in_line_gathers_too() -> None:
    first = waiting(11, "n1", 0xFF, priority=9, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"})
    second = waiting(12, "n3", 0xFF, priority=8, required=("n3", "n4"), segment={"n": "2", "nodes": "n3,n4"})
    jobs = [running(place, f"n{place}", 0xFF, end) for place, end in enumerate((100, 100, 3_000, 400, 9_000), 1)]
    world = World(full_nodes(5), [*jobs, first, second])
    world.full()
    world.at += 60
    del world.jobs[5]
    world.nodes["n5"] = replace(world.nodes["n5"], gpus_used=0, cpus_used=0)

    found = moves(world.full())

    assert [(move.job.id, set(move.berth.names) & {"n5"}) for move in found if move.job.id == 12] == [(12, {"n5"})]


def submitted(world: World, minutes: str) -> str:
    assert world.plan.book is not None
    decision = decide(
        submit(tres_per_job="gres/gpu:2", time_limit=minutes), world.plan.book, BerthPolicy(), Settings(), NOW
    )
    return decision.fields["nodes"]


@pytest.mark.parametrize(("part_ends", "where"), [(300, "n1"), (3_000, "n2")])
def test_a_small_job_opens_no_whole_node_on_paper_unless_it_waited_much_longer(part_ends: float, where: str) -> None:
    jobs = [running(1, "n1", 0x0F, part_ends), running(2, "n1", 0xF0, 9_000), running(3, "n2", 0xFF, 100)]
    world = World(full_nodes(2), jobs)
    world.full()

    assert submitted(world, "60") == where


def unanswered(asked: str, **changes: object) -> JobFacts:
    """As the plugin leaves a job that berthd did not answer for."""
    facts = {"state": "PENDING", "nodes": (), "required": (), "start": None, "end": None, "reason": "Resources"}
    segment = {"state": "passed", "asked": asked, "why": "berthd did not answer"}
    return running(5, "n1", 0, 0, **{**facts, "cpus": 2, "mem": 100, "segment": segment, **changes})


@pytest.mark.parametrize(
    ("asked", "count", "pinned"),
    [
        ("tres_per_job:gres/gpu:2", 1, {"n": "1", "k": "2", "cpus": "2", "mem": "100", "was": "kept"}),
        ("tres_per_node:gres/gpu:4", 2, {"n": "2", "k": "4", "cpus": "1", "mem": "100", "was": "kept"}),
        ("tres_per_job:gres/gpu:3", 2, None),
        ("tres_per_task:gres/gpu:1", 1, None),
        ("tres_per_job:gres/gpu:2;cpus_per_tres:gres/gpu:4", 1, None),
    ],
)
def test_a_job_that_came_while_berthd_was_away_is_adopted_where_its_request_is_plain(
    asked: str, count: int, pinned: dict[str, str] | None
) -> None:
    found = moves(World([node("n1"), node("n2")], [unanswered(asked, count=count)]).full())

    assert [move.adopted.texts for move in found] == ([] if pinned is None else [pinned])


def test_a_job_that_berthd_left_to_slurm_is_not_adopted() -> None:
    job = unanswered("tres_per_job:gres/gpu:2")
    job = replace(job, plan=JobPlan({**job.known.texts, "id": "0123456789abcdef"}))

    assert World([node("n1")], [job]).full() == []


def test_components_of_a_heterogeneous_job_never_share_a_node() -> None:
    """n1 has room for both; Slurm would let them wait for ever."""
    nodes = [node("n1"), node("n2", used=0xFF), node("n3", used=0xFF)]
    jobs = [running(2, "n2", 0xFF, 900), running(3, "n3", 0xFF, 9_000)]
    jobs += [waiting(5, "n2", 0b11, het=5), waiting(6, "n3", 0b11, het=5)]

    found = moves(World(nodes, jobs).full())

    assert [(move.job.id, move.berth.names) for move in found] == [(5, ("n1",))]


# What a notice says without a reading


def test_a_notice_tells_the_picture_what_the_next_reading_will_say() -> None:
    nodes = [node("n1", used=0b1111, cpus_used=4, mem_used=400), node("n2", used=0xFF)]
    jobs = [
        running(1, "n1", 0b0011, 600, cpus=2, mem=200, holds=(0b0011,)),
        running(2, "n1", 0b1100, 900, cpus=2, mem=200, holds=(0b1100,)),
        running(3, "n2", 0xFF, 900),
    ]
    told, read = World(nodes, jobs), World(nodes, jobs)
    told.full(), read.full()

    assert told.tracker.end(1, "n1")
    del read.jobs[1]
    read.nodes["n1"] = replace(
        read.nodes["n1"], gpus_used=0b1100, cpus_used=2, mem_used=200, completing=True, seats_used=0
    )
    read.tracker.update(read.read())

    ours, theirs = told.tracker.book().cluster, read.tracker.book().cluster
    for name in ("times", "gpus", "cpus", "mem", "gpus_now", "quiet", "up"):
        assert (getattr(ours, name) == getattr(theirs, name)).all(), name


def test_a_notice_of_an_unknown_job_says_nothing() -> None:
    world = World(full_nodes(1), [running(1, "n1", 0xFF, 600)])
    world.full()

    assert not world.tracker.end(7, "n1")
    assert not world.tracker.end(1, "n9")
    assert world.tracker.end(1, "n1")
    assert not world.tracker.end(1, "n1"), "Slurm may run an Epilog twice"


def test_a_job_on_several_nodes_ends_on_all_of_them_at_its_first_notice() -> None:
    """The first in line needs both nodes; job 6, which is pinned to one of them, must not start there in between."""
    both = running(1, "n1", 0xFF, 3_000, nodes=("n1", "n2"), required=("n1", "n2"), cpus=16)
    first = waiting(5, "n3", 0xFF, priority=9, required=("n3", "n4"), segment={"n": "2", "nodes": "n3,n4"})
    jobs = [both, running(2, "n3", 0xFF, 100), running(3, "n4", 0xFF, 100), first, waiting(6, "n2", 0xFF)]
    world = World(full_nodes(4), jobs)
    world.full()

    places = world.tracker.end(1, "n1")
    found = moves(world.plan.freed(world.tracker, places, world.jobs.values()))

    assert places == {0, 1}
    assert [(move.job.id, set(move.berth.names), move.start) for move in found] == [(5, {"n1", "n2"}, 0.0)]
    assert world.tracker.end(1, "n2") == {1}, "known already"


def test_what_slurm_is_starting_is_not_taken_away_from_it_on_an_old_picture() -> None:
    """Job 6 was let start on n1 by its Epilog; a moment later n2 empties, and the first in line needs two nodes."""
    jobs = [running(1, "n1", 0xFF, 900), running(2, "n2", 0xFF, 100), running(3, "n3", 0xFF, 100)]
    first = waiting(11, "n2", 0xFF, priority=9, required=("n2", "n3"), segment={"n": "2", "nodes": "n2,n3"})
    world = World(full_nodes(3), [*jobs, first, waiting(6, "n1", 0xFF)])
    world.full()
    found = []
    for job_id, name in ((1, "n1"), (2, "n2")):
        places = world.tracker.end(job_id, name)
        starting = world.plan.starting(places)
        found += moves(world.plan.replan(world.tracker.book(), world.jobs.values(), starting))

    assert starting == {6}
    assert found == []


def test_a_reading_may_tell_of_an_end_before_the_notice_does() -> None:
    ending = running(1, "n1", 0xFF, 600, state="COMPLETING")
    world = World([node("n1", completing=True)], [ending])
    world.full()

    assert world.tracker.end(1, "n1") == {0}


def test_between_readings_a_moved_job_is_where_it_was_moved_to() -> None:
    """Two jobs end one after the other, and Slurm is not asked in between: the second place is the next job's."""
    jobs = [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 3_000), running(3, "n3", 0xFF, 600)]
    jobs += [waiting(5, "n3", 0xFF, priority=9), waiting(6, "n3", 0xFF, priority=1)]
    world = World(full_nodes(3), jobs)
    world.full()
    found = []
    for job_id, name in ((1, "n1"), (2, "n2")):
        assert world.tracker.end(job_id, name)
        found += moves(world.plan.replan(world.tracker.book(), world.jobs.values()))

    assert [(move.job.id, move.berth.names) for move in found] == [(5, ("n1",)), (6, ("n2",))]


def test_a_move_that_could_not_be_written_is_forgotten() -> None:
    world = World(full_nodes(2), [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 600), waiting(5, "n2", 0xFF)])
    world.full()
    world.tracker.end(1, "n1")
    [first] = moves(world.plan.replan(world.tracker.book(), world.jobs.values()))
    world.plan.reread(5)
    [again] = moves(world.plan.replan(world.tracker.book(), world.jobs.values()))

    assert first.berth.names == again.berth.names == ("n1",)


def test_a_begin_time_that_has_passed_keeps_nobody_whatever_slurm_still_says() -> None:
    """A requeued job stands for two minutes with its begin time; its node was drained meanwhile."""
    nodes = [node("n1", up=False), node("n2")]
    job = waiting(5, "n1", 0b11, reason="BeginTime", begin=int(NOW) + 10)

    assert World(nodes, [job]).full() == []
    [move] = moves(World(nodes, [replace(job, begin=int(NOW))]).full())
    assert move.berth.names == ("n2",)


def test_a_begin_time_to_come_counts_also_where_slurm_names_no_reason() -> None:
    """Each update clears the reason for a moment."""
    nodes = [node("n1", up=False), node("n2")]

    assert World(nodes, [waiting(5, "n1", 0b11, reason="None", begin=int(NOW) + 10)]).full() == []


def test_a_task_on_its_way_is_not_given_a_second_place() -> None:
    """Two notices between two readings: Slurm's record still has the task in the array."""
    runs = [running(1, "n1", 0xFF, 9_000), running(2, "n2", 0b1111, 9_000), running(3, "n2", 0b1111_0000, 9_000)]
    world = World(full_nodes(2), [*runs, waiting(50, "n1", 0b1111, state="ARRAY", array=50, tasks="1-4")])
    world.full()
    found = []
    for job_id in (2, 3):
        assert world.tracker.end(job_id, "n2")
        found += moves(world.plan.replan(world.tracker.book(), world.jobs.values()))

    assert [move.task for move in found] == [None, 2]
    taken = [gpu for move in found for gpu in move.berth.gpus]
    assert len(set(taken)) == len(taken) == 8
    assert moves(world.plan.replan(world.tracker.book(), world.jobs.values())) == []


@pytest.mark.parametrize(
    ("nodes", "changed", "whole"), [(80, 64, False), (80, 65, True), (400, 100, False), (400, 101, True)]
)
def test_where_more_than_a_quarter_of_the_nodes_changed_a_whole_pass_is_needed(
    nodes: int, changed: int, whole: bool
) -> None:
    world = World(full_nodes(nodes), [])
    world.full()

    assert (world.plan.freed(world.tracker, range(changed), world.jobs.values()) is None) == whole
