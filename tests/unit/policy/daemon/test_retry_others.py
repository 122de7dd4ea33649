# SPDX-License-Identifier: Apache-2.0
"""Jobs that somebody else than Berth puts back into the queue, and a Slurm that does not answer meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from policy.cli.jobs.why_failed import failure_rows
from policy.daemon.hear.endings import NodeWord
from policy.daemon.write.failures import WORD_WITHIN, Failures
from policy.formats import segment
from policy.formats.errors import NoAnswer
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts
from policy.retry.other_systems import reason_to_leave
from policy.retry.rules import shipped_rules
from policy.site.config import Config, load
from policy.slurm import changes
from policy.slurm.interface import Pin
from policy.slurm.outcomes import outcome
from tests.unit.policy_world import NOW, node

from .test_retry_daemon import NCCL, PLACED, Slurm, ended, job, look


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_what_others_requeue_while_berth_waits_for_the_node_is_not_requeued_again(state: str) -> None:
    """A site's own Epilog or recovery service: a second requeue would end the run that it began."""
    slurm = Slurm({**PLACED, "f.retry": "auto"})
    failures = Failures(slurm, slurm.outcome, others=Config().other_retries)  # type: ignore[arg-type]
    failures.watch(look(job(segment=slurm.values), at=NOW - 1))
    failures.watch(look())
    assert failures.step(look(), NOW) == 5

    slurm.state, slurm.restarts = state, 1
    failures.hear(NCCL, NOW + 3)
    failures.step(look(), NOW + 3)

    assert slurm.done == ["annotate 5"]
    assert (slurm.values["fail"], slurm.values["by_others"]) == ("mpi_runtime_failure", "1")
    assert "again" not in slurm.values
    assert failures.counts.get("retried") == 0


def test_a_job_that_others_requeue_is_theirs_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto", "by_others": "1"})

    ended(slurm, NCCL)

    assert slurm.done == []
    assert "others put it back into the queue" in capsys.readouterr().err


def test_a_failed_job_that_an_epilog_requeues_is_noted_with_its_class() -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"}, "PENDING", restarts=1)
    before = job(segment=slurm.values)
    assert before.start is not None

    failures = ended(slurm, replace(NCCL, start=before.start), before)
    failures.step(look(at=NOW + 4), NOW + 4)

    assert slurm.done == ["annotate 5"]
    assert (slurm.values["fail"], slurm.values["by_others"]) == ("mpi_runtime_failure", "1")


def silent(*_: object) -> None:
    raise NoAnswer("Unable to contact slurm controller (connect failure)")


