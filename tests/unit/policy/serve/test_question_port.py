# SPDX-License-Identifier: Apache-2.0
"""The users' port: true questions at once, all others at no cost to anybody."""

import asyncio
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from policy.daemon.processes.child import Child
from policy.formats import wire
from policy.formats.errors import ConfigError
from policy.serve.questions import port as module
from policy.serve.questions.port import QuestionPort
from policy.site.auth.munge import Munge
from policy.site.config import load
from policy.site.host import listen_here
from tests.fakes import munge
from tests.fakes.munge import credential

ROOT = Path(__file__).parents[4]
RECORDING = ROOT / "tests" / "unit" / "data" / "slurm-26.05"


class Running:
    """A port in a thread of its own."""

    def __init__(
        self, answer: Callable[[int, bytes], bytes | None], patience: float, listener: socket.socket | None
    ) -> None:
        self.listener = listener or socket.create_server(("127.0.0.1", 0), backlog=2_000)
        self.port: int = 0 if listener else self.listener.getsockname()[1]
        self._port = QuestionPort(answer, Munge(library=str(munge.library())).decode, patience)
        self._began = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._began.wait(10)

    async def _serve(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.create_task(self._port.serve(self.listener))
        self._began.set()
        with suppress(asyncio.CancelledError):
            await self._task

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def question_port(
    answer: Callable[[int, bytes], bytes | None] | None = None,
    patience: float = 5.0,
    listener: socket.socket | None = None,
) -> Iterator[Running]:
    echo = answer or (lambda uid, text: b"berth/1 why\nuid=%d\ntext=%d\n" % (uid, len(text)))
    made = Running(echo, patience, listener)
    try:
        yield made
    finally:
        made.stop()


def connected(port: int, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(data)
    return connection


def heard(connection: socket.socket) -> bytes:
    """All that came until the other side hung up."""
    with connection:
        try:
            return connection.makefile("rb").read()
        except ConnectionResetError:
            return b""


def ask(port: int, text: bytes = b"berth/1 status", **who: int) -> bytes:
    return heard(connected(port, credential(text, **who) + b"\n"))


def test_a_question_is_answered_for_whom_munge_vouches_for() -> None:
    with question_port() as made:
        assert ask(made.port, b"berth/1 why job=7", uid=4711) == b"berth/1 why\nuid=4711\ntext=17\n"


def test_users_of_its_own_host_need_no_credential(tmp_path: Path) -> None:
    path = tmp_path / "users"
    with question_port(listener=listen_here(path)), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(20)
        peer.connect(str(path))
        peer.sendall(b"berth/1 why job=7\n")
        assert heard(peer) == b"berth/1 why\nuid=%d\ntext=17\n" % os.geteuid()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    # The socket of a process that ended is in nobody's way.
    listen_here(path).close()


def test_over_the_network_a_question_without_a_credential_is_hung_up_on() -> None:
    with question_port() as made:
        assert heard(connected(made.port, b"berth/1 why job=7\n")) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01" * 100 + b"\n",
        b"MUNGE:00:",
        b"MUNGE:zz zz:\n",
        b"MUNGE:" + b"0" * 100_000 + b":\n",
        b"A" * 1_000_000,
        b"\n",
        b"",
    ],
)
def test_what_is_no_credential_is_hung_up_on_and_nobody_is_asked(data: bytes) -> None:
    asked: list[bytes] = []
    with question_port(lambda _, text: asked.append(text), patience=0.3) as made:
        with connected(made.port) as peer, suppress(ConnectionError):
            peer.sendall(data)
            assert heard(peer) == b""
        assert asked == []
        assert ask(made.port) == b""
        assert asked == [b"berth/1 status"]


def test_a_credential_that_comes_twice_or_late_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    with question_port() as made:
        line = credential(b"berth/1 status") + b"\n"
        assert heard(connected(made.port, line)).startswith(b"berth/1 why")
        assert heard(connected(made.port, line)) == b""
        late = wire.decode(ask(made.port, age=1_000))
    assert "it came a second time" in capsys.readouterr().err
    assert late.verb == "refuse"
    assert "differ by 1000 s" in late.fields["message"]


def test_hosts_of_silent_and_slow_peers_keep_nobody_from_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    # An ordinary user may have no more than 1,024 files open, and both ends are in this process.
    monkeypatch.setattr(module, "MOST_SILENT", 64)
    with question_port(patience=30.0) as made, ExitStack() as peers:
        for number in range(2 * module.MOST_SILENT):
            peers.enter_context(connected(made.port, b"MUNGE:00" if number % 2 else b""))
        began = time.monotonic()
        assert ask(made.port).startswith(b"berth/1 why")
        assert time.monotonic() - began < 20.0, "before the patience with the others has ended"


def test_a_silent_peer_is_hung_up_on_in_time() -> None:
    with question_port(patience=0.2) as made:
        assert heard(connected(made.port, b"MUNGE:00")) == b""


def test_a_peer_that_does_not_read_its_reply_harms_nobody() -> None:
    with question_port(lambda *_: b"x" * 8_000_000, patience=0.5) as made, ExitStack() as peers:
        for _ in range(20):
            peers.enter_context(connected(made.port, credential(b"berth/1 status") + b"\n"))
        assert ask(made.port)


