# SPDX-License-Identifier: Apache-2.0
"""A program that uses CUDA, as far as MPS is concerned.

fake-cuda-app ACTION...; each action prints one line of JSON: alloc=MIB, hold=SECONDS, fault, ignore-term,
ignore-errors, as=UID (only root's word counts), daemon=FOLDER (start a private daemon and go through it).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fakes.mps import node
from tests.fakes.mps.control import pipe_directory

NO_DEVICE = 100
BUSY = 46
OUT_OF_MEMORY = 2
CONNECTION_FAILED = 805
#: What a CUDA context of its own takes.
CONTEXT_MIB = 300
#: For so long a program waits for the server of NVIDIA's own control program.
STUB_SECONDS = 20


class Failed(Exception):
    """A CUDA error, by number."""


def say(**values: Any) -> None:
    """One line for the test."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


class Alone:
    """A process with a context of its own."""

    def __init__(self, path: str, gpus: list[node.Gpu]) -> None:
        self.path, self.gpu, self.used = path, gpus[0], CONTEXT_MIB
        with node.claimed(path) as machine:
            if any(machine.taken(gpu) for gpu in gpus):
                raise Failed(BUSY)
            for gpu in gpus:
                node.note(machine, gpu, os.getpid(), "compute", CONTEXT_MIB)
        say(mps=False, pid=os.getpid(), uuids=[gpu.uuid for gpu in gpus], sms=[gpu.sms for gpu in gpus], memory=[None])

    def allocate(self, mib: int) -> int:
        """CUDA's error number."""
        with node.claimed(self.path) as machine:
            if sum(one.memory for one in machine.running(self.gpu)) + mib > self.gpu.memory:
                return OUT_OF_MEMORY
            self.used += mib
            node.note(machine, self.gpu, os.getpid(), "compute", self.used)
        return 0

    def fault(self) -> None:
        """A fault of its own harms nobody else."""
        raise Failed(700)

    def wait(self, seconds: float) -> None:
        """Work."""
        time.sleep(seconds)


class Served:
    """A client of an MPS server."""

    def __init__(self, connection: socket.socket, uid: int | None) -> None:
        self.connection, self.lines = connection, connection.makefile()
        hello: dict[str, Any] = {
            "pid": os.getpid(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "percent": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
            "memory": os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
            "partition": os.environ.get("CUDA_MPS_SM_PARTITION"),
            "command": "fake-cuda-app",
        }
        self.send(hello if uid is None else hello | {"uid": uid})
        got = self.receive()
        if got.get("error"):
            raise Failed(got["error"])
        if not got["uuids"]:
            raise Failed(NO_DEVICE)
        say(mps=True, pid=os.getpid(), **got)

    def send(self, message: dict[str, Any]) -> None:
        """One request."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Failed(CONNECTION_FAILED) from error

    def receive(self) -> dict[str, Any]:
        """The next reply; an event on the way is an error that stays."""
        line = self.lines.readline()
        message = dict(json.loads(line)) if line else {"event": "lost", "error": CONNECTION_FAILED}
        if "event" in message:
            raise Failed(message["error"])
        return message

    def allocate(self, mib: int) -> int:
        """CUDA's error number."""
        self.send({"do": "alloc", "mib": mib})
        return int(self.receive()["error"])

    def fault(self) -> None:
        """Write where nothing is."""
        self.send({"do": "fault"})
        self.receive()

    def wait(self, seconds: float) -> None:
        """Work until something happens."""
        if select.select([self.connection], [], [], seconds)[0]:
            self.receive()


class ServedByStub(Served):
    """A client of the stub server below NVIDIA's own control program (tests/real), which knows no NVML."""

    def __init__(self, connection: socket.socket, path: str, gpus: list[node.Gpu]) -> None:
        self.path, self.gpus, self.used = path, gpus, 0
        # NVML shows it before the program can tell anybody that it runs.
        self._show()
        super().__init__(connection, None)

    def _show(self) -> None:
        with node.claimed(self.path) as machine:
            for gpu in self.gpus:
                node.note(machine, gpu, os.getpid(), "mps", self.used)

    def allocate(self, mib: int) -> int:
        """CUDA's error number."""
        error = super().allocate(mib)
        if not error:
            self.used += mib
            self._show()
        return error


def stub_of(pipe: str) -> socket.socket:
    """A connection to the stub server; the user's may only begin now, or another user's may have to end first."""
    name = "\0berth-mps-stub-" + hashlib.sha256(os.fsencode(os.path.realpath(pipe))).hexdigest()
    until = time.monotonic() + STUB_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(name)
        except OSError as error:
            connection.close()
            if time.monotonic() > until:
                raise Failed(CONNECTION_FAILED) from error
            time.sleep(0.05)
        else:
            return connection


def visible_gpus(path: str, wanted: dict[str, Any]) -> list[node.Gpu]:
    """GPUs that CUDA_VISIBLE_DEVICES names among those whose device file opens."""
    folder = wanted.get("devices", "/dev")
    machine, every = node.Machine(path), []
    for gpu in machine.gpus:
        if folder:
            try:
                os.close(os.open(f"{folder}/nvidia{gpu.minor}", os.O_RDWR))
            except OSError as problem:
                # ENXIO: the job may open it, and no driver is behind it.
                if problem.errno != errno.ENXIO:
                    continue
        every.append(gpu)
    machine.gpus = every
    found = machine.visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not found:
        raise Failed(NO_DEVICE)
    return found


def private_daemon(folder: str) -> str:
    """A control daemon of the user's own."""
    pipe = Path(folder)
    pipe.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    program = Path(__file__).resolve().parent / "nvidia-cuda-mps-control"
    subprocess.run([program, "-d"], env=environment, check=False, stdout=sys.stderr)
    return folder


def connect(arguments: dict[str, str]) -> Alone | Served:
    """What cuInit does: through the daemon of the pipe directory, or without one."""
    pipe = pipe_directory()
    wanted = node.settings(pipe)
    path = node.machine_file(wanted)
    if "daemon" in arguments:
        pipe = private_daemon(arguments["daemon"])
    gpus = visible_gpus(path, wanted)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"{pipe}/control")
    except OSError as problem:
        if problem.errno == errno.EPROTOTYPE:
            return ServedByStub(stub_of(pipe), path, gpus)
        return Alone(path, gpus)
    return Served(connection, int(arguments["as"]) if "as" in arguments else None)


def main(arguments: list[str]) -> int:
    """Do the actions in their order; status 1 after a CUDA error."""
    actions = [word.partition("=")[::2] for word in arguments]
    given = dict(actions)
    if "ignore-term" in given:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        context = connect(given)
    except Failed as failed:
        say(error=failed.args[0])
        return 1
    for action, value in actions:
        try:
            if action == "alloc":
                say(alloc=int(value), error=context.allocate(int(value)))
            elif action == "hold":
                context.wait(float(value))
            elif action == "fault":
                context.fault()
        except Failed as failed:
            say(error=failed.args[0])
            if "ignore-errors" not in given:
                return 1
            time.sleep(float(given.get("hold", 0)))
    return 0
