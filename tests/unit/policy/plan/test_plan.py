# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.placement.berth import BerthPolicy
from policy.placement.registry import OURS, create
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Move, Release
from policy.plan.ledger.claims import Claim
from policy.plan.opinions.opinion import MOST_STUCK, STUCK_AFTER
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, book, node, reading, running, submit, waiting


def replan(
    nodes: list[NodeFacts],
    jobs: list[JobFacts],
    kinds: dict[str, str] | None = None,
    plan: Plan | None = None,
    at: float = NOW,
) -> list[Change]:
    plan = plan or Plan(BerthPolicy(), Settings())
    look = reading(nodes, jobs, at=at)
    return plan.replan(book(look, kinds), look.jobs)


def test_a_pin_that_can_start_where_it_is_stays() -> None:
    assert replan([node("n1"), node("n2")], [waiting(5, "n2", 0b11)]) == []


def test_a_retried_job_gets_other_gpus_of_the_node_that_failed_it_if_no_other_node_could_have_it() -> None:
    avoids = {"avoids": f"n1@{int(NOW) + 600}"}
    jobs = [running(1, "n1", 0b11, 3_000), waiting(5, "n1", 0b11, excluded=("n2",), segment=avoids)]
    [move] = replan([node("n1", used=0b11), node("n2")], jobs)

    assert isinstance(move, Move)
    assert (move.berth.names, move.start) == (("n1",), 0.0)


def test_a_pin_stays_while_nothing_is_free_now_even_if_elsewhere_is_sooner() -> None:
    nodes = [node("n1", used=0xFF), node("n2", used=0xFF)]
    jobs = [running(1, "n1", 0xFF, 60), running(2, "n2", 0xFF, 3_000), waiting(5, "n2", 0b11)]

    assert replan(nodes, jobs) == []


def test_a_pin_moves_where_the_job_can_start_now() -> None:
    nodes = [node("n1"), node("n2", used=0xFF)]

    [move] = replan(nodes, [running(2, "n2", 0xFF, 3_000), waiting(5, "n2", 0b11)])

    assert isinstance(move, Move)
    assert (move.berth.names, move.start) == (("n1",), 0.0)


@pytest.mark.parametrize("changes", [{"up": False}, {"partitions": frozenset({"other"})}, {"cpus": 0}])
def test_a_pin_moves_to_the_soonest_place_when_its_own_is_gone(changes: dict[str, object]) -> None:
    nodes = [node("n1", used=0xFF), node("n2", **changes)]

    [move] = replan(nodes, [running(1, "n1", 0xFF, 600), waiting(5, "n2", 0b11)])

    assert isinstance(move, Move)
    assert (move.berth.names, move.start) == (("n1",), NOW + 600)


@pytest.mark.parametrize("policy", sorted(OURS))
def test_on_a_cluster_without_nodes_all_jobs_wait(policy: str) -> None:
    without = replace(waiting(7, "n1", 0b1), gpus=None, required=(), plan=None, wants_gpus=False)
    look = reading([], [waiting(5, "n1", 0b11), waiting(6, "n1", 0b1, segment={"n": "2"}), without])
    plan = Plan(create(policy), Settings())

    assert plan.replan(book(look), look.jobs) == []
    assert [entry.last.start for entry in plan.queue] == [None] * 3


def test_a_place_that_is_kept_for_a_job_stays_kept_when_nodes_go_and_come() -> None:
    plan = Plan(BerthPolicy(), Settings())
    nodes, job = [node(f"n{number}") for number in (1, 2, 3)], waiting(5, "n1", 0xFF)
    look = reading(nodes, [job])
    plan.replan(book(look), look.jobs)
    plan.kept = (Claim((1, 2), 0xFF, 8, 100, NOW, NOW + 3_600),)

    # Without n1 the others have other numbers.
    look = reading(nodes[2:], [job])
    assert not [move for move in plan.replan(book(look), look.jobs) if isinstance(move, Move) and not move.start]
    look = reading([node("n0"), *nodes[2:]], [job])
    [move] = plan.replan(book(look), look.jobs)
    assert isinstance(move, Move)
    assert (move.berth.names, move.start) == (("n0",), 0.0)


