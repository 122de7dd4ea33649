"""Jobs that somebody else than Berth puts back into the queue: Berth notes it and steps back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy.daemon.hear.endings import NodeWord
from policy.daemon.write.failures import WORD_WITHIN, Failures
from policy.formats import segment
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.unit.policy_world import NOW, node

from .test_retry_daemon import NCCL, PLACED, Slurm, ended, job, look


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_what_others_requeue_while_berth_waits_for_the_node_is_not_requeued_again(state: str) -> None:
    """A site's own Epilog or recovery service: a second requeue would end the run that it began."""
    slurm = Slurm({**PLACED, "f.retry": "auto"})
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    failures.watch(look(job(segment=slurm.values), at=NOW - 1))
    failures.watch(look())
    assert failures.step(look(), NOW) == 5

    slurm.state, slurm.restarts = state, 1
    failures.hear(NCCL, NOW + 3)
    failures.step(look(), NOW + 3)

    assert slurm.done == ["annotate 5"]
    assert (slurm.values["fail"], slurm.values["by_others"]) == ("mpi_runtime_failure", "1")
    assert "again" not in slurm.values
    assert failures.told.get("retried") == "0"


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


def put_back(exit_code: int) -> tuple[Slurm, Failures, JobFacts]:
    """A job that is in the queue again, with this status of its last run; its node has not spoken yet."""
    slurm = Slurm({**PLACED, "f.retry": "auto"}, "PENDING", exit_code, restarts=1)
    before = job(segment=slurm.values)
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
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
    failures = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
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


def test_foreign_text_stays_as_it_is() -> None:
    foreign = '{"recovery": {"policy": "requeue", "left": 3}}'
    text = JobText(5, "PENDING", 1_000, segment.put(foreign, PLACED), "theirs", "", "gres/gpu:1", "")

    for written in (
        changes.annotate(text, {**PLACED, "fail": "x"}),
        changes.pin(text, Pin(("n2",), (0,), seats=False, values=PLACED)),
        changes.release(text, "why") or {},
    ):
        assert "comment" not in written, "some systems are told by it what to do with a job"
        assert written["admin_comment"].startswith(foreign)
        assert segment.remove(written["admin_comment"]) == foreign
        assert segment.remove(written.get("extra", "theirs")) == "theirs"
