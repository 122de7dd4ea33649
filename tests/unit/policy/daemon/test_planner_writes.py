# SPDX-License-Identifier: Apache-2.0
"""When the planner writes what it planned: one update at a time, and what an Epilog waits for comes first."""

import itertools
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.daemon.hear.notices import Notice
from policy.daemon.hear.step_times import StepWord
from policy.daemon.known import topologies
from policy.daemon.passes import looks as looks_module
from policy.daemon.passes import planner as planner_module
from policy.daemon.passes.handover import Sender
from policy.daemon.passes.planner import Planner
from policy.daemon.write import pinned
from policy.daemon.write.pins import Pins
from policy.formats.errors import SlurmError, TooLong
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts, PartitionFacts, Reading
from policy.formats.slurm_syntax.excluded_nodes import mark_of
from policy.request.settings import Settings
from policy.request.tiers import parse_allowed
from policy.site.config import Config
from policy.slurm.interface import Pin
from tests.examples import examples
from tests.unit.guest_world import parked
from tests.unit.policy_world import machine, node, reading, running, waiting
from tests.unit.share_world import packed_waiting
from topology import files
from topology.calibrate.steps import JobReport, load


class Slurm:
    """A gateway to jobs and nodes that the test changes; remembers what was pinned, in order."""

    name = "test"

    def __init__(self, nodes: list[NodeFacts], jobs: list[JobFacts]) -> None:
        self.nodes, self.jobs = nodes, jobs
        self.pins: list[tuple[int | str, tuple[str, ...], tuple[int, ...]]] = []
        self.others: list[str] = []
        self.in_a_hurry: set[int | str] = set()
        self.ahead = 0.0
        self.state, self.asked = "RUNNING", list[int]()

    def job(self, job_id: int) -> JobText:
        self.asked.append(job_id)
        if not self.state:
            raise SlurmError("slurmctld does not answer")
        return JobText(job_id, self.state, 1_000, "", "", "", "", "")

    def read(self, *, ended: bool) -> Reading:
        assert not ended, "these tests ask for waiting and running jobs"
        now = reading(self.nodes, self.jobs)
        return replace(now, in_control=True, at=now.at + self.ahead)

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool) -> None:
        self.pins.append((job_id, pin.nodes, pin.gpus))
        self.others.append(pin.others)
        if hurry:
            self.in_a_hurry.add(job_id)

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        raise AssertionError(f"job {job_id} has not waited long enough for a reason: {plan.texts}")


def planner_of(
    slurm: Slurm, folder: Path, channel: socket.socket, skipped: str = "", settings: Settings | None = None
) -> Planner:
    for one in slurm.nodes:
        files.dump(machine(one.name, "h100"), folder / f"{one.name}.json")
    config = Config(topology_dir=folder, fabric="none", pinned_file=folder / "pinned", steps=folder / "steps")
    config = replace(config, skip_partitions=frozenset(filter(None, [skipped])), settings=settings or Settings())
    return Planner(slurm, config, Sender(channel))  # type: ignore[arg-type]


def young(job_id: int, name: str, gpus: int, priority: int) -> JobFacts:
    return waiting(job_id, name, gpus, priority=priority, submitted=1_000_000 - 5)


def write_all(planner: Planner) -> int:
    written = 0
    while planner.write_one():
        written += 1
    return written


def test_a_pass_writes_nothing_itself_and_then_one_update_at_a_time(tmp_path: Path, channel: socket.socket) -> None:
    jobs = [running(1, "n1", 0xFF, 3_000), young(5, "n1", 0b01, 9), young(6, "n1", 0b10, 8)]
    slurm = Slurm([node("n1", used=0xFF), node("n2")], jobs)
    planner = planner_of(slurm, tmp_path, channel)

    planner.one_pass(ended=False)
    assert slurm.pins == []

    assert planner.write_one()
    assert [job for job, *_ in slurm.pins] == [5]
    assert write_all(planner) == 1
    assert {job: nodes for job, nodes, _ in slurm.pins} == {5: ("n2",), 6: ("n2",)}


class Explained(Slurm):
    """The same, where jobs have waited long enough for a reason."""

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        assert plan.texts["because_text"], job_id


