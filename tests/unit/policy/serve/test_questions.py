# SPDX-License-Identifier: Apache-2.0
"""What users are told, and who is told what."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from policy.formats import segment, wire
from policy.formats.errors import DaemonError, SlurmError
from policy.formats.slurm_facts import JobText
from policy.serve.questions import answers as module
from policy.serve.questions.answers import BURST, EACH_SECOND, QuestionBudget, Questions
from policy.serve.status import BerthdStatus
from policy.site.privacy import SlurmRules

ALICE, BOB, SLURM = 1001, 1002, 64030
PRIVATE = {"PrivateData": "jobs,usage", "SlurmUser": f"slurm({SLURM})"}
PUBLIC = {"PrivateData": "none", "SlurmUser": f"slurm({SLURM})"}
SEGMENT = "[berth/1 state=waiting nodes=n1 why=50%20%25%20free]"


class Slurm:
    """Job 7 is Alice's; there is no other."""

    def __init__(self, config: Mapping[str, str] | None, comment: str = f"billed to 4711{SEGMENT}") -> None:
        self.settings, self.comment = config, comment
        self.asked: list[str] = []

    def job(self, job_id: int) -> JobText:
        self.asked.append(f"job {job_id}")
        if job_id != 7:
            raise SlurmError(f"job {job_id} is not known to Slurm (any more); sacct may still know it")
        return JobText(7, "PENDING", ALICE, self.comment, "", "n1", "gres/gpu:1", "")

    def config(self) -> Mapping[str, str]:
        self.asked.append("config")
        if self.settings is None:
            raise SlurmError("slurmctld is away")
        return self.settings


def no_overview() -> Mapping[str, Any]:
    raise DaemonError("the overview cannot be read; is berthd running?")


def questions(
    slurm: Slurm,
    own_uid: int = SLURM,
    status: Callable[[], Mapping[str, str]] = dict,
    overview: Callable[[], Mapping[str, Any]] = no_overview,
) -> Questions:
    return Questions(slurm.job, SlurmRules(slurm.config, own_uid), BerthdStatus(status), overview)


def asked(slurm: Slurm, uid: int, text: bytes = b"berth/1 why job=7") -> wire.Message | None:
    reply = questions(slurm).answer(uid, text)
    return None if reply is None else wire.decode(reply)


def message(told: wire.Message | None) -> str:
    assert told is not None
    assert told.verb == "refuse"
    return told.fields["message"]


def test_an_owner_is_told_the_decision_and_nothing_that_others_wrote() -> None:
    told = asked(Slurm(PRIVATE), ALICE)

    assert told == wire.Message("why", {"job": "7", "state": "PENDING", "segment": SEGMENT})
    assert segment.fields(SEGMENT) == {"state": "waiting", "nodes": "n1", "why": "50 % free"}


@pytest.mark.parametrize(
    ("config", "uid", "sees"),
    [
        (PRIVATE, BOB, False),
        (PRIVATE, 0, True),
        (PRIVATE, SLURM, True),
        (PUBLIC, BOB, True),
        ({**PUBLIC, "PrivateData": "accounts,usage"}, BOB, True),
        ({**PUBLIC, "PrivateData": "all"}, BOB, False),
        ({}, BOB, False),
        (None, BOB, False),
        (None, ALICE, True),
    ],
)
def test_others_jobs_are_shown_to_whom_slurm_would_show_them(
    config: Mapping[str, str] | None, uid: int, sees: bool
) -> None:
    told = questions(Slurm(config), 0).answer(uid, b"berth/1 why job=7")

    assert told is not None
    assert wire.decode(told).verb == ("why" if sees else "refuse")


def test_a_hidden_job_and_none_at_all_look_the_same() -> None:
    hidden, none = (message(asked(Slurm(PRIVATE), BOB, b"berth/1 why job=%d" % job)) for job in (7, 8))

    assert hidden.replace("7", "8") == none


def test_a_job_without_a_decision_is_told_as_such() -> None:
    told = asked(Slurm(PUBLIC, comment="billed to 4711"), ALICE)

    assert told == wire.Message("why", {"job": "7", "state": "PENDING"})


def test_a_segment_of_another_release_is_a_sentence() -> None:
    assert "install the newer release" in message(asked(Slurm(PUBLIC, comment="[berth/2 a=b]"), ALICE))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"berth/1 why job=07",
        b"berth/1 why job=7 ",
        b"berth/1 why job=7\nberth/1 why job=8",
        b"berth/1 why job=-7",
        b"berth/1 release job=7",
        b"berth/1 epilog job=7 node=n1",
        b"berth/2 status",
        b"\xff" * 900,
    ],
)
def test_what_is_no_question_gets_no_answer_and_costs_slurm_nothing(text: bytes) -> None:
    slurm = Slurm(PUBLIC)

    assert asked(slurm, ALICE, text) is None
    assert slurm.asked == []


