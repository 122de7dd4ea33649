# SPDX-License-Identifier: Apache-2.0
"""Jobs that a partition's rule ends for their idle GPUs: who is told when, and who is never ended."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from policy.daemon.hear.gpu_use import HeldGpu
from policy.daemon.write.idle_ends import MOST_AN_HOUR, IdleEnds
from policy.formats import segment
from policy.formats.errors import SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText
from tests.unit.policy_world import NOW, running

LIMIT = 5_400
THIRD = LIMIT / 3
PLAN = {"state": "placed", "id": "00ff", "n": "1", "k": "2", "nodes": "n1", "gpus": "0,1"}


@dataclass
class Slurm:
    """Keeps the plans of jobs 5, 6, ..., and what was done to them."""

    plans: dict[int, dict[str, str]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    refuses: bool = False

    def job(self, job_id: int) -> JobText:
        if self.refuses:
            raise SlurmError("slurmctld does not answer")
        text = segment.put("", self.plans.get(job_id, PLAN))
        return JobText(job_id, "RUNNING", 1_000, text, "", "n1", "gres/gpu:2", "")

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        self.plans[job_id] = dict(plan.texts)
        self.done.append(f"{job_id} told {plan.texts.get('idle_told', '-').partition(',')[0]}")

    def cancel(self, job_id: int) -> None:
        self.done.append(f"{job_id} cancelled")


@dataclass
class Site:
    """A partition with a rule, whose jobs have two idle GPUs each."""

    slurm: Slurm = field(default_factory=Slurm)
    rules: dict[str, int] = field(default_factory=lambda: {"gpu": LIMIT})

    def __post_init__(self) -> None:
        self.ends = IdleEnds(self.slurm, self.rules)  # type: ignore[arg-type]

    def job(self, number: int = 5, **changes: object) -> JobFacts:
        return running(
            number, "n1", 0b11, 9_000, **{"segment": self.slurm.plans.get(number, PLAN), "holds": (0b11,), **changes}
        )

    def after(self, seconds: float, *numbers: int, gpus: int = 2, since: float = 0.0, **changes: object) -> list[str]:
        """What is done so long after the beginning; the GPUs have been idle since a moment."""
        before, at = len(self.slurm.done), NOW + seconds
        jobs = [self.job(number, **changes) for number in numbers or (5,)]
        held = {("n1", str(gpu), one.id): HeldGpu(int(NOW + since), None, 9) for one in jobs for gpu in range(gpus)}
        self.ends.step(held, jobs, at)
        return self.slurm.done[before:]


def test_a_job_is_told_twice_and_then_ended(capsys: pytest.CaptureFixture[str]) -> None:
    site = Site()

    assert site.after(THIRD - 1) == []
    assert site.after(THIRD) == ["5 told 1"]
    assert site.slurm.plans[5]["idle_end"].endswith("if its GPUs run no kernel until then: a rule of partition gpu")
    assert site.after(2 * THIRD - 1) == []
    assert site.after(2 * THIRD) == ["5 told 2"]
    assert site.after(LIMIT - 1) == []
    assert site.after(LIMIT) == ["5 told 3", "5 cancelled"]
    assert site.slurm.plans[5]["idle_end"] == "its GPUs ran no kernel for 90 min: a rule of partition gpu, told twice"
    assert site.ends.counts == {"ended_idle": 1}
    assert capsys.readouterr().err.count("BERTH-666") == 3


def test_work_undoes_what_a_job_was_told() -> None:
    site = Site()
    site.after(THIRD)
    site.after(2 * THIRD)

    assert site.after(LIMIT, since=2 * THIRD + 1) == []
    assert site.after(LIMIT + 1, since=2 * THIRD + 1) == ["5 told 1"]
    assert site.after(LIMIT + 2, gpus=0) == ["5 told -"]
    assert "idle_end" not in site.slurm.plans[5]


def test_a_berthd_that_was_away_ends_nobody_who_was_not_told_in_time() -> None:
    site = Site()
    late = 10 * LIMIT

    assert site.after(late) == ["5 told 1"]
    # It begins anew, and the record says what was told.
    site = Site(site.slurm)
    assert site.after(late + 1, gpus=0) == []
    assert site.after(late + THIRD - 1) == []
    assert site.after(late + THIRD) == ["5 told 2"]
    assert Site(site.slurm).after(late + 2 * THIRD - 1) == []
    assert Site(site.slurm).after(late + 2 * THIRD)[-1] == "5 cancelled"


@pytest.mark.parametrize(
    "changes",
    [{"partition": "other"}, {"state": "COMPLETING"}, {"gpus": 1}, {"het": 5}, {"guest": True}, {"holds": (0b111,)}],
    ids=["partition", "state", "one GPU works", "het", "guest", "a third GPU"],
)
def test_these_are_neither_told_nor_ended(changes: dict[str, object]) -> None:
    assert Site().after(10 * LIMIT, **changes) == []  # type: ignore[arg-type]


def test_without_a_rule_nothing_is_asked() -> None:
    assert Site(rules={}).after(10 * LIMIT) == []


def test_a_refusal_is_tried_again_after_a_minute_and_costs_the_others_nothing() -> None:
    site = Site()
    site.slurm.refuses = True
    assert site.after(THIRD) == []
    site.slurm.refuses = False

    assert site.after(THIRD + 59, 5, 6) == ["6 told 1"]
    assert site.after(THIRD + 60) == ["5 told 1"]


def test_what_was_refused_is_forgotten_with_its_job() -> None:
    site = Site(Slurm(refuses=True))
    assert site.after(THIRD) == []
    site.slurm.refuses = False

    assert site.after(THIRD + 10, 6, since=THIRD) == []
    assert site.after(THIRD + 20) == ["5 told 1"], "it was gone, and is there again"


def test_at_most_ten_jobs_are_ended_in_an_hour() -> None:
    site, many = Site(), tuple(range(5, 5 + MOST_AN_HOUR + 1))
    for idle_s in (THIRD, 2 * THIRD):
        site.after(idle_s, *many)

    assert sum("cancelled" in one for one in site.after(LIMIT, *many)) == MOST_AN_HOUR
    assert site.after(LIMIT + 3_599, many[-1]) == []
    assert site.after(LIMIT + 3_601, many[-1])[-1] == f"{many[-1]} cancelled"