def test_a_cloud_without_nodes_for_a_while_ends_no_planner(tmp_path: Path, channel: socket.socket) -> None:
    jobs = [waiting(5, "n1", 0b01), packed_waiting(6, "n1", 1, 30), parked(7), waiting(8, "n1", 0xFF)]
    slurm = Explained([node("n1")], jobs)
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    write_all(planner)
    before, nodes = len(slurm.pins), slurm.nodes
    answers: list[bytes] = []

    slurm.nodes = []
    for _ in range(2):
        planner.one_pass(ended=False)
        planner.take([Notice(3, "n1", answers.append)])
        write_all(planner)
    assert len(slurm.pins) == before
    assert answers == [b"berth/1 done\n"] * 2

    slurm.nodes = nodes
    slurm.jobs = [young(9, "n2", 0b01, 9)]
    planner.one_pass(ended=False)
    write_all(planner)
    assert slurm.pins[before:] == [(9, ("n1",), (0,))]


class Refusing(Slurm):
    """A Slurm that takes no pin, since the job's texts are long already."""

    def __init__(self, nodes: list[NodeFacts], jobs: list[JobFacts]) -> None:
        super().__init__(nodes, jobs)
        self.given_back: list[tuple[int, str]] = []

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool) -> None:
        super().pin(job_id, pin, hurry=hurry)
        raise TooLong("the job's Extra has 1100 bytes, and Slurm takes 1024")

    def release(self, job_id: int | str, reason: str) -> bool:
        self.given_back.append((int(job_id), reason))
        return job_id == 5

    def job(self, job_id: int) -> JobText:
        return JobText(job_id, "PENDING", 0, "", "", "", "", "")

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        self.given_back.append((job_id, f"{plan.texts['state']}: {plan.texts['why']}"))


def test_a_job_that_no_place_can_be_written_into_is_given_back_for_good(tmp_path: Path, channel: socket.socket) -> None:
    first = young(6, "n1", 0b10, 8)
    first = replace(first, gpus=None, required=(), plan=JobPlan({**first.known.texts, "state": "later"}))
    slurm = Refusing([node("n1", used=0xFF), node("n2")], [running(1, "n1", 0xFF, 3_000), young(5, "n1", 1, 9), first])
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    write_all(planner)
    why = "given back to Slurm: the job's Extra has 1100 bytes, and Slurm takes 1024"
    assert slurm.given_back == [(5, why), (6, why), (6, f"released: {why} [BERTH-106]")]


@pytest.mark.parametrize(("skipped", "moved_to"), [("", ["n2"]), ("plain", ["n3"])])
def test_of_a_list_with_a_skipped_partition_only_the_others_give_places(
    tmp_path: Path, channel: socket.socket, skipped: str, moved_to: list[str]
) -> None:
    both = frozenset({"gpu", "plain"})
    nodes = [node("n1", used=0xFF), node("n2", partitions=frozenset({"plain"})), node("n3", partitions=both)]
    job = replace(young(5, "n1", 0b1, 9), partition="gpu,plain")
    slurm = Slurm(nodes if skipped else nodes[:2], [running(1, "n1", 0xFF, 3_000), job])
    now = slurm.read
    parts = (PartitionFacts("gpu", default=True, time_limit=3_600), PartitionFacts("plain", default=False))
    slurm.read = lambda *, ended: replace(now(ended=ended), partitions=parts)  # type: ignore[method-assign]
    planner = planner_of(slurm, tmp_path, channel, skipped)
    planner.one_pass(ended=False)
    write_all(planner)
    assert [list(nodes) for _, nodes, _ in slurm.pins] == [moved_to]


def test_step_times_are_kept_and_disturb_no_plan(tmp_path: Path, channel: socket.socket) -> None:
    slurm = Slurm([node("n1", used=0xFF)], [running(1, "n1", 0xFF, 3_000, segment={"tier": "guaranteed"})])
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    said: list[bytes] = []
    for gpu in (0, 1):
        word = StepWord("n1", gpu, f"GPU-{gpu}", 1, "ab", 150_000_000, 400, 1_400, 700, 60)
        planner.take([Notice(1, "n1", said.append, word=word)])
    assert said == [b"berth/1 done\n"] * 2
    assert slurm.pins == []

    # The clock of these readings stands: the line is written when its time has come.
    slurm.ahead = 2e9
    planner.one_pass(ended=False)
    reports = load(tmp_path / "steps")
    assert [len(one.ranks) for one in reports if isinstance(one, JobReport)] == [2]
    assert len(reports) == 3


def test_what_an_epilog_waits_for_goes_before_what_was_put_off(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "_CHEAP", 0.0)  # the way of large clusters
    jobs = [running(1, "n1", 0xFF, 3_000), running(2, "n3", 0xFF, 900)]
    jobs += [young(5, "n1", 0b01, 9), young(6, "n1", 0b10, 8), young(7, "n1", 0xFF, 7)]
    slurm = Slurm([node("n1", used=0xFF), node("n2"), node("n3", used=0xFF)], jobs)
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    answers: list[bytes] = []

    planner.take([Notice(2, "n3", answers.append)])

    assert slurm.pins == [(7, ("n3",), tuple(range(8)))]
    assert answers == [b"berth/1 done\n"]
    write_all(planner)
    assert sorted(job for job, *_ in slurm.pins) == [5, 6, 7]
    # Only for that one is there no time to look at its texts again.
    assert slurm.in_a_hurry == {7}