def test_more_questions_than_can_wait_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 4)
    go = threading.Event()
    with question_port(lambda *_: b"told" if go.wait(20) else None) as made, ExitStack() as peers:
        waiting = [peers.enter_context(connected(made.port, credential(b"berth/1 status") + b"\n")) for _ in range(4)]
        told = b""
        while not told:  # until all four are in
            told = ask(made.port)
        go.set()
        assert "ask again" in wire.decode(told).fields["message"]
        assert {heard(peer) for peer in waiting} <= {b"told"}


def test_a_fault_in_an_answer_is_told_and_logged_and_the_next_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    faults = iter([ZeroDivisionError("odd")])

    def answer(*_: object) -> bytes:
        for fault in faults:
            raise fault
        return b"fine"

    with question_port(answer) as made:
        assert b"fault" in ask(made.port)
        assert ask(made.port) == b"fine"
    assert "ZeroDivisionError('odd')" in capsys.readouterr().err


# The whole way: berthd's child on a recorded Slurm, and the commands of a user.


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shutil.copytree(RECORDING, tmp_path / "recording")
    shutil.copy(tmp_path / "recording" / "squeue-json", tmp_path / "recording" / "scontrol-json")
    path = tmp_path / "berth.conf"
    path.write_text(f'[hook]\nsocket = "{tmp_path}/no.sock"\n[users]\nhosts = "127.0.0.1"\nport = {port}\n')
    return path


@pytest.fixture
def child(conf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(munge.library().parent))
    monkeypatch.setenv("BERTH_CONF", str(conf))
    command = [sys.executable, "-m", "policy.serve.main", "--config", str(conf)]
    command += ["--gateway", f"recorded:{conf.parent / 'recording'}", "--socket", str(conf.parent / "no.sock")]
    made = Child("the read-only process", command)
    made.tend(0.0)
    yield made
    made.stop()


def berth(*words: str, tries: int = 1) -> subprocess.CompletedProcess[str]:
    """A user's command, on a host without Slurm; again while the process is not there yet."""
    environment = {**os.environ, "PATH": "/nowhere"}
    command = [sys.executable, "-m", "policy.cli.main", *words]
    for _ in range(tries):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if "does not answer on port" not in done.stderr:
            break
        time.sleep(0.2)
    return done


@pytest.mark.slow
def test_why_on_a_host_without_slurm(child: Child, conf: Path) -> None:
    jobs = json.loads((conf.parent / "recording" / "scontrol-json").read_text())["jobs"]
    waits = next(job["job_id"] for job in jobs if job["job_state"] == ["PENDING"])
    told = berth("why", "--json", str(waits), tries=100)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["decision"]["gpus"] == list(range(8))

    unknown = berth("why", "99999")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "job 99999 is not known to Slurm" in unknown.stderr
    hangs = berth("status")
    assert hangs.returncode == 1
    assert "is berthd running?" in hangs.stderr

    child.stop()
    gone = berth("why", str(waits))
    assert gone.returncode == 1
    assert "scontrol is not on PATH" in gone.stderr
    assert "berthd does not answer on port" in gone.stderr
    assert gone.stderr.count("\n") == 1


def test_the_process_ends_with_berthd_however_that_ends(child: Child) -> None:
    assert berth("why", "99999", tries=100).returncode == 1
    process = child._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 0


def ended(child: Child) -> None:
    assert child._process is not None
    child._process.wait(10)


def test_a_child_that_ends_is_started_again_a_while_later(capfd: pytest.CaptureFixture[str]) -> None:
    one = Child("a child", ["/bin/sh", "-c", "echo born; exit 3"], again_after=5.0)
    one.tend(0.0)
    ended(one)
    for moment in (1.0, 5.9):
        one.tend(moment)
        assert one._process is None
    one.tend(6.0)
    ended(one)
    one.stop()
    said = capfd.readouterr()
    assert said.out == "born\n" * 2
    assert "a child ended with 3; it is started again in 5 s" in said.err

    missing = Child("a child", ["/nowhere/program"])
    missing.tend(0.0)
    missing.stop()
    assert "a child cannot be started: No such file" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "hosts", "port"),
    [
        ("", ("SlurmctldHost",), 6827),
        ('hosts = ""', (), 6827),
        ('hosts = "ctl1, ctl2"\nport = 7000', ("ctl1", "ctl2"), 7000),
        ('hosts = "ctl1"', ("ctl1",), 6827),
    ],
)
def test_the_table_of_the_users_port(tmp_path: Path, line: str, hosts: tuple[str, ...], port: int) -> None:
    path = tmp_path / "berth.conf"
    path.write_text(f"[users]\n{line}\n")
    found = load(path)
    assert (found.users_hosts, found.users_port) == (hosts, port)


@pytest.mark.parametrize("line", ["port = 0", "port = 65536", 'port = "6827"', "host = 1", "hosts = 5"])
def test_a_wrong_key_of_the_table_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "berth.conf"
    path.write_text(f"[users]\n{line}\n")
    with pytest.raises(ConfigError, match=r"\[users\]"):
        load(path)
