# SPDX-License-Identifier: Apache-2.0
"""How long a node tells berthd of a failed job, and what its log says where that was in vain."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prolog_epilog.errors import NodeError
from prolog_epilog.failed import aftermath, spool
from prolog_epilog.failed.aftermath import FailureWord
from prolog_epilog.failed.spool import Failed
from prolog_epilog.guard import options
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.tell import notice
from prolog_epilog.job.job import NodeJob

WORD = FailureWord(7, "n1", "core_dump", transient=True, sign="x")
ENVIRONMENT = {"SLURM_JOB_EXIT_CODE2": "1:0", "SLURM_JOB_NODELIST": "n1"}
JOB = NodeJob(7, 1_000, "n1", "[berth/1 nodes=n1 gpus=0]", (0,), ENVIRONMENT)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = list[str]()
    monkeypatch.setattr(aftermath, "_log", found.append)
    return found


class Berthd:
    """Says yes from a moment on; the clock is the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, yes_at: float, trouble: Exception | None = None) -> None:
        self.yes_at, self.trouble, self.now, self.asked = yes_at, trouble, 0.0, list[float]()
        failed = [Failed(JOB, "1:0", 0.0)]
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(spool, "waiting", lambda _: ["1000.7"] if failed else [])
        monkeypatch.setattr(spool, "take", lambda *_: failed.pop())
        monkeypatch.setattr(options, "load", lambda _: (None, NoticeOptions(("ctl1", "ctl2"))))
        monkeypatch.setattr(notice, "tell", self.tell)
        monkeypatch.setattr(aftermath, "_looked_into", lambda *_: WORD)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def tell(self, _where: NoticeOptions, word: FailureWord) -> bool:
        assert word == WORD
        self.asked.append(self.now)
        if self.trouble is not None:
            raise self.trouble
        return self.now >= self.yes_at


def here(**more: Any) -> Any:
    return SimpleNamespace(paths=None, conf="", **more)


@pytest.mark.parametrize(
    ("trouble", "why"),
    [(None, "no berthd on ctl1, ctl2 took it; is it up?"), (NodeError("munge is down"), "munge is down")],
)
def test_berthd_is_asked_less_and_less_often_for_five_minutes(
    monkeypatch: pytest.MonkeyPatch, logged: list[str], trouble: Exception | None, why: str
) -> None:
    berthd = Berthd(monkeypatch, yes_at=1e9, trouble=trouble)
    aftermath._tell_all(here())
    assert berthd.asked == [0, 1, 3, 7, *range(15, 301, 15)], "every 15 s at least, and as long as Slurm knows the job"
    assert [line.removesuffix(" [BERTH-910]") for line in logged] == [
        f"job 7 failed, and berthd was not told of what: {why}"
    ]


def test_what_berthd_took_is_told_no_more(monkeypatch: pytest.MonkeyPatch, logged: list[str]) -> None:
    berthd = Berthd(monkeypatch, yes_at=5.0)
    aftermath._tell_all(here())
    assert (berthd.asked, logged) == ([0, 1, 3, 7], [])


def test_a_job_that_cannot_be_looked_into_is_named_and_leaves_no_alarm(
    monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    left = list[float]()

    def look(*_: object) -> FailureWord:
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        raise NodeError("scontrol says nothing")

    monkeypatch.setattr(aftermath, "look", look)
    before = signal.getsignal(signal.SIGALRM)
    try:
        assert aftermath._looked_into(Failed(JOB, "1:0", time.time()), here()) is None
        assert 60.0 < left[0] <= 65.0, "an hour's hang would keep all other jobs waiting"
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0, "the next wait would be ended by this one's alarm"
        monkeypatch.setattr(aftermath, "look", lambda *_: WORD)
        found = aftermath._looked_into(Failed(JOB, "1:0", time.time(), degraded=True), here())
        assert found is not None
        assert (found.failure, found.degraded) == ("core_dump", True)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert len(logged) == 1
    assert logged[0].startswith("job 7 failed, and berthd was not told of what: scontrol says nothing")


@pytest.mark.parametrize(("seconds", "looked"), [(299.0, True), (301.0, False)])
def test_a_job_that_slurm_has_forgotten_by_its_turn_is_named_and_not_looked_into(
    monkeypatch: pytest.MonkeyPatch, logged: list[str], seconds: float, *, looked: bool
) -> None:
    monkeypatch.setattr(aftermath, "look", lambda *_: WORD)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    found = aftermath._looked_into(Failed(JOB, "1:0", time.time() - seconds), here())
    assert (found == WORD) is looked
    too_late = "job 7 failed, and berthd was not told of what: too many failed before it"
    assert logged == ([] if looked else [too_late])


@pytest.mark.parametrize("problem", [OSError(11, "Resource temporarily unavailable"), NodeError("300 jobs wait")])
def test_an_epilog_that_can_leave_nothing_behind_says_so_and_ends(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    said = list[str]()

    def add(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(spool, "add", add)
    aftermath.leave_behind(JOB, here(say=said.append, has_file=lambda _: False))
    assert len(said) == 1
    assert said[0].startswith(f"what job 7 failed of is not looked into: {getattr(problem, 'strerror', problem)}")


def test_a_log_is_read_from_256_kib_before_its_end(tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    path.write_bytes(b"a" + b"b" * 262_144)
    assert aftermath._end_of(str(path)) == b"b" * 262_144
    os.truncate(path, 3)
    assert aftermath._end_of(str(path)) == b"abb"
