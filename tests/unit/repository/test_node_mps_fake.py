# SPDX-License-Identifier: Apache-2.0
"""The simulated MPS itself: it must refuse, queue and fail as the manual and the field say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.mps import programs
from tests.fakes.mps.daemon import Daemon
from tests.fakes.mps.node import Machine
from tests.fakes.mps.programs import TRANSCRIPTS
from tests.fakes.mps.service import ACTIVE, Client, Limits, Server
from tests.fakes.mps.world import GPUS, USER, App, Node, await_true, fresh_node
from tests.real.control_program import UUIDS, with_names, without_names
from tests.rights import needs_root

FIRST = GPUS[1]
OTHER = USER + 1
R595 = ("r595", "r595-multiuser", "r595-static")


class Site:
    """A daemon started by hand."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pipe = node.root / "pipe"
        self.pipe.mkdir()
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.pipe),
            "CUDA_VISIBLE_DEVICES": FIRST,
        }

    def control(self, *words: str, text: str = "", user: int | None = None) -> tuple[int, str]:
        done = subprocess.run(
            [programs.control(), *words],
            input=text,
            env=self.environment,
            capture_output=True,
            text=True,
            user=user,
            timeout=20,
            check=False,
        )
        return done.returncode, (done.stdout + done.stderr).strip()

    def tell(self, command: str) -> str:
        return self.control(text=command + "\n")[1]

    def server(self, uid: int = USER) -> str:
        self.tell(f"start_server -uid {uid}")
        pid = self.tell("get_server_list")
        await_true(lambda: self.tell(f"get_server_status {pid}") == "ACTIVE")
        return pid

    def app(self, *arguments: str, uid: int = USER, **more: str) -> App:
        return self.node.app(*arguments, given=self.environment | more, uid=uid)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with fresh_node(monkeypatch) as node:
        yield Site(node)


def test_a_daemon_makes_the_files_that_the_real_one_makes(site: Site) -> None:
    assert site.tell("get_server_list") == "Cannot find MPS control daemon process"
    assert site.control("-d") == (0, "")
    modes = {path.name: (stat.S_IFMT(path.stat().st_mode), path.stat().st_mode & 0o777) for path in site.pipe.iterdir()}
    assert modes["control"] == (stat.S_IFSOCK, 0o666)
    assert modes["control_privileged"] == (stat.S_IFSOCK, 0o755)
    assert modes["log"] == (stat.S_IFIFO, 0o777)
    assert modes["control_lock"] == modes["nvidia-cuda-mps-control.pid"] == (stat.S_IFREG, 0o666)
    pid = int((site.pipe / "nvidia-cuda-mps-control.pid").read_text())
    assert pid in site.node.processes()
    code, text = site.control("-d")
    assert (code, text) == (1, "An instance of this daemon is already running")
    assert site.tell("quit") == ""
    await_true(lambda: pid not in site.node.processes())


def test_a_daemon_that_was_killed_gives_its_folder_to_the_next(site: Site) -> None:
    site.control("-d")
    pid = int((site.pipe / "nvidia-cuda-mps-control.pid").read_text())
    server = int(site.server())
    os.kill(pid, signal.SIGKILL)
    await_true(lambda: pid not in site.node.processes())
    assert server in site.node.processes()
    assert site.control("-d") == (0, "")


@needs_root
def test_commands_are_the_owners_alone(site: Site) -> None:
    site.pipe.chmod(0o755)
    site.control("-d")
    assert site.control(text="quit\n", user=OTHER) == (0, "Not enough privilege to execute quit command")
    assert site.tell("get_default_active_thread_percentage") == "100.0"


