# SPDX-License-Identifier: Apache-2.0
"""slurmctld writes lists of nodes before it looks at licences and GRES: a pin that it then refuses is taken back.

What a seat has changed is taken back too: a guest may be requeued though its user forbids that.
"""

import shutil
from pathlib import Path

import pytest

from policy.formats import segment
from policy.formats.errors import SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import TIER
from policy.formats.slurm_facts import JobText
from policy.slurm import changes
from policy.slurm.by_command.command import CommandGateway
from policy.slurm.by_command.recorded import recorded_gateway
from policy.slurm.interface import Pin
from tests.unit.policy_world import running

DATA = Path(__file__).parents[2] / "data"
PLACE = Pin(("n3",), (0, 5), seats=True, plan=JobPlan({"state": "placed", "why": "50 % [x]"}), others="n[1-2]")


@pytest.mark.parametrize(
    ("said", "puts_back"),
    [
        ("Invalid license specification", True),
        ("Invalid generic resource (gres) specification", True),
        ("Invalid GRES specification (with and without type identification)", True),
        ("Job is no longer pending execution", False),
        ("Unable to contact slurm controller (connect failure)", False),
    ],
)
def test_nodes_are_taken_back_where_slurm_wrote_them_and_refused_the_rest(
    tmp_path: Path, said: str, puts_back: bool
) -> None:
    folder = Path(shutil.copytree(DATA / "slurm-26.05", tmp_path / "recording"))
    shutil.copy(folder / "squeue-json", folder / "scontrol-json")
    reads, updates = recorded_gateway(folder)._bytes, []

    def run(*words: str) -> bytes:
        if words[:2] == ("scontrol", "update"):
            updates.append(words[2:])
            raise SlurmError(f"scontrol update failed: {said}")
        return reads(*words)

    gateway = CommandGateway(run)
    job = next(job for job in gateway.read(ended=False).jobs if job.state == "PENDING" and not job.array)

    with pytest.raises(SlurmError, match="scontrol update failed"):
        gateway.pin(job.id, PLACE)

    back = (f"JobId={job.id}", f"ReqNodeList={','.join(job.required)}", "ExcNodeList=")
    assert updates[1:] == [back] * puts_back


def test_a_change_in_an_inactive_partition_is_written_though_slurm_reports_an_error(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA / "slurm-26.05", tmp_path / "recording"))
    shutil.copy(folder / "squeue-json", folder / "scontrol-json")
    reads, updates = recorded_gateway(folder)._bytes, []

    def run(*words: str) -> bytes:
        if words[:2] == ("scontrol", "update"):
            updates.append(words)
            raise SlurmError("scontrol update failed: Requested partition configuration not available now for job 7")
        return reads(*words)

    gateway = CommandGateway(run)
    job = next(job for job in gateway.read(ended=False).jobs if job.state == "PENDING" and not job.array)

    gateway.pin(job.id, PLACE)
    assert len(updates) == 1


def typed(
    per_node: str = "", per_job: str = "", nodes: str = "n2", extra: str = "[berth/1 nodes=n2 gpus=0,1]"
) -> JobText:
    comment = "[berth/1 state=placed id=00 asked=gpus:2;req_nodes:n%5B1-2%5D n=1 k=2 nodes=n2 gpus=0,1]"
    return JobText(7, "PENDING", 1000, comment, extra, nodes, per_node, per_job)


PINNED = typed(per_job="gres/gpu:g0:1,gres/gpu:g1:1")


class Records:
    """What Slurm shows of a job, look by look, and what is written."""

    def __init__(self, *shown: JobText, refuse: int, words: str = "Invalid generic resource (gres)") -> None:
        self.shown, self.refuse, self.words, self.written = list(shown), refuse, words, list[dict[str, str]]()

    def text(self) -> JobText:
        return self.shown.pop(0)

    def write(self, job: JobText, values: dict[str, str]) -> None:
        assert job
        self.written.append(values)
        if len(self.written) <= self.refuse:
            raise SlurmError(self.words)

    def give_back(self) -> bool:
        return changes.give_back(self.text, self.write, "because", for_now=False)


