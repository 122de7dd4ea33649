# SPDX-License-Identifier: Apache-2.0
"""berth-notice, the Epilog's part that speaks to berthd: in time, silent, and always with exit status 0."""

import functools
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import building
from tests.fakes import munge

CAP = 0.300
LATE = 0.650
"""The cap and what an idle machine adds."""
TRIES = 60
"""Runs of which one has to be as fast as that: a busy machine holds up most."""
PATIENT = ("-DDEADLINE_MS=60000",)
"""Where the cap does not matter: a busy machine may need longer than it."""
AT_ONCE = 30.0
"""Long before the patient one gives up."""
DONE = b"berth/1 done\n"


@functools.cache
def shares() -> Path:
    """Where the program looks for share files."""
    return Path(tempfile.mkdtemp(prefix="berth-shares-"))


@functools.cache
def program(*more: str) -> Path:
    own = ("config/config.c", "config/config_table.c", "config/options.c", "node/share_file.c")
    sources = ("berth_notice/berth_notice.c", *own, "text/path_list.c", "text/text.c")
    flags = ("-pthread", f'-DSHARE_FOLDER="{shares()}"', *more)
    return building.built("berth-notice", [building.PLUGINS / name for name in sources], flags=flags)


def test_help_says_who_calls_it_and_sends_nothing() -> None:
    done = subprocess.run([program(), "--help"], capture_output=True, text=True, check=True, env={}, timeout=10)

    assert "berth-epilog runs it" in done.stdout