@pytest.mark.parametrize("question", ["job", "outcome", "config"])
def test_a_slurm_that_does_not_answer_for_a_while_costs_no_retry(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"})
    with monkeypatch.context() as restarts:
        restarts.setattr(slurm, question, silent)
        failures = Failures(slurm, slurm.outcome, others=Config().other_retries)  # type: ignore[arg-type]
        failures.watch(look(job(segment=slurm.values), at=NOW - 1))
        word = replace(NCCL, start=slurm.ended - 900)
        assert not failures.hear(word, NOW)
        failures.watch(look())
        failures.step(look(), NOW)
        assert failures.step(look(), NOW) == 0, "each question may take long"
        assert not failures.hear(word, NOW + 5), "its node has to say that again"
        failures.step(look(), NOW + 5)
    failures._ask = slurm.outcome
    failures.step(look(), NOW + 20)

    assert slurm.done == ["requeue 5", "delay 5"]
    assert (failures.counts["failed"], failures.counts["retried"]) == (1, 1)


def test_a_slurm_that_never_answers_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"})
    monkeypatch.setattr(slurm, "job", silent)
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    failures.watch(look(job(segment=slurm.values), at=NOW - 1))
    failures.watch(look())
    asked = sum(bool(failures.step(look(), NOW + second)) for second in range(700))

    assert asked == 601
    assert failures.step(look(), NOW + 1_000) == 0


def unseen(**values: str) -> Slurm:
    """A run so short that no reading has shown it, which is back in the queue when its node speaks."""
    slurm = Slurm({**PLACED, "f.retry": "auto", **values}, "PENDING", 1, restarts=1)
    failures = Failures(slurm, slurm.outcome, others=Config().other_retries)  # type: ignore[arg-type]
    failures.hear(replace(NCCL, start=int(NOW) - 2), NOW)
    failures.step(look(at=NOW), NOW)
    return slurm


def test_a_run_too_short_to_be_seen_that_others_put_back_is_noted() -> None:
    slurm = unseen()

    assert slurm.done == ["annotate 5"]
    assert (slurm.values["fail"], slurm.values["by_others"]) == ("mpi_runtime_failure", "1")


@pytest.mark.parametrize("by_berth", [{"again": "1"}, {"evicted": "1"}, {"degraded": "1"}, {"moves": "1"}], ids=str)
def test_a_run_that_berth_itself_may_have_put_back_is_not_taken_for_others(by_berth: dict[str, str]) -> None:
    assert unseen(**by_berth).done == []


def put_back(exit_code: int) -> tuple[Slurm, Failures, JobFacts]:
    """A job that is in the queue again, with this status of its last run; its node has not spoken yet."""
    slurm = Slurm({**PLACED, "f.retry": "auto"}, "PENDING", exit_code, restarts=1)
    before = job(segment=slurm.values)
    failures = Failures(slurm, slurm.outcome, others=Config().other_retries)  # type: ignore[arg-type]
    failures.watch(look(before, at=NOW - 1))
    failures.watch(look(at=NOW))
    failures.step(look(at=NOW + 4), NOW + 4)
    return slurm, failures, before


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_the_node_of_a_failed_job_may_speak_after_others_have_put_it_back(state: str) -> None:
    slurm, failures, before = put_back(exit_code=1)
    assert slurm.done == []
    assert before.start is not None
    slurm.state, slurm.values = state, {**slurm.values, "nodes": "n2"}

    failures.hear(replace(NCCL, start=before.start), NOW + 9)
    failures.step(look(at=NOW + 9), NOW + 9)

    assert slurm.done == ["annotate 5"]
    assert (slurm.values["fail"], slurm.values["by_others"]) == ("mpi_runtime_failure", "1")
    assert slurm.values["nodes"] == "n2", "what was written meanwhile stays"


def test_a_failed_job_is_left_to_others_also_if_its_node_never_speaks() -> None:
    slurm, failures, _ = put_back(exit_code=1)

    failures.step(look(at=NOW + WORD_WITHIN), NOW + WORD_WITHIN)

    assert (slurm.values["fail"], slurm.values["by_others"]) == ("no_signature", "1")


def test_a_job_that_is_put_back_while_it_runs_is_nobodys_to_send_on() -> None:
    slurm, _, _ = put_back(exit_code=0)

    assert slurm.values["fail"] == "job_preempted"
    assert "by_others" not in slurm.values


def node_goes(word: NodeWord, gone: NodeFacts) -> Slurm:
    """A job that was put back while its node was in this state; its other node had something to say of its log."""
    slurm = Slurm({**PLACED, "n": "2", "nodes": "n1,n2", "f.retry": "auto"}, "PENDING", restarts=1)
    before = replace(job(segment=slurm.values), nodes=("n1", "n2"))
    assert before.start is not None
    failures = Failures(slurm, slurm.outcome, others=Config().other_retries)  # type: ignore[arg-type]
    failures.watch(look(before, at=NOW - 1))
    failures.watch(look(at=NOW, nodes=[gone, node("n2")]))
    failures.hear(replace(word, start=before.start), NOW)
    failures.step(look(at=NOW + 4, nodes=[gone, node("n2")]), NOW + 4)
    return slurm


@pytest.mark.parametrize("failure", ["mpi_runtime_failure", "job_preempted", "no_signature"])
def test_a_node_that_slurm_lost_is_named_whatever_the_job_said_of_it_elsewhere(failure: str) -> None:
    """Slurm itself puts such a job back: it is nobody else's to try again."""
    slurm = node_goes(replace(NCCL, failure=failure), node("n1", up=False, lost=True))

    assert slurm.values["fail_text"] == "node n1 was lost"
    assert "by_others" not in slurm.values


@pytest.mark.parametrize(
    ("failure", "lost"), [("gpu_ecc_error", True), ("mpi_runtime_failure", False)], ids=["says more", "drained only"]
)
def test_an_epilog_that_takes_the_node_away_and_sends_the_job_on_is_left_to_it(failure: str, lost: bool) -> None:
    slurm = node_goes(replace(NCCL, failure=failure), node("n1", up=False, lost=lost))

    assert (slurm.values["fail"], slurm.values["by_others"]) == (failure, "1")


AJR = '{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 1}}'
"""What a user writes for NVIDIA Mission Control's job recovery."""


@pytest.mark.parametrize("comment", [AJR, "auto_requeue=3", "train run 7; AUTO_REQUEUE=3", "auto_requeue=0"])
def test_a_job_whose_comment_names_another_system_is_left_to_it_from_its_first_failure(
    comment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other system may come later than Berth, and would find a run that it knows nothing of."""
    slurm = Slurm({**PLACED, "f.retry": "auto"}, comment=comment)

    failures = ended(slurm, NCCL)

    assert slurm.done == []
    assert failures.counts == {"failed": 1, "retried": 0, "failed.mpi_runtime_failure": 1}
    assert "its comment leaves that to another system: auto_re" in capsys.readouterr().err


@pytest.mark.parametrize("comment", ["", "no_auto_requeue", "auto requeue", "auto_requeues"])
def test_other_comments_leave_a_job_to_berth(comment: str) -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"}, comment=comment)

    ended(slurm, NCCL)

    assert slurm.done == ["requeue 5", "delay 5"]


def test_a_site_names_the_words_of_its_own_systems() -> None:
    def named_in(comment: str, words: tuple[str, ...]) -> str:
        return reason_to_leave(comment, words, put_back=False).rpartition(" ")[2]

    assert named_in("recover:3 auto_requeue=3", ("recover", "resume-me")) == "recover"
    assert named_in('{"resume-me": 1}', ("recover", "resume-me")) == "resume-me"
    assert named_in("auto_requeue=3", ()) == ""
    assert named_in("a.c", ("a.c",)) == "a.c"
    assert named_in("abc", ("a.c",)) == ""


def test_berth_conf_names_those_words(tmp_path: Path) -> None:
    path = tmp_path / "berth.conf"
    path.write_text('[berthd]\nother_retries = "recover"\n')

    assert load(path).other_retries == ("recover",)
    assert Config().other_retries == ("auto_requeue", "auto_resume_mode")


def test_why_says_who_tries_a_job_again() -> None:
    slurm = Slurm({**PLACED, "f.retry": "auto"}, comment="auto_requeue=3")
    rules = shipped_rules()

    assert dict(failure_rows(slurm.outcome(5), rules, Config().other_retries))["try again"] == (
        "no: its comment leaves that to another system: auto_requeue"
    )
    slurm.comment, slurm.values = "", {**slurm.values, "by_others": "1"}
    assert dict(failure_rows(slurm.outcome(5), rules))["try again"].startswith("no: others put it back")


def test_slurms_record_shows_the_comment() -> None:
    record = {"job_id": 5, "job_state": ["FAILED"], "comment": AJR}

    assert outcome(5, lambda *_: json.dumps({"jobs": [record]}).encode()).comment == AJR


def test_ranks_that_restart_inside_the_job_are_no_failure_of_it() -> None:
    """As with nvidia-resiliency-ext: the job goes on, so there is nothing to look into, whatever its log says."""
    slurm = Slurm({**PLACED, "f.retry": "auto"}, "RUNNING")
    failures = Failures(slurm, slurm.outcome, others=Config().other_retries)  # type: ignore[arg-type]
    for at in range(3):
        failures.watch(look(job(segment=slurm.values), at=NOW + at))
        assert failures.step(look(at=NOW + at), NOW + at) == 0
    slurm.state, slurm.exit_code = "COMPLETED", 0
    failures.watch(look(at=NOW + 9))

    assert failures.step(look(at=NOW + 9), NOW + 9) == 5
    assert failures.step(look(at=NOW + 10), NOW + 10) == 0
    assert slurm.done == []
    assert failures.counts == {}


def test_foreign_text_stays_as_it_is() -> None:
    foreign = '{"recovery": {"policy": "requeue", "left": 3}}'
    text = JobText(5, "PENDING", 1_000, segment.put(foreign, PLACED), "theirs", "", "gres/gpu:g0:1", "")

    for written in (
        changes.annotate(text, JobPlan({**PLACED, "fail": "x"})),
        changes.pin(text, Pin(("n2",), (0,), seats=False, plan=JobPlan(PLACED))),
        changes.release(text, "why") or {},
    ):
        assert "comment" not in written, "some systems are told by it what to do with a job"
        assert written["admin_comment"].startswith(foreign)
        assert segment.remove(written["admin_comment"]) == foreign
        assert segment.remove(written.get("extra", "theirs")) == "theirs"