def test_the_higher_priority_gets_the_place_that_came_free() -> None:
    nodes = [node("n1", used=0b1111_1100), node("n2", used=0xFF)]
    jobs = [
        running(1, "n1", 0b1111_1100, 3_000),
        running(2, "n2", 0xFF, 3_000),
        waiting(5, "n2", 0b11, priority=1),
        waiting(6, "n2", 0b11, priority=9),
    ]

    [move] = replan(nodes, jobs)

    assert move.job.id == 6


def test_one_free_place_is_given_to_one_job_only() -> None:
    nodes = [node("n1", used=0b1111_1100), node("n2", used=0xFF)]
    jobs = [running(1, "n1", 0b1111_1100, 3_000), running(2, "n2", 0xFF, 3_000)]
    jobs += [waiting(job_id, "n2", 0b11) for job_id in range(5, 9)]

    assert len(replan(nodes, jobs)) == 1


@pytest.mark.parametrize(
    "reason",
    [
        *("Dependency", "JobHeldUser", "BeginTime", "QOSMaxJobsPerUserLimit"),
        *("job requeued in held state", "launch failure limit exceeded requeued held"),
    ],
)
def test_a_job_that_may_not_start_neither_moves_nor_takes_a_place(reason: str) -> None:
    nodes = [node("n1"), node("n2", used=0xFF)]
    jobs = [running(2, "n2", 0xFF, 3_000), waiting(5, "n2", 0b11, reason=reason)]
    look = reading(nodes, jobs)
    opened = book(look)

    assert Plan(BerthPolicy(), Settings()).replan(opened, look.jobs) == []
    assert opened.cluster.gpus[0, 0] == 0xFF


def test_a_pin_that_slurm_calls_impossible_is_given_back() -> None:
    [change] = replan([node("n1")], [waiting(5, "n1", 0b11, reason="BadConstraints")])

    assert isinstance(change, Release)


def test_a_pin_that_its_user_made_impossible_moves_even_after_slurm_has_seen_it() -> None:
    nodes = [node("n1", used=0xFF), node("n2", used=0xFF, features=frozenset({"h100"}))]
    others = [running(1, "n1", 0xFF, 300), running(2, "n2", 0xFF, 600)]

    [move] = replan(nodes, [*others, waiting(5, "n1", 0b11, reason="BadConstraints", features="h100", priority=0)])
    assert isinstance(move, Move)
    assert move.berth.names == ("n2",)

    [change] = replan(nodes, [*others, waiting(5, "n1", 0b11, reason="BadConstraints", features="none", priority=0)])
    assert isinstance(change, Release)


def test_a_waiting_job_goes_to_a_node_with_one_of_its_alternatives() -> None:
    nodes = [node("n1", used=0xFF), node("n2"), node("n3", features=frozenset({"rack3"}))]

    [move] = replan(nodes, [waiting(5, "n1", 0b11, features="rack2|rack3")])

    assert isinstance(move, Move)
    assert move.berth.names == ("n3",)


def test_a_job_that_does_not_start_on_a_free_place_moves_or_is_given_back() -> None:
    plan = Plan(BerthPolicy(), Settings())
    later = NOW + STUCK_AFTER + 1
    alone = [node("n1")]

    assert replan(alone, [waiting(5, "n1", 0b11)], plan=plan) == []
    [change] = replan(alone, [waiting(5, "n1", 0b11)], plan=plan, at=later)
    assert isinstance(change, Release)

    plan = Plan(BerthPolicy(), Settings())
    two = [node("n1"), node("n2")]
    assert replan(two, [waiting(5, "n1", 0b11)], plan=plan) == []
    [change] = replan(two, [waiting(5, "n1", 0b11)], plan=plan, at=later)
    assert isinstance(change, Move)
    assert change.berth.names == ("n2",)


def test_a_job_that_starts_on_none_of_some_free_places_is_given_back() -> None:
    plan, nodes, at = Plan(BerthPolicy(), Settings()), [node("n1"), node("n2")], NOW
    places = ["n1"]
    while places[-1]:
        assert replan(nodes, [waiting(5, places[-1], 0b11)], plan=plan, at=at) == []
        at += STUCK_AFTER + 1
        [change] = replan(nodes, [waiting(5, places[-1], 0b11)], plan=plan, at=at)
        places.append(change.berth.names[0] if isinstance(change, Move) else "")
    assert places == ["n1", "n2", "n1", "n2", "n1", ""]
    assert len(places) == MOST_STUCK + 1
    assert change.reason == "it did not start in 120 s on a place that looks free"


