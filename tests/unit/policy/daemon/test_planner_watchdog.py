# SPDX-License-Identifier: Apache-2.0
"""No pin outlives a planner that does not work for long: berthd ends with a failure, and its unit undoes them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from policy.cli import ask
from policy.daemon.passes.handover import Receiver, Sender, Snapshot
from policy.daemon.passes.planner import Planner
from policy.daemon.processes.planner_watchdog import PlannerWatchdog
from policy.formats import wire
from policy.formats.errors import DaemonError, FormatError, SlurmError, UnreadableError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import Reading
from policy.site.config import Config
from policy.slurm.by_command import command
from policy.slurm.by_library.program import Program
from policy.slurm.waits import WAITS, SlurmWaits
from tests.unit.policy.daemon.test_answerer import snapshot
from tests.unit.policy_world import node, reading, submit
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]

BERTHD = """
import sys
from pathlib import Path
from policy.site import log
from policy.daemon.answer.answerer import Answerer
from policy.site.config import Config
from policy.daemon.answer.server import Server
from policy.daemon.processes.planner_watchdog import PlannerWatchdog
from policy.formats.errors import DaemonError
try:
    watchdog = PlannerWatchdog(silent_for=float(sys.argv[3]), most_ends=3, within=60.0)
    Server(Answerer(Config(), "0", 1), Path(sys.argv[1]), [sys.executable, "-c", sys.argv[2]], watchdog=watchdog).run()
except DaemonError as problem:
    log.error(problem)
    sys.exit(1)
"""
"""As policy.daemon.answer.main has it, with another planner and less patience."""

SLEEPS = "import time; time.sleep(600)"
STOPS = "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP)"
ENDS = "raise SystemExit(3)"
HANGS_UP = "import os, sys, time; os.close(int(sys.argv[2])); time.sleep(600)"
LIVES = """
import socket, sys, time
channel = socket.socket(fileno=int(sys.argv[2]))
while True:
    channel.send(b"alive")
    time.sleep(0.1)
