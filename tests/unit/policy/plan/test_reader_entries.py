# SPDX-License-Identifier: Apache-2.0
"""What the plan reads from Slurm's record of a waiting job."""

import math
from dataclasses import replace
from typing import Any

import pytest

from policy.formats.arrays import FAR
from policy.formats.errors import FormatError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts
from policy.plan.jobs.waiting import Waiting
from policy.plan.jobs.waiting_jobs import Reader, ours
from policy.request.demand import A_YEAR
from policy.request.settings import Sharing
from tests.unit import share_world
from tests.unit.policy_world import NOW, fleet, node, reading, waiting

SHARING = Sharing(profiles="/profiles", least_speed=90, company_wait=60)
SUBMITTED = int(NOW) - 100


def reader() -> Reader:
    return Reader(fleet(reading([node(name) for name in ("n1", "n2", "n3")])))


def read(job: JobFacts, at: float = NOW) -> Waiting:
    return reader().read(job, at)


def without_answer(asked: str, **changes: object) -> JobFacts:
    """A job that came while berthd did not answer: the plugin wrote what it asked, and no more."""
    facts: dict[str, Any] = {"required": (), "gpus": None, "mem": 100, **changes}
    return replace(waiting(9, "n1", 1), **facts, plan=JobPlan({"state": "passed", "asked": asked}))


# What is kept between two looks.


def test_an_entry_is_known_until_a_node_that_the_job_avoids_may_be_used_again() -> None:
    one, job = reader(), waiting(9, "n2", 1, segment={"avoids": f"n1@{NOW + 60},n3@{NOW + 90}"})
    assert one.known(job, NOW) is None

    entry = one.read(job, NOW)

    assert entry.demand.candidates.tolist() == [False, True, False]
    assert one.known(job, NOW + 59) is entry is one.read(job, NOW + 59)
    assert one.known(job, NOW + 60) is None
    assert one.read(job, NOW + 60).demand.candidates.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("changes", "candidates"),
    [
        ({}, [False, True, True]),
        ({"excluded": ("n2",)}, [False, False, True]),
        ({"excluded": ("n2", "n3")}, [True, False, False]),
        ({"required": ("n1", "n2", "n3"), "segment": {"n": "3"}}, [True, True, True]),
        ({"excluded": ("n2", "n3"), "segment": {"tier": "opportunistic"}}, [False, False, False]),
    ],
    ids=["one", "two are left", "the others are excluded", "all are needed", "a guest"],
)
def test_a_node_is_avoided_while_others_could_have_the_job(changes: dict[str, Any], candidates: list[bool]) -> None:
    segment = {"avoids": f"n1@{NOW + 60}", **changes.pop("segment", {})}
    entry = read(waiting(9, "n1", 1, segment=segment, **changes))

    assert entry.demand.candidates.tolist() == candidates


def test_a_record_that_has_changed_is_read_again() -> None:
    one, job = reader(), waiting(9, "n1", 1)
    entry = one.read(job, NOW)
    moved = replace(job, required=("n2",))

    assert one.known(moved, NOW) is None
    assert (entry.nodes, one.read(moved, NOW).nodes) == ((0,), (1,))


def test_a_segment_that_cannot_be_read_is_refused_at_each_look() -> None:
    one, job = reader(), waiting(9, "n1", 1, segment={"cpus": "many"})
    for _ in range(2):
        with pytest.raises(FormatError):
            one.read(job, NOW)
        assert one.known(job, NOW) is None


# Needs.


def test_a_job_without_gpus_needs_its_cpus_on_each_of_its_nodes() -> None:
    entry = read(waiting(9, "n1", 0, wants_gpus=False, required=(), count=3, cpus=8, mem=None, limit=None))

    needs = entry.demand
    assert (needs.n, needs.k, needs.cpus, needs.mem, needs.level, needs.limit) == (3, 0, 3, 0, "any", A_YEAR)
    assert (entry.nodes, entry.mask, entry.level.until, entry.least_free) == ((), 0, 0.0, FAR)
    assert not entry.plain
    assert entry.level.insists is None