def test_what_an_administrator_changed_between_look_and_release_stands() -> None:
    slurm = Records(PINNED, typed(per_node="gres/gpu:1"), refuse=1)

    assert slurm.give_back()

    refused, written = slurm.written
    assert refused["tres_per_job"] == "gres/gpu:2"
    assert written.keys() == {"req_nodes", "extra", "admin_comment"}
    assert (written["req_nodes"], written["extra"]) == ("n[1-2]", "")
    assert "state=released" in written["admin_comment"]


def test_who_has_neither_our_nodes_nor_our_extra_any_more_is_left_as_it_is() -> None:
    slurm = Records(PINNED, typed(per_node="gres/gpu:1", nodes="n1", extra=""), refuse=1)

    assert slurm.give_back()
    assert len(slurm.written) == 1


def test_a_release_that_slurm_refuses_by_itself_is_told() -> None:
    slurm = Records(PINNED, PINNED, refuse=2)

    with pytest.raises(SlurmError, match="Invalid generic resource"):
        slurm.give_back()
    assert len(slurm.written) == 1


def test_a_job_that_is_gone_is_not_looked_up_once_more() -> None:
    # `berth release --all` knows by these words that there is nothing to give back.
    with pytest.raises(SlurmError, match="Invalid job id"):
        Records(PINNED, refuse=1, words="Invalid job id specified").give_back()


@pytest.mark.parametrize(
    ("before", "now", "nodes"),
    [
        (PINNED, PINNED, "n2"),
        (PINNED, typed(per_node="gres/gpu:1"), "n[1-2]"),
        (typed(per_job="gres/gpu:2", nodes="n[1-2]"), typed(per_node="gres/gpu:1"), "n[1-2]"),
    ],
)
def test_taken_back_are_the_users_own_nodes_where_the_gpus_are_no_longer_ours(
    before: JobText, now: JobText, nodes: str
) -> None:
    assert changes.taken_back(before, now, {"req_nodes": "n3"}) == {"req_nodes": nodes}


@pytest.mark.parametrize(
    ("state", "required", "found"), [("placed", "n2", [7]), ("placed", "n1", []), ("later", "n2", [])]
)
def test_a_job_on_the_nodes_of_its_place_holds_a_pin_whatever_its_gpus(
    state: str, required: str, found: list[int]
) -> None:
    segment = {"state": state, "nodes": "n2", "gpus": "0,1"}
    job = running(7, "n2", 0, 0.0, state="PENDING", required=(required,), segment=segment)

    assert changes.pinned([job]) == found


GUEST = {"state": "placed", "tier": "opportunistic", "n": "1", "k": "1", "nodes": "n1", "gpus": "3", "upgrade": "0"}


@pytest.mark.parametrize(("was", "wanted"), [("num_tasks:2;no_requeue:1", "0"), ("num_tasks:2", None)])
def test_a_guest_that_has_gpus_of_its_own_is_requeued_as_its_user_said(was: str, wanted: str | None) -> None:
    plan = JobPlan({**GUEST, "was": was})

    def record(state: str, plan: JobPlan) -> JobText:
        return JobText(7, state, 1, segment.put("", plan.texts), "", "n1", "gres/seat:g3:1", "")

    owns = plan | JobPlan({"owns": "1"})
    own_place = Pin(("n2",), (0,), seats=True, plan=plan.without(TIER))
    waits, runs = record("PENDING", plan), record("RUNNING", plan)
    released = changes.release(waits, "test") or {}
    for change in (changes.annotate(runs, owns), changes.pin(waits, own_place), released):
        assert change.get("requeue") == wanted
    another_seat = Pin(("n2",), (0,), seats=False, plan=plan)
    assert changes.pin(waits, another_seat)["requeue"] == "1"
    for other in (changes.annotate(runs, plan), changes.annotate(record("RUNNING", owns), owns)):
        assert "requeue" not in other, "who changes it later has it so"
