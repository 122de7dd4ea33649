# SPDX-License-Identifier: Apache-2.0
"""Replies that stand ready are those that would have been made."""

import random
from dataclasses import replace
from typing import Any

import pytest

from policy.daemon.answer.answerer import Answerer
from policy.daemon.answer.memory import asked_by
from policy.daemon.passes.handover import Snapshot
from policy.formats import wire
from policy.formats.slurm_facts import PartitionFacts
from policy.plan.answer import decide
from policy.site.config import Config
from policy.site.overview import STALE_AFTER
from tests.examples import examples
from tests.unit.policy_world import NOW, book, node, reading, running, submit, waiting


def answerer(*, ready: bool = True, **config: Any) -> Answerer:
    made = Answerer(replace(Config(), **config), "0", 1)
    made._keeps_replies = made._keeps_replies and ready
    return made


def look(at: float, nodes: int = 3, **more: Any) -> Snapshot:
    names = [f"n{number}" for number in range(1, nodes + 1)]
    return Snapshot(
        book(reading([node(name) for name in names], at=at, **more)).cluster, frozenset(), "24.11.5", "", ""
    )


def take(made: Answerer, tracker: Snapshot, now: float) -> None:
    made.take(tracker, now)
    while made.catching_up:
        made.catch_up()


def ask(made: Answerer, now: float = NOW, **fields: str) -> bytes | None:
    return made.answer(wire.encode("submit", submit(**{"tres_per_job": "gres/gpu:4", **fields})), now)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One word for each search for a place."""
    counted: list[str] = []
    search = decide._soonest

    def noted(*arguments: Any, **more: Any) -> Any:
        counted.append("search")
        return search(*arguments, **more)

    monkeypatch.setattr(decide, "_soonest", noted)
    return counted


KINDS: list[dict[str, str]] = [
    {"tres_per_job": "gres/gpu:1"},
    {"tres_per_job": "gres/gpu:2", "partition": "gpu"},
    {"tres_per_job": "gres/gpu:4", "held": "1"},
    {"tres_per_job": "gres/gpu:8", "flag.locality": "nvlink"},
    {"tres_per_node": "gres/gpu:8", "min_nodes": "2", "max_nodes": "2"},
    {"tres_per_job": "gres/gpu:2", "begin": str(int(NOW) + 60)},
    {"tres_per_job": "gres/gpu:1", "flag.gpu-share": "30"},
    {"tres_per_job": "gres/gpu:2", "partition": "gpu,short"},
    {"tres_per_job": "gres/gpu:1", "flag.gpu-tier": "guaranteed"},
    {"tres_per_job": "gres/gpu:64"},
    {"tres_per_job": "gres/gpu:x"},
]
PARTITIONS = (
    PartitionFacts("gpu", default=True, time_limit=36_000),
    PartitionFacts("short", default=False, time_limit=600, tier=2),
)


def world(chance: random.Random, at: float) -> Snapshot:
    """Jobs that run, jobs that wait for GPUs which are free until they start, and a reservation ahead."""
    jobs = []
    for number in range(1, 7):
        job, name, mask = 10 * number, f"n{number}", chance.choice([0b1, 0b1111, 0b11110000, 0b11111111])
        if chance.random() < 0.6:
            jobs.append(running(job, name, mask, chance.randint(60, 3_000)))
            if chance.random() < 0.5:
                jobs.append(waiting(job + 1, name, 0b11111111))
    tracker = look(at, nodes=6, jobs=jobs, partitions=PARTITIONS)
    assert tracker.cluster is not None
    if chance.random() < 0.5:
        tracker.cluster.reserved_from[chance.randrange(6)] = at + chance.randint(100, 2_000)
    return tracker


@pytest.mark.parametrize("seed", range(examples(60)))
def test_who_keeps_replies_ready_answers_as_who_makes_each_when_it_is_asked_for(seed: int) -> None:
    chance = random.Random(seed)
    made = [answerer(), answerer(ready=False)]
    now = NOW
    tracker = world(chance, now)
    for one in made:
        take(one, tracker, now)
    kinds = chance.sample(KINDS, 3)
    for step in range(80):
        now += chance.choice([0.0, 0.001, 0.3])
        if chance.random() < 0.05:
            kinds = chance.sample(KINDS, 3)
        if chance.random() < 0.05:
            tracker = world(chance, now)
            for one in made:
                take(one, tracker, now)
        limit = {} if chance.random() < 0.2 else {"time_limit": str(chance.choice([1, 5, 10, 20, 30, 60, 600]))}
        same = {**chance.choice(kinds), **limit, "nonce": f"{step:016x}", "uid": str(chance.choice([1000, 1001]))}
        if chance.random() < 0.5:
            same["name"] = chance.choice(["train", "a b%", "gr\u00f6\u00dfe"])

        replies = [ask(one, now, **same) for one in made]

        assert replies[0] == replies[1], same
        if chance.random() < 0.8:
            for one in made:
                one.settle()
                if one.expects(now):
                    one.look_ahead(now)


def test_the_reply_to_another_request_of_a_kind_is_made_before_it_comes(searches: list[str]) -> None:
    made = answerer()
    take(made, look(NOW), NOW)
    for number in range(2):
        ask(made, nonce=f"{number:016x}", time_limit=str(10 + number), name=f"job{number}")
        made.look_ahead(NOW)
    assert len(searches) == 3

    third = ask(made, nonce="a" * 16, time_limit="60", name="another")

    assert len(searches) == 3
    assert third is not None
    assert b"nodes=n2\ngpus=0,1,2,3\n" in third


def test_of_a_kind_that_came_once_nobody_expects_another(searches: list[str]) -> None:
    made = answerer()
    take(made, look(NOW), NOW)
    ask(made)
    made.settle()

    assert not made.expects(NOW)
    made.look_ahead(NOW)
    assert len(searches) == 1


def test_a_kind_that_nobody_asked_for_lately_is_not_expected() -> None:
    made = answerer()
    take(made, look(NOW), NOW)
    for _ in range(2):
        ask(made)
        made.settle()
    assert made.expects(NOW + 1)
    assert not made.expects(NOW + 5)


@pytest.mark.parametrize("age", [0.0, STALE_AFTER + 5])
def test_a_reply_whose_second_has_ended_is_made_once_more_before_it_is_asked_for(
    searches: list[str], age: float
) -> None:
    made = answerer()
    take(made, look(NOW - age), NOW)
    for number in range(2):
        ask(made, nonce=f"{number:016x}", time_limit="10")
        made.look_ahead(NOW)
    assert not made.expects(NOW + 0.9)

    assert made.expects(NOW + 1)
    made.look_ahead(NOW + 1)

    assert not made.expects(NOW + 1.9)
    before = len(searches)
    assert ask(made, NOW + 1.2, nonce="a" * 16, time_limit="10")
    assert age or len(searches) == before


def test_a_ready_reply_takes_its_gpus_for_as_long_as_the_job_may_run() -> None:
    made = answerer()
    take(made, look(NOW, nodes=1), NOW)
    for limit in ("100", "100", "20"):
        ask(made, tres_per_job="gres/gpu:2", time_limit=limit)
        made.settle()
        made.look_ahead(NOW)
    reply = ask(made, tres_per_job="gres/gpu:4", time_limit="10")

    assert reply is not None
    assert f"start={int(NOW) + 20 * 60}".encode() in reply


@pytest.mark.parametrize("minutes", ["1", "9", "10", "11", "60"])
def test_a_job_that_would_run_into_a_reservation_is_not_given_the_ready_place(minutes: str) -> None:
    replies = []
    for ready in (True, False):
        made = answerer(ready=ready)
        tracker = look(NOW, nodes=2)
        assert tracker.cluster is not None
        tracker.cluster.reserved_from[0] = NOW + 600
        take(made, tracker, NOW)
        for _ in range(2):
            ask(made, held="1", time_limit="5")
            made.settle()
        replies.append(ask(made, held="1", time_limit=minutes))

    assert replies[0] == replies[1]


def test_a_picture_that_grows_too_old_ends_the_ready_replies() -> None:
    made = answerer()
    take(made, look(NOW - STALE_AFTER + 0.5), NOW)
    for _ in range(2):
        reply = ask(made, NOW, held="1")
        assert reply is not None
        assert reply.startswith(b"berth/1 place")
        made.settle()

    late = ask(made, NOW + 0.6, held="1")

    assert late is not None
    assert late.startswith(b"berth/1 later")


@pytest.mark.parametrize(
    "line",
    [
        b"nonce=0123",
        b"nonce=0123456789abcdeF",
        b"nonce=0123456789abcdef\nnonce=0123456789abcdef",
        b"nonce=0123456789abcdef\ntime_limit=060",
        b"nonce=0123456789abcdef\ntime_limit=x",
        b"nonce=0123456789abcdef\nname=a%zz",
        b"nonce=0123456789abcdef\nname=a b",
        b"nonce=0123456789abcdef\nuid=1\nuid=2",
    ],
)
def test_what_is_no_request_is_none_of_a_known_kind_either(line: bytes) -> None:
    made = answerer()
    take(made, look(NOW), NOW)
    for _ in range(2):
        assert made.answer(
            b"berth/1 submit\nnonce=0123456789abcdef\nuid=1\ntime_limit=60\ntres_per_job=gres/gpu:1\n", NOW
        )
        made.settle()
    datagram = b"berth/1 submit\n" + line + b"\nuid=1\ntime_limit=60\ntres_per_job=gres/gpu:1\n"

    assert made.answer(datagram, NOW) is None


def test_requests_of_one_kind_differ_in_what_is_one_jobs_alone() -> None:
    def kind(**fields: str) -> object:
        asked = asked_by(wire.encode("submit", submit(**fields)))
        assert asked is not None
        return asked.kind

    assert kind(name="a", time_limit="1") == kind(name="b%", time_limit="2", nonce="f" * 16, uid="7")
    assert kind(name="a") != kind(), "a job without a name is asked for in other words"
    assert kind(qos="a") != kind(qos="b")
    assert kind(extra_bytes="1") != kind(extra_bytes="900")
