# SPDX-License-Identifier: Apache-2.0
"""Step times on their way: from a rank's word through the guard and berthd to the scores that jobs are placed by."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from policy.cli.main import main
from policy.daemon.hear.hosts import REMEMBERED, Hosts
from policy.daemon.hear.step_times import HeardStepTimes as Record
from policy.daemon.hear.step_times import StepWord, read_word
from policy.daemon.known.score_table import ScoreTable
from policy.daemon.known.scores_now import ScoresNow, table_now
from policy.history.slowness.gpus import refresh
from policy.site.step_records import append, place_of, reports_of, reports_on
from prolog_epilog.guard.hold.guest_hold import Ground
from prolog_epilog.guard.measure.device_reader import Look
from prolog_epilog.guard.measure.signals import DeviceSample
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.seats.keeper import Keeper
from prolog_epilog.guard.seats.step_times import StepNotice, ToldStepTimes
from prolog_epilog.guard.tell.notice import Payload, tell
from prolog_epilog.guard.tell.slow_work import SlowWork
from prolog_epilog.injob import word
from prolog_epilog.injob.job import Job, fingerprint
from prolog_epilog.injob.word import APP, AT, OWN_NS, OWN_STEPS, READY, STEP_NS, STEPS, WordSlot
from prolog_epilog.job.extra import GUARANTEED
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.guard_keys import GuardSettings
from prolog_epilog.tenants import share_file
from prolog_epilog.tenants.share_file import ShareRecord
from tests.fakes.munge import credential
from tests.unit.guard_world import Devices, Slurm, book, strike
from tests.unit.policy.daemon.test_notices import hub, take
from tests.unit.policy_world import node as slurms_node
from tests.unit.policy_world import reading, running
from topology.calibrate.runs import seconds_of
from topology.calibrate.steps import ClockReport, JobReport, Rank, load
from topology.scores import Score, dump
from topology.scores import load as load_scores

GPUS, STEP_S, SLOW = 8, 0.5, 2
UUIDS = tuple(f"GPU-{number:08d}" for number in range(GPUS))


class Node:
    """A node with eight GPUs, its guard, and a synchronous job on all of them: a step takes as long as its slowest."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths, self.devices = Paths(folder / "run"), Devices()
        self.told: list[str] = []
        # Half past, two to three hours ago: guards report after the full hour.
        self.now, self.began = 1.0, time.time() // 3_600.0 * 3_600.0 - 9_000.0
        self.places: list[WordSlot] = []
        self.job = 0
        self.own = [STEP_S] * GPUS
        self.busy = [1.0] * GPUS
        self.mhz = [0.0] * GPUS
        self.done = 0.0
        # The beats of a simulated hour are believed on a machine that was started a minute ago, too.
        monkeypatch.setattr(word, "time", SimpleNamespace(monotonic_ns=lambda: round((self.now + 1e6) * 1e9)))
        slow_work = SlowWork(Slurm(), NoticeOptions(("ctl",)), print, lambda _guest: None, self._tell)  # type: ignore[arg-type]
        ground = Ground(self.paths, folder / "fs")
        self.keeper = Keeper(ground, GuardSettings(), slow_work, self.devices, lambda _said: None)
        self.keeper.steps = ToldStepTimes(slow_work.notify, lambda: self.began + self.now)
        self.slow_work = slow_work

    def _tell(self, _options: NoticeOptions, notice: Payload) -> bool:
        if isinstance(notice, StepNotice):
            self.told.append(notice.text)
        return True

    def begin(self, job: int, app: int = 7) -> None:
        """The next job comes, the one before has ended."""
        self.end()
        self.job, self.done = job, 0.0
        folder = self.paths.word(job)
        words = word.create(folder, UUIDS, os.getuid(), os.getgid())
        book(self.paths, job, UUIDS)
        share_file.write(
            self.paths,
            ShareRecord(job, os.getuid(), "", tuple(range(GPUS)), tuple(range(GPUS)), UUIDS, None, None, "time",
                        GUARANTEED, "n1", str(folder)),
        )  # fmt: skip
        self.places = [WordSlot(one) for one in words]
        for place in self.places:
            place.numbers[READY], place.numbers[APP] = 1, app

    def end(self) -> None:
        for place in self.places:
            place.close()
        if self.job:
            strike(self.paths, self.job)
            share_file.remove(self.paths, self.job)
            word.remove(self.paths.word(self.job))
        self.places, self.job = [], 0

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            longest = max(self.own)
            self.done += 1.0 / longest
            for gpu, place in enumerate(self.places):
                numbers = place.numbers
                steps = int(self.done) - numbers[STEPS]
                numbers[STEPS] += steps
                numbers[STEP_NS] += round(steps * longest * 1e9)
                numbers[OWN_STEPS] += steps
                numbers[OWN_NS] += round(steps * self.own[gpu] * 1e9)
                numbers[AT] = round(self.now * 1e9)
                clock = (
                    {"sm_mhz": self.mhz[gpu], "at_power_limit": True, "power_limit_w": 700.0} if self.mhz[gpu] else {}
                )
                sample = DeviceSample(self.now, utilisation=self.busy[gpu], **clock)  # type: ignore[arg-type]
                self.devices.looks[UUIDS[gpu]] = Look(sample, frozenset({self.job}), 80 << 30)
            self.keeper.turn(self.now)
            self.slow_work.run(0.0)
        # What was told in the last second.
        for _ in range(2 * GPUS):
            self.slow_work.run(0.0)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def calibrated(folder: Path) -> Path:
    """All eight GPUs typical, as calibrated two days ago."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 2 * 86_400))
    scores = [Score("n1", gpu, uuid, "compute", 1.0, 3, 0.01, at, 0.01) for gpu, uuid in enumerate(UUIDS)]
    dump(scores, folder / "scores.csv")
    return folder / "scores.csv"


def recorded(folder: Path, told: Sequence[str], user_of: Callable[[int], int] = lambda _job: 0) -> Path:
    """What berthd makes of the guard's notices; `user_of` a job."""
    record = Record(folder / "steps")
    at = time.time() - 600.0
    for number, text in enumerate(told):
        found = read_word(text.encode())
        assert found is not None, text
        record.hear(
            found, running(found.job, "n1", 0xFF, 3_000, user=user_of(found.job)), "compute", at + number / 1_000
        )
    record.write_due(at + 300.0, lambda _node, _uuid: "NVIDIA H200")
    return folder / "steps"


