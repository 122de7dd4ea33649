# SPDX-License-Identifier: Apache-2.0
"""When berthd lets the first waiting job close its partition, and when it opens it."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from policy.daemon.hear.notices import Notice
from policy.daemon.passes.planner import Planner
from policy.daemon.write import closers as module
from policy.formats.errors import SlurmError
from policy.formats.job_plan import JobPlan, of_text
from policy.formats.plan_fields import RELEASED, STATE
from policy.formats.slurm_facts import JobFacts, JobText
from policy.formats.slurm_syntax import excluded_nodes, pin_text
from policy.formats.slurm_syntax.excluded_nodes import mark_of
from policy.request.settings import Settings
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.unit.policy_world import node, running, waiting

from .test_planner_writes import Slurm, planner_of, write_all, young

NODES = [node("n1", used=0xFF), node("n2", used=0xFF)]
HOLDERS = [running(1, "n1", 0xFF, 3_000), running(2, "n2", 0xFF, 6_000)]
LEFT = "ReqNodeNotAvail, May be reserved for other job"


class Closing(Slurm):
    """The same; shows what was written at the next reading."""

    def __init__(self, jobs: list[JobFacts]) -> None:
        super().__init__(NODES, jobs)
        self.closes: list[tuple[int | str, bool]] = []
        self.typed: dict[int, int] = {}
        """GPUs that a job asks for by now."""

    def job(self, job_id: int) -> JobText:
        one = next(job for job in self.jobs if job.id == job_id)
        tres = pin_text.tres_text(("gpu", "seat"), gpus_of(self.typed.get(job_id, one.gpus or 0)), 1)
        return JobText(job_id, "PENDING", 1000, one.known.into(""), "", "", tres, "")

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool) -> None:
        changed = changes.pin(self.job(int(job_id)), pin)
        super().pin(job_id, pin, hurry=hurry)
        self.closes.append((job_id, pin.closes))
        known = next(job for job in self.jobs if job.id == job_id)
        plan = of_text(changed["admin_comment"])
        closes = excluded_nodes.closes(changed["req_nodes"], changed.get("exc_nodes", ""), plan)
        gpus = sum(1 << gpu for gpu in pin.gpus)
        now = replace(known, plan=plan, required=pin.nodes, gpus=gpus, closes=closes, reason="Priority")
        self.jobs = [now if job is known else job for job in self.jobs]


def gpus_of(mask: int) -> tuple[int, ...]:
    return tuple(gpu for gpu in range(8) if mask >> gpu & 1)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a quiet time, but for those that want one."""
    monkeypatch.setattr(module, "QUIET", 0.0)


def look(slurm: Closing, tmp_path: Path, channel: socket.socket) -> Planner:
    planner = planner_of(slurm, tmp_path, channel)
    for _ in range(3):
        planner.one_pass(ended=False)
        write_all(planner)
    return planner


def test_the_first_job_closes_and_nothing_more_is_written(tmp_path: Path, channel: socket.socket) -> None:
    jobs = [young(5, "n1", 0xFF, 9), young(6, "n2", 1, 8), replace(young(7, "n2", 2, 7), reason=LEFT)]
    slurm = Closing([*HOLDERS, *jobs])
    planner = look(slurm, tmp_path, channel)
    assert slurm.closes == [(5, True), (7, False)]
    assert slurm.others[0] == "n2"
    planner.one_pass(ended=False)
    assert write_all(planner) == 0


def test_a_reason_that_stays_is_written_away_a_few_times(tmp_path: Path, channel: socket.socket) -> None:
    slurm = Closing([*HOLDERS, young(5, "n1", 0xFF, 9), young(6, "n2", 1, 8)])
    planner = look(slurm, tmp_path, channel)
    for _ in range(module.TRIES + 2):
        slurm.jobs = [replace(job, reason=LEFT) if job.id == 6 else job for job in slurm.jobs]
        planner.one_pass(ended=False)
        write_all(planner)
    assert slurm.closes == [(5, True), *[(6, False)] * module.TRIES]