@dataclass(frozen=True)
class Site:
    """A node's berth.conf and what its Epilog's program leaves behind."""

    folder: Path
    port: int

    def configure(self, hosts: str = "127.0.0.1", *more: str) -> None:
        lines = ["[notice]", f'hosts = "{hosts}"', f"port = {self.port}", f'log = "{self.folder}/log"', *more]
        (self.folder / "berth.conf").write_text("\n".join(lines) + "\n")

    def fastest(self, enough: float, **changes: str | None) -> float:
        """Run it, again while it takes longer than that; the seconds of the fastest run. The log is the last one's."""
        took = []
        for _ in range(TRIES):
            (self.folder / "log").unlink(missing_ok=True)
            took.append(self.hurried(**changes))
            if took[-1] < enough:
                break
        return min(took)

    def hurried(self, **changes: str | None) -> float:
        """Run it with the cap that it has."""
        return self._run(program(), changes)

    def run(self, **changes: str | None) -> float:
        """Run it where the cap does not matter."""
        return self._run(program(*PATIENT), changes)

    def _run(self, path: Path, changes: Mapping[str, str | None]) -> float:
        """Run it as slurmd would; the seconds it took."""
        settings: dict[str, str | None] = {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "SLURM_JOB_ID": "18",
            "SLURM_JOB_GPUS": "3",
            "SLURMD_NODENAME": "n1",
            "SLURM_SCRIPT_CONTEXT": "epilog_slurmd",
            "LD_LIBRARY_PATH": str(munge.library().parent),
            **changes,
        }
        command = [path]
        began = time.monotonic()
        with subprocess.Popen(
            command,
            env={key: value for key, value in settings.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        ) as process:
            said = process.communicate(timeout=120)
        spent = time.monotonic() - began
        # What slurmd does then; nobody may be left to be killed.
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert (process.returncode, *said) == (0, b"", b"")
        return spent

    @property
    def log(self) -> list[list[str]]:
        path = self.folder / "log"
        return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def outcome(self) -> str:
        (line,) = self.log
        return line[3]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    made = Site(tmp_path, port)
    made.configure()
    return made


Act = Callable[[socket.socket, bytes], None]


@contextmanager
def berthd(site: Site, act: Act, host: str = "127.0.0.1") -> Iterator[list[bytes]]:
    """Something that listens where berthd should; what it was told."""
    told: list[bytes] = []
    with socket.create_server((host, site.port)) as listener, ExitStack() as connections:

        def serve() -> None:
            while True:
                try:
                    connection = connections.enter_context(listener.accept()[0])
                except OSError:
                    return
                line = connection.makefile("rb").readline()
                told.append(line)
                act(connection, line)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield told
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def says(*parts: bytes, after: float = 0.0) -> Act:
    def act(connection: socket.socket, _: bytes) -> None:
        for part in parts:
            time.sleep(after)
            connection.sendall(part)

    return act


def hangs_up(connection: socket.socket, _: bytes) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def plain(line: bytes) -> bytes:
    """The payload of the stand-in's credential."""
    head, digits, end = line.split(b":")
    assert (head, end) == (b"MUNGE", b"\n")
    return bytes.fromhex(digits.decode()).split(b":", 3)[3]


def test_berthd_is_told_which_job_ends_where_and_waited_for(site: Site) -> None:
    with berthd(site, says(DONE)) as told:
        site.run()
    assert [plain(line) for line in told] == [b"berth/1 epilog job=18 node=n1"]
    ((job, node, microseconds, outcome, told_after),) = site.log
    assert (job, node, outcome) == ("18", "n1", "done")
    assert 0 < int(told_after) < int(microseconds) < 1e6 * AT_ONCE


def leave_share(job: int, status: str, mode: int = 0o644) -> None:
    path = shares() / str(job)
    path.write_text(f"berth-share/1\njob={job}\nuid=1000\nstatus={status}\nwhy=MPS%20did%20not%20start\n")
    path.chmod(mode)


@pytest.mark.parametrize(
    ("job", "status", "mode", "word"),
    [
        (71, "degraded", 0o644, b" degraded"),
        (72, "ok", 0o644, b""),
        (73, "degraded", 0o666, b""),
        (74, "misspelt", 0o644, b""),
    ],
)
def test_berthd_is_told_of_a_share_that_could_not_be_set_up(
    site: Site, job: int, status: str, mode: int, word: bytes
) -> None:
    leave_share(job, status, mode)
    with berthd(site, says(DONE)) as told:
        site.run(SLURM_JOB_ID=str(job))
    assert [plain(line) for line in told] == [f"berth/1 epilog job={job} node=n1".encode() + word]


@pytest.mark.parametrize(
    ("extra", "there", "word"),
    [
        ("[berth/1 nodes=n1 gpus=0 share=30 way=mps]", True, b""),
        ("[berth/1 nodes=n1 gpus=0 share=30 way=mps]", False, b" degraded"),
        ("[berth/1 nodes=n1 gpus=0] share=30", False, b""),
        ("[berth/1 nodes=n1 gpus=0 tier=opportunistic way=time]", False, b" degraded"),
        ("[berth/1 nodes=n1 gpus=0 tier=opportunistic way=time]", True, b""),
        ("[berth/1 nodes=n1 gpus=0 tier=guaranteed way=time]", False, b""),
        ("[berth/1 nodes=n1 gpus=0] tier=opportunistic", False, b""),
        ("mine", False, b""),
    ],
)
def test_no_share_file_where_none_could_be_written_is_a_share_that_could_not_be_set_up(
    site: Site, extra: str, there: bool, word: bytes
) -> None:
    folder = shares()
    if not there:
        folder.rename(f"{folder}.away")
    try:
        with berthd(site, says(DONE)) as told:
            site.run(SLURM_JOB_ID="76", SLURM_JOB_EXTRA=extra)
    finally:
        if not there:
            Path(f"{folder}.away").rename(folder)
    assert [plain(line) for line in told] == [b"berth/1 epilog job=76 node=n1" + word]


def test_a_pipe_in_place_of_the_share_file_holds_nothing_up(site: Site) -> None:
    os.mkfifo(shares() / "75")
    with berthd(site, says(DONE)) as told:
        assert site.run(SLURM_JOB_ID="75") < AT_ONCE
    assert [plain(line) for line in told] == [b"berth/1 epilog job=75 node=n1"]


@pytest.mark.parametrize("gpus", [None, ""])
def test_the_epilog_of_a_job_without_gpus_does_not_wait_for_berthd(site: Site, gpus: str | None) -> None:
    heard, go = threading.Event(), threading.Event()

    def waits(connection: socket.socket, _: bytes) -> None:
        heard.set()
        assert go.wait(10)
        connection.sendall(DONE)

    with berthd(site, waits) as told:
        # The call is over although nobody has answered: nobody holds its output open, and its group is empty.
        site.run(SLURM_JOB_GPUS=gpus)
        assert heard.wait(10)
        go.set()
    assert [plain(line) for line in told] == [b"berth/1 epilog job=18 node=n1"]


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_JOB_GPUS": "0"},
        {"SLURM_JOB_EXTRA": "[berth/1 nodes=n1 gpus=0 tier=opportunistic way=time]"},
    ],
    ids=["gpu", "seat"],
)
def test_the_epilog_of_a_job_with_gpus_or_a_seat_waits(site: Site, changes: dict[str, str]) -> None:
    with berthd(site, says()):
        assert site.hurried(**{"SLURM_JOB_GPUS": None, **changes}) >= CAP - 0.01


def test_an_answer_that_takes_a_while_and_comes_in_pieces_is_waited_for(site: Site) -> None:
    with berthd(site, says(b"berth/1", b" done\n", after=0.06)):
        assert site.run() >= 0.12
    assert site.outcome == "done"


@pytest.mark.parametrize("act", [says(), says(b"berth/1 do")], ids=["silence", "half-an-answer"])
def test_silence_costs_300_ms(site: Site, act: Act) -> None:
    with berthd(site, act):
        assert CAP - 0.01 <= site.fastest(LATE) < LATE
    assert site.outcome == "timeout"
    assert int(site.log[0][2]) >= 1e6 * CAP - 10_000