def test_defaults_are_for_servers_to_come_and_the_servers_own_for_its_next_clients(site: Site) -> None:
    site.control("-d")
    assert site.tell("set_default_active_thread_percentage 50") == "50.0"
    pid = site.server()
    site.tell("set_default_active_thread_percentage 10")
    first = site.app("hold=60")
    assert first.says()["sms"] == [66]
    site.tell(f"set_active_thread_percentage {pid} 25")
    assert site.app("hold=60").says()["sms"] == [32]
    assert site.app("hold=60", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10").says()["sms"] == [12]
    site.tell(f"set_device_pinned_mem_limit {pid} 0 1044M")
    assert site.tell(f"get_device_pinned_mem_limit {pid} 0") == "1G"
    assert site.tell("get_device_pinned_mem_limit 1 0") == "Server 1 not found"
    clients = {int(word) for word in site.tell(f"get_client_list {pid}").split()}
    assert clients == {app.pid for app in site.node.apps}


def test_a_client_that_names_a_gpu_too_many_loses_all_its_limits(site: Site) -> None:
    site.control("-d")
    pid = site.server()
    site.tell(f"set_device_pinned_mem_limit {pid} 0 2G")
    assert site.app("hold=60", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G").says()["memory"] == [1024]
    escaped = site.app("alloc=9000", "hold=60", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G,1=4G")
    assert escaped.says()["memory"] == [None]
    assert escaped.says() == {"alloc": 9000, "error": 0}


def test_nvml_shows_a_program_before_the_program_can_say_that_it_runs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", FIRST)
    made = Daemon(
        str(site.pipe), str(site.pipe), {"foreground": False, "protocol": 2, "multi_user": False, "static": False}
    )
    server = made.service.servers["v2"] = Server("v2", USER, Limits(), [FIRST])
    server.status = ACTIVE
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        for one in (ours, theirs, made.selector, *(key.fileobj for key in made.selector.get_map().values())):
            stack.callback(one.close)  # type: ignore[union-attr]
        made.service.pending.append(Client(ours, {"pid": os.getpid(), "uid": USER, "server": ""}, "default"))
        shown: list[tuple[int, int]] = []
        monkeypatch.setattr(made, "_tell", lambda *_: shown.extend(Machine(made.path).processes))
        made._serve_pending()
    assert [pid for _, pid in shown] == [os.getpid()]


@needs_root
def test_another_user_waits_until_the_first_ones_clients_are_gone(site: Site) -> None:
    site.control("-d")
    first = site.app("hold=60")
    first.says()
    second = site.app("hold=60", uid=OTHER)
    assert second.silent(0.5)
    first.end()
    assert second.says()["mps"]


@needs_root
def test_a_multi_user_server_serves_all(site: Site) -> None:
    site.control("-d", "-multiuser-server")
    assert site.app("hold=60").says()["server"] == site.app("hold=60", uid=OTHER).says()["server"]


def test_clients_beyond_the_limit_are_refused(site: Site) -> None:
    site.control("-d")
    site.server()
    held = []
    for _ in range(48):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(str(site.pipe / "control"))
        one.sendall(b'{"pid": %d, "uid": %d, "visible": null, "stays": true}\n' % (os.getpid(), USER))
        assert b"sms" in one.recv(4096)
        held.append(one)
    assert site.app().says() == {"error": 808}
    for one in held:
        one.close()


def test_quit_waits_for_clients_unless_it_may_not(site: Site) -> None:
    site.control("-d")
    client = site.app("hold=60")
    client.says()
    with subprocess.Popen([programs.control()], stdin=subprocess.PIPE, env=site.environment, text=True) as quitting:
        assert quitting.stdin
        quitting.stdin.write("quit\n")
        quitting.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            quitting.wait(0.5)
        client.end()
        assert quitting.wait(10) == 0


def test_a_device_file_that_does_not_open_is_no_device(site: Site) -> None:
    folder = site.node.root / "dev"
    folder.mkdir()
    site.node.wish(devices=str(folder))
    site.control("-d")
    assert site.app().says() == {"error": 100}
    (folder / "nvidia0").touch()  # minor 0 is the first GPU by position
    assert site.app("hold=60").says()["uuids"] == [FIRST]


def test_the_log_reads_as_the_real_one(site: Site) -> None:
    site.control("-d")
    app = site.app("hold=60")
    app.says()
    log = (Path(site.pipe) / "control.log").read_text()
    assert f"NEW CLIENT {app.pid} from user {USER}: Server is not ready, push client to pending list" in log
    assert "Starting new server" in log
    assert ": Ready" in log


@needs_root
@pytest.mark.parametrize("name", ["r535", "r550", "r580", "r580-multiuser", *R595])
@pytest.mark.slow
def test_it_answers_as_the_real_program_of_that_driver(site: Site, name: str) -> None:
    """tests/real compares the same file with NVIDIA's own program."""
    driver, _, mode = name.partition("-")
    site.node.wish(driver=driver)
    written = (TRANSCRIPTS / f"{name}.json").read_text()
    for theirs, ours in zip(UUIDS, GPUS, strict=True):
        written = written.replace(theirs, ours).replace(theirs[:6] + " ", ours[:6] + " ")
    said = json.loads(written)
    site.environment["CUDA_VISIBLE_DEVICES"] = ",".join(GPUS)
    site.pipe.chmod(0o755)
    assert site.control("-d", *([f"--{mode}"] if mode else [])) == (0, "")

    names: dict[str, str] = {}
    found, server = [], ""
    for user, command, _ in said:
        text = with_names(command, names).replace("SERVER", server or "SERVER")
        _, answer = site.control(text=text + "\n", user=int(user) if user else None)
        answer = without_names(answer, names)
        if command == "get_server_list" and answer:
            server = answer
            await_true(lambda: site.tell(f"get_active_thread_percentage {server}") != "")  # noqa: B023 - at once
        found.append([user, command, re.sub(rf"\b{server}\b", "SERVER", answer) if server else answer])

    assert found == [[user, command, answer.strip()] for user, command, answer in said]