def test_a_gang_that_does_not_start_on_a_free_place_moves() -> None:
    plan = Plan(BerthPolicy(), Settings())
    segment = {"nodes": "n1,n2", "n": "2"}
    job = waiting(5, "n1", 0b11, required=("n1", "n2"), count=2, segment=segment)
    nodes = [node(f"n{number}") for number in range(1, 5)]

    assert replan(nodes, [job], plan=plan) == []
    [change] = replan(nodes, [job], plan=plan, at=NOW + STUCK_AFTER + 1)
    assert isinstance(change, Move)
    assert change.berth.names == ("n3", "n4")


def test_a_job_that_waits_for_its_turn_only_is_not_stuck() -> None:
    plan = Plan(BerthPolicy(), Settings())
    job = waiting(5, "n1", 0b11, reason="Priority")

    assert replan([node("n1")], [job], plan=plan) == []
    assert replan([node("n1")], [job], plan=plan, at=NOW + 10 * STUCK_AFTER) == []


def test_a_pin_that_an_admin_changed_is_the_admins() -> None:
    job = replace(waiting(5, "n2", 0b11), required=("n1",))

    assert replan([node("n1"), node("n2", up=False), node("n3")], [job]) == []


def test_the_users_own_node_list_binds_a_move() -> None:
    segment = {"asked": "tres_per_job:gres/gpu:2;req_nodes:n2"}
    nodes = [node("n1"), node("n2", used=0xFF)]
    jobs = [running(2, "n2", 0xFF, 3_000), waiting(5, "n2", 0b11, segment=segment)]

    assert replan(nodes, jobs) == []


def test_a_wait_for_nvlink_ends_after_its_time() -> None:
    segment = {"insists": "nvlink", "wait": "600", "level": "nvlink"}
    nodes = [node("n3", used=0b1010_1010)]
    kinds = {"n3": "a6000"}
    jobs = [running(1, "n3", 0b1010_1010, 3_000), waiting(5, "n3", 0b11, submitted=int(NOW), segment=segment)]

    assert replan(nodes, jobs, kinds, at=NOW + 599) == []
    [move] = replan(nodes, jobs, kinds, at=NOW + 601)

    assert isinstance(move, Move)
    assert (move.berth.gpus, move.berth.level) == ((0, 2), "node")
    assert "wait for NVLink" in move.reason


def test_where_slurm_preempts_only_free_places_are_pinned() -> None:
    nodes, jobs = [node("n1", used=0xFF)], [running(1, "n1", 0xFF, 600)]
    settings = Settings(pin_ahead=False)
    full = decide(submit(tres_per_job="gres/gpu:2"), book(reading(nodes, jobs)), BerthPolicy(), settings, NOW)
    free = decide(submit(tres_per_job="gres/gpu:2"), book(reading([node("n1")])), BerthPolicy(), settings, NOW)

    assert (full.verb, free.verb) == ("pass", "place")
    assert full.fields["segment"].startswith("state=later")
    assert "Slurm may preempt for it" in full.fields["message"]

    open_job = waiting(5, "", 0, required=(), segment={"state": "later", "k": "2", "nodes": "", "gpus": ""})
    plan = Plan(BerthPolicy(), settings)
    assert replan(nodes, [*jobs, open_job], plan=plan) == []
    [change] = replan([node("n1", used=0xF)], [running(1, "n1", 0xF, 600), open_job], plan=plan)
    assert isinstance(change, Move)
    assert change.start == 0.0


def test_where_slurm_preempts_a_pin_whose_place_was_taken_is_undone() -> None:
    jobs = [running(1, "n1", 0xFF, 600), waiting(5, "n1", 0b11)]

    [change] = replan([node("n1", used=0xFF)], jobs, plan=Plan(BerthPolicy(), Settings(pin_ahead=False)))

    assert isinstance(change, Release)
    assert "Slurm may preempt for it elsewhere" in change.reason


