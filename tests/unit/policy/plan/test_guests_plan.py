# SPDX-License-Identifier: Apache-2.0
"""Where guests sit, who leaves for whom, and that owners never wait for them."""

import pytest

from policy.formats.errors import NotNow
from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.placement.berth import BerthPolicy
from policy.plan.answer import told
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.changes import Change, Evict, Move, Own, Park
from policy.plan.ledger.claims import Claim
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.guests import seats
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings, Sharing
from tests.unit.guest_world import NOW, book, fleet, guest, host, node, parked, plan, reading, running, seated, waiting
from tests.unit.share_world import packed

FULL = 0xFF


def seat_of(nodes: list[NodeFacts], jobs: list[JobFacts], **changes: object) -> seats.Seat:
    """Where a newcomer would sit."""
    there = book(nodes, jobs, changes.pop("sharing", None))  # type: ignore[arg-type]
    demand = Reader(there.fleet).read(parked(99, **changes), NOW).demand
    return seats.Left(there.cluster).find(demand)


def where(changes: list[Change]) -> dict[int, tuple[str, tuple[int, ...]]]:
    """The seats that a plan gives."""
    return {one.job.id: (one.berth.names[0], one.berth.gpus) for one in changes if isinstance(one, Move) and one.way}


def test_an_idle_gpu_comes_first_and_there_where_the_fewest_are_idle() -> None:
    jobs = [host(1, "n1", FULL), running(2, "n2", 0x7F, 9_000)]
    seat = seat_of([node("n1", used=FULL), node("n2", used=0x7F), node("n3")], jobs)
    assert (seat.berth.names, seat.berth.gpus, seat.way) == (("n2",), (7,), "time")


def test_beside_hosts_one_on_a_single_gpu_comes_first() -> None:
    jobs = [host(1, "n1", 0b1111), host(2, "n1", 0b0001_0000), running(3, "n1", 0b1110_0000, 9_000)]
    seat = seat_of([node("n1", used=FULL)], jobs)
    assert seat.berth.gpus == (4,)
    assert "beside a guaranteed job on one GPU" in seat.berth.why


@pytest.mark.parametrize(
    ("jobs", "seats_used"),
    [
        ([running(1, "n1", FULL, 9_000)], FULL),  # who has its GPUs alone
        ([running(1, "n1", FULL, 9_000)], 0),  # who failed open
        ([host(1, "n1", FULL), *[guest(10 + gpu, "n1", gpu) for gpu in range(8)]], FULL),  # one guest for each GPU
        ([packed(1 + gpu, "n1", gpu, 30) for gpu in range(8)], 0),
    ],
)
def test_there_is_no_seat_beside_them(jobs: list[JobFacts], seats_used: int) -> None:
    shared = (30,) * 8 if jobs[0].share else ()
    with pytest.raises(NotNow, match="no seat is free"):
        seat_of([node("n1", used=FULL, seats_used=seats_used, shared=shared)], jobs)


def test_a_seat_needs_cpus_and_memory_beside_what_other_guests_have() -> None:
    jobs = [host(1, "n1", FULL, cpus=28), guest(2, "n1", 0, cpus=2)]
    there = [node("n1", used=FULL, seats_used=1, cpus_used=30)]
    assert seat_of(there, jobs, segment={"cpus": "2"}).berth.gpus == (1,)
    with pytest.raises(NotNow, match="no node with a free seat has the cores"):
        seat_of(there, jobs, segment={"cpus": "3"})


def test_memory_of_host_and_guest_has_to_fit_where_both_name_theirs() -> None:
    jobs = [host(1, "n1", FULL, segment={"gpu_mem": "10240"})]
    assert seat_of([node("n1", used=FULL)], jobs, segment={"gpu_mem": "6144"}).berth.gpus
    with pytest.raises(NotNow):
        seat_of([node("n1", used=FULL)], jobs, segment={"gpu_mem": "7168"})