def test_a_partition_is_opened_before_the_epilog_of_a_lower_jobs_place_ends(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = [HOLDERS[0], running(2, "n2", 0x0F, 6_000), running(3, "n2", 0xF0, 6_000)]
    slurm = Closing([*holders, young(5, "n1", 0xFF, 9), young(6, "n2", 0x0F, 8), young(7, "n1", 1, 7)])
    planner = look(slurm, tmp_path, channel)
    slurm.closes.clear()
    monkeypatch.setattr(module, "QUIET", 3_600.0)
    written: list[tuple[int | str, bool]] = []
    planner.take([Notice(2, "n2", lambda _: written.extend(slurm.closes))])
    assert written == [(5, False)]


def test_the_next_job_closes_before_the_first_one_starts(tmp_path: Path, channel: socket.socket) -> None:
    slurm = Closing([*HOLDERS, young(5, "n1", 0xFF, 9), young(6, "n2", 0xFF, 8), young(7, "n2", 1, 7)])
    planner = look(slurm, tmp_path, channel)
    slurm.closes.clear()
    written: list[tuple[int | str, bool]] = []
    planner.take([Notice(1, "n1", lambda _: written.extend(slurm.closes))])
    assert written == [(6, True)]


def test_a_request_that_its_owner_has_changed_is_left_as_it_is(tmp_path: Path, channel: socket.socket) -> None:
    slurm = Closing([*HOLDERS, young(5, "n1", 0xFF, 9), young(6, "n2", 1, 8)])
    slurm.typed[5] = 0b11
    look(slurm, tmp_path, channel)
    assert slurm.closes == []


def test_one_job_closes_a_partition_also_if_another_comes_before_it(tmp_path: Path, channel: socket.socket) -> None:
    slurm = Closing([*HOLDERS, young(5, "n1", 0xFF, 9), young(6, "n2", 0xFF, 8)])
    planner = look(slurm, tmp_path, channel)
    slurm.closes.clear()
    slurm.jobs.append(young(7, "n2", 0xFF, 10))
    for _ in range(3):
        planner.one_pass(ended=False)
        write_all(planner)
    assert sorted(slurm.closes) == [(5, False), (7, True)]


@pytest.mark.parametrize("excluded", ["n3", ""])
def test_a_job_whose_owner_changes_the_excluded_nodes_requires_its_own_again(
    excluded: str, tmp_path: Path, channel: socket.socket
) -> None:
    slurm = Closing([*HOLDERS, young(5, "n1", 0xFF, 9), young(6, "n2", 0xFF, 8)])
    planner = look(slurm, tmp_path, channel)
    slurm.closes.clear()
    assert excluded_nodes.closes("", excluded, slurm.jobs[2].plan) == ""
    slurm.jobs[2] = replace(slurm.jobs[2], excluded=tuple(filter(None, [excluded])), closes="")
    planner.one_pass(ended=False)
    assert slurm.closes == [(5, False)]


def test_a_new_berthd_opens_what_the_one_before_had_closed(tmp_path: Path, channel: socket.socket) -> None:
    slurm = Closing([*HOLDERS, young(5, "n1", 0xFF, 9), young(6, "n2", 1, 8)])
    look(slurm, tmp_path, channel)
    slurm.closes.clear()
    slurm.jobs = [running(2, "n2", 0xFE, 6_000) if job.id == 2 else job for job in slurm.jobs]
    slurm.nodes = [NODES[0], node("n2", used=0xFE)]
    planner_of(slurm, tmp_path, channel).one_pass(ended=False)
    assert slurm.closes == [(5, False)]


def test_a_new_node_opens_the_partition_until_the_list_names_it(tmp_path: Path, channel: socket.socket) -> None:
    slurm = Closing([*HOLDERS, young(5, "n1", 0xFF, 9), young(6, "n2", 0xFF, 8)])
    planner = look(slurm, tmp_path, channel)
    slurm.closes.clear()
    slurm.nodes = [*NODES, node("n3", up=False)]
    for _ in range(3):
        planner.one_pass(ended=False)
        write_all(planner)
    assert slurm.closes == [(5, False), (5, True)]
    assert slurm.others[-1] == "n[2-3]"


def test_a_job_that_closes_reads_as_one_that_requires_its_nodes() -> None:
    values = JobPlan({"state": "waiting", "nodes": "n1", "gpus": "0", "others": mark_of("n2")})
    released = values.having(STATE(RELEASED))
    assert excluded_nodes.required_by("", values) == ("n1",)
    assert excluded_nodes.closes("", "n2", values) == mark_of("n2")
    assert excluded_nodes.closes("n1", "n2", values) is None
    # Its user has put another list, or none, in place of Berth's.
    assert excluded_nodes.closes("", "n3", values) == excluded_nodes.closes("", "", values) == ""
    assert excluded_nodes.closes("", "n2", released) is None
    assert excluded_nodes.required_by("", released) == ()


def test_a_pin_that_closes_requires_no_node_and_is_given_back_whole() -> None:
    job = waiting(5, "n1", 1)
    text = JobText(5, "PENDING", 1000, f"note[berth/1 {job.known.body}]", "", "n1", "gres/gpu:g0:1", "")
    place = Pin(("n1",), (0,), True, job.known, others="n2", closes=True)
    written = changes.pin(text, place)
    assert (written["req_nodes"], written["exc_nodes"]) == ("", "n2")
    assert changes.pin(text, replace(place, others=""))["req_nodes"] == "n1"
    assert changes.pin(replace(text, excluded="n4"), place)["req_nodes"] == "n1"

    closing = replace(text, required="", excluded="n2", admin_comment=written["admin_comment"])
    back = changes.release(closing, "test")
    assert back is not None
    assert (back["req_nodes"], back["exc_nodes"], back["tres_per_node"]) == ("", "", "gres/gpu:1")
    opened = replace(place, others="", closes=False, again=True)
    again = changes.pin(closing, opened)
    assert (again["req_nodes"], again["exc_nodes"]) == ("n1", "")
    for changed in (replace(closing, tres_per_node="gres/gpu:2"), replace(closing, admin_comment="note")):
        with pytest.raises(SlurmError, match="another place or request"):
            changes.pin(changed, opened)


def test_a_site_that_wants_no_lists_of_excluded_nodes_gets_none(tmp_path: Path, channel: socket.socket) -> None:
    values = {"others": mark_of("n2")}
    before = replace(young(5, "n1", 0xFF, 9), closes=mark_of("n2"))
    before = replace(before, plan=JobPlan({**before.known.texts, **values}))
    slurm = Closing([*HOLDERS, before, young(6, "n2", 1, 8)])
    planner = planner_of(slurm, tmp_path, channel, settings=Settings(exclude_others=0))
    for _ in range(3):
        planner.one_pass(ended=False)
        write_all(planner)
    assert slurm.closes == [(5, False)]
