# SPDX-License-Identifier: Apache-2.0
"""Throws from every function that the planner's passes, notices and writes reach: it goes on, and hears the others."""

import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from policy.daemon.hear.endings import NodeWord
from policy.daemon.hear.gpu_use import GpuWord, ToldGpu
from policy.daemon.hear.guards import GuardWord
from policy.daemon.hear.levels import LevelWord
from policy.daemon.hear.notices import Notice
from policy.daemon.hear.step_times import StepWord
from policy.daemon.hear.words import Word
from policy.daemon.known import topologies
from policy.daemon.passes import planner as planner_module
from policy.daemon.passes.handover import Snapshot
from policy.daemon.passes.planner import Planner
from policy.formats.errors import SlurmError
from policy.formats.slurm_facts import JobFacts, JobText
from tests.examples import sample_or_all, sampled
from tests.unit.guest_world import guest, host, parked
from tests.unit.policy.plan.test_isolation import settrace_for, traced
from tests.unit.policy_world import node, running, waiting
from tests.unit.share_world import packed, packed_waiting

from .test_planner_writes import Slurm, planner_of, write_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GOOD = {5, 6}
WIRING = {
    *("planner.py", "listeners.py", "looks.py", "releases.py", "updates.py", "handover.py", "log.py", "isolation.py")
}
"""Files whose functions call the parts, talk to the other process, or are what a fault is told by."""
NOT_ABOUT_JOBS = {"starting", "reread", "reread_all", "_reread", "__getstate__"}
"""The picture is pickled as a whole: a planner that cannot do that ends, and the answerer starts another."""


class Nobody:
    """The answerer's end, where nobody listens."""

    def send(self, snapshot: Snapshot) -> None:
        pickle.dumps(snapshot)

    def sign(self) -> None:
        pass


class Willing(Slurm):
    """A Slurm that does all that it is asked."""

    def annotate(self, job_id: int, values: Any) -> None:
        pass

    def job(self, job_id: int) -> JobText:
        raise SlurmError(f"job {job_id} is not known to Slurm (any more)")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: True


def world() -> Willing:
    jobs: list[JobFacts] = [
        running(1, "n1", 0xFF, 3_000),
        running(2, "n4", 0xFF, 3_000),
        host(3, "n2", 0b1),
        guest(20, "n2", 0),
        parked(21),
        waiting(5, "n1", 0b01, priority=9),
        waiting(6, "n1", 0b10, priority=8),
        waiting(7, "n1,n4", 0b11, required=("n1", "n4"), count=2, segment={"nodes": "n1,n4", "n": "2"}),
        packed(30, "n5", 0, 30),
        packed_waiting(31, "n5", 0, 80),
    ]
    used = {"n1": 0xFF, "n2": 1, "n4": 0xFF, "n5": 1}
    nodes = [node(f"n{number}", used=used.get(f"n{number}", 0)) for number in range(1, 6)]
    return Willing(nodes, jobs)


def day(planner: Planner, slurm: Willing) -> list[bytes]:
    """Passes, writes and one notice of each kind; the answers to the notices."""
    answers: list[bytes] = []

    def notice(job: int, name: str, word: Any = None, **more: Any) -> Notice:
        return Notice(job, name, answers.append, word=word, **more)

    planner._answerer._sender = planner._looks._sender = Nobody()  # type: ignore[assignment]
    planner.one_pass(ended=False)
    write_all(planner)
    words: list[Word] = [
        GuardWord("n2", 0, 20, "healthy", "evict"),
        StepWord("n1", 0, "GPU-n1-0", 1, "train", 10**9, 100, 1_400, 300, 60),
        LevelWord("n5", 30, "held", "its share is held"),
        GpuWord("n1", (ToldGpu(0, 0, 900, 0, 5, 70),)),
        NodeWord(2, "n4", "oom", False, "out of memory"),
    ]
    planner.take([notice(one.job, one.node, one) for one in words])
    slurm.jobs = [job for job in slurm.jobs if job.id != 2]
    planner.take([notice(2, "n4"), notice(30, "n5", degraded=True)])
    write_all(planner)
    slurm.ahead += 2
    planner.one_pass(ended=False)
    write_all(planner)
    assert len(answers) >= len(words) + 2
    return answers


@contextmanager
def throwing(code: CodeType) -> Iterator[list[str]]:
    """Throws the first time that this function is called."""
    thrown: list[str] = []

    def throw(frame: FrameType) -> None:
        if not thrown:
            thrown.append(code.co_qualname)
            raise RuntimeError("thrown")

    with settrace_for(code, throw):
        yield thrown


def functions(planner: Planner, slurm: Willing) -> dict[CodeType, str]:
    found: dict[CodeType, str] = {}

    def note(frame: FrameType) -> None:
        path = Path(frame.f_code.co_filename)
        if path.name in WIRING or frame.f_code.co_name in NOT_ABOUT_JOBS:
            return
        found.setdefault(frame.f_code, f"{path.name}:{frame.f_code.co_qualname}")

    with traced(note):
        day(planner, slurm)
    return found


@sample_or_all(80)
def test_a_fault_in_any_function_ends_neither_the_planner_nor_what_others_get(
    tmp_path: Path,
    channel: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int | None,
) -> None:
    monkeypatch.setattr(planner_module, "_CHEAP", -1.0)
    monkeypatch.setattr(topologies, "PATIENCE", 0)
    slurm = world()
    every = functions(planner_of(slurm, tmp_path, channel), slurm)
    assert {job for job, *_ in slurm.pins} >= GOOD
    assert len(every) > 300
    capsys.readouterr()

    for code, name in sampled(every.items(), count):
        slurm = world()
        planner = planner_of(slurm, tmp_path, channel)
        with throwing(code) as thrown:
            day(planner, slurm)
        told = capsys.readouterr().err
        missing = GOOD - {job for job, *_ in slurm.pins}
        assert planner._plan.isolation.count == len(thrown), f"{name}: {told}"
        assert len(missing) <= 1, f"{name}: {told}"
        assert all(f"JobId={job} is left to Slurm" in told for job in missing), f"{name}: {told}"