@pytest.mark.parametrize(
    ("host_way", "guest_mps", "user", "multi", "way"),
    [
        ("mps", True, 7, False, "mps"),
        ("mps", True, 8, True, "mps"),
        ("time", True, 7, False, "time"),
    ],
)
def test_one_fault_domain_only_where_both_want_it(
    host_way: str, guest_mps: bool, user: int, multi: bool, way: str
) -> None:
    jobs = [host(1, "n1", 0b1, user=7, segment={"way": host_way}), running(2, "n1", 0b1111_1110, 9_000)]
    segment = {"mps": "1"} if guest_mps else {}
    seat = seat_of([node("n1", used=FULL)], jobs, user=user, segment=segment, sharing=Sharing(multi_user=multi))
    assert seat.way == way
    assert ("fatal error of one ends both" in seat.berth.why) == (way == "mps")


@pytest.mark.parametrize(
    ("mask", "guest_mps", "user"),
    [(0b1, True, 8), (0b1, False, 7), (0b11, True, 7)],
    ids=["another user's", "one that takes turns", "on two GPUs, which have one daemon"],
)
def test_a_host_under_mps_takes_nobody_who_cannot_join_it(mask: int, guest_mps: bool, user: int) -> None:
    taken = running(2, "n1", FULL & ~mask, 9_000)
    jobs = [host(1, "n1", mask, user=7, segment={"way": "mps"}), taken]
    segment = {"mps": "1"} if guest_mps else {}
    with pytest.raises(NotNow, match="run under MPS"):
        seat_of([node("n1", used=FULL)], jobs, user=user, segment=segment)

    in_turn = host(3, "n2", FULL, user=7)
    nodes = [node("n1", used=FULL), node("n2", used=FULL)]
    assert seat_of(nodes, [*jobs, in_turn], user=user, segment=segment).berth.names == ("n2",)


@pytest.mark.parametrize("cause", [7, 8])
def test_who_brought_mps_down_joins_no_host_under_mps_and_gets_no_guest_there(cause: int) -> None:
    """The node would refuse it, and a job that is sent elsewhere three times stays failed."""
    jobs = [host(1, "n1", 0b1, user=7, segment={"way": "mps"}), running(2, "n1", 0b1111_1110, 9_000)]
    sharing = Sharing(multi_user=True, apart=frozenset({cause}))
    with pytest.raises(NotNow, match="run under MPS"):
        seat_of([node("n1", used=FULL)], jobs, user=8, segment={"mps": "1"}, sharing=sharing)

    in_turn = host(3, "n2", FULL, user=7)
    nodes = [node("n1", used=FULL), node("n2", used=FULL)]
    assert seat_of(nodes, [*jobs, in_turn], user=8, segment={"mps": "1"}, sharing=sharing).way == "time"


@pytest.mark.parametrize(("held", "way"), [("n1:guard", "time"), ("n2:guard,n1:open-ceiling", "mps")])
def test_beside_a_host_that_goes_in_turn_on_its_node_a_guest_does_too(held: str, way: str) -> None:
    """It bears MPS, and met a guest that takes turns."""
    jobs = [host(1, "n1", 0b1, user=7, segment={"way": "mps", "held": held}), running(2, "n1", 0b1111_1110, 9_000)]
    assert seat_of([node("n1", used=FULL)], jobs, user=7, segment={"mps": "1"}).way == way


def test_waiting_guests_get_seats_in_order_and_never_the_same_one() -> None:
    jobs = [host(1, "n1", 0b11), running(2, "n1", 0b1111_1100, 9_000)]
    jobs += [parked(10 + rank, priority=9 - rank) for rank in range(3)]
    found = where(plan([node("n1", used=FULL)], jobs))
    assert found == {10: ("n1", (0,)), 11: ("n1", (1,))}