def living(folder: Path) -> list[float]:
    assert main(["scores", "refresh", str(folder / "scores.csv"), "--steps", str(folder / "steps")]) == 0
    return [one.score for one in load_scores(folder / "steps.scores")]


def three_jobs(node: Node, seconds: int) -> None:
    for job in (11, 12, 13):
        node.begin(job)
        node.run(seconds)
    node.end()
    node.run(GPUS + 1)


@pytest.mark.slow
def test_a_gpu_that_became_slow_is_found_within_an_hour_of_jobs(node: Node, tmp_path: Path) -> None:
    node.own[SLOW] = 1.2 * STEP_S
    table = calibrated(tmp_path)
    three_jobs(node, 1_200)
    recorded(tmp_path, node.told)
    assert living(tmp_path)[SLOW] == pytest.approx(1.03, abs=0.001), "the word of one user"

    (tmp_path / "steps").unlink()
    recorded(tmp_path, node.told, user_of=lambda job: 1_000 + job)
    scores = living(tmp_path)
    assert scores[SLOW] == pytest.approx(1.2, abs=0.03)
    assert all(abs(score - 1.0) < 0.02 for gpu, score in enumerate(scores) if gpu != SLOW)
    assert all(one.score == 1.0 for one in load_scores(table))


def test_a_job_that_waits_for_its_input_moves_no_score(node: Node, tmp_path: Path) -> None:
    # One rank's input is late: its own steps look longer, and its GPU stands idle meanwhile.
    node.own[SLOW], node.busy[SLOW] = 1.2 * STEP_S, 0.8
    calibrated(tmp_path)
    three_jobs(node, 120)
    record = recorded(tmp_path, node.told)

    ranks = [rank.position for report in load(record) if isinstance(report, JobReport) for rank in report.ranks]
    assert SLOW not in ranks
    assert len(ranks) >= 3 * (GPUS - 1)
    assert all(abs(score - 1.0) < 0.01 for score in living(tmp_path))


