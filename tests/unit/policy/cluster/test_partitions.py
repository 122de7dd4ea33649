# SPDX-License-Identifier: Apache-2.0
"""Jobs that list several partitions (`-p a,b`): Slurm starts each in one of them, on nodes of that one alone."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from policy.cluster.fit import on_fleet
from policy.cluster.partitions import BLAMED_FOR, Submitter, admits, choose, others
from policy.formats.segment import fields as segment_fields
from policy.formats.slurm_facts import AdmissionRule, JobFacts, NodeFacts, PartitionFacts
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.changes import Change, Move, Release
from policy.plan.opinions.opinion import STUCK_AFTER
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.unit.deciding import Decision, decide
from tests.unit.policy.plan.test_plan_events import World
from tests.unit.policy_world import NOW, book, fleet, node, reading, request_of, running, submit, waiting

GPU, DEBUG = PartitionFacts("gpu", default=True), PartitionFacts("debug")
BOTH = "gpu,debug"
FULL = 0xFF


def inside(name: str, *partitions: str, **changes: object) -> NodeFacts:
    return node(name, partitions=frozenset(partitions), **changes)


def asked(
    nodes: list[NodeFacts],
    partitions: Sequence[PartitionFacts] = (GPU, DEBUG),
    jobs: Sequence[JobFacts] = (),
    *,
    in_all: bool = False,
    settings: Settings | None = None,
    **fields: str,
) -> Decision:
    look = reading(nodes, list(jobs), partitions=tuple(partitions), in_all_partitions=in_all)
    fields = {"tres_per_node": "gres/gpu:2", "partition": BOTH, **fields}
    return decide(submit(**fields), book(look), BerthPolicy(), settings or Settings(), NOW)


def replan(
    nodes: list[NodeFacts],
    jobs: list[JobFacts],
    partitions: Sequence[PartitionFacts] = (GPU, DEBUG),
    plan: Plan | None = None,
    at: float = NOW,
) -> list[Change]:
    plan = plan or Plan(BerthPolicy(), Settings())
    look = reading(nodes, jobs, at=at, partitions=tuple(partitions))
    return plan.replan(book(look), look.jobs)


def moved_to(changes: list[Change]) -> tuple[str, ...]:
    [move] = changes
    assert isinstance(move, Move)
    return move.berth.names


def gang(job_id: int, *names: str, **changes: object) -> JobFacts:
    segment = {"n": str(len(names)), "nodes": ",".join(names)}
    return waiting(job_id, names[0], 0b11, partition=BOTH, required=names, segment=segment, **changes)


# At submission


def test_a_job_on_several_nodes_gets_them_all_in_one_partition() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug"), inside("n3", "debug")]

    decision = asked(nodes, min_nodes="2")

    assert decision.fields["nodes"] == "n2,n3"


def test_a_job_that_no_partition_holds_alone_is_left_to_slurm() -> None:
    decision = asked([inside("n1", "gpu"), inside("n2", "debug")], min_nodes="2")

    assert decision.verb == "pass"
    assert "partition gpu,debug has no 2 nodes" in decision.fields["message"]


def test_a_name_that_is_listed_a_thousand_times_counts_once() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug")]
    for names, features in (("gpu,debug", "rack1"), ("gpu", "rack1")):
        many = ",".join(names.split(",") * 1_000)
        request = request_of(submit(tres_per_job="gres/gpu:2", partition=many, features="&".join([features] * 1_000)))
        assert (request.partition, request.features) == (names, (features,))
        assert asked(nodes, partition=many) == asked(nodes, partition=names)
    there = fleet(reading(nodes, partitions=(GPU, DEBUG)))
    assert choose(there, "gpu,gpu", None, 1) == choose(there, "gpu", None, 1)
    assert others(there, "gpu,debug,gpu", ["n1"]) == others(there, BOTH, ["n1"])


def test_as_many_partitions_and_features_as_are_sent_cost_no_others_their_answers() -> None:
    names = [f"p{number:02}" for number in range(64)]
    # Each node is in half of them, and no partition is within another.
    nodes = [
        inside(f"n{at}", *(name for bit, name in enumerate(names) if at * (2 * bit + 1) & 64)) for at in range(1_024)
    ]
    there = book(reading(nodes, partitions=tuple(PartitionFacts(name, tier=at) for at, name in enumerate(names))))
    fields = {
        "partition": ",".join(names),
        "features": "&".join(["rack1", *(f"f{number}" for number in range(255))]),
        "tres_per_node": "gres/gpu:2",
        "min_nodes": "4",
        "max_nodes": "4",
    }
    took = []
    for _ in range(3):
        began = time.process_time()
        decide(submit(**fields), there, BerthPolicy(), Settings(), NOW)
        decide(submit(**{**fields, "features": "rack1"}), there, BerthPolicy(), Settings(), NOW)
        took.append(time.process_time() - began)
    assert min(took) < 0.05


def test_of_two_partitions_with_room_the_one_listed_first_is_taken() -> None:
    nodes = [inside(f"n{number}", "debug" if number < 3 else "gpu") for number in range(1, 5)]

    assert asked(nodes, min_nodes="2").fields["nodes"] == "n3,n4"
    assert asked(nodes, min_nodes="2", partition="debug,gpu").fields["nodes"] == "n1,n2"


@pytest.mark.parametrize("count", [1, 2])
def test_a_partition_of_a_higher_tier_is_tried_before_those_listed_first(count: int) -> None:
    nodes = [inside(f"n{number}", "gpu" if number < 3 else "debug") for number in range(1, 5)]

    decision = asked(nodes, [GPU, PartitionFacts("debug", tier=5)], min_nodes=str(count))

    assert set(decision.fields["nodes"].split(",")) <= {"n3", "n4"}


def test_a_job_that_comes_is_placed_where_everybody_is_admitted() -> None:
    """Slurm refuses it at once if its place is in a partition that does not admit it."""
    nodes = [inside("n1", "gpu"), inside("n2", "debug")]
    owners = replace(GPU, for_all_groups=False)

    assert asked(nodes, [GPU, DEBUG]).fields["nodes"] == "n1"
    assert asked(nodes, [owners, DEBUG]).fields["nodes"] == "n2"
    assert asked(nodes, [owners, replace(DEBUG, for_all_groups=False)]).fields["nodes"] == "n1", "its user may know"


def test_a_job_whose_first_partition_may_not_admit_it_is_left_to_slurm() -> None:
    """Its owners want their own nodes before all others."""
    nodes = [inside("n1", "gpu"), inside("n2", "debug")]
    owners = replace(GPU, for_all_groups=False, tier=5)

    decision = asked(nodes, [owners, DEBUG])
    assert decision.verb == "pass"
    assert "partition gpu comes before others of gpu,debug and admits some only" in decision.fields["message"]
    assert asked(nodes, [replace(owners, up=False), DEBUG]).fields["nodes"] == "n2"
    assert asked(nodes, [owners, replace(DEBUG, for_all_groups=False)]).fields["nodes"] == "n1"


ACCOUNTS = AdmissionRule(only=frozenset({"physics"}))
NO_GUESTS = AdmissionRule(never=frozenset({"guests"}))
ONE_QOS = AdmissionRule(only=frozenset({"high"}))
NO_SCAVENGER = AdmissionRule(never=frozenset({"scavenger"}))


@pytest.mark.parametrize(
    ("partition", "who", "answer"),
    [
        (GPU, Submitter(), True),
        (replace(GPU, for_all_groups=False), Submitter(), None),
        (replace(GPU, for_all_groups=False), Submitter(by_groups=frozenset({"gpu"})), True),
        (replace(GPU, for_all_groups=False), Submitter(by_groups=frozenset()), False),
        (replace(GPU, accounts=ACCOUNTS), Submitter("Physics"), True),
        # Slurm admits all that are below physics, and who names no account has one.
        (replace(GPU, accounts=ACCOUNTS), Submitter("optics"), None),
        (replace(GPU, accounts=ACCOUNTS), Submitter(), None),
        (replace(GPU, accounts=NO_GUESTS), Submitter("guests"), False),
        (replace(GPU, accounts=NO_GUESTS), Submitter("optics"), None),
        (replace(GPU, qos=ONE_QOS), Submitter(qos="High"), True),
        (replace(GPU, qos=ONE_QOS), Submitter(qos="normal"), False),
        (replace(GPU, qos=ONE_QOS), Submitter(), None),
        # Of several it gets the first that may start it.
        (replace(GPU, qos=ONE_QOS), Submitter(qos="normal,high"), None),
        (replace(GPU, qos=NO_SCAVENGER), Submitter(qos="scavenger"), False),
        (replace(GPU, qos=NO_SCAVENGER), Submitter(qos="normal"), True),
        (replace(GPU, accounts=ACCOUNTS, qos=ONE_QOS), Submitter("physics"), None),
        (replace(GPU, accounts=ACCOUNTS, qos=ONE_QOS), Submitter("optics", "normal"), False),
    ],
)
def test_whom_a_partition_admits(partition: PartitionFacts, who: Submitter, answer: bool | None) -> None:
    assert admits(partition, who) is answer


@pytest.mark.parametrize(("tier", "first"), [(1, "n1"), (5, "n1"), (0, "n2")])
@pytest.mark.parametrize(("admitted", "places"), [("gpu,debug", "both"), ("gpu", "n1"), ("debug", "n2"), ("", "both")])
def test_of_restricted_partitions_a_job_gets_one_that_admits_its_user(
    tier: int, first: str, admitted: str, places: str
) -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug")]
    owners = [replace(GPU, for_all_groups=False, tier=tier), replace(DEBUG, for_all_groups=False)]

    assert asked(nodes, owners, admitted=admitted).fields["nodes"] == (first if places == "both" else places)


def test_a_partition_that_refuses_the_job_does_not_keep_its_place_from_berth() -> None:
    """However soon Slurm tries it."""
    nodes = [inside("n1", "gpu"), inside("n2", "debug")]
    owners = replace(GPU, for_all_groups=False, qos=ONE_QOS, tier=5)

    assert asked(nodes, [owners, DEBUG], admitted="debug").fields["nodes"] == "n2"
    assert asked(nodes, [owners, DEBUG], admitted=BOTH, qos="normal").fields["nodes"] == "n2"
    assert asked(nodes, [owners, DEBUG], admitted=BOTH, qos="high").fields["nodes"] == "n1"
    assert asked(nodes, [owners, DEBUG], admitted=BOTH).verb == "pass"


def test_of_partitions_that_may_refuse_it_a_job_gets_one_that_nobody_knows_to() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug")]
    owners = [replace(GPU, qos=ONE_QOS), replace(DEBUG, accounts=ACCOUNTS)]

    assert asked(nodes, owners, qos="normal", account="optics").fields["nodes"] == "n2"


def test_a_waiting_job_is_not_moved_to_a_partition_that_does_not_admit_it() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug", used=FULL)]
    owners = replace(GPU, for_all_groups=False)
    busy = running(1, "n2", FULL, 600)
    decision = asked(nodes, [owners, DEBUG], [busy], admitted="debug")
    assert decision.fields["nodes"] == "n2"
    segment = segment_fields(f"[berth/1 {decision.fields['segment']}]")
    assert segment is not None
    assert segment["shut"] == "gpu"

    job = waiting(5, "n2", 0b11, partition=BOTH, segment=segment)
    assert replan(nodes, [busy, job], [owners, DEBUG]) == []
    del segment["shut"]
    unaware = waiting(5, "n2", 0b11, partition=BOTH, segment=segment)
    assert moved_to(replan(nodes, [busy, unaware], [owners, DEBUG])) == ("n1",)


def test_a_job_that_its_user_gave_to_partitions_all_shut_to_it_keeps_a_place() -> None:
    job = waiting(5, "n1", 0b11, partition=BOTH, segment={"shut": BOTH})

    assert replan([inside("n1", "gpu"), inside("n2", "debug")], [job]) == []


def test_a_job_that_can_start_now_in_another_partition_does_not_wait_for_the_first() -> None:
    nodes = [inside("n1", "gpu", used=0xFF), inside("n2", "gpu"), inside("n3", "debug"), inside("n4", "debug")]

    assert asked(nodes, jobs=[running(1, "n1", 0xFF, 600)], min_nodes="2").fields["nodes"] == "n3,n4"


def test_a_job_that_can_start_nowhere_now_waits_in_the_partition_that_is_free_first() -> None:
    nodes = [inside(f"n{number}", "gpu" if number < 3 else "debug", used=0xFF) for number in range(1, 5)]
    jobs = [running(number, f"n{number}", 0xFF, 600 if number < 3 else 60) for number in range(1, 5)]

    assert asked(nodes, jobs=jobs, min_nodes="2").fields["nodes"] == "n3,n4"


def test_a_place_is_in_all_partitions_where_slurm_enforces_the_limits_of_all() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug"), inside("n3", "gpu", "debug", used=0b1111)]

    decision = asked(nodes, jobs=[running(1, "n3", 0b1111, 600)], in_all=True)

    assert decision.fields["nodes"] == "n3"


def test_a_job_is_left_to_slurm_where_it_needs_a_node_of_all_partitions_and_there_is_none() -> None:
    decision = asked([inside("n1", "gpu"), inside("n2", "debug")], in_all=True)

    assert decision.verb == "pass"
    assert "EnforcePartLimits=ALL" in decision.fields["message"]
    assert (segment_fields(f"[berth/1 {decision.fields['segment']}]") or {})["state"] == "passed"


@pytest.mark.parametrize(
    "gpu",
    [
        PartitionFacts("gpu", up=False),
        PartitionFacts("gpu", up=False, drains=True),
        PartitionFacts("gpu", max_time=1_800),
        PartitionFacts("gpu", min_nodes=2),
    ],
)
def test_a_partition_that_cannot_start_the_job_is_not_chosen(gpu: PartitionFacts) -> None:
    # submit() asks for an hour.
    assert asked([inside("n1", "gpu"), inside("n2", "debug")], [gpu, DEBUG]).fields["nodes"] == "n2"


def test_a_partition_that_admits_fewer_nodes_is_not_chosen() -> None:
    nodes = [inside(f"n{number}", "gpu" if number < 3 else "debug") for number in range(1, 5)]

    assert asked(nodes, [PartitionFacts("gpu", max_nodes=1), DEBUG], min_nodes="2").fields["nodes"] == "n3,n4"


def test_a_job_whose_partitions_are_all_down_keeps_its_place_in_one_of_them() -> None:
    down = [PartitionFacts("gpu", up=False), PartitionFacts("debug", up=False)]

    assert asked([inside("n1", "gpu"), inside("n2", "debug")], down).fields["nodes"] in {"n1", "n2"}


def test_identical_partitions_are_as_one() -> None:
    nodes = [inside(f"n{number}", "gpu", "debug") for number in range(1, 4)]
    look = reading(nodes, partitions=(GPU, DEBUG))

    one, two = (
        on_fleet(request_of(submit(tres_per_node="gres/gpu:2", min_nodes="2", partition=listed)), fleet(look))
        for listed in ("gpu", BOTH)
    )

    assert two.parts() == (two,)
    assert one.candidates.tolist() == two.candidates.tolist()


# While it waits


DOWN = PartitionFacts("gpu", up=False)
SHORT = PartitionFacts("gpu", max_time=1_800)


@pytest.mark.parametrize("gpu", [DOWN, SHORT, PartitionFacts("gpu", min_nodes=2)])
@pytest.mark.parametrize("reason", ["None", "Priority", "PartitionDown", "PartitionTimeLimit", "PartitionNodeLimit"])
def test_a_job_moves_to_the_partition_that_can_start_it(gpu: PartitionFacts, reason: str) -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug")]

    assert moved_to(replan(nodes, [waiting(5, "n1", 0b11, partition=BOTH, reason=reason)], [gpu, DEBUG])) == ("n2",)


def test_a_draining_partition_starts_what_waits() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug")]
    draining = PartitionFacts("gpu", up=False, drains=True)

    assert replan(nodes, [waiting(5, "n1", 0b11, partition=BOTH)], [draining, DEBUG]) == []


@pytest.mark.parametrize("partitions", [[DOWN], [DOWN, PartitionFacts("debug", up=False)], [SHORT]])
def test_a_job_that_no_partition_of_it_can_start_is_left_where_it_is(partitions: list[PartitionFacts]) -> None:
    listed = ",".join(one.name for one in partitions)
    job = waiting(5, "n1", 0b11, partition=listed, reason="PartitionDown")
    plan = Plan(BerthPolicy(), Settings())

    assert replan([inside("n1", "gpu"), inside("n2", "gpu", "debug")], [job], partitions, plan) == []
    assert [entry.last.place for entry in plan.queue] == [()]


def test_a_pin_over_two_partitions_moves_into_one() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug"), inside("n3", "debug")]

    assert moved_to(replan(nodes, [gang(5, "n1", "n2")])) == ("n2", "n3")


def test_a_pin_within_one_partition_stays() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "gpu"), inside("n3", "debug"), inside("n4", "debug")]

    assert replan(nodes, [gang(5, "n3", "n4")]) == []


@pytest.mark.parametrize("reason", ["None", "PartitionConfig", "InvalidAccount", "InvalidQOS"])
def test_a_job_that_does_not_start_on_a_free_place_is_planned_elsewhere_whatever_the_reason(reason: str) -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug")]
    plan, job = Plan(BerthPolicy(), Settings()), waiting(5, "n1", 0b11, partition=BOTH, reason=reason)

    assert replan(nodes, [job], plan=plan) == []
    assert moved_to(replan(nodes, [job], plan=plan, at=NOW + STUCK_AFTER + 1)) == ("n2",)


def test_a_partition_that_did_not_start_a_job_is_not_tried_again_soon() -> None:
    """Only Slurm knows whom a partition admits: groups, accounts with all below them, QOS."""
    nodes = [inside("n1", "gpu"), inside("n2", "gpu"), inside("n3", "debug", used=FULL)]
    jobs = [running(1, "n3", FULL, 600), waiting(5, "n1", 0b11, partition=BOTH, reason="None")]
    plan, at = Plan(BerthPolicy(), Settings()), NOW + STUCK_AFTER + 1

    assert replan(nodes, jobs, plan=plan) == []
    assert moved_to(replan(nodes, jobs, plan=plan, at=at)) == ("n3",), "n2 is free, but of the same partition"
    jobs[1] = waiting(5, "n3", 0b11, partition=BOTH, reason="None")
    assert replan(nodes, jobs, plan=plan, at=at + 60) == []
    assert moved_to(replan(nodes, jobs, plan=plan, at=at + BLAMED_FOR + 1)) != ("n3",), "what it admits may change"


def test_of_three_partitions_two_may_fail_it() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug"), inside("n3", "third")]
    partitions, listed = [GPU, DEBUG, PartitionFacts("third")], f"{BOTH},third"
    plan, at = Plan(BerthPolicy(), Settings()), NOW
    job = waiting(5, "n1", 0b11, partition=listed, reason="None")
    places = ["n1"]

    for _ in range(2):
        assert replan(nodes, [job], partitions, plan, at) == []
        at += STUCK_AFTER + 1
        [place] = moved_to(replan(nodes, [job], partitions, plan, at))
        places.append(place)
        job = waiting(5, place, 0b11, partition=listed, reason="None")

    assert sorted(places) == ["n1", "n2", "n3"]


def test_nodes_that_another_partition_has_too_are_still_the_jobs() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "gpu", "debug"), inside("n3", "debug", used=FULL)]
    jobs = [running(1, "n3", FULL, 600), waiting(5, "n1", 0b11, partition=BOTH, reason="None")]
    plan = Plan(BerthPolicy(), Settings())

    assert replan(nodes, jobs, plan=plan) == []
    assert moved_to(replan(nodes, jobs, plan=plan, at=NOW + STUCK_AFTER + 1)) == ("n2",)


def test_the_notice_of_an_end_does_not_bring_a_job_back_to_a_partition_that_did_not_start_it() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "gpu", used=FULL), inside("n3", "debug", used=FULL)]
    jobs = [running(1, "n3", FULL, 600), running(2, "n2", FULL, 900)]
    stuck = waiting(5, "n1", 0b11, partition=BOTH, reason="None")
    world = World(nodes, [*jobs, stuck], partitions=(GPU, DEBUG))
    world.full()
    world.at += STUCK_AFTER + 1
    assert moved_to(world.full()) == ("n3",)
    world.jobs[5] = waiting(5, "n3", 0b11, partition=BOTH, reason="None")
    world.full()

    assert world.end(2) == []
    assert world.end(1) == []
    assert [(entry.nodes, entry.last.start) for entry in world.plan.queue] == [((2,), 0.0)]


def test_a_job_that_starts_in_none_of_its_partitions_is_given_back() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug", up=False)]
    plan, job = Plan(BerthPolicy(), Settings()), waiting(5, "n1", 0b11, partition=BOTH, reason="None")

    assert replan(nodes, [job], plan=plan) == []
    [change] = replan(nodes, [job], plan=plan, at=NOW + STUCK_AFTER + 1)
    assert isinstance(change, Release)


@pytest.mark.parametrize("listed", ["gpu", "gpu,twin"])
def test_a_job_of_one_partition_is_not_stuck_for_want_of_a_reason(listed: str) -> None:
    nodes = [inside("n1", "gpu", "twin"), inside("n2", "gpu", "twin")]
    plan, job = Plan(BerthPolicy(), Settings()), waiting(5, "n1", 0b11, partition=listed, reason="None")
    partitions = [GPU, PartitionFacts("twin")]

    assert replan(nodes, [job], partitions, plan) == []
    assert replan(nodes, [job], partitions, plan, NOW + STUCK_AFTER + 1) == []


def test_a_job_without_gpus_takes_its_room_in_one_partition() -> None:
    nodes = [inside("n1", "gpu"), inside("n2", "debug"), inside("n3", "debug")]
    job = waiting(5, "n1", 0, partition=BOTH, required=(), segment={}, count=2, cpus=2, mem=100, wants_gpus=False)
    plan = Plan(BerthPolicy(), Settings())

    assert replan(nodes, [job], plan=plan) == []
    assert [entry.last.place for entry in plan.queue] == [(1, 2)]


# The order


def test_a_higher_tier_goes_before_a_higher_priority() -> None:
    """Slurm's sort_job_queue2 compares the partitions' PriorityTier first."""
    nodes = [
        node("n1", partitions=frozenset({"gpu", "urgent"}), used=0b1111_1100),
        inside("n2", "gpu", "urgent", used=0xFF),
    ]
    jobs = [running(1, "n1", 0b1111_1100, 3_000), running(2, "n2", 0xFF, 3_000)]
    jobs += [
        waiting(5, "n2", 0b11, priority=9),
        waiting(6, "n2", 0b11, priority=1, partition="gpu,urgent"),
        waiting(7, "n2", 0b11, priority=5),
    ]
    plan = Plan(BerthPolicy(), Settings())

    [move] = replan(nodes, jobs, [GPU, PartitionFacts("urgent", tier=2)], plan)

    assert move.job.id == 6
    assert [entry.job.id for entry in plan.queue] == [6, 5, 7]


def test_the_tier_of_a_partition_that_starts_nothing_does_not_count() -> None:
    nodes = [inside("n1", "gpu", "urgent")]
    jobs = [waiting(5, "n1", 0b11, priority=9), waiting(6, "n1", 0b1100, priority=1, partition="gpu,urgent")]
    plan = Plan(BerthPolicy(), Settings())

    replan(nodes, jobs, [GPU, PartitionFacts("urgent", up=False, tier=2)], plan)

    assert [entry.job.id for entry in plan.queue] == [5, 6]


# What a pinned job excludes


def test_slurm_finds_nodes_in_each_partition_that_it_tries_the_job_in() -> None:
    nodes = [inside("g1", "gpu"), inside("g2", "gpu"), inside("d1", "debug"), inside("b1", "gpu", "debug")]
    known = fleet(reading(nodes, partitions=(GPU, DEBUG)))

    assert others(known, "gpu", ("g1",)) == "b1,d1,g2"
    # debug's are all left open: one of them alone may lack what the job needs.
    assert others(known, BOTH, ("g1",)) == "g2"
    assert others(known, BOTH, ("b1",)) == "d1,g[1-2]"
    assert others(known, BOTH, ("b1", "g2")) == "g1"
    assert others(known, "gpu,unheard-of", ("g1",)) == ""


def test_a_submission_excludes_no_partitions_last_node() -> None:
    nodes = [inside("g1", "gpu"), inside("g2", "gpu"), inside("d1", "debug", used=0xFF)]
    answer = asked(nodes, settings=Settings(exclude_others=1)).fields

    assert {"g1": "g2", "g2": "g1"}[answer["nodes"]] == answer["exc_nodes"]


@pytest.mark.parametrize(("partition", "priority", "stays"), [(BOTH, 100, True), (BOTH, 0, False), ("gpu", 100, False)])
def test_of_several_partitions_one_that_cannot_start_it_is_no_reason(
    partition: str, priority: int, stays: bool
) -> None:
    nodes = [inside("g1", "gpu", used=0xFF), inside("d1", "debug", used=0xFF)]
    holders = [running(1, "g1", 0xFF, 300), running(2, "d1", 0xFF, 3_000)]
    job = waiting(5, "g1", 0b11, reason="BadConstraints", partition=partition, priority=priority)

    changes = replan(nodes, [*holders, job])

    assert bool(changes) is not stays
    assert all(isinstance(change, Release) for change in changes)