@pytest.mark.parametrize(
    ("asked", "changes", "needs"),
    [
        ("tres_per_job:gres/gpu:6", {"count": 2, "cpus": 5}, (2, 3, 3, 100)),
        ("tres_per_job:gres/gpu", {"cpus": 5}, (1, 1, 5, 100)),
        ("tres_per_node:gres/gpu:2", {"count": 3, "cpus": 3}, (3, 2, 1, 100)),
        ("tres_per_node:gres/gpu=4", {"count": 0, "cpus": 3}, (1, 4, 3, 100)),
    ],
)
def test_a_job_that_got_no_answer_is_planned_by_what_it_asked(
    asked: str, changes: dict[str, object], needs: tuple[int, ...]
) -> None:
    job = without_answer(asked, **changes)
    entry = read(job)

    assert ours(job)
    assert (entry.demand.n, entry.demand.k, entry.demand.cpus, entry.demand.mem) == needs
    assert [entry.adopted.texts[key] for key in ("n", "k", "cpus", "mem")] == [str(number) for number in needs]


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        ("tres_per_job:gres/gpu:6", {"count": 4}),
        ("tres_per_job:gres/gpu:0", {}),
        ("tres_per_job:gres/gpu:v100:2", {}),
        ("tres_per_socket:gres/gpu:2", {}),
        ("tres_per_job:gres/gpu:2", {"required": ("n1",)}),
        ("tres_per_job:gres/gpu:2", {"gpus": 1}),
        ("tres_per_job:gres/gpu:2", {"mem": None}),
        ("tres_per_job:gres/gpu:2", {"state": "ARRAY"}),
        ("tres_per_job:gres/gpu:2", {"features": "[rack1|rack2]"}),
        ("tres_per_job:gres/gpu:2", {"reservation": "maintenance"}),
    ],
)
def test_what_is_not_clear_stays_slurms(asked: str, changes: dict[str, object]) -> None:
    assert not ours(without_answer(asked, **changes))


def test_only_a_pin_that_nobody_has_changed_is_planned_on() -> None:
    job = waiting(9, "n1", 0b11)
    later = replace(job, gpus=None, required=(), plan=JobPlan({"state": "later", "asked": "req_nodes:n[2-3]"}))

    assert ours(job)
    assert not ours(replace(job, required=("n2",)))
    assert not ours(replace(job, gpus=None))
    assert not ours(replace(job, state="RUNNING"))
    assert not ours(replace(job, plan=None))
    assert not ours(replace(job, plan=JobPlan({**job.known.texts, "state": "released"})))
    assert ours(replace(later, required=("n2", "n3")))
    assert not ours(later)
    assert not ours(replace(later, required=("n2", "n3"), gpus=1))


# Its turn.


def test_slurms_order_is_by_partition_priority_age_and_number() -> None:
    one = reader()
    jobs = [
        waiting(7, "n1", 1, priority=2, submitted=SUBMITTED + 5),
        waiting(9, "n1", 1, submitted=SUBMITTED - 5),
        waiting(3, "n1", 1),
        waiting(6, "n1", 1, array=5, task=1),
        waiting(8, "n1", 1, array=5, task=2),
        waiting(5, "n1", 1, array=5, tasks="3-7"),
        waiting(4, "n1", 1, submitted=SUBMITTED + 1),
    ]

    assert [entry.job.id for entry in sorted(map(one.read, jobs, [NOW] * 7), key=lambda one: one.order)] == [
        7, 9, 3, 6, 8, 5, 4,
    ]  # fmt: skip
    assert one.read(jobs[2], NOW).order == (-1, -1, SUBMITTED, 3, math.inf)


def test_its_wait_counts_from_when_it_waits_only_for_room() -> None:
    one = reader()
    insists = {"insists": "leaf", "wait": "300"}
    held = waiting(9, "n1", 1, segment={**insists, "n": "2"}, reason="Dependency")
    assert one.read(held, NOW).level.until == SUBMITTED + 300
    assert one.read(replace(held, reason="Resources"), NOW + 50).level.until == NOW + 350
    assert one.read(replace(held, reason="Priority"), NOW + 90).level.until == NOW + 350

    assert read(replace(held, reason="Resources")).level.until == SUBMITTED + 300
    assert read(replace(held, reason="Resources", begin=int(NOW) - 20)).level.until == NOW + 280
    told = {**held.known.texts, "until": str(int(NOW) + 400)}
    assert read(replace(held, reason="Resources", plan=JobPlan(told))).level.until == NOW + 400


def test_at_the_end_of_its_wait_it_needs_no_level_any_more() -> None:
    entry = read(waiting(9, "n1", 0b11, required=("n1", "n2"), segment={
        "insists": "leaf", "wait": "300", "n": "2", "nodes": "n1,n2",
    }))  # fmt: skip

    assert entry.insisted_level == "leaf"
    assert entry.demand_at(entry.level.until - 1)[0].level == "leaf"
    assert entry.demand_at(entry.level.until)[0].level == "any"
    assert entry.demand_at(entry.level.until - 1)[1] != entry.demand_at(entry.level.until)[1]


def test_a_share_is_asked_for_three_seconds_before_its_begin_time() -> None:
    one = Reader(share_world.fleet(reading([share_world.node("n1")]), SHARING))
    packed = one.read(share_world.packed_waiting(8, "n1", 0, 30, begin=int(NOW) + 10, reason="BeginTime"), NOW)
    whole = one.read(waiting(9, "n1", 1, begin=int(NOW) + 10, reason="BeginTime"), NOW)

    assert [packed.may_start_at(NOW + seconds) for seconds in (6, 7)] == [False, True]
    assert [whole.may_start_at(NOW + seconds) for seconds in (9, 10)] == [False, True]
    assert packed.share.until == NOW + 10 + 60
    assert packed.demand_at(packed.share.until - 1)[0].share != packed.demand_at(packed.share.until)[0].share
    assert packed.least_free == 0
    assert packed.share.packed
    assert not whole.share.packed


