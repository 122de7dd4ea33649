# SPDX-License-Identifier: Apache-2.0
"""Checks the data of the page: of a simulated day, of Slurm, and for each viewer."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policy.daemon.passes.overviews import Moment, PlannedPlace, overview_of
from policy.formats import segment
from policy.formats.errors import DaemonError, FormatError, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from policy.report.rows import COLUMNS
from policy.serve.web.live import LiveSource
from policy.serve.web.model import WebNode, WebRoom, seen_by
from policy.serve.web.simulated import CollectedSource, SimulatedSource
from policy.site.privacy import SlurmRules
from tests.unit.policy.report.collected import line
from tests.unit.policy.serve.web.web_world import simulated_day
from tests.unit.policy_world import fleet, node


def test_a_simulated_day_is_told_moment_by_moment(tmp_path: Path) -> None:
    source = SimulatedSource(simulated_day(tmp_path / "day.json"))
    room = source.room()

    early = {job.id: job for job in source.moment(room.began + 100).jobs}
    assert (early["7"].state, early["7"].places) == ("RUNNING", [(0, 255)])
    assert early["8"].state == early["9"].state == "PENDING"
    assert early["8"].places == [(0, 255)], "its planned place"
    assert early["8"].plain()["planned"] >= room.began + 600
    assert early["8"].plain()["why"]
    assert source.moment(room.until).jobs == []
    kinds = [(one.kind, one.job) for one in source.moment(room.until).events if one.kind in {"start", "end"}]
    assert kinds[:2] == [("start", "7"), ("end", "7")]
    assert len(kinds) == 6


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 2, "jobs": []}'])
def test_what_is_no_history_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "day.json"
    file.write_text(text)

    with pytest.raises(FormatError, match=r"is no history.*berth simulate --history"):
        SimulatedSource(file)


class StandInSlurm:
    """Slurm and the overview that berthd makes of it, of what a test puts here."""

    def __init__(self, private: str = "none") -> None:
        self.private, self.jobs, self.at, self.reads = private, list[JobFacts](), 1_000.0, 0
        self.fails, self.asked, self.places = False, 0, dict[int, PlannedPlace]()
        self.node = NODE

    def overview(self) -> Mapping[str, Any]:
        self.reads += 1
        if self.fails:
            raise DaemonError("the overview cannot be read; is berthd running?")
        look = Reading(self.at, (self.node,), tuple(self.jobs), ())
        told = overview_of(Moment(fleet(look, {"n1": "h100"}), look, (True,), {}, self.places))
        found: dict[str, Any] = json.loads(json.dumps(told))
        return found

    def job(self, job_id: int) -> JobText:
        self.asked += 1
        if self.fails:
            raise SlurmError("slurmctld does not answer")
        values = next(one.known.texts for one in self.jobs if one.id == job_id) or {}
        return JobText(job_id, "PENDING", 11, segment.put("", values), "", "", "", "")

    def config(self) -> Mapping[str, str]:
        return {"PrivateData": self.private, "SlurmUser": "slurm(64030)"}


NODE = node("n1")


def job(number: int, user: int, **values: object) -> JobFacts:
    facts = JobFacts(number, "RUNNING", "gpu", 1, 900, 950, 2_000, 1_050, 1, ("n1",), (), user=user)
    return replace(facts, **values)  # type: ignore[arg-type]


def live(slurm: StandInSlurm) -> LiveSource:
    rules = SlurmRules(slurm.config, os.geteuid())
    return LiveSource(slurm.overview, slurm.job, rules, lambda: {"h100": [(0, 1, 450.0)]}, lambda: slurm.at)


def test_events_are_what_changed_between_two_readings() -> None:
    slurm = StandInSlurm()
    source = live(slurm)
    waits = job(1, 11, state="PENDING", start=None, nodes=(), reason="Resources", plan=JobPlan({"pins": "0"}))
    guest = job(2, 12, holds=(2,), plan=JobPlan({}))
    slurm.jobs = [waits, guest, job(3, 13, holds=(4,))]
    assert source.read()
    assert source.moment(None).events == []

    slurm.jobs = [
        replace(waits, plan=JobPlan({"pins": "1", "why": "sooner there"})),
        replace(guest, state="PENDING", plan=JobPlan({"evicted": "1", "evicted_text": "an owner needs it"})),
    ]
    source.read()
    slurm.jobs = [replace(waits, state="RUNNING", start=1_010, nodes=("n1",), holds=(1,), plan=JobPlan({"pins": "1"}))]
    source.read()

    events = [(one.kind, one.job, one.text) for one in source.moment(None).events]
    assert events == [
        ("re-pin", "1", "sooner there"),
        ("eviction", "2", "an owner needs it"),
        ("end", "3", ""),
        ("start", "1", ""),
    ]


@pytest.mark.parametrize(
    ("before", "now", "kind", "text"),
    [
        ({}, {}, "requeue", "BeginTime"),
        ({}, {"move_until": "2000", "move_text": "room for job 9"}, "relocation", "room for job 9"),
        ({"moves": "900"}, {"moves": "900,1000", "move_text": "a better node"}, "relocation", "a better node"),
        ({"moves": "900"}, {"moves": "900"}, "requeue", "BeginTime"),
        ({"evicted": "1"}, {"evicted": "2", "evicted_text": "an owner"}, "eviction", "an owner"),
        ({"evicted": "1"}, {"evicted": "1", "evicted_text": "an owner"}, "requeue", "BeginTime"),
    ],
)
def test_a_job_that_came_back_into_the_queue_says_who_put_it_there(
    before: dict[str, str], now: dict[str, str], kind: str, text: str
) -> None:
    slurm = StandInSlurm()
    source = live(slurm)
    slurm.jobs = [job(1, 11, holds=(1,), plan=JobPlan(before))]
    source.read()
    slurm.jobs = [replace(slurm.jobs[0], state="PENDING", reason="BeginTime", plan=JobPlan(now))]
    source.read()
    assert [(one.kind, one.job, one.text) for one in source.moment(None).events] == [(kind, "1", text)]


def test_without_an_overview_the_last_one_stays_and_says_so() -> None:
    slurm = StandInSlurm()
    source = live(slurm)
    slurm.jobs = [job(1, 11, holds=(1,))]
    source.read()
    slurm.fails = True

    assert not source.read()
    assert source.moment(None).problem == "the overview cannot be read; is berthd running?"
    assert len(source.moment(None).jobs) == 1


def test_a_reading_that_nobody_understands_leaves_the_last_one_and_the_reason() -> None:
    slurm = StandInSlurm()
    slurm.jobs = [job(1, 1001)]
    source = live(slurm)
    assert source.read()
    source._overview = lambda: {"at": 1.0, "nodes": [{}], "jobs": []}
    assert not source.read()
    assert "a fault of berth web's own" in source.moment(None).problem
    assert len(source.moment(None).jobs) == 1
    source._overview = slurm.overview
    slurm.jobs = []
    assert source.read()
    assert not source.moment(None).problem


def test_private_jobs_are_told_to_their_owner_and_slurms_people_only() -> None:
    slurm = StandInSlurm("jobs,usage")
    source = live(slurm)
    slurm.jobs = [job(1, 11, holds=(1,)), job(2, 12, holds=(6,)), job(3, 12, state="PENDING", nodes=())]
    source.read()
    slurm.jobs = slurm.jobs[2:]
    source.read()
    slurm.jobs = [job(1, 11, holds=(1,)), job(2, 12, holds=(6,))]
    source.read()
    moment, privacy = source.moment(None), source.visibility()

    own = seen_by(11, moment, privacy)
    assert [one.id for one in own.jobs] == ["1"]
    assert own.hidden == [(0, 6)], "somebody's GPUs, but not whose"
    assert own.private == ("jobs",)
    assert {one.job for one in own.events} == {"1"}
    stranger = seen_by(None, moment, privacy)
    assert (stranger.jobs, stranger.events, stranger.hidden) == ([], [], [(0, 7)])
    for uid in (0, 64_030, os.geteuid()):
        assert seen_by(uid, moment, privacy) == moment


def test_private_nodes_leave_no_place() -> None:
    slurm = StandInSlurm("nodes")
    source = live(slurm)
    slurm.jobs = [job(1, 11, holds=(1,), plan=JobPlan({"nodes": "n1", "gpus": "0"}))]
    source.read()

    seen = seen_by(12, source.moment(None), source.visibility())
    [shown] = seen.jobs
    assert (shown.places, shown.segment, seen.private) == ((), {}, ("nodes",))


def test_room_places_and_waits_are_those_of_the_overview() -> None:
    slurm = StandInSlurm()
    slurm.jobs = [job(1, 11, holds=(3,)), job(2, 12, state="PENDING", start=None, nodes=(), reason="Resources")]
    slurm.places = {2: PlannedPlace((0,), 0b1100, 1_600.0, 0.0)}
    source = live(slurm)
    assert source.read(), source.moment(None).problem

    [shown] = source.room().nodes
    assert (shown.name, shown.gpus, shown.model) == ("n1", 8, "h100")
    assert source.room().links == {"h100": [(0, 1, 450.0)]}
    found = {one.id: one for one in source.moment(None).jobs}
    assert (found["1"].places, found["1"].gpus) == ([(0, 3)], 2)
    assert (found["2"].places, found["2"].reason, found["2"].plain()["planned"]) == ([(0, 12)], "Resources", 1_600)


@pytest.mark.parametrize("state", ["SUSPENDED", "COMPLETING", "CONFIGURING"])
def test_gpus_that_are_held_do_not_look_free(state: str) -> None:
    slurm = StandInSlurm("jobs")
    slurm.node = node("n1", used=0b111)
    slurm.jobs = [job(1, 11, holds=(1,)), job(2, 12, holds=(2,))]
    source = live(slurm)
    source.read()
    slurm.jobs[1] = replace(slurm.jobs[1], state=state)
    source.read()

    moment = source.moment(None)
    assert [(one.id, one.places) for one in moment.jobs] == [("1", [(0, 1)]), ("2", [(0, 2)])]
    assert moment.hidden == [(0, 4)], "Slurm does not say by whom"
    assert seen_by(11, moment, source.visibility()).hidden == [(0, 6)]
    assert moment.events == []


def test_an_old_overview_says_so() -> None:
    slurm = StandInSlurm()
    source = LiveSource(slurm.overview, slurm.job, SlurmRules(slurm.config, 0), dict, lambda: slurm.at + 90)

    assert source.read()
    assert source.moment(None).problem == "berthd's overview is 90 s old; is berthd running?"


def test_a_jobs_decision_is_asked_of_slurm_once_for_all_who_look() -> None:
    slurm = StandInSlurm()
    slurm.jobs = [job(1, 11, holds=(3,), plan=JobPlan({"level": "nvlink", "state": "placed"}))]
    source = live(slurm)
    source.read()
    [shown] = source.moment(None).jobs

    decisions = [source.decision(shown) for _ in range(3)]

    assert decisions == [{"level": "nvlink", "state": "placed"}] * 3
    assert slurm.asked == 1
    slurm.at, slurm.fails = slurm.at + 60, True
    assert source.decision(shown) == {"level": "nvlink"}


def collected(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["|".join(COLUMNS), *lines, ""]))
    return path


def unknown(names: Sequence[str]) -> WebRoom:
    return WebRoom([WebNode(name, 0) for name in names])


def test_past_days_are_played_from_a_file_of_berth_collect(tmp_path: Path) -> None:
    file = collected(
        tmp_path / "past",
        line("7", 86_400, 86_400, 90_000, "n1", 8),
        line("8", 86_500, 90_000, 93_600, "n[1-2]", 16, said="[berth/1 state=placed why=near]"),
    )
    source = CollectedSource(file, unknown)
    room = source.room()

    assert [(node.name, node.gpus) for node in room.nodes] == [("n1", 8), ("n2", 8)]
    early = {job.id: (job.state, list(job.places)) for job in source.moment(88_000).jobs}
    assert early == {"7": ("RUNNING", [(0, 255)]), "8": ("PENDING", [])}
    late = source.moment(91_000)
    assert [(job.id, job.state) for job in late.jobs] == [("8", "RUNNING")]
    assert ("start", "8", "near") in [(one.kind, one.job, one.text) for one in late.events]


def test_a_day_of_them_begins_and_ends_as_that_day(tmp_path: Path) -> None:
    file = collected(tmp_path / "past", line("7", 100, 100, 500, "n1", 8), line("8", 900, 900, 2_000, "n1", 8))
    room = CollectedSource(file, unknown, 400, 1_000).room()

    assert (room.began, room.until) == (400, 1_000)
    with pytest.raises(FormatError, match="no GPU job in that time"):
        CollectedSource(file, unknown, 600, 700)


@pytest.mark.parametrize("text", ["", '{"schema_version": 1}', "JobID|Submit\n1|2\n"])
def test_what_is_no_collection_names_the_command_that_makes_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "past"
    file.write_text(text)

    with pytest.raises(FormatError, match="berth collect"):
        CollectedSource(file, unknown)
