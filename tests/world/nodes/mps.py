# SPDX-License-Identifier: Apache-2.0
"""The model of MPS on a node: control daemons and servers as processes, with the answers of the simulated MPS.

The commands and what they print are those of tests/fakes/mps, which was compared with NVIDIA's own programs.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.mps import node as fake_node
from tests.fakes.mps import v2
from tests.fakes.mps.service import ACTIVE, FAULT, INITIALIZING, Client, Limits, Server, Service
from tests.world.nodes.kernel import NodeKernel
from tests.world.nodes.machine import Machine, ModelProcess

CONTROL = "/usr/bin/nvidia-cuda-mps-control"
SERVER = "/usr/sbin/nvidia-cuda-mps-server"
DRIVERS: Mapping[str, frozenset[str]] = {
    "r550": frozenset(),
    "r580": frozenset({"-multiuser-server"}),
    "r595": frozenset({"-S", "-multiuser-server"}),
}
"""The options that the daemon of a driver knows."""


class ModelDaemon:
    """A control daemon that runs, and its server."""

    def __init__(self, mps: ModelMps, process: ModelProcess, log: Path | None, options: Sequence[str]) -> None:
        self.mps, self.process, self.log = mps, process, log
        self.machine = process.machine
        self.pipe = process.environ["CUDA_MPS_PIPE_DIRECTORY"]
        self.uuids = process.environ["CUDA_VISIBLE_DEVICES"].split(",")
        self.settings = {"driver": mps.driver}
        self.hangs = self.refuses = False
        gpus = []
        for uuid in self.uuids:
            found = self.machine.gpu(uuid)
            gpu = fake_node.Gpu(found.index if found else 0)
            gpu.uuid, gpu.name, gpu.memory = uuid, "NVIDIA H100", 81_920
            gpus.append(gpu)
        self.service = Service(
            fake_node.Machine("/nonexistent"), gpus,
            {"protocol": 2, "multi_user": any("multiuser" in one for one in options), "static": "-S" in options},
        )  # fmt: skip
        self.ready_at: dict[str, float] = {}
        process.on_end.append(self._ends)

    def _ends(self) -> None:
        self.mps.daemons.pop((self.machine.name, self.pipe), None)
        for server in list(self.service.servers.values()):
            server.process.end()

    def say(self, who: str, pid: int, text: str) -> None:
        """A line of control.log: in the foreground, server's and daemon's lines go there."""
        with self.machine.tasks.aside():
            if self.log is None or not self.log.parent.is_dir():
                return
            with self.log.open("a") as file:
                file.write(f"[2026-11-27 00:00:00.000 {who} {pid:5d}] {text}\n")

    def start_server(self, name: str, uid: int, limits: Limits, uuids: list[str]) -> Server:
        """As the simulated daemon calls it."""
        server = Server(name, uid, limits, uuids)
        process = self.machine.spawn(SERVER, uid, parent=self.process.pid)
        process.environ = dict(self.process.environ)
        process.uuids = tuple(uuids)
        server.process, server.pid = process, process.pid
        self.ready_at[name] = self.machine.tasks.clock.passed + self.mps.server_starts_in
        self.service.servers[name] = server
        process.on_end.append(lambda: self._server_ends(server))
        self.say("Control", self.process.pid, f"Starting new server {server.pid} for user {uid}")
        if self.mps.server_dies:
            process.end()
        return server

    def _server_ends(self, server: Server) -> None:
        if self.service.servers.get(server.name) is server:
            del self.service.servers[server.name]
        self.say("Control", self.process.pid, f"Server {server.pid} exited with status 1")
        for client in list(server.clients):
            self._lose(client)

    def forget_server(self, server: Server) -> None:
        server.process.end()

    def settle(self) -> None:
        """Servers become ready, and those whose clients are gone after a fault work again."""
        for name, server in self.service.servers.items():
            if server.status == INITIALIZING and self.machine.tasks.clock.passed >= self.ready_at[name]:
                server.status = ACTIVE
            if server.status == FAULT and not server.clients:
                server.status = ACTIVE

    def terminate(self, client: Client) -> None:
        """Destroys a client's contexts: its program fails."""
        self._lose(client)

    def _lose(self, client: Client) -> None:
        if client.server is not None and client in client.server.clients:
            client.server.clients.remove(client)
        process = self.machine.processes.get(client.pid)
        if process is not None:
            process.uuids = ()
            self.mps.on_lost(process)

    def serve(self, process: ModelProcess) -> bool:
        """Take a program in as a client."""
        self.settle()
        server = next(iter(self.service.servers.values()), None)
        if server is None or server.status != ACTIVE:
            return False
        client = Client(None, {"pid": process.pid, "uid": process.uid}, "default")
        client.server = server
        server.clients.append(client)
        process.kind, process.uuids = "mps", tuple(server.uuids)
        process.on_end.append(lambda: server.clients.remove(client) if client in server.clients else None)
        return True

    def fault(self, culprit: int) -> None:
        """A client's program made a fault: all clients fail."""
        for server in list(self.service.servers.values()):
            server.status = FAULT
            if server.clients:
                named = server.clients[culprit % len(server.clients)]
                self.mps.brought_down[self.machine, self.machine.boots, named.uid] = self.machine.tasks.clock.passed
                older = self.mps.driver == "r550"
                who = f"process {named.pid}" if older else f"{{PID: {named.pid}, Context: 1}}"
                self.say("Server", server.pid, f"Client {who} encountered a fatal GPU error.")
            for client in list(server.clients):
                self._lose(client)


