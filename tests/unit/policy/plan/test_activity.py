# SPDX-License-Identifier: Apache-2.0
"""A guest under MPS gets the SMs that its host leaves: the host's last minutes, yesterday and last week decide."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.daemon.hear.guards import Alone, GuardWord
from policy.daemon.known.company import ProfileKeeper
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts
from policy.placement.berth import BerthPolicy
from policy.plan.answer.told import moved
from policy.plan.ledger.changes import Change, Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings, Sharing
from policy.sharing.activity import MOST_HOSTS, Activity
from policy.sharing.complement import Complement
from policy.slurm import changes
from policy.slurm.interface import Pin
from prolog_epilog.job import extra
from tests.unit.guest_world import NOW, fleet, guest, host, node, parked, reading, running

SERVE = (7, "serve")
DAY = 86_400.0


def heard(*minutes: tuple[float, float]) -> Activity:
    activity = Activity()
    for at, part in minutes:
        activity.hear(SERVE, at, part)
    return activity


def test_the_last_minutes_decide_where_nothing_older_is_known() -> None:
    assert heard((NOW - 200, 0.2), (NOW - 100, 0.31)).left(SERVE, NOW) == 50
    assert heard((NOW - 100, 0.31)).left((7, "other"), NOW) is None


@pytest.mark.parametrize("ago", [DAY, 7 * DAY])
def test_the_same_time_yesterday_and_a_week_ago_counts_as_far_ahead_as_the_share_must_last(ago: float) -> None:
    now = (NOW - 60, 0.2)
    assert heard((NOW - ago + 600, 0.75), now).left(SERVE, NOW) == 10
    assert heard((NOW - ago + 3_600, 0.75), now).left(SERVE, NOW) == 70, "an hour ahead is too far"
    assert heard((NOW - 2 * DAY, 0.75), now).left(SERVE, NOW) == 70


def test_a_host_that_was_not_heard_lately_is_not_guessed_at() -> None:
    assert heard((NOW - 400, 0.2)).left(SERVE, NOW) is None


def test_hosts_that_were_heard_of_long_ago_leave_nothing_behind() -> None:
    activity = Activity()
    for number in range(MOST_HOSTS + 50):
        activity.hear((7, f"serve-{number}"), NOW, 0.2)
        activity.left((7, f"serve-{number}"), NOW)

    assert activity.left((7, "serve-0"), NOW) is None
    assert {len(activity._hosts), len(activity._known)} == {MOST_HOSTS}


def test_little_left_is_none_and_much_left_is_most() -> None:
    assert heard((NOW, 0.85)).left(SERVE, NOW) == 0
    assert heard((NOW, 0.0)).left(SERVE, NOW) == 90


@given(st.lists(st.tuples(st.integers(0, 9 * 1_440), st.integers(0, 100)), min_size=1, max_size=40))
def test_a_share_never_reaches_into_what_the_host_did_in_the_last_minutes(said: list[tuple[int, int]]) -> None:
    minutes = sorted(said)
    activity = heard(*((60.0 * minute, percent / 100) for minute, percent in minutes))
    at = 60.0 * minutes[-1][0]
    latest = max(percent for minute, percent in minutes if 60.0 * minute >= at - Complement().recent)
    left = activity.left(SERVE, at)

    assert left is not None
    assert left == 0 or left <= 100 - latest - Complement().margin
    assert activity.all_left(at) == {SERVE: left}


# For live guests


def world(way: str = "mps") -> tuple[list[NodeFacts], list[JobFacts]]:
    serves = replace(host(1, "n1", 0b1, segment={"way": way}), user=7, name="serve")
    wants = parked(10, segment={"mps": "1"} if way == "mps" else {})
    return [node("n1", used=0xFF, seats_used=0xFE)], [serves, running(2, "n1", 0xFE, 9_000), wants]


def planned(spare: dict[tuple[int, str], int], way: str = "mps") -> list[Change]:
    nodes, jobs = world(way)
    look = reading(nodes, jobs)
    tracker = Tracker(fleet(look))
    tracker.spare_sms = spare
    tracker.update(look)
    return Plan(BerthPolicy(), Settings()).replan(tracker.book(), look.jobs)


def test_the_node_holds_a_guest_to_what_its_host_leaves() -> None:
    [move] = planned({SERVE: 40})
    assert isinstance(move, Move)
    values = moved(move, NOW)
    assert "held to 40 % of the multiprocessors, which its host leaves" in values.texts["why"]

    text = JobText(10, "PENDING", 0, "", "", "", "gres/gpu:1", "")
    made = changes.pin(text, Pin(move.berth.names, move.berth.gpus, seats=False, plan=values))
    berth = extra.read(made["extra"], "n1")
    assert berth is not None
    assert (berth.share, berth.tier, berth.way) == (40, "opportunistic", "mps")
    assert made["tres_per_node"] == "gres/seat:g0:1"
    owner = Move(guest(10, "n1", 0, segment=values.texts), move.berth, 0.0, "GPUs of its own")
    assert "sms" not in moved(owner, NOW).texts


def test_in_turn_or_beside_a_host_that_nobody_knows_its_guard_alone_holds_it() -> None:
    for found in (planned({SERVE: 40}, "time"), planned({(7, "other"): 40})):
        [move] = found
        assert isinstance(move, Move)
        assert "sms" not in moved(move, NOW).texts


def test_nobody_comes_where_the_host_leaves_too_little() -> None:
    assert [one for one in planned({SERVE: 0}) if isinstance(one, Move)] == []
    assert [one for one in planned({SERVE: 0}, "time") if isinstance(one, Move)] != []


def test_what_guards_say_of_hosts_alone_is_what_is_remembered(tmp_path: Path) -> None:
    company = ProfileKeeper(Sharing(profiles=str(tmp_path / "profiles")))
    nodes, jobs = world()
    company.look(reading(nodes, jobs), writes=False)
    company.hear(GuardWord("n1", 0, 0, "healthy", "state", 0, Alone(1, 60.0, sms=0.35)), NOW)

    assert company.activity.all_left(NOW + 30) == {SERVE: 50}
    company.close()
