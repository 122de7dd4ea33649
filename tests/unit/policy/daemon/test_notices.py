# SPDX-License-Identifier: Apache-2.0
"""The Epilog's notices as berthd takes them: true ones at once, all others at no cost to the planner."""

import contextlib
import os
import re
import resource
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from policy.daemon.hear import notices as module
from policy.daemon.hear import words
from policy.daemon.hear.guards import GuardWord
from policy.daemon.hear.levels import LevelWord
from policy.daemon.hear.notices import Notice, Notices, open_notices
from policy.daemon.hear.step_times import StepWord
from policy.formats.errors import ConfigError, DaemonError
from policy.site import config
from policy.site.auth import credentials
from policy.site.auth.munge import Credential, Munge
from tests.fakes import munge
from tests.fakes.munge import credential
from tests.real import packages
from tests.waiting import until

TEXT = b"berth/1 epilog job=18 node=n1"


@contextmanager
def hub(decode: Callable[[bytes], Credential] | None = None, within: float = 60.0) -> Iterator[Notices]:
    if decode is None:
        decode = Munge(library=str(munge.library())).decode
    made = Notices(socket.create_server(("127.0.0.1", 0), backlog=2_000), decode, within)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def notices() -> Iterator[Notices]:
    with hub() as made:
        yield made


def take(notices: Notices, count: int = 1, seconds: float = 30.0) -> list[Notice]:
    """Do as the planner does until so many have come, or the time is up."""
    found: list[Notice] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        select.select([notices], [], [], 0.05)
        found += notices.ready()
    return found


def serve(notices: Notices, seconds: float = 0.15) -> list[Notice]:
    return take(notices, sys.maxsize, seconds)


