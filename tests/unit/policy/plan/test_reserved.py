# SPDX-License-Identifier: Apache-2.0
"""What reservations take of nodes and leave, and the jobs that are left to Slurm because of them."""

import os
import pwd
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cluster.reserved import admits, know_users_by
from policy.daemon.known.users import names_of
from policy.formats.slurm_facts import Reservation
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.changes import Change, Move, Release
from policy.plan.ledger.tracker import Tracker, open_book
from policy.plan.opinions.opinion import STUCK_AFTER
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.unit.deciding import Decision, decide
from tests.unit.policy_world import NOW, fleet, node, reading, running, submit, waiting

START, END = int(NOW) - 10, int(NOW) + 600
ME = pwd.getpwuid(os.getuid())


@pytest.fixture(autouse=True)
def names() -> None:
    know_users_by(names_of)


def reservation(*nodes: str, start: int = START, end: int = END, **changes: object) -> Reservation:
    return replace(Reservation(start, end, nodes, "r", users=(ME.pw_name,)), **changes)  # type: ignore[arg-type]


def cores(node: str, count: int) -> tuple[str, int]:
    return node, (1 << count) - 1


def types(*gpus: int, nodes: int = 1) -> tuple[tuple[str, int], ...]:
    return ("", len(gpus) * nodes), *((f"g{gpu}", nodes) for gpu in gpus)


def asks(look: object, user: int = 4_321, **fields: str) -> Decision:
    found = open_book(fleet(look), look)  # type: ignore[arg-type]
    return decide(submit(uid=str(user), **fields), found, BerthPolicy(), Settings(), NOW)


def test_reserved_cores_leave_the_other_cores_and_all_gpus() -> None:
    look = reading([node("n1")], reservations=(reservation("n1", cores=(cores("n1", 20),)),))

    tracker = open_book(fleet(look), look).cluster

    assert (tracker.up[0], tracker.gpus_now[0], tracker.cpus_now[0]) == (True, 0xFF, 12)
    assert tracker.then(END, 60).cpus[0] == 32


def test_cores_that_two_reservations_take_count_once() -> None:
    two = (reservation("n1", cores=(cores("n1", 20),)), reservation("n1", cores=(("n1", 0xFF << 16),), name="s"))
    look = reading([node("n1")], reservations=two)

    assert open_book(fleet(look), look).cluster.cpus_now[0] == 32 - 24


def test_gpus_reserved_by_type_are_closed_and_no_others() -> None:
    one = reservation("n1", cores=(cores("n1", 1),), gpus=types(0, 1, 2, 3))
    look = reading([node("n1")], reservations=(one,))

    assert open_book(fleet(look), look).cluster.gpus_now[0] == 0xF0
    assert asks(look, tres_per_node="gres/gpu:4").fields["gpus"] == "4,5,6,7"


def test_a_job_of_the_reservation_does_not_take_its_cores_twice_and_frees_them_for_it_alone() -> None:
    one = reservation("n1", cores=(cores("n1", 20),), gpus=types(0, 1))
    inside = running(1, "n1", 0b11, 60, cpus=8, reservation="r")
    look = reading([node("n1", used=0b11, cpus_used=8)], [inside], reservations=(one,))

    tracker = open_book(fleet(look), look).cluster

    assert (tracker.gpus_now[0], tracker.cpus_now[0]) == (0xFC, 12)
    assert tracker.then(NOW + 120, 60).free[0] == 0xFC
    assert tracker.then(END, 60).free[0] == 0xFF


def test_a_reservation_to_come_lets_short_jobs_have_what_it_takes() -> None:
    one = reservation("n1", start=int(NOW) + 300, cores=(cores("n1", 20),), gpus=types(0, 1, 2, 3))
    look = reading([node("n1")], reservations=(one,))

    tracker = open_book(fleet(look), look).cluster

    assert (tracker.now(200).free[0], tracker.now(200).cpus[0]) == (0xFF, 32)
    assert (tracker.now(400).free[0], tracker.now(400).cpus[0]) == (0xF0, 12)


def test_the_earlier_of_two_reservations_of_a_node_counts() -> None:
    early, late = (reservation("n1", start=int(NOW) + wait) for wait in (300, 900))
    for both in ((early, late), (late, early)):
        look = reading([node("n1")], reservations=both)
        tracker = open_book(fleet(look), look).cluster
        assert (tracker.now(200).open[0], tracker.now(400).open[0]) == (True, False)


def test_after_a_notice_only_reservations_leave_holes() -> None:
    later = reservation("n2", start=int(NOW) + 300, cores=(cores("n2", 1),), gpus=types(0))
    look = reading([node("n1"), node("n2")], reservations=(later,))
    tracker = Tracker(fleet(look))
    tracker.update(look)
    book = tracker.book()
    book.cluster.hole_until[:] = NOW + 5

    tracker.put_back(book, [0, 1])

    assert book.cluster.now(3_600).free.tolist() == [0xFF, 0xFE]
    assert book.cluster.now(200).free.tolist() == [0xFF, 0xFF]


