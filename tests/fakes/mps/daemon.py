# SPDX-License-Identifier: Apache-2.0
"""The control daemon: one loop over its sockets and its server processes."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes.mps import node, v2, v3
from tests.fakes.mps.service import (
    ACTIVE,
    CLIENT_TERMINATED,
    CONNECTION_FAILED,
    FAULT,
    ILLEGAL_ADDRESS,
    INITIALIZING,
    OUT_OF_MEMORY,
    RPC_FAILURE,
    Client,
    Limits,
    Server,
    Service,
)

_SERVER = Path(__file__).resolve().parent / "nvidia-cuda-mps-server"
#: A command's answer comes later.
LATER = None


def listen(path: str, mode: int) -> socket.socket:
    """A socket that processes of these rights may connect to."""
    if os.path.exists(path):  # noqa: PTH110
        os.unlink(path)  # noqa: PTH108
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.bind(path)
    os.chmod(path, mode)  # noqa: PTH101
    one.listen(64)
    return one


def peer(connection: socket.socket) -> int:
    """Uid at the other end."""
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


class Daemon:
    """Sockets, logs and processes around the service."""

    def __init__(self, pipe: str, log: str, options: dict[str, Any]) -> None:
        self.pipe, self.log_folder, self.foreground = pipe, log, options["foreground"]
        self.path = node.machine_file(node.settings(pipe))
        machine = node.Machine(self.path)
        gpus = machine.visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        self.service = Service(machine, gpus, options)
        self.selector = selectors.DefaultSelector()
        self.buffers: dict[socket.socket, bytes] = {}
        self.clients: dict[socket.socket, Client] = {}
        self.quitting: list[socket.socket] = []
        self.done = False
        self._listen(f"{pipe}/control", 0o666, self._new_client, ("", "default"))
        self._listen(f"{pipe}/control_privileged", 0o755, self._new_command, None)
        if not os.path.exists(f"{pipe}/log"):  # noqa: PTH110
            os.mkfifo(f"{pipe}/log")
            os.chmod(f"{pipe}/log", 0o777)  # noqa: PTH101, S103
        time.sleep(float(node.settings(pipe).get("late_number", 0.0)))
        Path(pipe, "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}")
        Path(pipe, "nvidia-cuda-mps-control.pid").chmod(0o666)
        self.say("control", f"Starting control daemon using socket {pipe}/control")
        self.say("control", f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipe}")

    @property
    def settings(self) -> dict[str, Any]:
        """What the test wants just now."""
        return node.settings(self.pipe)

    def say(self, who: str, text: str) -> None:
        """A line in control.log or server.log."""
        now = datetime.datetime.now().isoformat(" ", "milliseconds")  # noqa: DTZ005 - as the real one does
        line = f"[{now} {who.capitalize()} {os.getpid():5d}] {text}\n"
        if self.foreground:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        with Path(self.log_folder, f"{who}.log").open("a") as file:
            file.write(line)

    def _listen(self, path: str, mode: int, accept: Callable[..., None], data: Any) -> None:
        one = listen(path, mode)
        self.selector.register(one, selectors.EVENT_READ, lambda: accept(one.accept()[0], data))

    def listen_namespace(self, server: str, namespace: str) -> None:
        """A socket of its own for clients of this namespace."""
        folder = f"{self.pipe}/{server}" + (f"/{namespace}" if namespace else "")
        os.makedirs(folder, 0o755, exist_ok=True)  # noqa: PTH103
        self._listen(f"{folder}/control", 0o666, self._new_client, (server, namespace or "default"))

    def run(self) -> None:
        """Serve until told to quit."""
        while not self.done:
            for key, _ in self.selector.select(0.5):
                key.data()
            self._quit_if_idle()

    # Servers.

    def start_server(self, name: str, uid: int, limits: Limits, uuids: list[str]) -> Server:
        """Start a server process; it is ready later."""
        server = Server(name, uid, limits, uuids)
        shown = uid + 1 if self.settings.get("wrong_user") else uid
        environment = os.environ | {
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe,
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        }
        server.process = subprocess.Popen(
            [_SERVER, str(shown)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        server.pid = server.process.pid
        self.service.servers[name] = server
        self.say("control", f"Starting new server {server.pid} for user {uid}")
        self.selector.register(server.process.stdout, selectors.EVENT_READ, lambda: self._server_spoke(server))
        return server

    def _server_spoke(self, server: Server) -> None:
        if server.process.stdout.readline() == "ready\n":
            server.status = ACTIVE
            self.say("control", f"NEW SERVER {server.pid}: Ready")
            self._serve_pending()
            return
        self.forget_server(server)
        self.say("control", f"Server {server.pid} exited with status {server.process.returncode}")
        if server.status == INITIALIZING:
            for client in self.service.pending:
                self._tell(client, {"error": CONNECTION_FAILED})
            self.service.pending.clear()
        for client in list(server.clients):
            self._tell(client, {"event": "lost", "error": RPC_FAILURE})
            self._leave(client)

    def forget_server(self, server: Server) -> None:
        """Its process has ended or is told to."""
        if self.service.servers.get(server.name) is server:
            self.selector.unregister(server.process.stdout)
            del self.service.servers[server.name]
        with contextlib.suppress(OSError):
            server.process.stdin.write("quit\n")
            server.process.stdin.close()
        server.process.wait()
        server.process.stdout.close()

    # Clients.

    def _new_client(self, connection: socket.socket, where: tuple[str, str]) -> None:
        self._read(connection, lambda line: self._hears(connection, where, line), self._hang_up)

    def _hears(self, connection: socket.socket, where: tuple[str, str], line: bytes) -> None:
        """Take a client's word, or a command of a user who may not come in by the other socket."""
        if line.startswith(b"!"):
            self._command(connection, line[1:].decode().split("\t"))
        else:
            self._client_says(connection, where, json.loads(line))

    def _client_says(self, connection: socket.socket, where: tuple[str, str], message: dict[str, Any]) -> None:
        client = self.clients.get(connection)
        if client:
            self._request(client, message)
            return
        uid = peer(connection)
        if uid not in {0, os.geteuid()} or "uid" not in message:
            message["uid"] = uid
        client = self.clients[connection] = Client(connection, message, where[1])
        client.wants["server"] = where[0]
        self.service.pending.append(client)
        self.say(
            "control",
            f"NEW CLIENT {client.pid} from user {client.uid}: Server is not ready, push client to pending list",
        )
        self._serve_pending()

    def _server_for(self, client: Client) -> Server | None:
        service, name = self.service, client.wants["server"]
        if service.protocol == 3:
            by_user = [one for one in service.servers.values() if service.multi_user or one.uid == client.uid]
            return service.servers.get(name) if name else next(iter(by_user), None)
        wanted = 0 if service.multi_user else client.uid
        running = next(iter(service.servers.values()), None)
        if running and running.uid != wanted:
            if running.clients or running.status != ACTIVE:
                return None
            self.forget_server(running)
            running = None
        if running is None:
            uuids = [gpu.uuid for gpu in service.gpus]
            return self.start_server("v2", wanted, service.defaults.copy(), uuids)
        return running

    def _serve_pending(self) -> None:
        for client in list(self.service.pending):
            server = self._server_for(client)
            if server is None or server.status not in {ACTIVE, FAULT}:
                continue
            self.service.pending.remove(client)
            error = self.service.refusal(client, server)
            if error:
                self._tell(client, {"error": error})
                continue
            admitted = self.service.admit(client, server)
            # NVML shows it before the program can tell anybody that it runs.
            for gpu in client.gpus:
                self._show(client, gpu)
            self._tell(client, admitted)

    def _show(self, client: Client, gpu: node.Gpu) -> None:
        node.note(self.service.machine, gpu, client.pid, "mps", client.used[gpu.uuid])

    def _request(self, client: Client, message: dict[str, Any]) -> None:
        if message["do"] == "fault" and client.server:
            self._fault(client, client.server)
            return
        gpu = client.gpus[0] if client.gpus else None
        with node.claimed(self.path) as machine:
            self.service.machine = machine
            error = self.service.allocate(client, gpu, int(message["mib"])) if gpu else OUT_OF_MEMORY
            if gpu and not error:
                self._show(client, gpu)
        self._tell(client, {"error": error})

    def _fault(self, culprit: Client, server: Server) -> None:
        server.status = FAULT
        older = self.settings.get("driver") in {"r535", "r550"}
        who = f"process {culprit.pid}" if older else f"{{PID: {culprit.pid}, Context: 1}}"
        self.say("server", f"Client {who} encountered a fatal GPU error.")
        for client in server.clients:
            self._tell(client, {"event": "fault", "error": ILLEGAL_ADDRESS})

    def terminate(self, client: Client) -> None:
        """Destroy the contexts of a client, busy or not."""
        self._tell(client, {"event": "terminated", "error": CLIENT_TERMINATED})
        self._leave(client)

    def _leave(self, client: Client) -> None:
        server = client.server
        if client in self.service.pending:
            self.service.pending.remove(client)
        if server and client in server.clients:
            server.clients.remove(client)
            if not client.wants.get("stays"):
                with node.shared(self.service.machine.live) as file:
                    file.writelines(f"process {gpu.index} {client.pid} gone\n" for gpu in client.gpus)
            if server.status == FAULT and not server.clients:
                server.status = ACTIVE
        self._serve_pending()

    def _hang_up(self, connection: socket.socket) -> None:
        client = self.clients.pop(connection, None)
        if client:
            self._leave(client)

    def _tell(self, client: Client, message: dict[str, Any]) -> None:
        """One message as a line; whoever has gone does not matter."""
        with contextlib.suppress(OSError):
            client.connection.sendall(json.dumps(message).encode() + b"\n")

    # Commands.

    def _new_command(self, connection: socket.socket, _: None) -> None:
        self._read(connection, lambda line: self._command(connection, line.decode().split("\t")), lambda _: None)

    def _command(self, connection: socket.socket, words: list[str]) -> None:
        uid = 0 if peer(connection) in {0, os.geteuid()} else peer(connection)
        if uid and self.service.protocol == 3:
            self._answer(connection, "Permission denied\n", 1)
            return
        self.say("control", f"Cmd:{' '.join(words)}")
        if words[0] in self.settings.get("no_verbs", []):
            self._answer(connection, v2.unknown_command(words[0]), 0)
            return
        if words[0] == "quit" and uid:
            self._answer(connection, "Not enough privilege to execute quit command\n", 0)
            return
        if words[0] == "quit":
            self.quitting.append(connection)
            if "-t" in words or "--force" in words:
                for client in self.service.clients():
                    self.terminate(client)
            return
        self._answer(connection, *(v3.run(self, words) if self.service.protocol == 3 else v2.run(self, words, uid)))

    def _answer(self, connection: socket.socket, text: str, code: int) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(f"{code}\n{text}".encode())
            connection.shutdown(socket.SHUT_RDWR)

    def _quit_if_idle(self) -> None:
        if not self.quitting or self.settings.get("hang_quit") or self.service.clients():
            return
        for server in list(self.service.servers.values()):
            self.forget_server(server)
        for name in ("control", "control_privileged", "log", "nvidia-cuda-mps-control.pid", "control_lock"):
            Path(self.pipe, name).unlink(missing_ok=True)
        for connection in self.quitting:
            self._answer(connection, "", 0)
        self.done = True

    # Lines on sockets.

    def _read(
        self,
        connection: socket.socket,
        on_line: Callable[[bytes], None],
        on_end: Callable[[socket.socket], None],
    ) -> None:
        self.buffers[connection] = b""

        def readable() -> None:
            try:
                data = connection.recv(65536)
            except OSError:
                data = b""
            self.buffers[connection] += data
            *lines, self.buffers[connection] = self.buffers[connection].split(b"\n")
            for line in lines:
                on_line(line)
            if not data:
                self.selector.unregister(connection)
                del self.buffers[connection]
                on_end(connection)
                connection.close()

        self.selector.register(connection, selectors.EVENT_READ, readable)


def serve(pipe: str, log: str, options: dict[str, Any], started: Callable[[], None]) -> int:
    """Be the daemon."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        daemon = Daemon(pipe, log, options)
    except OSError:
        # All that a user sees of a socket path that is too long.
        sys.stderr.write("Cannot find MPS control daemon process\n")
        return 1
    started()
    daemon.run()
    return 0
