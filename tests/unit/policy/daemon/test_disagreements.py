# SPDX-License-Identifier: Apache-2.0
"""Jobs that hold another part of a GPU than Berth gave them: berthd names them, and tells their users of a hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy.daemon.hear.disagreements import Disagreements
from policy.daemon.write.degraded import Degraded
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText
from policy.plan.answer.explain import rows
from policy.slurm import disagreement, fields
from tests.unit.policy.daemon.test_shares_degraded import GUEST, HOST, PACKED, Slurm
from tests.unit.policy_world import NOW, reading
from tests.unit.policy_world import running as job
from tests.unit.share_world import node

WHOLE = {**{key: value for key, value in HOST.items() if key not in {"tier", "way"}}, "seats": "1"}
SKIPPED = frozenset({"plain"})


def running(asked: str, values: dict[str, str] | None, **more: object) -> JobFacts:
    """A job on n1 with this request by node."""
    facts = {
        "gpus": fields.pinned(asked),
        "share": fields.share(asked),
        "guest": fields.guest(asked),
        "plan": None if values is None else JobPlan(values),
    }
    return replace(job(7, "n1", 1, 600), **{"user": 1_000, **facts, **more})  # type: ignore[arg-type]


AGREES = [
    ("gres/shard:g0:30", PACKED),
    ("gres/gpu:g0:1,gres/seat:g0:1", WHOLE),
    ("gres/gpu:g5:1", WHOLE),  # an administrator has moved it: it has what it pays for
    ("gres/gpu:g0:1", {**PACKED, "whole": "1"}),
    ("gres/gpu:1", {key: value for key, value in PACKED.items() if key not in {"nodes", "gpus"}}),
    ("gres/gpu:g0:1", HOST),
    ("gres/seat:g0:1", GUEST),
    ("gres/gpu:2", None),
    ("", None),
]
DISAGREES = [
    ("gres/shard:g0:1", PACKED, "Slurm gives it 1 % of GPU 0, and its place is 30 % of GPU 0"),
    ("xgres/shard:g0:1", PACKED, "1 % of GPU 0"),
    ("gres/shard:g1:30", PACKED, "30 % of GPU 1"),
    ("gres/gpu:g0:1", PACKED, "Slurm gives it GPU 0, and its place is 30 %"),
    ("gres/shard:g0:5", WHOLE, "and its place is GPU 0"),
    ("xgres/seat:g0:1", WHOLE, "a seat on GPU 0"),
    ("gres/seat:g1:1", GUEST, "a seat on GPU 1, and its place is a seat on GPU 0"),
    ("gres/gpu:g0:1", GUEST, "and its place is a seat on GPU 0"),
    ("gres/shard:g0:5", None, "5 % of GPU 0, and its place is GPUs of Slurm's choice"),
    ("gres/seat:g0:1", None, "a seat on GPU 0"),
]


@pytest.mark.parametrize(("asked", "values"), AGREES)
def test_what_berth_writes_agrees(asked: str, values: dict[str, str] | None) -> None:
    assert disagreement.of_running(running(asked, values), SKIPPED, {0}) == ""


@pytest.mark.parametrize(("asked", "values", "says"), DISAGREES)
def test_kinds_and_numbers_have_to_be_the_same(asked: str, values: dict[str, str] | None, says: str) -> None:
    assert says in disagreement.of_running(running(asked, values), SKIPPED, {0})
    text = JobText(7, "PENDING", 1_000, "", "", "n1", asked, "")
    assert says in disagreement.of_text(text, JobPlan(values or {}))


@pytest.mark.parametrize(
    ("asked", "more", "named"),
    [
        ("gres/shard:g0:5", {"user": 0}, False),
        ("gres/shard:g0:5", {"partition": "plain"}, False),
        ("gres/seat:g0:1", {"partition": "plain"}, True),
        ("gres/seat:g0:1", {"user": 0}, False),
    ],
)
def test_administrators_and_skipped_partitions_do_as_they_like(
    asked: str, more: dict[str, object], *, named: bool
) -> None:
    assert bool(disagreement.of_running(running(asked, None, **more), SKIPPED, {0})) is named


def test_each_run_is_counted_and_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = Disagreements(SKIPPED)
    bad, good = running("gres/shard:g0:1", PACKED), replace(running("gres/shard:g0:30", PACKED), id=8)

    for jobs in ([bad, good], [bad, good], [replace(bad, end=5), good]):
        found.look(reading([node("n1")], jobs, at=NOW))

    assert found.counts == {"disagreements": 1}
    [line] = capsys.readouterr().err.splitlines()
    assert "JobId=7 UserId=1000 NodeList=n1 runs against what Berth planned: Slurm gives it 1 % of GPU 0" in line

    found.look(reading([node("n1")], [], at=NOW))
    found.look(reading([node("n1")], [replace(bad, start=9)], at=NOW))
    assert found.counts == {"disagreements": 2}


def held(asked: str, values: dict[str, str] | None, **more: object) -> JobFacts:
    """The same job, put back into the queue by its node."""
    return running(asked, values, state="PENDING", nodes=(), start=None, priority=0, **more)


def test_a_held_job_is_found_though_its_node_never_spoke() -> None:
    found = Disagreements(SKIPPED)
    bad = held("gres/shard:g0:1", PACKED)
    others = [
        replace(bad, id=8, priority=5),
        replace(held("gres/shard:g0:1", {**PACKED, "disagrees": "told before"}), id=10),
        replace(held("gres/shard:g0:30", PACKED), id=9),
    ]

    assert found.look(reading([node("n1")], [bad, *others], at=NOW)) == [(7, "n1")]
    assert found.counts == {}


class Held(Slurm):
    """Its owner changed what it pays for, and its node put it back, held."""

    def job(self, job_id: int) -> JobText:
        return replace(super().job(job_id), tres_per_node="gres/shard:g0:1")


def test_the_user_of_a_held_job_reads_why(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Held(state="PENDING")
    degraded = Degraded(slurm, slurm.outcome)  # type: ignore[arg-type]
    degraded.note(5, "n1", NOW)

    assert degraded.send_elsewhere(NOW) == 1

    assert slurm.done == ["annotate 5"]
    assert "degraded" not in slurm.values
    [told] = [text for name, text in rows(5, "PENDING", JobPlan(slurm.values)) if name == "held"]
    assert told == "Slurm gives it 1 % of GPU 0, and its place is 30 % of GPU 0; cancel it and submit it again"
    assert "was held on n1: Slurm gives it 1 %" in capsys.readouterr().err

    degraded.note(5, "n1", NOW)
    assert (degraded.send_elsewhere(NOW), degraded.tell_held([(5, "n1")])) == (0, 0)
    assert slurm.done == ["annotate 5"]


def test_he_reads_it_too_where_the_nodes_word_was_lost() -> None:
    slurm = Held(state="PENDING")

    assert Degraded(slurm, slurm.outcome).tell_held([(5, "n1")]) == 1  # type: ignore[arg-type]

    assert slurm.values["disagrees"].startswith("Slurm gives it 1 % of GPU 0")


@pytest.mark.parametrize("slurm", [Slurm(state="PENDING"), Held(state="RUNNING"), Held(refuses="busy")])
def test_a_job_that_may_start_after_all_is_left_alone(slurm: Slurm) -> None:
    assert Degraded(slurm, slurm.outcome).tell_held([(5, "n1")]) == 0  # type: ignore[arg-type]

    assert slurm.done == []
