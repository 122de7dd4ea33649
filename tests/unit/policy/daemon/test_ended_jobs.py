# SPDX-License-Identifier: Apache-2.0
"""Many jobs that end at once: what berthd keeps of them is bounded, and those that failed are found among them."""

from dataclasses import dataclass, field, replace

import pytest

from policy.daemon.write import failures as module
from policy.daemon.write.failures import MOST_ONE_BY_ONE, MOST_OVER, Failures
from policy.formats.errors import FormatError
from policy.formats.job_plan import JobPlan
from policy.formats.outcome import Outcome
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from tests.unit.policy_world import NOW, node, reading, running

PLACED = {"state": "placed", "id": "00ff", "n": "1", "k": "1", "nodes": "n1", "gpus": "0", "seats": "1"}


@dataclass
class Slurm:
    """Jobs in the states that they ended in."""

    jobs: dict[int, JobFacts]
    asked: list[int] = field(default_factory=list)

    def look(self, *, ended: bool) -> Reading:
        return reading([node("n1")], list(self.jobs.values()) if ended else [])

    def job(self, job_id: int) -> JobText:
        self.asked.append(job_id)
        return JobText(job_id, self.jobs[job_id].state, 1_000, "", "", "n1", "gres/gpu:g0:1", "")

    def outcome(self, job_id: int) -> Outcome:
        state = self.jobs[job_id].state
        return Outcome(
            job_id, job_id, state, JobPlan(dict(PLACED)), "gpu", ("n1",), int(NOW) - 9, int(NOW), 1, 0, 0, True
        )

    def config(self) -> dict[str, str]:
        return {"AccountingStorageType": "(null)", "ClusterName": "c1"}


def ended(numbers: range, failed: set[int]) -> tuple[Slurm, Failures]:
    """All of them ran at the last reading, and now none does."""
    ran = [running(number, "n1", 1, 3_000, segment=dict(PLACED)) for number in numbers]
    slurm = Slurm({job.id: replace(job, state="FAILED" if job.id in failed else "COMPLETED") for job in ran})
    found = Failures(slurm, slurm.outcome)  # type: ignore[arg-type]
    found.watch(reading([node("n1")], ran))
    found.watch(reading([node("n1")], []))
    return slurm, found


def test_of_many_ended_jobs_one_look_tells_who_ended_well() -> None:
    failed = {7, 1_900}
    slurm, found = ended(range(1, 2_001), failed)

    asks = [found.asks_for_ended]
    found.watch(slurm.look(ended=True))

    assert [*asks, found.asks_for_ended] == [True, False]
    assert set(found._over) == failed
    while found.step(reading([node("n1")], [], at=NOW + 70), NOW + 70):
        pass
    assert found.counts["failed"] == 2
    assert set(slurm.asked) == failed
    assert not found._over


def test_few_ended_jobs_are_asked_for_one_by_one() -> None:
    slurm, found = ended(range(1, MOST_ONE_BY_ONE + 1), set())

    assert not found.asks_for_ended
    while found.step(reading([node("n1")], []), NOW):
        pass

    assert len(slurm.asked) == MOST_ONE_BY_ONE
    assert not found._over


def test_a_record_that_cannot_be_read_keeps_no_other_from_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    slurm, found = ended(range(1, 3), {1, 2})

    def ask(job_id: int) -> Outcome:
        if job_id == 1:
            raise FormatError("n[1 is no host list")
        return slurm.outcome(job_id)

    found._ask = ask
    while found.step(reading([node("n1")], [], at=NOW + 70), NOW + 70):
        pass

    assert found.counts["failed"] == 1
    assert not found._over
    assert "JobId=1 has ended, and its end was not looked into: n[1 is no host list" in capsys.readouterr().err


def test_what_waits_to_be_looked_into_is_bounded_even_where_readings_tell_nothing_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OVER", 100)
    slurm, found = ended(range(1, 151), set())
    found.watch(slurm.look(ended=False))

    assert len(found._over) <= 100
    told = [line for line in capsys.readouterr().err.splitlines() if "not looked into" in line]
    assert len(told) == 1
    assert "50 jobs have ended, and their ends were not looked into, JobId=1 the first" in told[0]
    assert MOST_OVER > MOST_ONE_BY_ONE


def test_a_job_that_still_ends_or_was_put_back_stays_to_be_looked_into() -> None:
    slurm, found = ended(range(1, 102), set())
    slurm.jobs[3] = replace(slurm.jobs[3], state="COMPLETING")
    slurm.jobs[4] = replace(slurm.jobs[4], state="PENDING")

    found.watch(slurm.look(ended=True))

    assert set(found._over) == {3, 4}