def test_nobody_new_sits_on_a_gpu_that_its_guard_has_closed() -> None:
    jobs = [host(1, "n1", 0b11), running(2, "n1", 0b1111_1100, 9_000), parked(10)]
    assert where(plan([node("n1", used=FULL)], jobs, closed={0: 0b01})) == {10: ("n1", (1,))}
    assert where(plan([node("n1", used=FULL)], jobs, closed={0: 0b11})) == {}


def test_who_owns_its_gpus_alone_takes_those_without_guests() -> None:
    jobs = [guest(1, "n1", 0), waiting(5, "n2", 0b1, submitted=int(NOW)), running(9, "n2", FULL, 9_000)]
    [move] = plan([node("n1", seats_used=1, used=0, cpus_used=1), node("n2", used=FULL)], jobs)
    assert isinstance(move, Move)
    assert move.berth.names == ("n1",)
    assert move.berth.mask & 1 == 0


def test_a_guest_leaves_for_an_owner_that_needs_its_gpu() -> None:
    jobs = [guest(1, "n1", 0), waiting(5, "n1", FULL, segment={"k": "8"})]
    changes = plan([node("n1", seats_used=1, cpus_used=1)], jobs)
    assert [(type(one), one.job.id) for one in changes] == [(Evict, 1)]


def test_it_stays_where_the_owner_may_have_a_guest() -> None:
    segment = {"tier": "guaranteed", "seats": "0"}
    jobs = [guest(1, "n1", 0), waiting(5, "n1", FULL, segment=segment)]
    assert plan([node("n1", seats_used=1, cpus_used=1)], jobs) == []


def test_it_leaves_where_a_job_runs_on_its_gpu_that_did_not_come_by_berth() -> None:
    jobs = [guest(1, "n1", 0), running(5, "n1", 0b1, 900)]
    [evict] = plan([node("n1", used=1, seats_used=1)], jobs)
    assert isinstance(evict, Evict)


def test_it_leaves_for_the_cpus_of_an_owner_and_the_last_in_line_first() -> None:
    jobs = [
        host(1, "n1", 0b11, cpus=2),
        guest(2, "n1", 0, cpus=10, priority=8),
        guest(3, "n1", 1, cpus=10, priority=9),
        waiting(5, "n1", 0b100, segment={"cpus": "16"}),
    ]
    changes = plan([node("n1", used=0b11, seats_used=0b11, cpus_used=22)], jobs)
    assert [(type(one), one.job.id) for one in changes] == [(Evict, 2)]
    assert "CPUs" in changes[0].reason


def test_a_gang_that_still_gathers_leaves_guests_alone_until_it_starts() -> None:
    gang = {"n": "2", "k": "8", "cpus": "8", "nodes": "n1,n2"}
    waits = waiting(5, "n1", FULL, required=("n1", "n2"), count=2, segment=gang)
    jobs = [guest(1, "n1", 0), running(4, "n2", FULL, 9_000), waits]
    assert plan([node("n1", seats_used=1, cpus_used=1), node("n2", used=FULL)], jobs) == []
    started = [guest(1, "n1", 0), waits]
    changes = plan([node("n1", seats_used=1, cpus_used=1), node("n2")], started)
    assert [(type(one), one.job.id) for one in changes] == [(Evict, 1)]


def test_idle_gpus_of_a_gang_that_gathers_take_guests() -> None:
    gang = {"n": "2", "k": "8", "cpus": "8", "nodes": "n1,n2"}
    waits = waiting(5, "n1", FULL, required=("n1", "n2"), count=2, priority=9, segment=gang)
    jobs = [running(4, "n2", FULL, 9_000), waits, parked(10)]
    [move] = plan([node("n1"), node("n2", used=FULL)], jobs)
    assert isinstance(move, Move)
    assert (move.job.id, move.berth.names) == (10, ("n1",))
    assert "waits for others of its job" in move.berth.why
    soon = [running(4, "n2", FULL, 60), waits, parked(10)]
    assert where(plan([node("n1"), node("n2", used=FULL)], soon)) == {}