@pytest.mark.slow
def test_a_long_job_reports_each_hour_and_at_its_end(node: Node) -> None:
    node.begin(11)
    node.run(2_100)
    assert len({text for text in node.told if " gpu=0 " in text}) == 1
    node.end()
    node.run(GPUS + 1)

    words = [found for text in node.told if (found := read_word(text.encode()))]
    assert [one.gpu for one in words].count(0) == 2
    assert {one.job for one in words} == {11}
    assert all(one.own_ns == STEP_S * 1e9 for one in words)


def test_clocks_at_the_power_limit_are_told_with_the_work_that_ran(node: Node, tmp_path: Path) -> None:
    node.mhz = [1_410.0] * GPUS
    node.mhz[SLOW] = 1_200.0
    node.begin(11, app=0xAB)
    node.run(120)
    node.end()
    node.run(GPUS + 1)

    looks = [one for one in load(recorded(tmp_path, node.told)) if isinstance(one, ClockReport)]
    assert [one.sm_mhz for one in looks] == node.mhz
    assert {(one.model, one.power_limit_w, one.app) for one in looks} == {("NVIDIA H200", 700.0, "0-ab")}
    assert all(one.seconds >= 110 for one in looks)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda node: setattr(node, "busy", [0.5] * GPUS),  # all wait for their input
        lambda node: setattr(node, "own", [2.0] * GPUS),  # fewer steps than say anything
    ],
    ids=["idle", "few steps"],
)
def test_what_says_nothing_is_not_told(node: Node, spoil: Callable[[Node], None]) -> None:
    spoil(node)
    node.begin(11)
    node.run(36)
    node.end()
    node.run(GPUS + 1)

    assert node.told == []


# In the job


def test_a_jobs_only_rank_waits_for_nobody_so_its_steps_are_its_own(tmp_path: Path) -> None:
    (page,) = word.create(tmp_path / "1", UUIDS[:1], os.getuid(), os.getgid())
    alone = Job((page,))
    alone.step(0.2)
    alone.step(0.2)
    (beat,) = word.read_beats(page)

    assert (beat.own_steps, beat.own_ns, beat.app) == (2, 400_000_000, fingerprint(1))
    assert beat.app != fingerprint(2)


def test_of_several_ranks_only_what_they_say_themselves_counts(tmp_path: Path) -> None:
    (page,) = word.create(tmp_path / "1", UUIDS[:1], os.getuid(), os.getgid())
    rank = Job((page,), ranks=8)
    rank.step(0.2)
    rank.step(0.2, own=0.15)
    (beat,) = word.read_beats(page)

    assert (beat.steps, beat.own_steps, beat.own_ns) == (2, 1, 150_000_000)


def test_ranks_that_a_program_started_itself_are_not_taken_for_lonely_ones(tmp_path: Path) -> None:
    (page,) = word.create(tmp_path / "1", UUIDS[:1], os.getuid(), os.getgid())
    rank = Job((page,))
    rank.sit()
    rank.together(4)
    rank.step(0.2)
    (beat,) = word.read_beats(page)

    assert (beat.steps, beat.own_steps, beat.app) == (1, 0, fingerprint(4))


def test_a_step_with_a_nap_in_it_says_nothing_of_the_gpu(tmp_path: Path) -> None:
    (page,) = word.create(tmp_path / "1", UUIDS[:1], os.getuid(), os.getgid())
    alone = Job((page,))
    alone.step(0.2)
    assert alone.place is not None
    alone.place.numbers[word.IDLE_NS] += 1_000_000
    alone.step(0.3)
    alone.step(0.2)

    assert [one.own_ns for one in word.read_beats(page)] == [400_000_000]


# The record