def test_nobody_is_pinned_to_counted_gpus_and_slurm_gives_the_others() -> None:
    one = reservation("n1", cores=(cores("n1", 1),), gpus=(("", 4),))
    look = reading([node("n1")], reservations=(one,))

    fits, wide = asks(look, tres_per_node="gres/gpu:4"), asks(look, tres_per_node="gres/gpu:5")

    assert (fits.verb, "reservation r" in fits.fields["message"]) == ("later", True)
    assert wide.verb == "later"


def test_nobody_is_left_to_slurm_where_it_might_give_gpus_that_are_reserved_by_type() -> None:
    count = reservation("n1", cores=(cores("n1", 1),), gpus=(("", 4),))
    typed = reservation("n2", cores=(cores("n2", 1),), gpus=types(0, 1), name="s")
    look = reading([node("n1"), node("n2", used=0xFC)], reservations=(count, typed))

    assert asks(look, tres_per_node="gres/gpu:4").verb == "place"
    assert asks(look, tres_per_node="gres/gpu:4", req_nodes="n1").verb == "later"


@pytest.mark.parametrize(
    ("every", "verb"), [((), "pass"), ((reservation("n2", gpus=types(0), cores=(("n2", 1),)),), "place")]
)
def test_no_job_is_spread_where_slurm_might_give_gpus_that_are_reserved_by_type(
    every: tuple[Reservation, ...], verb: str
) -> None:
    nodes, jobs = (
        [node("n1", used=0xF0), node("n2", used=0xF0)],
        [running(1, "n1", 0xF0, 60), running(2, "n2", 0xF0, 60)],
    )
    look = reading(nodes, jobs, reservations=every)

    assert asks(look, tres_per_job="gres/gpu:5", num_tasks="5").verb == verb


@pytest.mark.parametrize("up", [True, False])
def test_an_array_is_given_back_to_slurm_when_its_place_is_down_and_slurm_may_start_it_beside_a_reservation(
    *, up: bool
) -> None:
    one = reservation("n1", cores=(cores("n1", 1),), gpus=(("", 4),))
    look = reading([node("n1"), node("n2", up=up)], [waiting(5, "n2", 0b11, tasks="0-3")], reservations=(one,))

    changes = Plan(BerthPolicy(), Settings()).replan(open_book(fleet(look), look), look.jobs)

    assert [type(change) for change in changes if isinstance(change, Release)] == ([] if up else [Release])


@pytest.mark.parametrize(
    ("mask", "changes"),
    [(0b11, {}), (0xFF, {}), (0b11, {"tasks": "0-3"}), (0b11, {"het": 5}), (0b11, {"reason": "JobHeldUser"})],
)
def test_a_pinned_job_is_given_back_whether_slurm_may_start_it_now_or_not(
    mask: int, changes: dict[str, object]
) -> None:
    one = reservation("n1", cores=(cores("n1", 1),), gpus=(("", 4),))
    look = reading([node("n1")], [waiting(5, "n1", mask, **changes)], reservations=(one,))

    [change] = Plan(BerthPolicy(), Settings()).replan(open_book(fleet(look), look), look.jobs)

    assert isinstance(change, Release)
    assert change.for_now


@pytest.mark.parametrize(("gpus", "minutes", "starts"), [(6, 50, True), (8, 5, True), (7, 50, False), (1, 90, False)])
def test_beside_types_reserved_for_later_jobs_start_before_one_that_waits_for_the_whole_node(
    gpus: int, minutes: int, *, starts: bool
) -> None:
    """Slurm's backfill starts them, too."""
    soon = int(NOW) + 600
    one = reservation("n1", start=soon, end=int(NOW) + 3_600, cores=(cores("n1", 1),), gpus=types(0, 1))
    look = reading([node("n1")], reservations=(one,))
    book = open_book(fleet(look), look)

    whole = decide(submit(tres_per_node="gres/gpu:8", time_limit="30"), book, BerthPolicy(), Settings(), NOW)
    assert whole.made.claim is not None
    book.note(whole.made.claim)
    job = submit(tres_per_node=f"gres/gpu:{gpus}", time_limit=str(minutes))

    assert ("state=placed" in decide(job, book, BerthPolicy(), Settings(), NOW).fields["segment"]) is starts


def in_an_hour(**changes: object) -> Reservation:
    """Returns a reservation to come that counts four GPUs of n1."""
    return reservation(
        "n1", start=int(NOW) + 3_600, end=int(NOW) + 7_200, cores=(cores("n1", 4),), gpus=(("", 4),), **changes
    )


