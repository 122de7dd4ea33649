"""Jobs that somebody else than Berth puts back into the queue: Berth notes it and steps back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy.daemon.write.failures import Failures
from policy.formats import segment
from policy.formats.slurm_facts import JobText
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.unit.policy_world import NOW

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