WORD = StepWord("n1", 3, "GPU-3", 42, "ab", 151_200_000, 4_000, 1_410, 700, 60)


def test_a_notice_is_read_as_it_was_written() -> None:
    notice = StepNotice("n1", 3, "GPU-3", 42, 0xAB, 151_200_000, 4_000, 1_410, 700, 60)

    assert read_word(notice.text.encode()) == WORD
    assert read_word(b"berth/1 guard node=n1 gpu=3 job=42 state=healthy word=state") is None
    assert read_word(notice.text.encode() + b" more=1") is None


def test_what_the_guard_tells_arrives_at_berthd_signed_and_is_answered() -> None:
    notice = StepNotice("n1", 3, "GPU-3", 42, 0xAB, 151_200_000, 4_000, 1_410, 700, 60)
    with hub() as notices:
        options = NoticeOptions(("127.0.0.1",), notices.port)
        with ThreadPoolExecutor(1) as guard:
            told = guard.submit(tell, options, notice, lambda text, _: credential(text), 20.0)
            [heard] = take(notices, seconds=20.0)
            heard.answer()
            assert told.result(20.0)

    assert heard.word == WORD


def test_the_ranks_of_a_job_become_one_line_with_the_jobs_class(tmp_path: Path) -> None:
    record = Record(tmp_path / "steps")
    job = replace(running(42, "n1", 0xFF, 3_000), user=1_000)
    for gpu in range(4):
        record.hear(replace(WORD, gpu=gpu, mhz=0), job, "memory", 1_000.0 + gpu)
    record.write_due(1_010.0, lambda _node, _uuid: "")
    assert not (tmp_path / "steps").exists()
    record.write_due(1_200.0, lambda _node, _uuid: "")

    (report,) = load(tmp_path / "steps")
    assert isinstance(report, JobReport)
    assert (report.job, report.app, report.app_class) == ("42", "1000-ab", "memory")
    assert [(rank.position, rank.own_ms, rank.steps) for rank in report.ranks] == [(n, 151.2, 4_000) for n in range(4)]


def test_a_job_that_slurm_does_not_show_and_a_site_without_a_record_keep_nothing(tmp_path: Path) -> None:
    unknown, without = Record(tmp_path / "steps"), Record(None)
    unknown.hear(WORD, None, "", 0.0)
    without.hear(WORD, running(42, "n1", 0xFF, 3_000), "compute", 0.0)
    for one in (unknown, without):
        one.write_due(1_000.0, lambda _node, _uuid: "")

    assert list(tmp_path.iterdir()) == []


def test_what_a_guard_tells_of_a_job_after_its_end_counts(tmp_path: Path) -> None:
    """Guards see a job's end by its Epilog; Slurm's readings show the job no more when they have told of all GPUs."""
    now = time.time()
    hosts = Hosts(tmp_path / "steps")
    host = running(5, "n1", 1, 3_000, segment={"state": "placed", "id": "00ff", "tier": "guaranteed"})
    hosts.look(reading([slurms_node("n1")], [host, running(6, "n1", 2, 3_000)], at=now - 400))
    for gpu in (0, 1):
        hosts.look(reading([slurms_node("n1")], at=now - 390 + gpu))
        for job in (5, 6):
            told = StepWord("n1", gpu, f"GPU-{gpu}", job, "7", 10_000_000, 500, 0, 0, 0)
            hosts.hear(told, lambda _: "compute", now - 380 + gpu)
    hosts.write_due(now, lambda _node, _uuid: "L40S")

    (report,) = load(tmp_path / "steps")
    assert report.job == "5"  # type: ignore[union-attr]
    assert [rank.position for rank in report.ranks] == [0, 1]  # type: ignore[union-attr]
    hosts.look(reading([slurms_node("n1")], at=now - 390 + REMEMBERED))
    hosts.hear(StepWord("n1", 0, "GPU-0", 5, "7", 10_000_000, 500, 0, 0, 0), lambda _: "compute", now)
    hosts.write_due(now + 300, lambda _node, _uuid: "L40S")
    assert len(load(tmp_path / "steps")) == 1


