# SPDX-License-Identifier: Apache-2.0
"""What a pinned job excludes: all nodes but its own, as Slurm reads and writes host lists."""

import random

import pytest

from policy.formats import hostlist, segment
from policy.formats.job_plan import JobPlan, of_text
from policy.formats.slurm_facts import JobText
from policy.formats.slurm_syntax.excluded_nodes import MOST_BYTES, Others, is_ours, mark_of, of_the_user
from policy.placement.berth import BerthPolicy
from policy.request.settings import Settings
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, book, node, reading, submit

CLUSTERS = {
    "one prefix": [f"g{number}" for number in range(1, 1_025)],
    "padded": [f"node{number:03}" for number in range(300)],
    "digits grow": [f"n{number}" for number in range(8, 120)],
    "racks": [f"r{rack}-gpu{number:02}" for rack in range(1, 5) for number in range(1, 17)],
    "gaps and strangers": ["login", "x9", "x10", "x09", "x", "gpu-a", "gpu-b", "g1", "g3", "g2", "g01", "1", "007"],
}


@pytest.mark.parametrize("names", CLUSTERS.values(), ids=list(CLUSTERS))
@pytest.mark.parametrize("seed", range(20))
def test_all_nodes_but_some_are_told_each_once(names: list[str], seed: int) -> None:
    chance = random.Random(seed)
    gone = chance.sample(names, chance.choice([0, 1, 1, 2, 4, len(names) // 2]))

    told = Others(names).but(gone)

    if told:
        assert sorted(hostlist.expand(told)) == sorted(set(names) - set(gone))
    else:
        assert len(hostlist.fold(sorted(set(names) - set(gone)))) > MOST_BYTES / 2


def test_the_usual_list_is_short() -> None:
    others = Others(CLUSTERS["one prefix"])

    assert others.but(["g47"]) == "g[1-46,48-1024]"
    assert others.but(["g1"]) == "g[2-1024]"
    assert others.but(["g1023", "g2"]) == "g[1,3-1022,1024]"
    assert Others(["n1", "n2"]).but(["n2"]) == "n1"
    assert Others(["n08", "n09", "n10"]).but(["n09"]) == "n[08,10]"


def test_of_one_node_there_are_no_others() -> None:
    assert Others(["n1"]).but(["n1"]) == ""


def test_a_list_that_would_be_long_is_not_written() -> None:
    assert Others([f"{chance:x}-host" for chance in range(0, 90_000, 77)]).but(["0-host"]) == ""


def test_a_node_that_is_not_known_takes_nothing_away() -> None:
    assert Others(["n1", "n2", "n3"]).but(["n2", "n02", "m1"]) == "n[1,3]"


def test_what_berth_wrote_is_told_from_what_a_user_wrote() -> None:
    text = Others(["b1", "b2", "a1", "a2", "a3"]).but(["a2"])
    values = {"others": mark_of(text)}

    assert text == "a[1,3],b[1-2]"
    assert is_ours(text, JobPlan(values))
    assert is_ours("b[1-2],a[1,3]", JobPlan(values)), "Slurm may fold it otherwise"
    assert is_ours("a1,a3,b1,b2", JobPlan(values))
    assert of_the_user(text, JobPlan(values)) == ()
    assert of_the_user("a1", JobPlan(values)) == ("a1",)
    assert of_the_user(text, JobPlan({})) == ("a1", "a3", "b1", "b2")
    assert of_the_user(text, None) == ("a1", "a3", "b1", "b2")
    assert of_the_user("", JobPlan(values)) == ()
    assert not is_ours("a[1-", JobPlan(values))


@pytest.mark.slow
def test_the_names_of_a_list_that_stands_as_it_was_written_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [Others(CLUSTERS["one prefix"]).but([f"g{number}"]) for number in range(1, 1_025)]
    monkeypatch.setattr(hostlist, "expand", lambda _: pytest.fail("a thousand names for each of a thousand jobs"))

    assert all(of_the_user(text, JobPlan({"others": mark_of(text)})) == () for text in texts)


def waiting(comment: str = "", excluded: str = "") -> JobText:
    return JobText(7, "PENDING", 1_000, comment, "", "n1", "gres/gpu:g0:1", "", excluded)


def place(node: str, others: str) -> Pin:
    return Pin((node,), (0,), seats=True, plan=JobPlan({"state": "placed", "n": "1", "k": "1"}), others=others)


def test_a_pin_excludes_the_other_nodes_and_the_next_one_others() -> None:
    first = changes.pin(waiting(), place("n1", "n[2-4]"))
    second = changes.pin(waiting(first["admin_comment"], first["exc_nodes"]), place("n2", "n[1,3-4]"))

    assert [one["exc_nodes"] for one in (first, second)] == ["n[2-4]", "n[1,3-4]"]
    assert is_ours("n[1,3-4]", of_text(second["admin_comment"]))
    # Too long a list this time: the old one would keep the job from its new place.
    third = changes.pin(waiting(second["admin_comment"], "n[1,3-4]"), place("n3", ""))
    assert third["exc_nodes"] == ""
    assert "others" not in (segment.fields(third["admin_comment"]) or {})


def test_a_users_own_list_is_never_written() -> None:
    assert "exc_nodes" not in changes.pin(waiting(excluded="n9"), place("n1", "n[2-9]"))
    pinned = changes.pin(waiting(), place("n1", "n[2-4]"))["admin_comment"]

    by_the_user = waiting(pinned, "n2")
    again = changes.pin(by_the_user, place("n3", "n[1-2,4]"))

    assert "exc_nodes" not in again
    assert "others" not in (segment.fields(again["admin_comment"]) or {})
    assert "exc_nodes" not in (changes.release(by_the_user, "stop") or {})


@pytest.mark.parametrize("for_now", [True, False])
def test_who_is_given_back_may_run_anywhere_again(for_now: bool) -> None:
    pinned = changes.pin(waiting(), place("n1", "n[2-4]"))
    job = waiting(pinned["admin_comment"], pinned["exc_nodes"])

    released = changes.release(job, "stop", for_now=for_now)
    assert released is not None
    assert released["exc_nodes"] == ""
    assert "others" not in (segment.fields(released["admin_comment"]) or {})
    parked = changes.park(job, JobPlan(segment.fields(job.admin_comment) or {}), 60)
    assert parked["exc_nodes"] == ""
    assert "others" not in (segment.fields(parked["admin_comment"]) or {})


def test_a_job_without_others_is_released_as_before() -> None:
    pinned = changes.pin(waiting(), place("n1", ""))

    assert "exc_nodes" not in pinned
    assert "exc_nodes" not in (changes.release(waiting(pinned["admin_comment"]), "stop") or {})


def reply(settings: Settings | None = None, **fields: str) -> dict[str, str]:
    names = ["n1", "n2", "n3", "n4"]
    there = book(reading([node(name) for name in names]))
    asked = submit(**{"tres_per_job": "gres/gpu:8", "gpus": "8", **fields})
    return decide(asked, there, BerthPolicy(), settings or Settings(exclude_others=4), NOW).fields


def test_a_submission_is_answered_with_the_other_nodes() -> None:
    answer = reply()
    values = segment.fields(f"[berth/1 {answer['segment']}]") or {}

    assert set(hostlist.expand(answer["exc_nodes"])) == {"n1", "n2", "n3", "n4"} - {answer["nodes"]}
    assert is_ours(answer["exc_nodes"], JobPlan(values))


def test_not_where_the_user_excludes_nodes_or_the_job_is_held_or_the_site_wants_none() -> None:
    for answer in (
        reply(exc_nodes="n4"),
        reply(held="1"),
        reply(Settings(exclude_others=0)),
        reply(Settings(exclude_others=5)),
    ):
        assert "exc_nodes" not in answer
        assert "others" not in (segment.fields(f"[berth/1 {answer['segment']}]") or {})
