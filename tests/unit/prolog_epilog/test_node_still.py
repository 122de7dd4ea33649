# SPDX-License-Identifier: Apache-2.0
"""Jobs in which nothing moves: the law, and the signs of life of real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prolog_epilog.injob import word
from prolog_epilog.injob.word import AT, MOVED, STEP_NS, STEPS, WordSlot
from prolog_epilog.looks import signs, still
from prolog_epilog.looks.gpu_use import SeenGpu
from prolog_epilog.looks.signs import serves, signs_of
from prolog_epilog.looks.still import JobLook, RankSeen, Rhythm, StillLooks, StillNotice
from prolog_epilog.looks.watch import PERIOD
from prolog_epilog.node import cgroups
from prolog_epilog.node.paths import Paths
from tests.waiting import until

BUSY, IDLE = RankSeen(0, 100, busy=True), RankSeen(1, 100, busy=False)
QUIET = JobLook((BUSY, IDLE), 5, tells=True, trains=True, cpu_s=0.0, moved=0, attended=False)
BLIND = JobLook((RankSeen(0, -1, busy=False),), 0, tells=False, trains=False, cpu_s=0.0, moved=0, attended=False)


class Job:
    """A rhythm that is looked at every 15 s."""

    def __init__(self, first: JobLook) -> None:
        self.now, self.rhythm = 0.0, Rhythm()
        self.look(first)

    def look(self, one: JobLook, seconds: float = PERIOD) -> Job:
        for _ in range(round(seconds / PERIOD)):
            self.now += PERIOD
            self.rhythm.hear(self.now, PERIOD, one)
        return self

    def works(self, seconds: float, of: JobLook) -> Job:
        for turn in range(round(seconds / PERIOD)):
            steps = tuple(one._replace(steps=one.steps + turn + 1, busy=True) for one in of.ranks)
            self.look(of._replace(ranks=steps if of.tells else tuple(one._replace(busy=True) for one in of.ranks)))
        return self

    @property
    def hangs(self) -> bool:
        allowed = self.rhythm.allowed()
        return allowed is not None and self.now - self.rhythm.alive >= allowed


def after(job: Job) -> JobLook:
    assert job.rhythm.last is not None
    return job.rhythm.last._replace(ranks=tuple(one._replace(busy=one.position == 0) for one in job.rhythm.last.ranks))


def test_a_job_whose_ranks_tell_hangs_after_ten_minutes_though_a_gpu_is_busy() -> None:
    job = Job(QUIET).works(600, QUIET)
    stopped = after(job)

    assert not job.look(stopped, 600 - PERIOD).hangs
    assert job.look(stopped).hangs


@pytest.mark.parametrize(
    "sign",
    [{"moves": 6}, {"cpu_s": 0.06 * PERIOD}, {"moved": 1 << 20}, {"attended": True}, {"tells": False}],
)
def test_any_other_sign_of_life_begins_the_time_anew(sign: dict[str, Any]) -> None:
    job = Job(QUIET).works(600, QUIET)
    stopped = after(job)

    job.look(stopped, 590).look(stopped._replace(**sign)).look(stopped, 590)
    assert not job.hangs


def test_a_watchdog_is_no_sign_where_the_ranks_tell_and_one_where_they_do_not() -> None:
    job, blind = Job(QUIET).works(600, QUIET), Job(BLIND).works(700, BLIND)
    watchdog: dict[str, Any] = {"cpu_s": 0.02 * PERIOD, "moved": 4_096}

    assert job.look(after(job)._replace(**watchdog), 700).hangs
    assert not blind.look(BLIND._replace(**watchdog), 7_200).hangs
    assert blind.look(BLIND, 1_800).hangs


def test_its_own_rhythm_allows_more() -> None:
    job = Job(QUIET).works(600, QUIET)
    job.look(after(job), 480)
    job.works(600, after(job))

    assert not job.look(after(job), 1_300).hangs
    assert job.look(after(job), 200).hangs


def test_a_job_that_never_worked_or_has_hardly_begun_does_not_hang() -> None:
    assert not Job(BLIND).look(BLIND, 7_200).hangs
    assert not Job(BLIND).works(60, BLIND).look(BLIND, 7_200).hangs
    few = QUIET._replace(ranks=(BUSY._replace(steps=5),))
    assert not Job(few).look(few, 7_200).hangs


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        # What it reads while it starts would be a sign of life.
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_what_a_process_does_is_seen(child: subprocess.Popen[bytes]) -> None:
    found = signs_of(child.pid)
    assert found is not None
    assert not found.attended
    own = signs_of(os.getpid())
    assert own is not None
    assert own.cpu_s > 0.0
    assert own.moved > 0
    os.kill(child.pid, 19)
    until("a stopped process is attended", lambda: ((seen := signs_of(child.pid)) and seen.attended) or None)
    assert signs_of(2**22 + 1) is None


def test_a_process_that_listens_serves(child: subprocess.Popen[bytes]) -> None:
    assert not serves([child.pid])
    with socket.create_server(("127.0.0.1", 0)):
        assert serves([child.pid, os.getpid()])


def test_the_sockets_of_a_network_are_read_once_for_all_processes(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def listening(pid: int) -> set[str]:
        read.append(pid)
        return {"none"}

    monkeypatch.setattr(signs, "_listening", listening)

    assert not serves([child.pid, os.getpid(), 2**22 + 1])
    assert read == [child.pid]


def test_whether_a_quiet_job_serves_is_looked_for_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]
) -> None:
    asked: list[float] = []
    node = Node(tmp_path, monkeypatch, child.pid)

    def answer(_: object) -> bool:
        asked.append(node.now)
        return True

    monkeypatch.setattr(still, "serves", answer)
    node.look(1_200)

    assert node.look(1_800 + 300, busy=(False, False)) == []
    assert [after - before for before, after in pairwise(asked)] == [60.0] * (len(asked) - 1)
    assert len(asked) >= 5


class Node:
    """One job on two GPUs, with a slot of its beat on each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
        self.paths, self.now = Paths(folder), 1_000.0
        monkeypatch.setattr(word, "time", SimpleNamespace(monotonic_ns=lambda: 10**16, monotonic=time.monotonic))
        monkeypatch.setattr(cgroups, "job_of", {pid: 42}.get)
        self.slots = [WordSlot(one) for one in word.create(self.paths.word(42), ["GPU-a", "GPU-b"], os.getuid(), 0)]
        self.pid, self.found = pid, StillLooks(self.paths, "n1", lambda _: [pid])

    def look(self, seconds: float, *, steps: int = 0, busy: tuple[bool, bool] = (True, True)) -> list[StillNotice]:
        said = []
        for _ in range(round(seconds / PERIOD)):
            self.now += PERIOD
            for slot in self.slots:
                slot.numbers[STEPS] += steps
                slot.numbers[STEP_NS] += steps * 10**9
                slot.numbers[AT] = 1
                slot.numbers[MOVED] = 1
            gpus = [SeenGpu(place, f"GPU-{'ab'[place]}", on, (self.pid,)) for place, on in enumerate(busy)]
            said += self.found.look(self.now, gpus)
        return said