def test_a_job_that_its_owner_has_just_changed_is_pinned_only_once_that_was_read(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pin in a hurry is based on the last reading, and would write over what the owner changed since then."""
    monkeypatch.setattr(planner_module, "_CHEAP", 0.0)
    jobs = [running(2, "n3", 0xFF, 900), young(7, "n1", 0xFF, 7)]
    slurm = Slurm([node("n1", used=0xFF), node("n3", used=0xFF)], jobs)
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    (tmp_path / "pinned.excluded" / "7").touch()
    answers: list[bytes] = []

    planner.take([Notice(2, "n3", answers.append)])
    write_all(planner)
    assert (slurm.pins, answers) == ([], [b"berth/1 done\n"])

    slurm.ahead = 2e9
    slurm.nodes, slurm.jobs = [slurm.nodes[0], node("n3")], [young(7, "n1", 0xFF, 7)]
    planner.one_pass(ended=False)
    write_all(planner)
    assert slurm.pins[-1:] == [(7, ("n3",), tuple(range(8)))]


@pytest.mark.parametrize(("wakes", "pinned"), [(True, ("n2",)), (False, None)])
def test_no_job_is_pinned_to_a_node_that_sleeps_without_a_way_back(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch, wakes: bool, pinned: tuple[str, ...] | None
) -> None:
    # Slurm calls a node that is powered down idle.
    asleep = replace(node("n2"), lost=True)
    slurm = Slurm([node("n1", used=0xFF), asleep], [running(1, "n1", 0xFF, 30_000), young(5, "n1", 0b01, 9)])
    read = slurm.read
    monkeypatch.setattr(slurm, "read", lambda **words: replace(read(**words), wakes=wakes))
    planner = planner_of(slurm, tmp_path, channel)

    planner.one_pass(ended=False)
    write_all(planner)

    assert next((nodes for job, nodes, _ in slurm.pins if job == 5), None) == pinned


@pytest.mark.parametrize(
    ("job", "state", "freed"),
    [(2, "COMPLETING", True), (2, "RUNNING", False), (2, "SUSPENDED", False), (77, "COMPLETING", False)],
)
def test_a_notice_that_nothing_vouches_for_is_true_if_slurms_record_says_so(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch, job: int, state: str, freed: bool
) -> None:
    monkeypatch.setattr(planner_module, "_CHEAP", 0.0)
    ends = replace(running(2, "n3", 0xFF, 900), nodes=("n3", "n4"), holds=(0xFF, 0xFF))
    jobs = [running(1, "n1", 0xFF, 3_000), ends, young(7, "n1", 0xFF, 7)]
    slurm = Slurm([node(name, used=0xFF) for name in ("n1", "n3", "n4")], jobs)
    slurm.state = state
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    answers: list[bytes] = []

    planner.take([Notice(job, "n3", answers.append, is_hint=True), Notice(job, "n4", answers.append, is_hint=True)])

    assert [job for job, *_ in slurm.pins] == ([7] if freed else [])
    assert answers == [b"berth/1 done\n"] * 2
    # A job's nodes all say that it ends; Slurm is asked once, and of no job that is not known to run.
    assert slurm.asked == ([2] if job == 2 else [])


@pytest.mark.parametrize(("state", "pinned"), [("COMPLETED", [7]), ("", [7]), ("PENDING", [])])
def test_the_nodes_of_a_requeued_gang_are_no_other_jobs_before_a_reading(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch, state: str, pinned: list[int]
) -> None:
    """If it lost a node, the next reading shows it, and the others are kept for it."""
    monkeypatch.setattr(planner_module, "_CHEAP", 0.0)
    placed = {"state": "placed", "nodes": "n3,n4", "k": "8"}
    gang = replace(running(2, "n3", 0xFF, 900, segment=placed), nodes=("n3", "n4"), holds=(0xFF, 0xFF))
    jobs = [running(1, "n1", 0xFF, 3_000), replace(gang, required=gang.nodes), young(7, "n1", 0xFF, 7)]
    slurm = Slurm([node(name, used=0xFF) for name in ("n1", "n3", "n4")], jobs)
    slurm.state = state
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    answers: list[bytes] = []

    planner.take([Notice(2, name, answers.append) for name in gang.nodes])

    assert [job for job, *_ in slurm.pins] == pinned
    assert (slurm.asked, answers) == ([2], [b"berth/1 done\n"] * 2)


def test_however_many_hints_come_slurm_is_asked_for_a_twentieth_of_the_time(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [running(number, "n1", 1 << number, 3_000) for number in range(1, 5)]
    slurm = Slurm([node("n1", used=0b11110)], jobs)
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    now = [1_000.0]
    answers: list[bytes] = []
    record = slurm.job

    def slow(job_id: int) -> JobText:
        now[0] += 2.0
        return record(job_id)

    monkeypatch.setattr(slurm, "job", slow)
    monkeypatch.setattr(looks_module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))

    planner.take([Notice(job.id, "n1", answers.append, is_hint=True) for job in jobs])
    assert (len(slurm.asked), len(answers)) == (1, 4)
    now[0] += 39.0
    planner.take([Notice(1, "n1", answers.append, is_hint=True)])
    assert len(slurm.asked) == 1
    now[0] += 1.0
    planner.take([Notice(1, "n1", answers.append, is_hint=True)])
    assert len(slurm.asked) == 2


@pytest.mark.parametrize("cheap", [0.0, 60.0])
def test_a_job_that_lets_others_go_first_is_moved_off_freed_gpus_before_the_epilog_goes_on(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch, cheap: float
) -> None:
    """Slurm starts a pinned job as soon as the Epilog is over. The gang behind it fits now, and is soon done."""
    monkeypatch.setattr(planner_module, "_CHEAP", cheap)
    ends = replace(running(1, "n1", 0xFF, 300), nodes=("n1", "n2"), holds=(0xFF, 0xFF))
    other = running(2, "n3", 0xFF, 20_000, limit=30_000, start=990_000, holds=(0xFF,))
    gang = waiting(
        6, "n1", 0xFF, limit=60, priority=8, count=2, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"}
    )
    jobs = [ends, other, waiting(5, "n1", 0b01, limit=72_000, priority=9), gang]
    slurm = Slurm([node(name, used=0xFF) for name in ("n1", "n2", "n3")], jobs)
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    before: list[object] = []

    planner.take([Notice(1, "n1", lambda _: before.extend(slurm.pins))])

    assert slurm.pins[0][:2] == (5, ("n3",))
    assert before == slurm.pins
    assert 5 in slurm.in_a_hurry


def test_a_notice_of_a_job_that_no_reading_has_shown_lets_slurm_alone_for_a_while(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm([node("n1", used=0xFF), node("n2")], [running(1, "n1", 0xFF, 3_000), young(5, "n1", 0xFF, 9)])
    planner = planner_of(slurm, tmp_path, channel)
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    read = slurm.read

    def slowly(*, ended: bool) -> Reading:
        looks.append(clock[0])
        clock[0] += 0.2
        return read(ended=ended)

    looks: list[float] = []
    monkeypatch.setattr(slurm, "read", slowly)
    planner.one_pass(ended=False)
    answers: list[bytes] = []

    planner.take([Notice(77, "n2", answers.append)])
    assert len(looks) == 1

    clock[0] += planner_module.REST * 0.2 + 0.1
    planner.take([Notice(78, "n2", answers.append)])
    assert len(looks) == 2
    assert answers == [b"berth/1 done\n"] * 2


def test_what_is_planned_anew_is_written_once_and_as_it_was_planned_last(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the first look at the topology files took, the next one is due.
    monkeypatch.setattr(topologies, "PATIENCE", 0)
    jobs = [running(1, "n1", 0xFF, 3_000), young(5, "n1", 0b01, 9)]
    slurm = Slurm([node("n1", used=0xFF), node("n2")], jobs)
    planner = planner_of(slurm, tmp_path, channel)
    planner.one_pass(ended=False)
    # Before it is written somebody else takes the node that was chosen, and another comes back.
    slurm.nodes = [node("n1", used=0xFF), node("n2", used=0xFF), node("n3")]
    slurm.jobs = [*jobs, running(3, "n2", 0xFF, 3_000)]
    files.dump(machine("n3", "h100"), tmp_path / "n3.json")

    planner.one_pass(ended=False)
    write_all(planner)

    assert [(job, nodes) for job, nodes, _ in slurm.pins] == [(5, ("n3",))]


def test_a_waiting_job_excludes_nobody_who_takes_no_jobs_for_long(
    tmp_path: Path, channel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slurm, "annotate", lambda *_: None)
    nodes = [node("n1", used=0xFF), *(node(name, used=0xFF) for name in ("n2", "n3", "n4"))]
    holders = [running(number, one.name, 0xFF, 3_000 - number) for number, one in enumerate(nodes)]
    waits = young(5, "n4", 0b01, 9)
    waits = replace(waits, plan=JobPlan({**waits.known.texts, "others": mark_of("n[1-3]")}))
    slurm = Slurm(nodes, [*holders, waits])
    planner = planner_of(slurm, tmp_path, channel, settings=Settings(exclude_others=4))

    for slurm.ahead in (0.0, 60.0):
        planner.one_pass(ended=False)
        write_all(planner)
    assert slurm.pins == []
    slurm.nodes = [*nodes[:2], replace(nodes[2], up=False), nodes[3]]
    for slurm.ahead in (120.0, 720.0):
        planner.one_pass(ended=False)
        write_all(planner)

    assert slurm.pins == [(5, ("n4",), (0,))]
    assert slurm.others == ["n[1-2]"]


def test_a_job_that_moves_in_a_pass_is_not_put_back_for_its_list(tmp_path: Path, channel: socket.socket) -> None:
    jobs = [running(1, "n1", 0xFF, 3_000), young(5, "n1", 0b01, 9)]
    slurm = Slurm([node("n1", used=0xFF), node("n2")], jobs)
    planner = planner_of(slurm, tmp_path, channel, settings=Settings(exclude_others=1))

    planner.one_pass(ended=False)
    write_all(planner)

    # What the reading shows of it is out of date, its old place too.
    assert [(job, nodes) for job, nodes, _ in slurm.pins] == [(5, ("n2",))]
    assert slurm.others == ["n1"]


@pytest.mark.parametrize("harm", ["removed", "empty", "cut", "foreign", "grown"])
def test_a_list_of_pinned_jobs_that_is_removed_or_damaged_is_written_again_at_the_next_pass(
    tmp_path: Path, harm: str
) -> None:
    path = tmp_path / "pinned"
    pins, queue = Pins(None, path), [running(1, "n1", 1, 60.0, segment={"tier": "guaranteed"})]  # type: ignore[arg-type]
    pins.list_pinned((), queue)
    whole, before = path.read_bytes(), path.stat()
    pins.list_pinned((), queue)
    assert path.stat().st_ino == before.st_ino, "an unharmed list is not written again"

    match harm:
        case "removed":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(whole[:-3])
        case "foreign":
            (tmp_path / "other").write_bytes(whole)
            (tmp_path / "other").rename(path)
        case "grown":
            path.write_bytes(whole + b"\0")
    pins.list_pinned((), queue)
    assert path.read_bytes() == whole, f"{harm}: the plugin would let owners change pinned jobs"


RECORDS: dict[str, list[Any]] = {
    "state": ["PENDING", "RUNNING"],
    "partition": ["gpu", "plain", "plain,cpu", "gpu,plain"],
    "guest": [True, False],
    "share": [0, 30],
    "licenses": ["", "berth_v100:1"],
    "wants_gpus": [True, False],
    "plan": [None, *map(JobPlan, ({"state": "placed"}, {"share": "30"}, {"tier": "guaranteed"}))],
}


@pytest.mark.parametrize("skipped", [frozenset(), frozenset({"plain", "cpu"})])
@pytest.mark.parametrize("rules", ["", "partition=gpu:exclusive"])
def test_jobs_that_are_left_out_of_the_list_would_have_had_no_kind(skipped: frozenset[str], rules: str) -> None:
    records = enumerate(itertools.product(*RECORDS.values()), 1)
    job, allowed = running(1, "n1", 1, 60.0), parse_allowed(rules)
    jobs = [replace(job, id=number, **dict(zip(RECORDS, one, strict=True))) for number, one in records]

    bound = [job for job in jobs if pinned.may_be_bound(job, skipped, allowed)]
    assert pinned.listed((), bound, skipped, allowed) == pinned.listed((), jobs, skipped, allowed)
    assert len(bound) < len(jobs) or allowed


@given(st.binary(max_size=64))
@settings(max_examples=examples(50))
def test_whatever_stands_in_the_list_of_pinned_jobs_it_is_right_after_the_next_pass(harm: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pinned"
        pins, queue = Pins(None, path), [running(1, "n1", 1, 60.0, segment={"tier": "guaranteed"})]  # type: ignore[arg-type]
        pins.list_pinned((), queue)
        whole = path.read_bytes()
        path.write_bytes(harm)
        pins.list_pinned((), queue)
        assert path.read_bytes() == whole, f"{harm!r}: the plugin would let owners change pinned jobs"