"""


@contextmanager
def berthd(path: Path, planner: str, silent_for: float) -> Iterator["subprocess.Popen[str]"]:
    command_line = [sys.executable, "-c", BERTHD, str(path), planner, str(silent_for)]
    with subprocess.Popen(command_line, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            until("berthd to listen", path.exists, every=0.02)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def reply(path: Path) -> wire.Message:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(30)
        channel.connect(str(path))
        channel.send(wire.encode("submit", submit(tres_per_job="gres/gpu:1")))
        return wire.decode(channel.recv(wire.REPLY_BYTES))


@pytest.mark.parametrize("planner", [SLEEPS, STOPS], ids=["sleeps", "stopped"])
def test_a_planner_that_is_silent_twice_ends_berthd_with_a_failure(tmp_path: Path, planner: str) -> None:
    began = time.monotonic()
    with berthd(tmp_path / "s", planner, 1.0) as process:
        assert reply(tmp_path / "s").verb == "pass", "meanwhile jobs are left to Slurm"
        assert process.wait(20) == 1
        assert process.stderr is not None
        said = process.stderr.read()

    assert 2.0 < time.monotonic() - began < 15.0
    assert said.count("neither read Slurm nor waited for it for 1 s: killed") == 2
    assert "silent for 1 s once more; berthd ends, so that its unit gives waiting jobs back to Slurm" in said
    assert not (tmp_path / "s").exists()


def test_a_planner_that_ends_again_and_again_ends_berthd_with_a_failure(tmp_path: Path) -> None:
    with berthd(tmp_path / "s", ENDS, 60.0) as process:
        assert reply(tmp_path / "s").verb == "pass"
        assert process.wait(30) == 1
        assert process.stderr is not None
        said = process.stderr.read()

    assert said.count("the planner ended with 3; a new one starts in 1 s") == 3
    assert "the planner ended 3 times within 60 s; berthd ends" in said


def test_a_planner_that_hangs_up_and_lives_on_is_replaced(tmp_path: Path) -> None:
    with berthd(tmp_path / "s", HANGS_UP, 60.0) as process:
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert process.stderr.read().count("the planner ended with -9") == 3


def test_a_planner_that_lives_may_take_its_time(tmp_path: Path) -> None:
    with berthd(tmp_path / "s", LIVES, 3.0) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(5.0)
        assert "answers" in ask.status(tmp_path / "s")
        process.terminate()
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert "killed" not in process.stderr.read()


def silences(watchdog: PlannerWatchdog, moments: list[float]) -> list[float]:
    return [now for now in moments if watchdog.is_silent(now)]


def every_second(begin: int, end: int) -> list[float]:
    return [float(now) for now in range(begin, end)]


def test_a_planner_is_silent_once_its_last_sign_is_too_old() -> None:
    watchdog = PlannerWatchdog(silent_for=10.0)
    watchdog.hear(100.0)
    assert silences(watchdog, every_second(100, 110)) == []
    watchdog.hear(109.0)
    assert silences(watchdog, every_second(110, 130)) == [119.0, 129.0]
    assert watchdog.hopeless


def test_a_silence_long_ago_does_not_count() -> None:
    watchdog = PlannerWatchdog(silent_for=10.0)
    watchdog.hear(100.0)
    assert silences(watchdog, every_second(100, 111)) == [110.0]
    for now in range(111, 1_000):
        watchdog.hear(float(now))
        assert not watchdog.is_silent(float(now))
    assert silences(watchdog, every_second(1_000, 1_010)) == [1_009.0]
    assert watchdog.hopeless == ""


def test_while_berthd_itself_stood_still_nobody_was_silent() -> None:
    watchdog = PlannerWatchdog(silent_for=10.0)
    watchdog.hear(100.0)
    assert silences(watchdog, [100.0, 101.0, 5_000.0, 5_001.0]) == []
    assert silences(watchdog, every_second(5_002, 5_011)) == [5_010.0]


def test_planners_may_end_now_and_then() -> None:
    watchdog = PlannerWatchdog(most_ends=3, within=60.0)
    for now in (100.0, 110.0, 200.0, 210.0):
        watchdog.end(now)
        assert watchdog.hopeless == ""
    watchdog.end(220.0)
    assert "ended 3 times within 60 s" in watchdog.hopeless


@pytest.fixture
def ends() -> Iterator[tuple[Sender, Receiver]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield Sender(theirs), Receiver(ours)


def test_words_and_pictures_are_signs_of_life_and_why_there_is_none_is_not(ends: tuple[Sender, Receiver]) -> None:
    sender, receiver = ends
    assert (receiver.receive(), receiver.take_sign()) == (None, False)
    for _ in range(3):
        sender.sign()
    assert (receiver.receive(), receiver.take_sign(), receiver.take_sign()) == (None, True, False)
    sender.send(Snapshot(None, frozenset(), "", "", "squeue failed"))
    found = receiver.receive()
    assert found is not None
    assert (found.problem, receiver.take_sign()) == ("squeue failed", False)
    sender.send(snapshot())
    assert (receiver.receive() is not None, receiver.take_sign()) == (True, True)


def test_signs_keep_nobody_waiting_whose_other_end_does_not_read(
    ends: tuple[Sender, Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, _ = ends
    monkeypatch.setattr("policy.daemon.passes.handover._SIGN_EVERY", 0.0)
    for _ in range(10_000):
        sender.sign()


def test_the_end_of_a_planner_is_told_from_its_having_nothing_to_say() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            sender, receiver = Sender(theirs), Receiver(ours)
            sender.send(Snapshot(None, frozenset(), "", "", "last words"))
        found = receiver.receive()
        assert found is not None
        assert found.problem == "last words"
        with pytest.raises(EOFError):
            receiver.receive()
        sender.sign()


class Slurm:
    """A gateway that answers, is silent, or answers what nobody can read."""

    name = "test"

    def __init__(self) -> None:
        self.fault: Exception | None = None

    def read(self, *, ended: bool) -> Reading:
        WAITS.begin()
        if self.fault is not None:
            raise self.fault
        assert not ended
        return reading([node("n1")])

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        raise AssertionError(job_id, plan.texts)


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def planner(
    slurm: Slurm, ends: tuple[Sender, Receiver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Planner]:
    monkeypatch.setattr("policy.daemon.passes.handover._SIGN_EVERY", 0.0)
    config = Config(topology_dir=tmp_path, fabric="none", pinned_file=tmp_path / "pinned")
    with closing(Planner(slurm, config, ends[0])) as made:  # type: ignore[arg-type]
        yield made


BLIND = [
    UnreadableError("squeue printed a line that Berth cannot read"),
    FormatError("no host list"),
    ValueError("invalid literal for int()"),
    KeyError("StartTime"),
]


@pytest.mark.parametrize("fault", BLIND, ids=repr)
def test_a_planner_that_cannot_read_what_slurm_says_goes_on_and_gives_no_sign_of_life(
    slurm: Slurm, planner: Planner, ends: tuple[Sender, Receiver], fault: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver = ends[1]
    slurm.fault = fault
    planner.one_pass(ended=False)
    receiver.receive()
    receiver.take_sign()
    for _ in range(3):
        planner.one_pass(ended=False)
        planner.hand_over_if_due()
    found = receiver.receive()
    assert found is not None
    assert str(fault) in found.problem
    assert not receiver.take_sign()
    assert capfd.readouterr().err.count("the last snapshot of Slurm stays in use") == 1

    slurm.fault = None
    planner.one_pass(ended=False)
    found = receiver.receive()
    assert found is not None
    assert (found.problem, receiver.take_sign()) == ("", True)


def test_a_planner_that_waits_for_slurm_gives_signs_of_life(
    slurm: Slurm, planner: Planner, ends: tuple[Sender, Receiver]
) -> None:
    receiver = ends[1]
    slurm.fault = SlurmError("squeue did not answer within 20 s; is slurmctld up?")
    for step in (partial(planner.one_pass, ended=False), planner.hand_over_if_due, WAITS.begin):
        step()
        receiver.receive()
        assert receiver.take_sign()


@pytest.fixture
def begun() -> Iterator[list[float]]:
    found: list[float] = []
    WAITS.tell(lambda: found.append(time.monotonic()))
    yield found
    WAITS.tell(None)


def test_each_of_slurms_commands_is_a_wait_of_its_own(begun: list[float]) -> None:
    command.run_command("true")
    command.run_command("true")
    assert len(begun) == 2


def test_so_is_each_question_to_the_program_on_libslurm(begun: list[float], tmp_path: Path) -> None:
    program = tmp_path / "berth-slurm"
    program.write_text("""#!/bin/sh
while echo '["ok"]' && read line; do :; done
""")
    program.chmod(0o755)
    with closing(Program(program)) as asked:
        asked.ask("ping")
        asked.ask("ping")
    assert len(begun) == 3, "it says once that it has begun"


def test_where_nobody_watches_nobody_is_told() -> None:
    SlurmWaits().begin()


def test_a_daemon_that_gives_up_says_so_by_its_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from policy.daemon.answer import main  # noqa: PLC0415 - loads more than the rest needs

    def give_up() -> None:
        raise DaemonError("the planner ended 5 times")

    monkeypatch.setattr(main, "Server", lambda *_: SimpleNamespace(run=give_up))
    config = tmp_path / "berth.conf"
    config.write_text("")
    words = ["--config", str(config), "--socket", str(tmp_path / "s"), "--gateway", f"recorded:{os.devnull}"]
    assert main.main(words) == 1