def test_a_guest_whose_seat_is_gone_before_it_started_gets_another_or_is_parked() -> None:
    jobs = [running(1, "n1", FULL, 9_000), seated(10, "n1", 0)]
    [park] = plan([node("n1", used=FULL, seats_used=FULL)], jobs)
    assert isinstance(park, Park)
    found = plan([node("n1", used=FULL, seats_used=FULL), node("n2", used=0x7F)], [*jobs, host(3, "n2", 0x7F)])
    assert where(found) == {10: ("n2", (7,))}


def test_one_whose_seat_is_free_is_left_alone() -> None:
    assert plan([node("n1")], [seated(10, "n1", 3)]) == []


@pytest.mark.parametrize("hours", [3, 20, 40])
def test_an_administrators_start_time_of_a_guest_without_a_seat_holds(hours: int) -> None:
    then, now = int(NOW) + hours * 3_600, str(int(NOW))
    put_off = parked(10, begin=then, segment={"at": now})
    changes = plan([node("n1")], [put_off])
    assert [type(one) for one in changes] == [Park], "a seat would take the begin time away"
    written = told.parked(changes[0], NOW).texts  # type: ignore[arg-type]
    assert written["parked"] == str(then)
    assert plan([node("n1")], [parked(10, begin=int(NOW) + 86_401, segment=written)]) == []
    ours = parked(10, begin=int(NOW) + 86_401, segment={"at": now})
    assert where(plan([node("n1")], [ours])) == {10: ("n1", (0,))}


def test_a_parked_guest_costs_no_updates_until_half_its_time_is_over() -> None:
    full = [node("n1", used=FULL)], running(1, "n1", FULL, 90_000)
    assert plan(full[0], [full[1], parked(10)]) == []
    [again] = plan(full[0], [full[1], parked(10, begin=int(NOW) + 40_000)])
    assert isinstance(again, Park)


def test_a_guest_waits_for_its_own_begin_time() -> None:
    assert plan([node("n1")], [parked(10, segment={"parked": str(int(NOW) + 60)})]) == []
    assert where(plan([node("n1")], [parked(10, segment={"parked": str(int(NOW) - 60)})])) != {}


def test_one_sent_away_comes_back_on_another_node() -> None:
    back = seated(10, "n1", 0, segment={"parked": "0", "avoids": f"n1@{int(NOW) + 600}", "evicted": "1"})
    assert where(plan([node("n1"), node("n2")], [back]))[10][0] == "n2"


def test_tasks_of_an_array_are_seated_one_by_one() -> None:
    array = parked(10, state="ARRAY", array=10, tasks="1-5", at_once=2)
    changes = plan([node("n1")], [array])
    assert [(one.task, one.way) for one in changes if isinstance(one, Move)] == [(1, "time"), (2, "time")]


UPGRADE = {"upgrade": "0"}


def test_an_upgrade_that_was_sent_away_is_pinned_anew_though_its_former_gpu_is_free() -> None:
    back = seated(10, "n1", 0, segment={**UPGRADE, "parked": "0", "evicted": "1"}, reason="BeginTime")
    [move] = plan([node("n1")], [back])
    assert isinstance(move, Move)
    assert (move.way, move.start) == ("", 0.0)


def test_an_upgrade_that_was_sent_away_and_has_no_place_loses_the_pin_to_its_old_seat() -> None:
    # Slurm would start it there as soon as it may.
    sent_away = {**UPGRADE, "parked": "0", "evicted": "1", "avoids": f"n1@{int(NOW) + 600}"}
    back = seated(10, "n1", 0, segment=sent_away, reason="BeginTime")
    [park] = plan([node("n1")], [back])
    assert isinstance(park, Park)
    assert plan([node("n1")], [parked(10, segment=sent_away)]) == []


def test_who_is_to_be_upgraded_waits_for_its_own_and_sits_meanwhile() -> None:
    waits = waiting(5, "n1", 0b1, segment=UPGRADE)
    jobs = [running(1, "n1", 0b1111_1110, 9_000), host(2, "n1", 0b1), waits]
    assert where(plan([node("n1", used=FULL)], jobs)) == {5: ("n1", (0,))}


