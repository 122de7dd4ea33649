# SPDX-License-Identifier: Apache-2.0
"""What holds a share: found by the guard, counted in its metrics, and told to the job's owner by `berth why`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from policy.daemon.hear import levels as heard
from policy.daemon.hear.levels import MOST_NODES, LevelWord
from policy.daemon.hear.notices import Notice
from policy.daemon.passes.planner import Planner
from policy.formats import segment
from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobText
from policy.plan.answer.explain import rows
from policy.site.config import Config
from prolog_epilog.errors import DriverError
from prolog_epilog.guard.hold import levels
from prolog_epilog.guard.hold.levels import EnforcedLevels, LevelNotice
from prolog_epilog.guard.seats import metrics
from prolog_epilog.mps.limits import Level
from prolog_epilog.node import cgroups, files, freezer, processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.share_file import ShareRecord
from prolog_epilog.tenants.state import SetState, Tenant
from tests.unit.policy.daemon.test_shares_degraded import GUEST, PACKED, Channel
from tests.unit.policy.daemon.test_shares_degraded import Slurm as OneJob

MPS = "server-ceiling"
SENTENCE = "MPS holds the job at 30 % of the multiprocessors; memory is not limited"
WALLED = Level("server-ceiling+dmem", "MPS holds the job at 30 %; the kernel holds its memory at 2048 MiB on each GPU")


@dataclass
class Node:
    """Share files as Prologs leave them, and a berthd that hears or does not."""

    paths: Paths
    hears: bool = True
    told: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        files.prepare(self.paths)
        self.levels = EnforcedLevels(self.paths, self.tell, self.said.append)

    def tell(self, one: LevelNotice) -> bool:
        self.told.append(f"{one.job} {one.level}")
        return self.hears

    def begins(self, job: int, level: str = MPS, mem: int | None = None, gpus: tuple[int, ...] = (2,)) -> None:
        uuids = tuple(f"GPU-{gpu}" for gpu in gpus)
        file = ShareRecord(job, 1000, gpus=gpus, minors=gpus, uuids=uuids, share=30, mem_mib=mem, way="mps", node="n1")
        share_file.write(self.paths, replace(file, level=level, level_text=SENTENCE))
        state.store(
            self.paths,
            SetState(
                processes.boot_id(self.paths.boot_id),
                uuids,
                (0,) * len(gpus),
                "ceiling",
                multi_user=False,
                tenants=(Tenant(job, 1000, 30, mem),),
            ),
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(Paths(tmp_path / "run"))


def test_each_share_is_told_once_and_again_when_it_begins_anew(node: Node) -> None:
    node.begins(5)
    share_file.write(
        node.paths, ShareRecord(6, 1000, why="no MPS", gpus=(1,), minors=(1,), uuids=("GPU-1",), node="n1")
    )
    for _ in range(3):
        node.levels.look()
    assert node.told == ["5 server-ceiling"]

    node.begins(5, "audit")
    node.levels.look()
    share_file.remove(node.paths, 5)
    node.levels.look()

    assert node.told == ["5 server-ceiling", "5 audit"]
    assert node.levels.counts == {}


def test_a_berthd_that_does_not_hear_is_asked_again_later_and_keeps_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.hears = False
    node.begins(5)
    node.begins(6, gpus=(3,))
    for _ in range(3):
        node.levels.look()
    assert len(node.told) == 1

    now = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: now)
    node.hears = True
    node.levels.look()
    assert sorted(set(node.told)) == ["5 server-ceiling", "6 server-ceiling"]


def test_the_metrics_count_jobs_by_gpu_and_level(node: Node) -> None:
    node.begins(5)
    node.begins(6)
    node.begins(7, "audit", gpus=(3, 4))
    node.levels.look()

    lines = metrics.text([], node.levels.counts, 0.05).splitlines()
    assert 'berth_guard_shares{gpu="2",uuid="GPU-2",level="server-ceiling"} 2' in lines
    assert 'berth_guard_shares{gpu="4",uuid="GPU-4",level="audit"} 1' in lines
    assert "berth_guard_shares" not in metrics.text([], {}, 0.05)


def has_groups(monkeypatch: pytest.MonkeyPatch, groups: Callable[[int], list[Path]]) -> None:
    monkeypatch.setattr(cgroups, "version", lambda: "v2")
    monkeypatch.setattr(freezer, "jobs_groups", groups)


def test_the_wall_is_raised_when_the_job_has_its_control_group(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, Path]] = []
    groups: dict[int, list[Path]] = {}

    def raise_wall(_paths: Paths, job: int, cgroup: Path) -> Level | None:
        raised.append((job, cgroup))
        return WALLED if job == 5 else None

    monkeypatch.setattr(levels, "raise_wall", raise_wall)
    has_groups(monkeypatch, lambda job: groups.get(job, []))
    node.begins(5, mem=2048)
    node.begins(6, mem=2048, gpus=(3,))
    node.begins(7, gpus=(4,))
    node.levels.look()
    assert raised == []

    groups.update({5: [Path("/five")], 6: [Path("/six")], 7: [Path("/seven")]})
    for _ in range(3):
        node.levels.look()

    assert sorted(raised) == [(5, Path("/five")), (6, Path("/six"))]
    written = share_file.read(node.paths, 5)
    assert written is not None
    assert (written.level, written.level_text) == (WALLED.name, WALLED.text)
    assert (written.mem_mib, written.node, written.uuids) == (2048, "n1", ("GPU-2",))
    assert node.told[-1] == "5 server-ceiling+dmem"
    assert sum(line.startswith("6 ") for line in node.told) == 1


def test_no_wall_is_raised_for_a_job_that_its_epilog_has_taken_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    has_groups(monkeypatch, lambda _: [Path("/five")])
    monkeypatch.setattr(levels, "raise_wall", lambda *_: pytest.fail("it has ended"))
    node.begins(5, mem=2048)
    state.forget(node.paths, ["GPU-2"])

    node.levels.look()

    assert node.levels.counts == {(2, "GPU-2", MPS): 1}


def test_a_driver_that_fails_leaves_the_level_as_it_was(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Level | None:
        raise DriverError("NVML does not start")

    has_groups(monkeypatch, lambda _: [Path("/five")])
    monkeypatch.setattr(levels, "raise_wall", fails)
    node.begins(5, mem=2048)
    for _ in range(3):
        node.levels.look()

    assert node.said == ["the kernel does not hold the memory of job 5: NVML does not start"]
    assert node.told == ["5 server-ceiling"]


# What berthd makes of it


def test_berthd_reads_what_the_guard_writes() -> None:
    said = LevelNotice("n1", 5, "server-ceiling+dmem", f"{SENTENCE}, 100 % [sic]")
    assert heard.read_word(said.text.encode()) == LevelWord("n1", 5, "server-ceiling+dmem", f"{SENTENCE}, 100 % [sic]")

    long = heard.read_word(replace(said, sentence="% " * 400).text.encode())
    assert long is not None
    assert len(long.text) == 400 // 3, "each sign takes three bytes"


@pytest.mark.parametrize(
    "payload",
    [
        b"berth/1 level node=n1 job=0 level=audit text=x",
        b"berth/1 level node=n1 job=4294967296 level=audit text=x",
        b"berth/1 level node=n1 job=5 level=audit text=",
        b"berth/1 level node=n1 job=5 level=audit text=%zz",
        b"berth/1 level node=n1 job=5 level=audit text=a]b",
        b"berth/1 level node=n1 job=5 level=audit text=" + b"x" * 401,
        b"berth/1 level node=n1 job=5 level=audit text=x more",
    ],
)
def test_anything_else_is_no_notice(payload: bytes) -> None:
    assert heard.read_word(payload) is None


def word(node: str = "n1", level: str = MPS, text: str = SENTENCE) -> LevelWord:
    return LevelWord(node, 5, level, text)


def test_it_stands_in_the_jobs_segment_and_in_berth_why() -> None:
    slurm = OneJob(state="RUNNING")
    found = heard.HeardLevels(slurm)  # type: ignore[arg-type]
    found.hear(word())

    assert (found.write_one(), found.write_one()) == (5, None)
    assert (slurm.values["held"], slurm.values["held_text"]) == ("n1:server-ceiling", SENTENCE)
    assert {key: slurm.values[key] for key in PACKED} == PACKED
    assert dict(rows(5, "RUNNING", JobPlan(slurm.values)))["enforced"] == f"{SENTENCE} (n1:server-ceiling)"
    found.hear(word())
    assert found.write_one() is None
    assert slurm.done == ["annotate 5"]


def test_nodes_add_up_and_a_later_word_replaces_the_same_nodes() -> None:
    values = heard.held(
        JobPlan({**GUEST, "held": "n1:audit"}), {"n2": word("n2", "guard", "x"), "n1": word("n1", "a+dmem", "y")}
    )
    assert (values.texts["held"], values.texts["held_text"]) == ("n1:a+dmem,n2:guard", "y")

    many = heard.held(JobPlan({}), {f"n{number}": word(f"n{number}") for number in range(30)})
    assert many.texts["held"].count(":") == MOST_NODES


@pytest.mark.parametrize(
    ("state", "values"),
    [
        ("PENDING", PACKED),
        ("COMPLETED", PACKED),
        ("RUNNING", {key: value for key, value in PACKED.items() if key != "share"}),
        ("RUNNING", {}),
    ],
)
def test_nothing_is_written_into_jobs_that_no_node_holds(state: str, values: dict[str, str]) -> None:
    slurm = OneJob(state=state, values=dict(values))
    found = heard.HeardLevels(slurm)  # type: ignore[arg-type]
    found.hear(word())

    assert found.write_one() is None
    assert slurm.done == []


def test_a_job_that_slurm_does_not_know_is_named_and_no_other_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    class Both(OneJob):
        def job(self, job_id: int) -> JobText:
            if job_id == 9:
                raise SlurmError("Invalid job id specified")
            return super().job(job_id)

    slurm = Both(state="RUNNING")
    found = heard.HeardLevels(slurm)  # type: ignore[arg-type]
    found.hear(word())
    found.hear(replace(word(), job=9))

    assert found.write_one() == 5
    assert "JobId=9: what holds its share could not be written" in capsys.readouterr().err


def test_while_slurm_does_not_answer_one_job_is_asked_for_at_a_time_and_none_is_lost() -> None:
    asked: list[int] = []

    class Silent(OneJob):
        def job(self, job_id: int) -> JobText:
            asked.append(job_id)
            if len(asked) < 3:
                raise NoAnswer("slurmctld did not answer within 20 s")
            return super().job(job_id)

    slurm = Silent(state="RUNNING")
    found = heard.HeardLevels(slurm)  # type: ignore[arg-type]
    for job in (5, 6, 7):
        found.hear(replace(word(), job=job))

    assert [found.write_one(), found.write_one()] == [None, None]
    assert len(asked) == 2, "Epilogs wait meanwhile"
    while found.write_one() is not None:
        pass
    assert set(asked) == {5, 6, 7}


def test_the_guards_word_reaches_the_job_between_two_passes(tmp_path: Path) -> None:
    slurm = OneJob(state="RUNNING")
    planner = Planner(slurm, Config(topology_dir=tmp_path, pinned_file=tmp_path / "pinned"), Channel())  # type: ignore[arg-type]
    answers: list[bytes] = []
    planner.one_pass(ended=False)
    planner.take([Notice(5, "n1", answers.append, word=word())])
    assert (answers, slurm.done) == ([b"berth/1 done\n"], [])

    while planner.write_one():
        pass
    assert slurm.done == ["annotate 5"]
    assert segment.fields(slurm.job(5).admin_comment) == slurm.values
    assert slurm.values["held"] == "n1:server-ceiling"