def test_a_line_that_a_crash_broke_off_goes_and_the_record_stays_readable(tmp_path: Path) -> None:
    path = recorded(tmp_path, [StepNotice("n1", 0, "GPU-0", 1, 1, 10, 20, 0, 0, 0).text])
    path.write_bytes(path.read_bytes() + b'{"kind":"job","jo')
    recorded(tmp_path, [StepNotice("n1", 0, "GPU-0", 2, 1, 10, 20, 0, 0, 0).text])

    assert [report.job for report in load(path) if isinstance(report, JobReport)] == ["1", "2"]


def test_a_long_record_begins_anew_and_the_one_before_is_read_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy.site.step_records._MOST_BYTES", 100)
    for job in (1, 2, 3):
        path = recorded(tmp_path, [StepNotice("n1", 0, "GPU-0", job, 1, 10, 20, 0, 0, 0).text])

    assert sorted(one.name for one in path.parent.glob("steps*")) == ["steps", "steps.1"]
    assert [report.job for report in reports_of(path) if isinstance(report, JobReport)] == ["2", "3"]


def test_a_record_that_cannot_be_written_costs_berthd_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Record(tmp_path / "nowhere" / "steps")
    for number in range(2):
        record.hear(WORD, running(42, "n1", 0xFF, 3_000), "compute", 1_000.0 * number)
        record.write_due(1_000.0 * number + 500.0, lambda _node, _uuid: "")

    said = capsys.readouterr()
    assert (said.out + said.err).count("step times are not kept until that is mended") == 1


@pytest.mark.parametrize(
    ("other", "blame"),
    [
        (None, "no other run tells which (hardware or program)"),
        (1.3, "its GPU takes 30% more time in other runs too (the hardware is to blame)"),
        (1.0, "its GPU is as fast as others in other runs, so that this rank has more to do (the program is to blame"),
    ],
)
def test_a_slow_rank_is_blamed_by_what_the_record_tells_of_its_node(
    tmp_path: Path, other: float | None, blame: str
) -> None:
    record = tmp_path / "steps"
    lines = [JobReport("7", "5-a", "compute", "2026-11-29T10:00:00Z", (Rank("n12", 0, "GPU-0", 9.0, 400),))]
    if other is not None:
        ranks = tuple(Rank("n1", gpu, f"GPU-{gpu}", 50.0 * (other if gpu == SLOW else 1.0), 400) for gpu in range(8))
        lines.append(JobReport("8", "6-a", "compute", "2026-11-29T11:00:00Z", ranks))
    append(record, lines)
    hosts = Hosts(record)
    hosts.look(reading([slurms_node("n1")], [running(42, "n1", 0xFF, 3_000, segment={"tier": GUARANTEED})], at=1_000.0))
    for gpu in range(8):
        own = 150_000_000 if gpu == SLOW else 100_000_000
        hosts.hear(replace(WORD, gpu=gpu, uuid=f"GPU-{gpu}", own_ns=own), lambda _: "compute", 0.0)
    hosts.write_due(200.0, lambda _node, _uuid: "")

    assert blame in hosts.slow[42]


@pytest.mark.parametrize("text", ["", "no record\n", '{"format": "berth-steps/1"}\n{"node": "n1"}\n'])
def test_a_record_that_cannot_be_read_tells_nothing_of_a_node(tmp_path: Path, text: str) -> None:
    (tmp_path / "steps").write_text(text)

    assert reports_on(tmp_path / "steps", ["n1"]) == []
    assert reports_on(tmp_path / "none", ["n1"]) == []


def test_what_makes_a_job_slow_is_known_while_it_runs(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path / "steps")
    host = running(42, "n1", 0xFF, 3_000, segment={"tier": GUARANTEED})
    hosts.look(reading([slurms_node("n1")], [host], at=1_000.0))
    for hour in range(3):
        for gpu in range(8):
            own = 150_000_000 if gpu == SLOW else 100_000_000
            hosts.hear(replace(WORD, gpu=gpu, uuid=f"GPU-{gpu}", own_ns=own), lambda _: "compute", 3_600.0 * hour)
        hosts.write_due(3_600.0 * hour + 200.0, lambda _node, _uuid: "")

    assert hosts.slow[42].startswith("lost 33% of its time because the rank on n1:2 needs 1.50 times as long")
    hosts.look(reading([slurms_node("n1")], [], at=20_000.0))
    assert hosts.slow == {}