class ModelTrial:
    """What Popen returns: a daemon that is started for a moment."""

    def __init__(self, daemon: ModelDaemon | None, status: int) -> None:
        self._daemon, self._status = daemon, status

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return None if self._daemon is not None and not self._daemon.process.dead else self._status

    def kill(self) -> None:
        if self._daemon is not None:
            self._daemon.mps.kernel.operation()
            self._daemon.process.end()

    def wait(self) -> None:
        pass


class ModelMps:
    """All daemons of all nodes; stands in for `subprocess` where the control program is called."""

    PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired
    SubprocessError = subprocess.SubprocessError

    def __init__(self, kernel: NodeKernel) -> None:
        self.kernel = kernel
        self.driver = "r550"
        self.daemons: dict[tuple[str, str], ModelDaemon] = {}
        self.server_starts_in = 0.3
        self.server_dies = self.missing = False
        self.brought_down: dict[tuple[Machine, int, int], float] = {}
        """By machine, its boot and user: when a program of this user made MPS fail last."""
        self.on_lost: Callable[[ModelProcess], None] = lambda _: None

    def of(self, machine: Machine) -> list[ModelDaemon]:
        return [one for (name, _), one in self.daemons.items() if name == machine.name]

    # Starting

    def start_detached(self, argv: Sequence[str], environment: Mapping[str, str], log: Path | None = None) -> int:
        """Stands in for processes.start_detached."""
        self.kernel.operation()
        self._check(argv[0])
        daemon = self._start(argv, environment, log)
        # A daemon that ended at once had a number too.
        return daemon.process.pid if daemon is not None else self.kernel.machine.next_pid

    def _check(self, program: str) -> None:
        if self.missing:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", program)

    def _start(self, argv: Sequence[str], environment: Mapping[str, str], log: Path | None) -> ModelDaemon | None:
        machine = self.kernel.machine
        process = machine.spawn(argv[0], _our_uid(), argv=list(argv))
        process.environ = dict(environment)
        pipe = environment["CUDA_MPS_PIPE_DIRECTORY"]
        folder, path = Path(self.kernel.real(pipe)), None if log is None else Path(self.kernel.real(log))
        with self.kernel.tasks.aside():
            return self._started(machine, process, argv, folder, path)

    def _started(
        self, machine: Machine, process: ModelProcess, argv: Sequence[str], folder: Path, log: Path | None
    ) -> ModelDaemon | None:
        if not set(argv[2:]) <= DRIVERS[self.driver] or machine.full or not folder.is_dir():
            process.end()
            return None
        for name in ("control", "control_privileged"):
            (folder / name).touch()
        daemon = ModelDaemon(self, process, log, argv[2:])
        self.daemons[machine.name, daemon.pipe] = daemon
        daemon.say("Control", process.pid, "Starting control daemon")
        return daemon

    def Popen(self, argv: Sequence[str], *, env: Mapping[str, str], **_: Any) -> ModelTrial:  # noqa: N802
        """A daemon that is tried."""
        self.kernel.operation()
        self._check(argv[0])
        return ModelTrial(self._start(argv, env, None), 1)

    # Commands

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], timeout: float, input: str = "",  # noqa: A002
        user: int | None = None, **_: Any,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """A command to a daemon."""
        self.kernel.operation()
        self._check(argv[0])
        daemon = self.daemons.get((self.kernel.machine.name, env["CUDA_MPS_PIPE_DIRECTORY"]))
        if daemon is None:
            return subprocess.CompletedProcess(argv, 1, "Cannot find MPS control daemon process\n")
        words = input.split()
        if daemon.hangs or (words[0] == "quit" and daemon.service.clients()):
            self.kernel.tasks.block(timeout)
            raise subprocess.TimeoutExpired(list(argv), timeout)
        if daemon.refuses and not words[0].startswith("get"):
            return subprocess.CompletedProcess(argv, 0, "Insufficient privileges for UID 0\n")
        daemon.settle()
        if words[0] == "quit":
            folder = Path(self.kernel.real(daemon.pipe))
            with self.kernel.tasks.aside():
                for name in ("control", "control_privileged"):
                    (folder / name).unlink(missing_ok=True)
            daemon.process.end()
            return subprocess.CompletedProcess(argv, 0, "")
        text, code = v2.run(daemon, words, user or 0)  # type: ignore[arg-type]
        return subprocess.CompletedProcess(argv, code, text)


def _our_uid() -> int:
    import os  # noqa: PLC0415

    return os.geteuid()
