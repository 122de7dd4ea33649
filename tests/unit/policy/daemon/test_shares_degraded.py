# SPDX-License-Identifier: Apache-2.0
"""A job whose share its node could not set up is sent elsewhere: when, how often, and who is not."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from policy.daemon.hear.notices import Notice
from policy.daemon.passes.planner import Planner
from policy.daemon.write.degraded import AVOID_FOR, MOST, PATIENCE, Degraded
from policy.formats import segment
from policy.formats.errors import ConfigError, NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.outcome import Outcome
from policy.formats.slurm_facts import JobText, Reading
from policy.plan.answer.explain import rows
from policy.plan.jobs.waiting_jobs import nodes_avoided
from policy.plan.ledger.changes import BACK_AFTER
from policy.request.settings import Sharing
from policy.site.config import Config, load
from tests.unit.policy_world import NOW, reading
from tests.unit.share_world import node

GUEST = {
    "state": "placed",
    "id": "8",
    "n": "1",
    "k": "1",
    "nodes": "n1",
    "gpus": "0",
    "seats": "0",
    "tier": "opportunistic",
    "way": "time",
}
HOST = {**GUEST, "tier": "guaranteed"}
PACKED = {"state": "placed", "id": "7", "n": "1", "k": "1", "nodes": "n1", "gpus": "0", "share": "30", "way": "mps"}


@dataclass
class Slurm:
    """One job, and what is done to it."""

    state: str = "FAILED"
    values: dict[str, str] = field(default_factory=lambda: dict(PACKED))
    refuses: str = ""
    started: int = int(NOW) - 5
    done: list[str] = field(default_factory=list)
    name: str = "fake"

    def job(self, job_id: int) -> JobText:
        if self.refuses:
            raise SlurmError(self.refuses)
        text = segment.put("", self.values) if self.values else "no segment"
        return JobText(job_id, self.state, 1_000, text, "", "n1", "gres/shard:g0:30", "")

    def outcome(self, job_id: int) -> Outcome:
        if not self.started:
            raise SlurmError("slurmctld does not answer")
        return Outcome(job_id, job_id, self.state, JobPlan(self.values), started=self.started)

    def requeue(self, job_id: int) -> None:
        self.done.append(f"requeue {job_id}")
        self.state = "PENDING"

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        self.done.append(f"annotate {job_id}")
        self.values = dict(plan.texts)

    def read(self, *, ended: bool) -> Reading:  # noqa: ARG002 - as a gateway has it
        return reading([node("n1"), node("n2")], [], at=NOW)


def met(slurm: Slurm, at: float = NOW) -> Degraded:
    degraded = Degraded(slurm, slurm.outcome)  # type: ignore[arg-type]
    degraded.note(5, "n1", at)
    return degraded


def test_it_is_requeued_and_keeps_away_from_the_node_for_a_time() -> None:
    slurm = Slurm()

    assert met(slurm).send_elsewhere(NOW) == 2
    assert slurm.done == ["requeue 5", "annotate 5"]
    assert nodes_avoided(JobPlan(slurm.values), NOW) == {"n1": NOW + AVOID_FOR}
    assert slurm.values["degraded_text"] == f"n1 could not set its share up: sent elsewhere, time 1 of {MOST}"
    assert {key: slurm.values[key] for key in PACKED} == PACKED


@pytest.mark.parametrize(("values", "parked"), [(GUEST, str(int(NOW + BACK_AFTER))), (HOST, None)])
def test_guests_and_hosts_are_sent_elsewhere_too(values: dict[str, str], parked: str | None) -> None:
    slurm = Slurm(values=dict(values))

    assert met(slurm).send_elsewhere(NOW) == 2
    assert slurm.done == ["requeue 5", "annotate 5"]
    assert nodes_avoided(JobPlan(slurm.values), NOW) == {"n1": NOW + AVOID_FOR}
    # A guest's begin time is Berth's: it has another seat as soon as there is one.
    assert slurm.values.get("parked") == parked


def test_three_times_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm()
    for time in range(MOST + 1):
        slurm.state = "FAILED"
        met(slurm).send_elsewhere(NOW + time)

    assert slurm.done.count("requeue 5") == MOST
    assert slurm.values["degraded"] == str(MOST)
    assert "sent elsewhere 3 times already" in capsys.readouterr().err
    assert slurm.values["degraded_text"] == (
        "n1 could not set its share up: sent elsewhere, time 3 of 3; if that fails, it is left as it ends"
    )


def test_nodes_that_failed_it_before_are_kept_as_long_as_they_count() -> None:
    slurm = Slurm(values={**PACKED, "degraded": "1", "avoids": f"n8@{int(NOW) + 5},n9@{int(NOW) - 5}"})
    degraded = met(slurm)
    degraded.note(5, "n2", NOW)
    degraded.send_elsewhere(NOW)

    assert set(nodes_avoided(JobPlan(slurm.values), NOW)) == {"n8", "n1", "n2"}


def late(slurm: Slurm, start: int, before: Degraded | None = None) -> Degraded:
    """The node's word comes again, after the job's end."""
    degraded = before or Degraded(slurm, slurm.outcome)  # type: ignore[arg-type]
    degraded.note_again(5, "n1", start, NOW)
    degraded.send_elsewhere(NOW)
    return degraded


def test_where_its_epilogs_notice_was_lost_the_word_that_is_told_again_sends_it_elsewhere() -> None:
    slurm = Slurm()

    late(slurm, slurm.started)

    assert slurm.done == ["requeue 5", "annotate 5"]
    assert set(nodes_avoided(JobPlan(slurm.values), NOW)) == {"n1"}


def test_a_word_told_again_counts_no_run_twice() -> None:
    slurm = Slurm()
    degraded = late(slurm, slurm.started)
    late(slurm, slurm.started, degraded)
    assert slurm.values["degraded"] == "1"

    # It ran elsewhere, and failed there by itself.
    slurm.state, first, slurm.started = "FAILED", slurm.started, slurm.started + 60
    late(slurm, first, degraded)
    late(slurm, 0, degraded)

    assert slurm.done == ["requeue 5", "annotate 5"]


def test_an_epilogs_notice_stands_above_a_late_word_of_an_earlier_run() -> None:
    slurm = Slurm()
    degraded = Degraded(slurm, slurm.outcome)  # type: ignore[arg-type]
    degraded.note_again(5, "n1", slurm.started - 100, NOW)
    degraded.note(5, "n2", NOW)
    degraded.note_again(5, "n1", slurm.started - 100, NOW)

    assert degraded.send_elsewhere(NOW) == 2


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED"])
def test_one_that_finished_or_was_ended_is_never_run_again(state: str) -> None:
    slurm = Slurm(state=state)

    assert met(slurm).send_elsewhere(NOW) == 0
    assert slurm.done == []


@pytest.mark.parametrize("values", [{}, {key: value for key, value in PACKED.items() if key != "share"}])
def test_one_without_a_share_is_left_alone_whatever_the_notice_says(values: dict[str, str]) -> None:
    slurm = Slurm(values=values)

    assert met(slurm).send_elsewhere(NOW) == 0
    assert slurm.done == []


def test_one_that_still_ends_is_waited_for_but_not_for_ever() -> None:
    slurm = Slurm(state="COMPLETING")
    degraded = met(slurm)

    assert degraded.send_elsewhere(NOW + 1) == 0
    slurm.state = "FAILED"
    assert degraded.send_elsewhere(NOW + 2) == 2
    slurm.state = "RUNNING"
    degraded = met(slurm)
    degraded.send_elsewhere(NOW + PATIENCE)
    slurm.state = "FAILED"
    assert degraded.send_elsewhere(NOW + PATIENCE + 1) == 0


def test_one_that_somebody_requeued_already_only_keeps_away() -> None:
    slurm = Slurm(state="PENDING")

    met(slurm).send_elsewhere(NOW)

    assert slurm.done == ["annotate 5"]


@pytest.mark.parametrize(("started", "done"), [(5, []), (-5, ["requeue 5", "annotate 5"])])
def test_a_run_that_somebody_began_since_and_that_failed_is_theirs(started: int, done: list[str]) -> None:
    """Its Epilog spoke of the run before: what this one failed of, it does not say."""
    slurm = Slurm(state="RUNNING")
    degraded = met(slurm)
    degraded.send_elsewhere(NOW)
    slurm.state, slurm.started = "FAILED", int(NOW) + started
    degraded.send_elsewhere(NOW + 9)

    assert slurm.done == done
    degraded.send_elsewhere(NOW + 10)
    assert slurm.done == done


def test_one_whose_record_cannot_be_read_is_asked_for_again() -> None:
    slurm = Slurm(started=0)
    degraded = met(slurm)
    assert degraded.send_elsewhere(NOW) == 0
    slurm.started = int(NOW) - 5

    assert degraded.send_elsewhere(NOW + 1) == 2


def test_one_that_cannot_be_requeued_is_tried_again_for_a_while_and_named_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    degraded = met(Slurm(refuses="job 5 is not known to Slurm"))

    assert [degraded.send_elsewhere(NOW + after) for after in (0, 1, PATIENCE, PATIENCE + 1)] == [0, 0, 0, 0]
    assert capsys.readouterr().err.count("JobId=5") == 1


def test_what_slurm_refuses_once_is_done_later() -> None:
    slurm = Slurm(refuses="Requested operation is presently disabled")
    degraded = met(slurm)

    assert degraded.send_elsewhere(NOW) == 0
    slurm.refuses = ""
    assert degraded.send_elsewhere(NOW + 1) == 2
    assert slurm.done == ["requeue 5", "annotate 5"]
    assert degraded.send_elsewhere(NOW + 2) == 0


def test_one_that_is_back_in_the_queue_but_could_not_be_told_keeps_away_all_the_same() -> None:
    slurm = Slurm()
    annotate, slurm.annotate = slurm.annotate, Mock(side_effect=SlurmError("slurmctld does not answer"))  # type: ignore[method-assign]
    degraded = met(slurm)
    degraded.send_elsewhere(NOW)

    slurm.annotate = annotate  # type: ignore[method-assign]
    degraded.send_elsewhere(NOW + 1)

    assert slurm.done == ["requeue 5", "annotate 5"]
    assert set(nodes_avoided(JobPlan(slurm.values), NOW + 1)) == {"n1"}


def test_while_slurm_does_not_answer_one_job_is_asked_for_in_a_pass() -> None:
    """Each question may take 20 s, and Epilogs wait meanwhile."""
    asked: list[int] = []

    class Silent(Slurm):
        def job(self, job_id: int) -> JobText:
            asked.append(job_id)
            if len(asked) < 3:
                raise NoAnswer("slurmctld did not answer within 20 s")
            return super().job(job_id)

    slurm = Silent()
    degraded = met(slurm)
    degraded.note(6, "n1", NOW)
    degraded.send_elsewhere(NOW)
    degraded.send_elsewhere(NOW + 1)
    assert asked == [5, 5]

    degraded.send_elsewhere(NOW + 2)
    assert slurm.done == ["requeue 5", "annotate 5", "annotate 6"]


def test_a_plan_that_cannot_be_read_keeps_no_other_from_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    """An administrator may write anything into it."""

    class Two(Slurm):
        def job(self, job_id: int) -> JobText:
            broken = replace(self, values={**self.values, "avoids": "n1"} if job_id == 5 else self.values)
            return Slurm.job(broken, job_id)

    slurm = Two()
    degraded = met(slurm)
    degraded.note(6, "n1", NOW)
    for second in range(0, int(PATIENCE) + 60, 60):
        degraded.send_elsewhere(NOW + second)

    assert slurm.done.count("annotate 6") == 1
    assert capsys.readouterr().err.count("avoids=n1 of a job plan cannot be read") == 1


class Channel:
    """Takes pictures."""

    def sign(self) -> None:
        pass

    def send(self, _: Any) -> None:
        pass


def test_the_epilogs_word_reaches_the_job(tmp_path: Path) -> None:
    slurm = Slurm()
    planner = Planner(slurm, Config(topology_dir=tmp_path, pinned_file=tmp_path / "pinned"), Channel())  # type: ignore[arg-type]
    planner._heard.degraded._ask = slurm.outcome
    answers: list[bytes] = []

    planner.one_pass(ended=False)
    planner.take([Notice(5, "n1", answers.append, degraded=True), Notice(6, "n2", answers.append)])
    planner.one_pass(ended=False)

    assert answers == [b"berth/1 done\n"] * 2
    assert slurm.done == ["requeue 5", "annotate 5"]


def test_the_sites_rules_are_read(tmp_path: Path) -> None:
    conf = tmp_path / "berth.conf"
    conf.write_text('[sharing]\nmulti_user = true\nway = "time"\ngpu_mem_reserve = "2G"\n[node]\nanything = 1\n')

    assert load(conf).settings.sharing == Sharing(multi_user=True, way="time", gpu_mem_reserve=2_048)
    for wrong, says in (
        ('way = "msp"', "one of mps, time"),
        ("multi_users = true", "did you mean multi_user"),
        ('gpu_mem_reserve = "lots"', "gpu_mem_reserve: 'lots' is not a size"),
    ):
        conf.write_text(f"[sharing]\n{wrong}\n")
        with pytest.raises(ConfigError, match=says):
            load(conf)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"seats": "0", "gpu_mem": "4096"}, "30 % and 4096 MiB of each GPU, at the same time as other packed jobs"),
        ({"seats": "1", "whole": "1"}, "asks for these GPUs whole, until 30 % of each GPU are free for it"),
        ({"seats": "0", "way": "time"}, "30 % of each GPU, in turn with other packed jobs"),
    ],
)
def test_berth_why_tells_the_share(more: dict[str, str], says: str) -> None:
    assert dict(rows(5, "PENDING", JobPlan({**PACKED, **more})))["sharing"] == says