@pytest.mark.parametrize(
    "act",
    [hangs_up, says(b"berth/1 standby\n"), says(b"HTTP/1.1 400\r\n\r\n"), says(b"\0" * 64), says(b"x" * 100_000)],
    ids=["hang-up", "standby", "other", "zeros", "much"],
)
def test_anything_but_done_ends_it_at_once(site: Site, act: Act) -> None:
    def quietly(connection: socket.socket, line: bytes) -> None:
        try:
            act(connection, line)
        except OSError:
            return  # it did not stay to hear all of that

    with berthd(site, quietly):
        assert site.run() < AT_ONCE
    assert site.outcome == "no"


def test_nobody_there_is_known_at_once(site: Site) -> None:
    assert site.run() < AT_ONCE
    assert site.outcome == "unreachable"


def test_a_host_that_takes_no_connection_costs_300_ms(site: Site) -> None:
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", site.port))
        listener.listen(0)
        for _ in range(4):  # the queue is full: further connections get no answer at all
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", site.port))
        assert CAP - 0.01 <= site.fastest(LATE) < LATE
    assert site.outcome == "timeout"


@pytest.mark.parametrize("first", [says(), says(b"berth/1 standby\n"), hangs_up, None])
def test_the_controller_in_charge_is_heard_whatever_the_other_does(site: Site, first: Act | None) -> None:
    site.configure("127.0.0.2, 127.0.0.3")
    with ExitStack() as both:
        if first:
            both.enter_context(berthd(site, first, "127.0.0.2"))
        told = both.enter_context(berthd(site, says(DONE, after=0.03), "127.0.0.3"))
        site.run()
    assert len(told) == 1
    assert site.outcome == "done"


def test_a_munged_that_hangs_costs_300_ms(site: Site) -> None:
    with berthd(site, says(DONE)) as told:
        assert CAP - 0.01 <= site.fastest(LATE, BERTH_FAKE_MUNGE="hang") < LATE
    assert not any(told)
    assert site.outcome == "timeout"


def test_a_munged_that_fails_is_known_at_once(site: Site) -> None:
    with berthd(site, says(DONE)) as told:
        assert site.run(BERTH_FAKE_MUNGE="fail") < AT_ONCE
    assert told == [b"berth/1 epilog job=18 node=n1\n"]
    assert site.outcome == "done"


def test_without_libmunge_a_hint_is_sent(site: Site, tmp_path: Path) -> None:
    (tmp_path / "libmunge.so.2").write_bytes(b"")
    with berthd(site, says(DONE)) as told:
        site.run(LD_LIBRARY_PATH=str(tmp_path))
    assert told == [b"berth/1 epilog job=18 node=n1\n"]
    assert site.outcome == "done"


@pytest.mark.parametrize(
    "changes",
    [
        *({"SLURM_JOB_ID": value} for value in (None, "", "0", "x", "18x", "-1", "4294967296")),
        *({"SLURMD_NODENAME": value} for value in (None, "", "n1 job=2", "n1\nx", "n" * 256)),
        {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"},
        {"SLURM_CONF": "/" + "x" * 1100},
        {"SLURM_CONF": None, "BERTH_CONF": "/nowhere/berth.conf"},
    ],
    ids=str,
)
def test_called_wrongly_it_does_nothing(site: Site, changes: dict[str, str | None]) -> None:
    site.run(**changes)
    assert site.log == []


@pytest.mark.parametrize(
    "content",
    ["", "[notice]\n", '[notice]\nhosts = ""\n', '[notice]\nhosts = "127.0.0.1"\nport = 0\n', '[hook]\nhosts = "h"\n'],
)
def test_without_a_host_or_with_a_wrong_file_it_does_nothing(site: Site, content: str) -> None:
    (site.folder / "berth.conf").write_text(content + f'log = "{site.folder}/log"\n' if content else "")
    site.run()
    assert site.log == []


def test_other_tables_of_the_file_are_left_alone(site: Site) -> None:
    path = site.folder / "berth.conf"
    path.write_text('[hook]\nsocket = "/x"\n[berthd]\ntick_ms = 250\n' + path.read_text())
    with berthd(site, says(DONE)):
        site.run()
    assert site.outcome == "done"


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_log_that_cannot_be_written_is_no_trouble(site: Site, kind: str) -> None:
    path = site.folder / "log"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(site.folder / "elsewhere")
    with berthd(site, says(DONE)):
        assert site.run() < AT_ONCE
    assert not (site.folder / "elsewhere").exists()


def test_lines_of_many_epilogs_are_whole(site: Site) -> None:
    threads = [threading.Thread(target=site.run, kwargs={"SLURM_JOB_ID": str(n)}) for n in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(line[0]) for line in site.log) == list(range(1, 13))
    assert {tuple(line[1::2]) for line in site.log} == {("n1", "unreachable")}