@pytest.mark.parametrize(("minutes", "verb"), [("50", "place"), ("70", "later")])
def test_no_job_is_pinned_where_it_would_pass_a_reservation_to_come_that_counts_gpus(minutes: str, verb: str) -> None:
    look = reading([node("n1"), node("n2")], reservations=(in_an_hour(),))

    assert asks(look, tres_per_node="gres/gpu:4", req_nodes="n1", time_limit=minutes).verb == verb


@pytest.mark.parametrize(("minutes", "given_back"), [(50, False), (70, True)])
def test_a_pinned_job_is_given_back_as_soon_as_it_would_pass_one_to_come(minutes: int, *, given_back: bool) -> None:
    look = reading(
        [node("n1", used=0xFF)],
        [running(4, "n1", 0xFF, 60), waiting(5, "n1", 0b11, limit=minutes * 60)],
        reservations=(in_an_hour(),),
    )

    changes = Plan(BerthPolicy(), Settings()).replan(open_book(fleet(look), look), look.jobs)

    assert [isinstance(change, Release) for change in changes] == ([True] if given_back else [])


@pytest.mark.parametrize(("user", "verb"), [(os.getuid(), "later"), (4_321, "place")])
def test_a_magnetic_reservation_draws_its_users_jobs_alone(user: int, verb: str) -> None:
    one = reservation("n2", end=int(NOW) + 7_200, flags=frozenset({"MAGNETIC"}))
    look = reading([node("n1"), node("n2")], reservations=(one,), version="26.05.1")

    assert asks(look, user, tres_per_node="gres/gpu:4").verb == verb


def test_the_reply_to_one_users_job_is_none_to_anothers_while_a_reservation_draws_some() -> None:
    one = reservation("n2", end=int(NOW) + 7_200, flags=frozenset({"MAGNETIC"}))
    look = reading([node("n1"), node("n2")], reservations=(one,), version="26.05.1")

    for user in (os.getuid(), 4_321):
        assert asks(look, user, tres_per_node="gres/gpu:4").holds_for == "one"


@pytest.mark.parametrize(("count", "verb"), [(1, "later"), (0, "place")])
def test_a_magnetic_reservation_of_cores_draws_jobs_with_any_free_gpus(count: int, verb: str) -> None:
    one = reservation("n2", end=int(NOW) + 7_200, flags=frozenset({"MAGNETIC"}), cores=(cores("n2", count),))
    look = reading([node("n1"), node("n2", used=0xF)], reservations=(one,), version="26.05.1")

    assert asks(look, os.getuid(), tres_per_node="gres/gpu:4", num_tasks="1").verb == verb


@pytest.mark.parametrize(("version", "verb"), [("24.11.5", "later"), ("26.05.1", "place")])
def test_only_old_releases_draw_a_job_that_would_outlast_the_reservation(version: str, verb: str) -> None:
    one = reservation("n2", flags=frozenset({"MAGNETIC"}))
    look = reading([node("n1"), node("n2")], reservations=(one,), version=version)

    assert asks(look, os.getuid(), tres_per_node="gres/gpu:4").verb == verb


def test_a_full_magnetic_reservation_draws_nobody() -> None:
    one = reservation("n2", flags=frozenset({"MAGNETIC"}))
    look = reading([node("n1"), node("n2", used=0x3F)], reservations=(one,))

    assert asks(look, os.getuid(), tres_per_node="gres/gpu:4").fields["nodes"] == "n1"


@pytest.mark.parametrize(("user", "change"), [(os.getuid(), Release), (4_321, Move)])
def test_a_job_that_a_magnetic_reservation_may_draw_is_given_back_where_it_does_not_start(
    user: int, change: type[Change]
) -> None:
    """Slurm 24.11 starts it nowhere by a type that the reservation has, while another job waits in it."""
    one = reservation("n3", end=int(NOW) + 7_200, flags=frozenset({"MAGNETIC"}), gpus=(("", 1),))
    plan, nodes = Plan(BerthPolicy(), Settings()), [node("n1"), node("n2"), node("n3")]
    for at, expected in ((NOW, []), (NOW + STUCK_AFTER + 1, [change])):
        look = reading(nodes, [waiting(5, "n1", 0xFF, user=user)], reservations=(one,), at=at)
        changes = plan.replan(open_book(fleet(look), look), look.jobs)
        assert [type(made) for made in changes] == expected