def client(notices: Notices, data: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
    connection = socket.create_connection((host, notices.port), timeout=30)
    connection.sendall(data)
    return connection


def heard(connection: socket.socket) -> bytes:
    """All that came until the other side hung up."""
    with connection:
        try:
            return connection.makefile("rb").read()
        except ConnectionResetError:
            return b""


def test_a_notice_says_what_ends_where_and_its_answer_lets_the_epilog_go(notices: Notices) -> None:
    peer = client(notices, credential(TEXT) + b"\n")
    (notice,) = take(notices)
    assert (notice.job, notice.node, notices.taken, notices.refused) == (18, "n1", 1, 0)
    notice.answer()
    assert heard(peer) == b"berth/1 done\n"


def test_step_times_come_by_the_same_port(notices: Notices) -> None:
    text = "node=n1 gpu=3 uuid=GPU-3 job=42 app=ab own_ns=151200000 steps=4000 mhz=0 watts=0 seconds=0"
    peer = client(notices, credential(f"berth/1 steps {text}".encode()) + b"\n")
    [notice] = take(notices)
    assert notice.word == StepWord("n1", 3, "GPU-3", 42, "ab", 151_200_000, 4_000, 0, 0, 0)
    notice.answer()
    assert heard(peer) == b"berth/1 done\n"


def test_a_guard_speaks_by_the_same_port(notices: Notices) -> None:
    peer = client(notices, credential(b"berth/1 guard node=n1 gpu=3 job=42 state=overlimit word=evict") + b"\n")
    [notice] = take(notices)
    assert notice.word == GuardWord("n1", 3, 42, "overlimit", "evict")
    assert isinstance(notice.word, GuardWord)
    assert notice.word.sends_away
    notice.answer(done=False)
    assert heard(peer) == b"berth/1 standby\n"


def test_so_does_what_holds_a_share(notices: Notices) -> None:
    peer = client(notices, credential(b"berth/1 level node=n1 job=42 level=audit text=it%20is%20watched") + b"\n")
    [notice] = take(notices)
    assert notice.word == LevelWord("n1", 42, "audit", "it is watched")
    notice.answer()
    assert heard(peer) == b"berth/1 done\n"


def test_a_guard_says_how_long_its_guest_may_stay(notices: Notices) -> None:
    text = b"berth/1 guard node=n1 gpu=3 job=42 state=overlimit word=leave grace=30"
    peer = client(notices, credential(text) + b"\n")
    [notice] = take(notices)
    assert notice.word == GuardWord("n1", 3, 42, "overlimit", "leave", 30)
    assert isinstance(notice.word, GuardWord)
    assert notice.word.patience == 40.0
    notice.answer()
    assert heard(peer) == b"berth/1 done\n"


def test_a_controller_that_is_not_in_charge_says_so(notices: Notices) -> None:
    peer = client(notices, credential(TEXT) + b"\n")
    take(notices)[0].answer(done=False)
    assert heard(peer) == b"berth/1 standby\n"


@pytest.mark.parametrize(("in_charge", "line"), [(True, b"berth/1 done\n"), (False, b"berth/1 standby\n")])
def test_an_epilog_goes_on_after_a_while_though_the_planner_is_busy(in_charge: bool, line: bytes) -> None:
    with hub(within=0.04) as notices:
        notices.in_charge = in_charge
        began = time.monotonic()
        peer = client(notices, credential(TEXT) + b"\n")

        assert heard(peer) == line
        assert 0.04 <= time.monotonic() - began < 10.0
        (notice,) = take(notices)
        notice.answer()
        assert (notice.job, notices.taken, notices.late) == (18, 1, 1)


def test_an_answer_leaves_when_the_planner_gives_it_not_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY", 3_600.0)
    with hub(within=3_600.0) as notices:
        peer = client(notices, credential(TEXT) + b"\n")
        peer.settimeout(30.0)
        (notice,) = take(notices)

        notice.answer()

        assert heard(peer) == b"berth/1 done\n"


WAIT = 1.5


def test_nobody_waits_for_a_planner_that_will_not_come_in_time(notices: Notices) -> None:
    waits = client(notices, credential(TEXT) + b"\n")
    take(notices)
    notices.in_charge, notices.busy_until = True, float("inf")
    # The fixture's planner would be waited for a minute.
    assert heard(client(notices, credential(b"berth/1 epilog job=19 node=n1") + b"\n")) == b"berth/1 done\n"
    assert [notice.job for notice in take(notices)] == [19]
    waits.close()


def test_what_munged_takes_is_part_of_an_epilogs_wait() -> None:
    decode = Munge(library=str(munge.library())).decode

    def slow(line: bytes) -> Credential:
        time.sleep(WAIT)
        return decode(line)

    with hub(slow, within=WAIT) as notices:
        notices.in_charge = True
        began = time.monotonic()
        peer = client(notices, credential(TEXT) + b"\n")

        assert heard(peer) == b"berth/1 done\n"
        # A wait that began only after munged would be as long again.
        assert time.monotonic() - began < 1.9 * WAIT


def test_a_credential_may_come_in_pieces(notices: Notices) -> None:
    whole = credential(TEXT) + b"\n"
    with client(notices) as peer:
        for part in (whole[:3], whole[3:40]):
            peer.sendall(part)
            assert serve(notices, 0.1) == []
        peer.sendall(whole[40:])
        assert [notice.job for notice in take(notices)] == [18]


def test_root_and_berths_own_user_are_believed_and_nobody_else(
    notices: Notices, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = [client(notices, credential(TEXT, uid=uid) + b"\n") for uid in (0, os.geteuid(), 1234)]
    found = take(notices, 2)
    found += serve(notices)
    assert len(found) == 2
    assert heard(peers[2]) == b""
    assert notices.refused == 1
    assert "a notice from 127.0.0.1 was refused: uid 1234" in capsys.readouterr().err
    for peer in peers:
        peer.close()


def test_a_users_text_is_not_even_read(notices: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(payload: bytes) -> None:
        raise AssertionError(f"somebody read {payload!r}")

    monkeypatch.setattr(words, "read", read)
    assert heard(client(notices, credential(TEXT, uid=1000) + b"\n")) == b""
    assert notices.refused == 1


def test_a_users_notice_with_a_stray_percent_sign_silences_nobody(notices: Notices) -> None:
    text = b"berth/1 failed job=1 node=a start=0 class=x transient=0 sign=%"
    for uid in (1000, 0):
        assert heard(client(notices, credential(text, uid=uid) + b"\n")) == b""
    peer = client(notices, credential(TEXT) + b"\n")
    take(notices)[0].answer()
    assert heard(peer) == b"berth/1 done\n"
    assert notices.refused == 2


def test_a_fault_over_one_notice_costs_that_one_alone(
    notices: Notices, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(words, "read", lambda _: 1 // 0)
        peers = [client(notices, credential(b"berth/1 any %d" % number) + b"\n") for number in range(3)]
        assert [heard(peer) for peer in peers] == [b""] * 3
    peer = client(notices, credential(TEXT) + b"\n")
    take(notices)[0].answer()
    assert heard(peer) == b"berth/1 done\n"
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1


def test_so_does_a_fault_over_a_credential(capsys: pytest.CaptureFixture[str]) -> None:
    decode = Munge(library=str(munge.library())).decode
    faults = iter([ValueError("odd"), ValueError("odd")])

    def sometimes(line: bytes) -> Credential:
        for fault in faults:
            raise fault
        return decode(line)

    with hub(sometimes) as notices:
        for _ in range(2):
            assert heard(client(notices, credential(TEXT) + b"\n")) == b""
        peer = client(notices, credential(TEXT) + b"\n")
        take(notices)[0].answer()
        assert heard(peer) == b"berth/1 done\n"
    assert capsys.readouterr().err.count("odd") == 1


def test_a_notice_counts_once(notices: Notices, capsys: pytest.CaptureFixture[str]) -> None:
    line = credential(TEXT) + b"\n"
    with client(notices, line):
        take(notices)
    peer = client(notices, line)
    assert serve(notices) == []
    assert heard(peer) == b""
    assert "a notice from n1 was refused: it came a second time" in capsys.readouterr().err


@pytest.mark.parametrize("age", [400, -400], ids=["behind", "ahead"])
def test_clocks_out_of_step_are_named_once_a_minute(
    notices: Notices, capsys: pytest.CaptureFixture[str], age: int
) -> None:
    for _ in range(3):
        peer = client(notices, credential(TEXT, age=age) + b"\n")
        assert serve(notices) == []
        assert heard(peer) == b""
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert re.search(r"a notice from n1 was refused: its clock and this host's differ by (399|40[01]) s;", text)
    assert "keep the clocks in step" in text


@pytest.mark.parametrize(
    "payload",
    [
        b"berth/1 guard node=n1 gpu=64 job=1 state=healthy word=state",
        b"berth/1 guard node=n1 gpu=3 job=4294967296 state=healthy word=state",
        b"berth/1 guard node=n1 gpu=3 job=1 state=healthy word=state more",
        b"berth/1 guard node=n1 gpu=3 job=1 state=healthy word=leave grace=100000",
        b"",
        TEXT + b"\n",
        TEXT + b"\0",
        b" " + TEXT,
        TEXT.replace(b"/1", b"/2"),
        TEXT.replace(b"epilog", b"prolog"),
        TEXT.replace(b"18", b"0"),
        TEXT.replace(b"18", b"018"),
        TEXT.replace(b"18", b"-1"),
        TEXT.replace(b"18", b"4294967296"),
        TEXT.replace(b"18", "\u0661".encode()),
        TEXT.replace(b"n1", b""),
        TEXT.replace(b"n1", b"n1 more=1"),
        TEXT.replace(b"n1", b"n" * 256),
        TEXT.replace(b"n1", b"../n1"),
    ],
    ids=str,
)
def test_a_text_that_is_not_a_notice_to_the_last_byte_is_refused(notices: Notices, payload: bytes) -> None:
    peer = client(notices, credential(payload) + b"\n")
    assert serve(notices) == []
    assert heard(peer) == b""
    assert notices.refused == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"MUNGE\n",
        b"MUNGE::\n",
        b"MUNGE:41\0:\n",
        b"MUNGE:" + b"4" * 5_000 + b":\n",
        b"eyJ.x\n",
        b"berth/1 guard node=n1 gpu=3 job=42 state=overlimit word=evict\n",
        TEXT + b" degraded\n",
        TEXT.replace(b"18", b"4294967296") + b"\n",
        b"MUNGE:" + b"4" * 100_000,
        b"\xff" * 64,
        b"A",
        credential(TEXT) + b"\n" + b"x",
        credential(TEXT) + b"\n" + credential(TEXT) + b"\n",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_credential_is_hung_up_on_before_munged_is_asked(data: bytes) -> None:
    asked: list[bytes] = []

    def decode(line: bytes) -> Credential:
        asked.append(line)
        raise AssertionError

    with hub(decode) as notices:
        with client(notices) as peer:
            peer.sendall(data)
            assert serve(notices) == []
            with contextlib.suppress(ConnectionResetError):  # more is left unread than anyone wants to know
                assert peer.recv(1) == b""
        assert asked == []


def test_a_stranger_without_the_key_is_refused(notices: Notices, capsys: pytest.CaptureFixture[str]) -> None:
    peer = client(notices, b"MUNGE:0000:\n")
    assert serve(notices) == []
    assert heard(peer) == b""
    assert "a notice from 127.0.0.1 was refused: Invalid credential; the nodes need" in capsys.readouterr().err


def test_munged_that_hangs_holds_up_nobody_but_the_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a flood meanwhile fill the memory: beyond a number, what cannot be decoded is dropped."""
    # A loaded machine needs more than two seconds for 400 connections.
    monkeypatch.setattr(module, "_PATIENCE", 120.0)
    real = Munge(library=str(munge.library()))
    go_on = threading.Event()

    def decode(line: bytes) -> Credential:
        go_on.wait(60)
        return real.decode(line)

    with hub(decode) as notices, ExitStack() as peers:
        for job in range(1, 401):
            peers.enter_context(client(notices, credential(b"berth/1 epilog job=%d node=n1" % job) + b"\n"))
            if job % 50 == 0:
                assert serve(notices, 0.02) == []
        assert notices._work.qsize() <= module._MOST_OPEN
        assert len(notices._open) <= module._MOST_OPEN
        go_on.set()
        found = take(notices, 200)
    assert len(found) >= 200
    assert {notice.node for notice in found} == {"n1"}


def test_a_thousand_silent_connections_do_not_keep_a_true_notice_out(notices: Notices) -> None:
    raise_file_limit()
    with ExitStack() as peers:
        for _ in range(1_000):
            peers.enter_context(client(notices))
        true = peers.enter_context(client(notices, credential(TEXT) + b"\n"))
        (notice,) = take(notices)
        assert len(notices._open) <= module._MOST_OPEN
        notice.answer()
        assert heard(true) == b"berth/1 done\n"


def test_the_nodes_of_a_wide_job_all_get_their_answer(notices: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    """More at once than connections are open: the rest waits in the listener's queue."""
    monkeypatch.setattr(module, "_PATIENCE", 120.0)
    raise_file_limit()
    lines = [credential(b"berth/1 epilog job=18 node=n%d" % node) + b"\n" for node in range(600)]
    peers = [client(notices, line) for line in lines]
    nodes: set[str] = set()
    deadline = time.monotonic() + 60
    while len(nodes) < 600 and time.monotonic() < deadline:
        found = take(notices, 1)
        nodes |= {notice.node for notice in found}
        for notice in found:
            notice.answer()
    assert len(nodes) == 600
    assert {heard(peer) for peer in peers} == {b"berth/1 done\n"}


def raise_file_limit() -> None:
    """Both sides live in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4_096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))


def test_when_all_wait_for_the_planner_new_ones_wait_too_and_cost_nothing(
    notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_OPEN", 4)
    with ExitStack() as peers:
        for _ in range(6):
            peers.enter_context(client(notices, credential(TEXT) + b"\n"))
        found = take(notices, 4)
        assert serve(notices) == []
        assert select.select([notices], [], [], 0.05)[0] == [], "a full house must not wake the planner"
        for notice in found:
            notice.answer()
        assert len(take(notices, 2)) == 2


def test_a_connection_ends_after_its_time_answered_or_not(notices: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.1)
    silent, waiting = client(notices), client(notices, credential(TEXT) + b"\n")
    (notice,) = take(notices)
    serve(notices, 0.2)
    assert heard(silent) == heard(waiting) == b""
    notice.answer()
    until("all connections to be closed", lambda: not (serve(notices, 0.02) or notices._open), every=0)


def test_an_answer_that_nobody_waits_for_any_more_is_no_trouble(notices: Notices) -> None:
    client(notices, credential(TEXT) + b"\n").close()
    (notice,) = take(notices)
    notice.answer()
    notice.answer()
    until("all connections to be closed", lambda: not (serve(notices, 0.02) or notices._open), every=0)


def test_a_daemon_without_libmunge_hears_hints_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_: str) -> Munge:
        return Munge(library="libmunge-that-is-not-there.so.2")

    monkeypatch.setattr(credentials, "Munge", absent)
    notices = open_notices(0)
    assert notices is not None
    try:
        with client(notices, credential(TEXT) + b"\n"), client(notices, TEXT + b"\n"):
            (notice,) = take(notices)
            assert notice.is_hint
            until("the credential to be refused", lambda: notices.refused or serve(notices, 0.02))
    finally:
        notices.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert "no credential is checked on this host (libmunge cannot be loaded" in line
    assert "install it" in line


def test_a_library_that_is_not_libmunge_is_refused() -> None:
    with pytest.raises(DaemonError, match="libmunge cannot be loaded"):
        Munge(library="libc.so.6")


def test_a_taken_port_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        assert open_notices(port) is None
    assert f"cannot listen on port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_listens_on_every_interface(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr(credentials, "Munge", lambda _: Munge(library=str(munge.library())))
    notices = open_notices(0)
    assert notices is not None
    try:
        try:
            peer = client(notices, credential(TEXT) + b"\n", host)
        except OSError:
            if host == "127.0.0.1":
                raise
            pytest.skip("this machine has no IPv6")
        with peer:
            assert len(take(notices)) == 1
    finally:
        notices.close()


@pytest.fixture
def munged(tmp_path: Path) -> Iterator[str]:
    """A munged of our own."""
    here = shutil.which("munged", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    start = [here] if here else packages.program(packages.MUNGE, "usr/sbin/munged")
    if isinstance(start, str):
        pytest.skip(f"munged is not installed, and cannot be fetched: {start}")
    key = tmp_path / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = [f"--{what}-file={tmp_path}/{what}" for what in ("pid", "log", "seed")]
    command = [*start, "--force", "--foreground", f"--socket={tmp_path}/s", f"--key-file={key}", *files]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not (tmp_path / "s").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is not None:
            pytest.skip("munged does not run here: it wants folders that nobody else may write to")
        yield str(tmp_path / "s")
    finally:
        process.terminate()
        process.wait(10)


def outcome(folder: Path, number: int) -> str | None:
    """What the program's log says of a call, once it says it."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return lines[number].split("\t")[3] if len(lines) > number else None


@pytest.mark.slow
def test_the_real_program_and_the_real_munge_agree_with_all_this(
    munged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.slurm_plugins.test_berth_notice import program  # noqa: PLC0415 - only this test compiles it

    # Both sides wait for as long as a loaded machine may need.
    monkeypatch.setattr("policy.daemon.hear.notices._PATIENCE", 60.0)
    library = "libmunge.so.2"
    folders = [str(path.parent) for path in (packages.BUILD / packages.MUNGE).glob(f"usr/lib/*/{library}")]
    path = f"{folders[0]}/{library}" if folders else library
    with hub(Munge(munged, path).decode) as notices:
        conf = tmp_path / "berth.conf"
        conf.write_text(
            f'[notice]\nhosts = "127.0.0.1"\nport = {notices.port}\nmunge_socket = "{munged}"\nlog = "{tmp_path}/log"\n'
        )
        env = {"BERTH_CONF": str(conf), "SLURM_JOB_ID": "4294967295", "SLURMD_NODENAME": "gpu-01.x"}
        env |= {"LD_LIBRARY_PATH": folders[0]} if folders else {}

        for number in range(2):
            process = subprocess.Popen([program("-DDEADLINE_MS=60000")], env=env)
            (notice,) = take(notices, seconds=60)
            assert (notice.job, notice.node) == (4294967295, "gpu-01.x")
            notice.answer()
            assert process.wait(60) == 0
            # Of a job without GPUs it goes on by itself.
            assert until("its log line", partial(outcome, tmp_path, number)) == "done"


@pytest.mark.parametrize(
    ("table", "port"), [("", 0), ('hosts = ""', 0), ('hosts = "ctl, b"', 6826), ('hosts = "ctl"\nport = 7', 7)]
)
def test_berthd_listens_where_the_epilogs_look_for_it(tmp_path: Path, table: str, port: int) -> None:
    (tmp_path / "berth.conf").write_text(f"[notice]\n{table}\n")
    assert config.load(tmp_path / "berth.conf").notice_port == port


@pytest.mark.parametrize("line", ["port = 0", "port = 65536", 'port = "6826"', 'host = "ctl"', "hosts = 3"])
def test_a_wrong_key_of_the_table_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "berth.conf").write_text(f"[notice]\n{line}\n")
    with pytest.raises(ConfigError, match=rf"\[notice\].* {line.split(maxsplit=1)[0]}"):
        config.load(tmp_path / "berth.conf")
