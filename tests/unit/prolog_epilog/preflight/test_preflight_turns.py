# SPDX-License-Identifier: Apache-2.0
"""When the runner of a pre-flight ends its script, and what a failure means for the job, by a clock of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prolog_epilog.injob import word
from prolog_epilog.preflight import runner

WAITS = "9 afterany:66(unfulfilled)\n7 afterany:6(unfulfilled),afterok:5(unfulfilled)\n"


@pytest.mark.parametrize(
    ("rule", "failure", "transient", "final"),
    [
        ("must", "nccl_timeout", True, True),
        ("asked", "import_error", False, True),
        ("asked", "nccl_timeout", True, False),
        ("asked", "no_signature", True, True),
        ("asked", "job_preempted", True, True),
        # One GPU is too few for its memory, its ranks, and for a number of a device that the job will have.
        *(
            ("asked", name, transient, False)
            for name in ("gpu_out_of_memory", "cpu_out_of_memory", "mpi_error", "cuda_init_failed")
            for transient in (False, True)
        ),
        ("site", "import_error", False, True),
        ("site", "syntax_error", False, True),
        ("site", "no_signature", True, False),
        ("site", "core_dump", False, False),
    ],
)
def test_a_failure_that_the_job_need_not_have_ends_it_by_must_alone(
    rule: str, failure: str, *, transient: bool, final: bool
) -> None:
    assert runner.is_final(rule, failure, transient=transient) is final


class Played:
    """A script that runs until it is ended, or ends by itself; what it and Slurm were told, in order."""

    pid = 4_711

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.now, self.did, self.asked = 1_000.0, list[object](), list[float]()
        self.ends_at, self.returncode = 1e9, 0
        self.queue: Callable[[float], str | None] = lambda _: WAITS
        self.at: Callable[[float], None] = lambda _: None
        self.folder = folder
        self.environment: dict[str, str] = {}
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(subprocess, "Popen", self.started)
        monkeypatch.setattr(os, "killpg", lambda *what: self.did.append(what))
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setattr(runner, "_slurm", self.slurm)
        monkeypatch.setattr(runner, "_class_of", lambda status: (f"status {status}", False))
        monkeypatch.setenv("SLURM_JOB_ID", "6")
        monkeypatch.setenv("BERTH_INJOB", "on")

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at(self.now - 1_000.0)

    def started(self, _command: object, *, env: dict[str, str], process_group: int) -> Played:
        assert process_group == 0, "its children are ended with it"
        self.environment = env
        return self

    def poll(self) -> int | None:
        return self.returncode if self.now >= 1_000.0 + self.ends_at else None

    def wait(self, seconds: float) -> None:
        self.did.append(seconds)
        raise subprocess.TimeoutExpired("script", seconds)

    def slurm(self, *words: str) -> str | None:
        if words[0] == "squeue":
            self.asked.append(self.now - 1_000.0)
            return self.queue(self.now - 1_000.0)
        self.did.append(words)
        return ""

    def run(self, seconds: int = 60, rule: str = "asked") -> int:
        status = runner.run(seconds, rule, ["script"])
        assert not list(self.folder.iterdir()), "no file is left behind"
        return status


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Played:
    return Played(monkeypatch, tmp_path)


def of_time(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1.5 * runner.LOOK_EVERY)


@pytest.mark.parametrize(("seconds", "grace"), [(60, 10.0), (8, 2.0)])
def test_a_script_that_goes_on_is_ended_before_its_time_is_over(
    played: Played, capfd: pytest.CaptureFixture[str], seconds: int, grace: float
) -> None:
    assert played.run(seconds) == 0
    assert played.now - 1_000.0 == of_time(seconds - grace)
    # Once more by SIGKILL, for it does not end.
    assert played.did == [(4_711, signal.SIGTERM), grace, (4_711, signal.SIGKILL), grace]
    assert "nothing went wrong in" in capfd.readouterr().err


def test_what_the_script_says_ends_it_at_once(played: Played, capfd: pytest.CaptureFixture[str]) -> None:
    played.at = lambda now: Path(played.environment["BERTH_READY"]).touch() if now >= 3.0 else None
    assert played.run() == 0
    assert played.now - 1_000.0 == of_time(3.0)
    assert "the script said that it is ready in 3 s: the pre-flight ends well" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("beat", "seconds"), [((0, False), 50.0), ((1, False), 2.0), ((0, True), 2.0), ((0, False, "unreadable"), 50.0)]
)
def test_its_first_step_ends_it_and_a_page_without_one_does_not(
    played: Played, monkeypatch: pytest.MonkeyPatch, beat: tuple[Any, ...], seconds: float
) -> None:
    def read_beats(_: Path) -> list[Any]:
        if len(beat) == 3:
            raise OSError(5, "Input/output error")
        after = played.now >= 1_002.0
        return [SimpleNamespace(steps=beat[0] if after else 0, ready=beat[1] and after)]

    monkeypatch.setattr(word, "read_beats", read_beats)
    assert played.run() == 0
    assert played.now - 1_000.0 == of_time(seconds)


def test_its_job_is_looked_for_now_and_then_and_without_it_the_script_ends(
    played: Played, capfd: pytest.CaptureFixture[str]
) -> None:
    played.queue = lambda now: WAITS if now < 12.0 else "9 afterany:66(unfulfilled)\n"
    assert played.run(600) == 0
    assert "its job waits no more in" in capfd.readouterr().err
    every = runner.ASK_EVERY
    assert played.asked == [of_time(every * turn) for turn in range(len(played.asked))]
    assert played.now - 1_000.0 < 12.0 + 1.5 * every


@pytest.mark.parametrize(
    ("problem", "status"),
    [(PermissionError(13, "Permission denied"), 126), (FileNotFoundError(2, "No such file"), 127)],
)
def test_a_script_that_cannot_be_started_has_the_status_that_a_shell_gives_it(
    played: Played, monkeypatch: pytest.MonkeyPatch, problem: OSError, status: int
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(subprocess, "Popen", refused)
    assert played.run() == status
    assert played.did == [("scancel", "--state=PENDING", "7")]


@pytest.mark.parametrize(("returncode", "status"), [(3, 3), (-9, 137)])
def test_the_status_of_a_script_that_fails_is_the_runners(played: Played, returncode: int, status: int) -> None:
    played.ends_at, played.returncode = 4.0, returncode
    assert played.run() == status
    assert played.did == [("scancel", "--state=PENDING", "7")]


def test_a_classifier_that_does_not_answer_ends_no_job_but_by_must(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **words: Any) -> None:
        raise subprocess.TimeoutExpired("berth", words["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    failure, transient = runner._class_of(1)
    assert not runner.is_final("asked", failure, transient=transient)