def test_a_job_that_started_between_the_two_readings_holds_its_gpus() -> None:
    opened = book(reading([node("n1", used=0)], [running(1, "n1", 0b11, 600)]))

    assert opened.cluster.gpus_now[0] == 0b1111_1100


def test_gpus_of_untyped_jobs_come_free_with_the_last_of_them() -> None:
    jobs = [running(1, "n1", 0b1, 100), running(2, "n1", 0, 200, cpus=2), running(3, "n1", 0, 300, cpus=2)]
    opened = book(reading([node("n1", used=0b0001_1111)], jobs))

    moments = {time - NOW: gpus for time, gpus in zip(opened.cluster.times[0], opened.cluster.gpus[0], strict=True)}

    assert moments == {0: 0b1110_0000, 100: 0b1110_0001, 200: 0b1110_0001, 300: 0xFF}


def test_a_short_job_fits_before_a_planned_one() -> None:
    look = reading([node("n1", used=0x0F)], [running(1, "n1", 0x0F, 3_000), waiting(5, "n1", 0xFF, priority=9)])
    opened = book(look)
    Plan(BerthPolicy(), Settings()).replan(opened, look.jobs)

    short = decide(submit(tres_per_job="gres/gpu:2", time_limit="30"), opened, BerthPolicy(), Settings(), NOW)
    long = decide(submit(tres_per_job="gres/gpu:2", time_limit="90"), opened, BerthPolicy(), Settings(), NOW)

    assert "state=placed" in short.fields["segment"]
    assert f"start={int(NOW) + 6_600}" in long.fields["segment"]


def claims(count: int) -> st.SearchStrategy[list[tuple[int, int, int, int]]]:
    return st.lists(
        st.tuples(st.integers(1, 255), st.integers(0, 6), st.integers(1, 6), st.integers(1, 16)), max_size=count
    )


@settings(deadline=None)
@given(claims(5))
def test_a_timeline_never_says_that_a_claimed_gpu_is_free(placed: list[tuple[int, int, int, int]]) -> None:
    opened = book(reading([node("n1")]))
    for mask, start, length, cpus in placed:
        opened.claim(Claim((0,), mask, cpus, 100, NOW + 100 * start, NOW + 100 * (start + length)))

    times, gpus = opened.cluster.times[0], opened.cluster.gpus[0]
    assert list(times) == sorted(times)
    assert gpus[-1] == 0xFF
    for time, free in zip(times.tolist(), gpus.tolist(), strict=True):
        held = 0
        for mask, start, length, _ in placed:
            held |= mask if NOW + 100 * (start + length) > time else 0
        assert free == 0xFF & ~held


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 255), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["10", "60", "200"])), min_size=1, max_size=10),
)
def test_no_gpu_is_given_to_two_jobs_at_once(used: list[int], asked: list[tuple[int, str]]) -> None:
    nodes = [node(f"n{i}", used=mask) for i, mask in enumerate(used)]
    jobs = [running(i, f"n{i}", mask, 600 * (i + 1)) for i, mask in enumerate(used) if mask]
    opened = book(reading(nodes, jobs))
    held = [(f"n{i}", mask, NOW, NOW + 600 * (i + 1)) for i, mask in enumerate(used)]

    for k, minutes in asked:
        fields = submit(tres_per_job=f"gres/gpu:{k}", time_limit=minutes)
        decision = decide(fields, opened, BerthPolicy(), Settings(), NOW)
        assert decision.claim is not None
        opened.claim(decision.claim)
        claim = decision.claim
        held += [(f"n{place}", claim.mask, claim.start, claim.end) for place in claim.nodes]

    for i, (name, mask, start, end) in enumerate(held):
        for other, other_mask, other_start, other_end in held[:i]:
            together = name == other and start < other_end and other_start < end
            assert not (together and mask & other_mask)


def test_a_book_leaves_the_picture_that_it_was_opened_from_alone() -> None:
    opened = book(reading([node("n1")]))
    copy = Book(opened.cluster)

    copy.claim(Claim((0,), 0xFF, 32, 100, NOW, NOW + 60))

    assert opened.cluster.gpus_now[0] == 0xFF
    assert opened.cluster.gpus[0, 0] == 0xFF