def test_the_status_is_told_to_all_and_asked_for_once_a_second() -> None:
    times: list[int] = []

    def status() -> Mapping[str, str]:
        times.append(1)
        return {"version": "0.1.0", "waiting": "5"}

    answers = questions(Slurm(PRIVATE), status=status)
    replies = [answers.answer(uid, b"berth/1 status") for uid in (ALICE, BOB, ALICE)]

    assert {wire.decode(reply or b"").fields["waiting"] for reply in replies} == {"5"}
    assert len(times) == 1


def test_a_berthd_that_hangs_is_said_to() -> None:
    def status() -> Mapping[str, str]:
        raise DaemonError("berthd does not answer on /run/berth/berthd.sock; it hangs or is stopped, see its log")

    reply = questions(Slurm(PUBLIC), status=status).answer(BOB, b"berth/1 status")

    assert "it hangs or is stopped" in message(wire.decode(reply or b""))


def test_one_user_who_asks_without_end_keeps_nobody_else_from_asking() -> None:
    slurm = Slurm(PUBLIC)
    answers = questions(slurm)

    verbs = [wire.decode(answers.answer(BOB, b"berth/1 why job=7") or b"").verb for _ in range(200)]

    assert verbs[: int(BURST)] == ["why"] * int(BURST)
    assert verbs.count("refuse") > 100
    assert slurm.asked.count("job 7") == verbs.count("why")
    assert wire.decode(answers.answer(ALICE, b"berth/1 why job=7") or b"").verb == "why"


def test_turns_come_back_with_time_and_are_forgotten_for_who_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_USERS", 100)
    turns = QuestionBudget()
    assert [turns.take(1, 0.0) for _ in range(int(BURST) + 1)] == [True] * int(BURST) + [False]
    assert [turns.take(1, 1.0) for _ in range(int(EACH_SECOND) + 1)] == [True] * int(EACH_SECOND) + [False]

    for user in range(2, 1_000):
        assert turns.take(user, 2.0 + user)
    assert len(turns._left) <= 101
    assert turns.take(1, 3_000.0)


OVERVIEW = {
    "schema_version": 1,
    "at": 1.0,
    "nodes": [{"name": "n1", "gpus": [{"state": "owned", "owner": 7}]}],
    "jobs": [{"id": 7, "user_id": ALICE}],
    "idle": [{"node": "n1", "gpu": "0", "job": 7, "no_kernel": 1, "no_process": None, "memory_mib": 5}],
    "left_out": 0,
}


def told_of(config: Mapping[str, str], uid: int, question: bytes) -> tuple[bytes, bytes]:
    reply = questions(Slurm(config), overview=lambda: OVERVIEW).answer(uid, question)
    assert reply is not None
    first, _, rest = reply.partition(b"\n")
    return first, rest


@pytest.mark.parametrize(
    ("private", "uid", "owner", "jobs"),
    [("none", BOB, 7, 1), ("jobs", BOB, None, 0), ("jobs", ALICE, 7, 1), ("all", SLURM, 7, 1), ("jobs", 0, 7, 1)],
)
def test_fleet_and_queue_obey_private_data(private: str, uid: int, owner: int | None, jobs: int) -> None:
    config = {"PrivateData": private, "SlurmUser": f"slurm({SLURM})"}

    verb, fleet = told_of(config, uid, b"berth/1 fleet")
    assert verb == b"berth/1 fleet"
    assert json.loads(fleet)["nodes"][0]["gpus"] == [{"state": "owned", "owner": owner}]
    verb, queue = told_of(config, uid, b"berth/1 queue")
    assert verb == b"berth/1 queue"
    assert len(json.loads(queue)["jobs"]) == jobs


def test_hidden_nodes_are_shown_to_nobody_but_slurms_own() -> None:
    config = {"PrivateData": "nodes", "SlurmUser": f"slurm({SLURM})"}

    assert told_of(config, ALICE, b"berth/1 fleet")[0] == b"berth/1 refuse"
    assert told_of(config, SLURM, b"berth/1 fleet")[0] == b"berth/1 fleet"
    assert told_of(config, ALICE, b"berth/1 queue")[0] == b"berth/1 queue"


def test_fleet_and_queue_cost_more_of_a_users_questions() -> None:
    budget = QuestionBudget()

    assert sum(budget.take(ALICE, 100.0, module.DEAR) for _ in range(int(BURST))) == BURST / module.DEAR


def test_an_answer_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 50)

    assert told_of(PUBLIC, ALICE, b"berth/1 fleet")[0] == b"berth/1 refuse"
