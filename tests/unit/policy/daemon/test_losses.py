"""When a job's loss was best, on its way from the program through guard and berthd to the accounting and the report."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.daemon.hear.accounts import Accounts
from policy.daemon.hear.hosts import REMEMBERED, Hosts
from policy.daemon.hear.losses import HeardLosses as Writer
from policy.daemon.hear.losses import LossWord, read_word
from policy.daemon.hear.step_times import StepWord
from policy.formats import segment
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobText
from policy.report.text import text
from prolog_epilog.guard.tell.losses import LossNotice, ToldLosses
from prolog_epilog.guard.tell.notice import Payload
from prolog_epilog.injob import word
from prolog_epilog.injob.job import BETTER, Job
from prolog_epilog.injob.word import WordBeat, read_beats
from tests.unit.policy.report.test_report import DAY, figures, line
from tests.unit.policy_world import NOW, node, reading, running
from topology.calibrate.steps import load

UUID = "GPU-00000000-0000-0000-0000-000000000000"
SEGMENT = {"state": "placed", "id": "00ff", "tier": "guaranteed", "nodes": "n1", "gpus": "0"}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return word.create(tmp_path / "42", [UUID], os.getuid(), os.getgid())[0]


def only(made: Path) -> WordBeat:
    (beat,) = read_beats(made)
    return beat


# In the job.


def test_the_moment_of_the_best_loss_is_told_and_not_the_loss(made: Path) -> None:
    job = Job((made,))
    moments = []
    for value in (2.0, 1.0, 1.5, 1.0 * (1 - BETTER / 2), float("nan")):
        job.loss(value)
        moments.append(only(made).best_at_ns)

    assert moments[0] < moments[1], "a better one"
    assert len(set(moments[1:])) == 1, "worse ones, noise, and what is no number"
    assert only(made).losses == 4
    page = word.beat_path(made).read_bytes()
    assert not any(page[start + 208 : start + 256].strip(b"\0") for start in range(256, 4096, 256))


@pytest.mark.parametrize("value", ["high", None, [1.0, 2.0]])
def test_what_is_no_loss_ends_no_program(made: Path, value: Any) -> None:
    Job((made,)).loss(value)
    Job(()).loss(1.0)

    assert all(beat.losses == 0 for beat in read_beats(made))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_the_best_is_never_far_above_the_least(values: list[float]) -> None:
    job = Job(())
    job.sit = lambda *_: Numbers()  # type: ignore[method-assign, assignment]
    for value in values:
        job.loss(value)

    assert job._best_loss is not None
    assert min(values) <= job._best_loss <= min(values) + 2 * BETTER * abs(job._best_loss)


class Numbers:
    """A place that nobody reads."""

    numbers = dict.fromkeys(range(32), 0)


# In the guard.


def beat(best_s: float, losses: int = 1) -> WordBeat:
    return WordBeat(
        1, 7, False, True, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (), losses=losses, best_at_ns=round(best_s * 1e9)
    )


def test_berthd_is_told_now_and_then_and_at_the_end() -> None:
    told: list[Payload] = []
    losses = ToldLosses(told.append, wall=lambda: 1_000_000.0 + now)
    for second in range(1_500):
        now = float(second)
        # Better for ten minutes, then no more; the second rank's best is older.
        words = {} if second >= 1_400 else {11: {("a", 1): beat(min(now, 700.0), second + 1), ("b", 1): beat(3.0)}}
        losses.turn(now, "n1", words if second else {})

    assert all(isinstance(one, LossNotice) for one in told)
    found = [read_word(one.text.encode()) for one in told]
    assert found == [LossWord("n1", 11, 1_000_601, 603), LossWord("n1", 11, 1_000_700, 1_203)]


def test_a_job_that_ends_early_is_told_of_and_one_without_losses_is_not() -> None:
    told: list[Payload] = []
    losses = ToldLosses(told.append, wall=lambda: 5_000.0)
    losses.turn(100.0, "n1", {11: {("a", 1): beat(99.0)}, 12: {("b", 1): beat(0.0, 0)}})
    assert not told
    losses.turn(100.1, "n1", {})

    assert [one.text for one in told] == ["berth/1 loss node=n1 job=11 best=4999 told=1"]


# In berthd.


@dataclass
class Slurm:
    """One job, and what is written of it."""

    state: str = "RUNNING"
    values: dict[str, str] = field(default_factory=lambda: dict(SEGMENT))
    accounting: list[str] = field(default_factory=list)

    def job(self, job_id: int) -> JobText:
        return JobText(job_id, self.state, 1_000, segment.put("site note", self.values), "", "n1", "gres/gpu:g0:1", "")

    def annotate(self, _job_id: int, plan: JobPlan) -> None:
        self.values = dict(plan.texts)

    def config(self) -> dict[str, str]:
        return {"AccountingStorageType": "accounting_storage/slurmdbd", "ClusterName": "c1"}

    def start(self, words: list[str]) -> Any:
        self.accounting.append(words[-1].partition("=")[2])
        return self

    def poll(self) -> int:
        return 0

    returncode = 0


def test_a_running_job_carries_the_moment_and_one_that_is_over_has_it_in_the_accounting() -> None:
    slurm = Slurm()
    accounts = Accounts(slurm.start)
    writer = Writer(slurm, accounts)  # type: ignore[arg-type]
    writer.hear(LossWord("n1", 5, 900, 1), NOW)
    writer.hear(LossWord("n2", 5, 800, 1), NOW)
    assert writer.write_one(NOW) == 5
    assert slurm.values == {**SEGMENT, "best_at": "900"}

    slurm.state = "COMPLETING"
    writer.hear(LossWord("n1", 5, 950, 2), NOW)
    assert writer.write_one(NOW) == 5
    assert writer.write_one(NOW) is None, "it is looked at again later"
    slurm.state = "COMPLETED"
    assert writer.write_one(NOW + 2) == 5
    assert writer.write_one(NOW + 2) is None
    accounts.tend(NOW + 60)
    assert slurm.accounting == [segment.put("site note", {**SEGMENT, "best_at": "950"})]


@pytest.mark.parametrize("first", ["failure", "loss"])
@pytest.mark.parametrize("pause", [0.0, 60.0])
def test_what_a_job_failed_of_and_its_best_loss_are_both_kept(first: str, pause: float) -> None:
    slurm, at = Slurm("FAILED"), NOW
    accounts = Accounts(slurm.start)
    writer = Writer(slurm, accounts)  # type: ignore[arg-type]
    for what in (first, "loss" if first == "failure" else "failure"):
        if what == "loss":
            writer.hear(LossWord("n1", 5, 900, 1), at)
            writer.write_one(at)
        else:
            accounts.note(5, segment.put("site note", {**SEGMENT, "fail": "core_dump"}), slurm.config(), at)
        at += pause
        accounts.tend(at)
    accounts.tend(at + 60)

    assert segment.fields(slurm.accounting[-1]) == {**SEGMENT, "fail": "core_dump", "best_at": "900"}
    assert len(slurm.accounting) == (1 if pause == 0.0 else 2)


@pytest.mark.parametrize("payload", [b"berth/1 loss node=n1 job=5 best=0 told=1", b"berth/1 loss node=n1 job=5 best=7"])
def test_what_is_no_notice_is_nobodys(payload: bytes) -> None:
    assert read_word(payload) is None


def test_what_a_guard_tells_of_a_job_after_its_end_counts(tmp_path: Path) -> None:
    """Guards see a job's end by its Epilog; Slurm's readings show the job no more when they have told of all GPUs."""
    now = time.time()
    hosts = Hosts(Slurm(), tmp_path / "steps", Accounts())  # type: ignore[arg-type]
    host = running(5, "n1", 1, 3_000, segment=dict(SEGMENT))
    hosts.look(reading([node("n1")], [host, running(6, "n1", 2, 3_000)], at=now - 400))
    for gpu in (0, 1):
        hosts.look(reading([node("n1")], at=now - 390 + gpu))
        for job in (5, 6):
            told = StepWord("n1", gpu, f"GPU-{gpu}", job, "7", 10_000_000, 500, 0, 0, 0)
            hosts.hear(told, lambda _: "compute", now - 380 + gpu)
    hosts.write_due(now, lambda _node, _uuid: "L40S")

    (report,) = load(tmp_path / "steps")
    assert report.job == "5"  # type: ignore[union-attr]
    assert [rank.position for rank in report.ranks] == [0, 1]  # type: ignore[union-attr]
    hosts.look(reading([node("n1")], at=now - 390 + REMEMBERED))
    hosts.hear(StepWord("n1", 0, "GPU-0", 5, "7", 10_000_000, 500, 0, 0, 0), lambda _: "compute", now)
    hosts.write_due(now + 300, lambda _node, _uuid: "L40S")
    assert len(load(tmp_path / "steps")) == 1


# In the report.


def test_gpu_time_after_the_best_loss_is_told_by_end() -> None:
    def told(best: int) -> str:
        return f"[berth/1 state=placed best_at={best}]"

    found = figures(
        line(1, gpus=4, ran=36_000, comment=told(DAY + 27_000)),
        line(2, gpus=1, ran=3_600, comment=told(DAY + 3_600), state="CANCELLED by 1", nodes="n2"),
        line(3, gpus=8, ran=3_600, nodes="n3"),
        # It was put back, and failed before it told anything: the best was its first run's.
        line(4, gpus=1, submit=DAY, start=DAY + 9_000, comment=told(DAY + 60), state="FAILED", nodes="n4"),
    )

    assert found["losses"] == {
        "killed": {"runs": 1, "gpu_hours": 1.0, "after_best_gpu_hours": 0.0},
        "passed": {"runs": 1, "gpu_hours": 40.0, "after_best_gpu_hours": 10.0},
    }
    assert next(one["value"] for one in found["worth"] if one["name"] == "early_stopping") == 10.0
    assert "of the 2 of 4 runs that told when their loss was best" in text(found)


def test_a_report_says_when_nobody_told_a_loss() -> None:
    found = figures(line(1))

    assert "no run told its losses" in text(found)
    assert not any(one["name"] == "early_stopping" for one in found["worth"])