@pytest.mark.parametrize(("of_other", "gpus", "verb"), [(False, 2, "later"), (False, 3, "place"), (True, 2, "place")])
def test_a_magnetic_reservation_by_type_draws_what_fits_unless_another_reserves_types(
    *, of_other: bool, gpus: int, verb: str
) -> None:
    magnetic = reservation(
        "n2", end=int(NOW) + 7_200, flags=frozenset({"MAGNETIC"}), cores=(cores("n2", 4),), gpus=types(0, 1)
    )
    other = reservation("n1", users=("root",), cores=(cores("n1", 1),), gpus=types(0), name="s")
    every = (magnetic, other) if of_other else (magnetic,)
    look = reading([node("n1"), node("n2")], reservations=every, version="26.05.1")

    assert asks(look, os.getuid(), tres_per_node=f"gres/gpu:{gpus}").verb == verb
    assert asks(look, tres_per_node=f"gres/gpu:{gpus}").verb == "place"


@pytest.mark.parametrize(("named", "verb"), [({}, "later"), ({"account": "a"}, "later"), ({"account": "b"}, "place")])
def test_a_magnetic_reservation_of_an_account_may_draw_a_job_that_names_none(named: dict[str, str], verb: str) -> None:
    """Slurm gives a job its user's default account after the plugin has seen it."""
    one = reservation("n2", end=int(NOW) + 7_200, flags=frozenset({"MAGNETIC"}), users=(), accounts=("a",))
    look = reading([node("n1"), node("n2")], reservations=(one,), version="26.05.1")

    assert asks(look, os.getuid(), tres_per_node="gres/gpu:4", **named).verb == verb


def test_users_accounts_and_groups_admit() -> None:
    one = reservation("n1")
    uid = os.getuid()
    assert admits(one, uid, "a")
    assert not admits(one, 4_321, "a")
    assert not admits(replace(one, users=(f"-{ME.pw_name}",)), uid, "a")
    assert admits(replace(one, users=(), accounts=("a",)), uid, "a")
    assert not admits(replace(one, accounts=("b",)), uid, "a")
    assert not admits(replace(one, groups=("no such group",)), uid, "a")


@given(
    st.lists(
        st.tuples(st.integers(-300, 900), st.integers(1, 600), st.integers(0, 0xFF), st.integers(0, 2**32 - 1)),
        max_size=4,
    ),
    st.integers(0, 1_200),
    st.integers(1, 900),
)
def test_no_job_gets_what_is_reserved_while_it_may_run(
    drawn: list[tuple[int, int, int, int]], moment: int, limit: int
) -> None:
    every = tuple(
        reservation(
            "n1",
            start=int(NOW) + start,
            end=int(NOW) + start + lasts,
            name=f"r{number}",
            cores=(("n1", taken or 1),),
            gpus=types(*(gpu for gpu in range(8) if mask >> gpu & 1)),
        )
        for number, (start, lasts, mask, taken) in enumerate(drawn)
    )
    look = reading([node("n1")], reservations=every)
    tracker = open_book(fleet(look), look).cluster

    view = tracker.then(NOW + moment, limit) if moment else tracker.now(limit)

    begin = NOW + moment
    overlap = [one for one in every if one.start < begin + limit and one.end > max(begin, NOW)]
    masks = [int(kind[1:]) for one in overlap for kind, _ in one.gpus if kind]
    most = 0
    for instant in {begin, *(float(one.start) for one in overlap if one.start > begin)}:
        there = 0
        for one in overlap:
            there |= dict(one.cores)["n1"] if one.start <= instant < one.end else 0
        most = max(most, there.bit_count())
    assert not view.open[0] or all(not view.free[0] >> gpu & 1 for gpu in masks)
    assert not view.open[0] or view.cpus[0] <= 32 - most
    if not every:
        assert (view.free[0], view.cpus[0]) == (0xFF, 32)


BOTH = (cores("n1", 16), cores("n2", 16))


@pytest.mark.parametrize(
    ("changes", "promised"),
    [
        ({}, {5: END, 6: END + 7_200}),
        ({"cores": BOTH, "gpus": types(0, nodes=2)}, {5: END, 6: END + 7_200}),
        ({"cores": BOTH}, {5: NOW, 6: NOW + 7_200}),
    ],
)
def test_promises_are_those_of_plain_slurm_beside_a_reservation_that_comes(
    changes: dict[str, Any], promised: dict[int, float]
) -> None:
    gang = {"count": 2, "required": ("n1", "n2"), "segment": {"n": "2", "nodes": "n1,n2"}}
    jobs = [waiting(number, "n1", 0xFF, limit=7_200, priority=9 - number, **gang) for number in (5, 6)]
    comes = reservation("n1", "n2", start=int(NOW) + 300, **changes)
    look = reading([node("n1"), node("n2")], jobs, reservations=(comes,))
    plan = Plan(BerthPolicy(), Settings())
    plan.replan(open_book(fleet(look), look), look.jobs)

    assert {entry.job.id: entry.last.promise and entry.last.promise.start for entry in plan.queue} == promised