# The table beside the record


def test_berthd_plans_with_the_table_beside_the_record_until_the_next_calibration(tmp_path: Path) -> None:
    table, steps = calibrated(tmp_path), tmp_path / "steps"
    scores = ScoreTable(table, steps)
    assert table_now(table, steps) == table
    assert scores.refresh()
    dump([replace(one, score=1.2) for one in load_scores(table)], place_of(steps))
    assert table_now(table, steps) == place_of(steps)
    assert scores.refresh()
    assert not scores.refresh()

    later = place_of(steps).stat().st_mtime_ns + 1
    os.utime(table, ns=(later, later))
    assert table_now(table, steps) == table
    assert scores.refresh()


def test_the_table_is_made_anew_once_an_hour_where_the_record_has_grown(tmp_path: Path) -> None:
    steps, log = tmp_path / "steps", tmp_path / "log"
    steps.write_text("one\n")
    ways = ScoresNow(steps, tmp_path / "scores.csv", ("sh", "-c", f'echo "$0 $1 $2" >> {log}'))

    def after(at: float, runs: int) -> None:
        ways.step(at)
        until = time.monotonic() + 20.0
        while ways._child is not None and time.monotonic() < until:
            time.sleep(0.01)
            ways.step(at)
        assert (log.read_text() if log.exists() else "").count("\n") == runs

    after(10_000.0, 1)
    assert log.read_text() == f"{tmp_path / 'scores.csv'} --steps {steps}\n"
    after(10_010.0, 1)
    after(20_000.0, 1)
    with steps.open("a") as file:
        file.write("two\n")
    after(20_010.0, 1)
    after(30_000.0, 2)


def test_a_program_that_hangs_is_killed_after_an_hour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "steps").touch()
    ways = ScoresNow(tmp_path / "steps", tmp_path / "scores.csv", ("sh", "-c", "exec sleep 1000"))
    ways.step(10_000.0)
    assert ways._child is not None
    for at in (13_599.0, 13_600.0):
        assert ways._child.poll() is None
        ways.step(at)
    assert ways._child.wait(20) == -9
    ways.step(13_601.0)
    assert "berth scores refresh ended with status -9" in capsys.readouterr().err


def test_without_a_record_or_a_table_no_program_is_started(tmp_path: Path) -> None:
    for steps, table in ((None, tmp_path / "t"), (tmp_path / "s", None)):
        (tmp_path / "s").touch()
        ways = ScoresNow(steps, table, ("sh", "-c", f"touch {tmp_path / 'ran'}"))
        ways.step(10_000.0)
        assert ways._child is None


def test_refresh_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "berth.conf"
    monkeypatch.setenv("BERTH_CONF", str(conf))
    conf.write_text('[berthd]\nscores = "/nowhere/scores.csv"\n')

    assert main(["scores", "refresh"]) == 2
    assert "[berthd] steps" in capsys.readouterr().err


def test_clocks_of_other_work_are_no_peers() -> None:
    known = [
        Score("n1", gpu, uuid, "compute", 1.0, 3, 0.01, "2026-11-20T10:00:00Z", 0.03) for gpu, uuid in enumerate(UUIDS)
    ]
    at = "2026-11-20T12:00:00Z"

    def look(gpu: int, app: str) -> ClockReport:
        mhz = 1_400.0 if app == "a" else 1_200.0
        return ClockReport("n1", gpu, UUIDS[gpu], at, "H200", 700.0, mhz, 600.0, app)

    now = seconds_of(at) + 60.0
    mixed = refresh(known, [look(gpu, "b" if gpu == SLOW else "a") for gpu in range(GPUS)], now)
    assert all(one.score.score == 1.0 for one in mixed)