def test_a_node_tells_of_a_job_each_minute_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]
) -> None:
    node = Node(tmp_path, monkeypatch, child.pid)
    assert node.look(600, steps=15) == []
    assert node.look(600 - PERIOD, busy=(True, False)) == []

    first, *more = node.look(180, busy=(True, False))
    assert first.text == "berth/1 still node=n1 job=42 for=600 allowed=600 ranks=0:600:1,1:600:0"
    assert len(more) == 2
    assert node.look(60, steps=15) == []


def test_a_job_that_shares_a_gpu_with_another_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]
) -> None:
    node = Node(tmp_path, monkeypatch, child.pid)
    monkeypatch.setattr(cgroups, "job_of", lambda one: 42 if one == child.pid else 43)
    for turn in range(200):
        assert node.found.look(PERIOD * turn, [SeenGpu(0, "GPU-a", busy=turn < 50, pids=(child.pid, 1))]) == []


def test_a_look_at_eighty_processes_costs_less_than_half_a_percent_of_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(80)]
    pids = [one.pid for one in children]
    try:
        monkeypatch.setattr(cgroups, "job_of", lambda _: 42)
        found = StillLooks(Paths(tmp_path), "n1", lambda _: pids)
        gpus = [SeenGpu(gpu, f"GPU-{gpu}", busy=True, pids=tuple(pids[gpu::8])) for gpu in range(8)]
        begin = time.process_time()
        for turn in range(20):
            found.look(turn * PERIOD, gpus)
        assert (time.process_time() - begin) / 20 / PERIOD < 0.005
    finally:
        for one in children:
            one.kill()
            one.wait()