@pytest.mark.parametrize(("waited", "sits"), [(599, False), (601, True)])
def test_a_site_may_make_long_waiters_guests(waited: int, sits: bool) -> None:
    waits = waiting(5, "n1", 0b1, segment={"upgrade": "600"}, submitted=int(NOW) - waited)
    jobs = [running(1, "n1", 0b1111_1110, 9_000), host(2, "n1", 0b1), waits]
    assert (5 in where(plan([node("n1", used=FULL)], jobs))) == sits


def test_its_turn_comes_when_its_gpu_is_nobodys() -> None:
    rides = guest(5, "n1", 0, segment=UPGRADE, priority=5)
    beside = [host(1, "n1", FULL), rides]
    assert plan([node("n1", used=FULL, seats_used=1)], beside) == []
    [own] = plan([node("n1", used=0xFE, seats_used=1)], [host(1, "n1", 0xFE), rides])
    assert isinstance(own, Own)
    wanted = [host(1, "n1", 0xFE), rides, waiting(6, "n1", 0b1, priority=9)]
    assert [type(one) for one in plan([node("n1", used=0xFE, seats_used=1)], wanted)] == [Evict]
    later = [host(1, "n1", 0xFE), rides, waiting(6, "n1", 0b1, priority=1)]
    assert Own in [type(one) for one in plan([node("n1", used=0xFE, seats_used=1)], later)]


def test_what_was_given_for_good_is_nobody_elses() -> None:
    owns = guest(5, "n1", 0, segment={**UPGRADE, "owns": "1"})
    jobs = [owns, running(1, "n1", 0xFE, 9_000), waiting(6, "n1", 0b1, priority=9_999), parked(10)]
    changes = plan([node("n1", used=0xFE, seats_used=1)], jobs)
    assert not any(isinstance(one, Evict) for one in changes)
    assert where(changes) == {}


def test_an_ended_guest_makes_room_at_once() -> None:
    jobs = [host(1, "n1", FULL), *[guest(10 + gpu, "n1", gpu) for gpu in range(8)], parked(30)]
    look = reading([node("n1", used=FULL, seats_used=FULL)], jobs)
    tracker, planned = Tracker(fleet(look)), Plan(BerthPolicy(), Settings())
    tracker.update(look)
    assert planned.replan(tracker.book(), look.jobs) == []
    touched = tracker.end(13, "n1")
    changes = planned.freed(tracker, touched, look.jobs)
    assert changes is not None
    assert where(changes) == {30: ("n1", (3,))}


def test_a_host_that_ends_leaves_its_guest_where_it_is() -> None:
    jobs = [host(1, "n1", 0b1), guest(2, "n1", 0)]
    look = reading([node("n1", used=1, seats_used=1)], jobs)
    tracker, planned = Tracker(fleet(look)), Plan(BerthPolicy(), Settings())
    tracker.update(look)
    planned.replan(tracker.book(), look.jobs)
    assert planned.freed(tracker, tracker.end(1, "n1"), look.jobs) == []
    assert tracker.book().cluster.sharers[0].guest_mask == 1


@pytest.mark.parametrize(
    ("tier", "starts", "leaves"),
    [
        ("guaranteed", NOW, []),
        ("guaranteed", 0.0, []),
        ("exclusive", NOW, [3]),
        ("exclusive", 0.0, [3]),
        ("exclusive", NOW + 60, []),
    ],
)
def test_a_guest_leaves_a_place_just_given_to_a_job_once_that_starts_and_bears_no_guest(
    tier: str, starts: float, leaves: list[int]
) -> None:
    there = book([node("n1")], [guest(3, "n1", 0)])
    there.claim(Claim((0,), 0b01, 1, 100, starts, NOW + 600, tier=tier))

    assert list(seats.to_evict(there)) == leaves