def test_a_share_is_planned_only_on_nodes_whose_gpus_can_be_shared_and_have_its_memory() -> None:
    nodes = [share_world.node("n1"), node("n2"), share_world.node("n3")]
    one = Reader(share_world.fleet(reading(nodes), SHARING))

    def places(**changes: str) -> list[bool]:
        job = share_world.packed_waiting(8, "n1", 0, 30, segment=changes)
        return list(one.read(job, NOW).demand.candidates)

    assert places() == [True, False, True]
    assert places(gpu_mem="16384") == [True, False, True]
    assert places(gpu_mem="16385") == [False] * 3


# Guests.


def test_a_guest_that_is_to_have_gpus_of_its_own_waits_for_these_from_then_on() -> None:
    segment = {"tier": "opportunistic", "upgrade": "300", "parked": str(int(NOW) + 40), "gpu_mem": "2048", "mps": ""}
    entry = read(waiting(9, "n1", 1, segment=segment, reason="BeginTime", begin=int(NOW) + A_YEAR, user=1_000))

    assert entry.guest.may_ride_from == SUBMITTED + 300
    assert entry.guest.parked == NOW + 40
    assert [entry.may_start_at(NOW + seconds) for seconds in (39, 40)] == [False, True]
    tier = entry.demand.tier
    assert (tier.name, entry.demand.gpu_mem, entry.demand.user) == ("exclusive", 2048, 1_000)
    assert not entry.guest.only
    assert not entry.guest.seated
    assert entry.least_free == 1


@pytest.mark.parametrize(
    ("segment", "only_guest", "seated"),
    [
        ({}, True, True),
        ({"parked": str(int(NOW))}, True, False),
        ({"upgrade": "300"}, True, True),
        ({"upgrade": "300", "parked": str(int(NOW))}, False, False),
    ],
)
def test_a_guest_without_a_begin_time_of_berths_has_its_seat(
    *, segment: dict[str, str], only_guest: bool, seated: bool
) -> None:
    entry = read(waiting(9, "n1", 1, guest=True, segment={"tier": "opportunistic", **segment}))

    assert (entry.guest.only, entry.guest.seated) == (only_guest, seated)
    assert entry.guest.may_ride_from == (SUBMITTED + 300 if "upgrade" in segment else FAR)


def test_an_evicted_guests_old_seat_is_no_pin_for_gpus_of_its_own() -> None:
    segment = {"tier": "opportunistic", "upgrade": "300", "parked": str(int(NOW))}

    assert read(waiting(9, "n1", 1, guest=True, segment=segment)).nodes == ()
    assert read(waiting(9, "n1", 1, segment=segment)).nodes == (0,)


# Its place.


def test_a_pin_counts_only_where_all_its_nodes_are_there() -> None:
    pin = {"n": "2", "nodes": "n1,n2"}
    entry = read(waiting(9, "n1", 0b11, required=("n1", "n2"), segment=pin))
    gone = read(waiting(9, "n1", 0b11, required=("n1", "n9"), segment={**pin, "nodes": "n1,n9"}))

    assert (entry.nodes, gone.nodes) == ((0, 1), ())
    assert (entry.collects, entry.least_free) == (True, 2)
    assert entry.pinned_to((1, 0), 0b11)
    assert not entry.pinned_to((0,), 0b11)
    assert not entry.pinned_to((0, 1), 0b01)
    assert not gone.pinned_to((), 0b11)


def test_a_job_whose_place_is_gone_leaves_it_when_it_is_tried_again() -> None:
    pin = {"nodes": "n9", "again": "1"}
    job = waiting(9, "n9", 1, segment=pin)

    assert read(job).must_leave
    assert not read(waiting(9, "n1", 1, segment={"again": "1"})).must_leave
    assert not read(replace(job, gpus=None)).must_leave
    assert not read(replace(job, required=())).must_leave
    assert not read(waiting(9, "n9", 1)).must_leave


@pytest.mark.parametrize(
    "changes",
    [
        {"begin": int(NOW) - 5},
        {"reason": "Dependency"},
        {"tasks": "3-7", "array": 9},
        {"het": 8},
        {"required": ("n9",)},
        {"segment": {"insists": "nvlink", "wait": "300"}},
        {"segment": {"upgrade": "300"}},
        {"segment": {"tier": "guaranteed"}},
        {"segment": {"parked": str(int(NOW))}},
    ],
)
def test_whom_time_changes_or_who_may_have_a_seat_is_not_plain(changes: dict[str, object]) -> None:
    assert read(waiting(9, "n1", 1)).plain
    assert not read(waiting(9, "n1", 1, **changes)).plain
