# SPDX-License-Identifier: Apache-2.0
"""The processes around berthd: slurmctld on paper, the nodes that send notices, and the users who submit."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import selectors
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

from policy.formats import wire
from tests.bench.load.slurm import PaperSlurm
from tests.bench.load.workload import Workload
from tests.fakes.munge import credential
from tests.world.cluster import ModelJob
from tests.world.submit import apply

DEADLINE = 0.05
"""Seconds that the plugin waits for an answer."""
EPILOG_WAITS = 0.3
"""Seconds that berth-notice waits."""
STOP = b"stop"
_SCHEDULE_EVERY = 0.05
_MOST_ENDS_AT_ONCE = 10
_MOST_TOLD = 1_000


class Controller:
    """slurmctld: answers berth-slurm, ends jobs at a rate, starts others, and takes what users submit."""

    def __init__(self, workload: Workload, path: Path, nodes: socket.socket, users: socket.socket) -> None:
        self.slurm = PaperSlurm(workload)
        self.rate = workload.ends_per_second
        self._nodes, self._users = nodes, users
        self._select = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(4)
        for one in (self._listener, nodes, users):
            one.setblocking(False)
            self._select.register(one, selectors.EVENT_READ)
        self._programs: dict[int, tuple[int, socket.socket, bytearray]] = {}
        self.ends_from = float("inf")
        self.ended = self.begun = 0

    def run(self, result: Path) -> None:
        """Until the users' end says stop."""
        schedule_at = 0.0
        while True:
            for key, _ in self._select.select(0.01):
                if key.fileobj is self._listener:
                    self._take_program()
                elif key.fileobj is self._nodes:
                    self._hear_nodes()
                elif key.fileobj is self._users:
                    if not self._hear_users():
                        result.write_text(json.dumps(self._told()), encoding="utf-8")
                        return
                else:
                    self._answer(key.fd)
            now = time.monotonic()
            due = int((now - self.ends_from) * self.rate) - self.ended if now > self.ends_from else 0
            for _ in range(min(due, _MOST_ENDS_AT_ONCE)):
                self._end_one()
            if now >= schedule_at:
                schedule_at = now + _SCHEDULE_EVERY
                self.begun += self.slurm.schedule()
                self.slurm.forget()
                self._tell_users()

    def _tell_users(self) -> None:
        """What has begun they submit anew, so that the queue stays as it is."""
        started = self.slurm.started
        if started:
            with contextlib.suppress(BlockingIOError):  # then the next time
                self._users.send(json.dumps(started[:_MOST_TOLD]).encode())
                del started[:_MOST_TOLD]

    def _told(self) -> dict[str, Any]:
        slurm = self.slurm
        waiting = sum(max(1, len(job.tasks)) for job in slurm.jobs.values() if job.state == "PENDING")
        return {
            "looks": slurm.looks, "updates": slurm.updates, "refused": slurm.refused, "asked": slurm.asked,
            "ended": self.ended, "begun": self.begun, "waiting": waiting, "records": len(slurm.jobs),
            "processor_s": time.process_time(),
        }  # fmt: skip

    def _end_one(self) -> None:
        self.ended += 1
        job = self.slurm.end_one()
        if job is not None:
            for name in job.on:
                self._nodes.send(f"{job.id} {name}".encode())

    def _take_program(self) -> None:
        channel, _ = self._listener.accept()
        _, files, _, _ = socket.recv_fds(channel, 64, 2)
        os.write(files[1], b'["ok"]\n')
        self._programs[files[0]] = files[1], channel, bytearray()
        self._select.register(files[0], selectors.EVENT_READ)

    def _answer(self, file: int) -> None:
        out, channel, said = self._programs[file]
        data = os.read(file, 1 << 20)
        if not data:
            self._select.unregister(file)
            del self._programs[file]
            channel.close()
            os.close(file)
            os.close(out)
            return
        said += data
        while (end := said.find(b"\n")) >= 0:
            command = said[:end].decode("ascii")
            del said[: end + 1]
            answer = memoryview("".join(f"{line}\n" for line in self.slurm.answer(command)).encode("ascii"))
            while answer:
                answer = answer[os.write(out, answer[: 1 << 16]) :]

    def _hear_nodes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := self._nodes.recv(256):
                number, name = data.decode().split()
                self.slurm.epilog_ended(int(number), name)

    def _hear_users(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            while data := self._users.recv(65_536):
                if data == STOP:
                    return False
                job = json.loads(data)
                if job:
                    self.slurm.submitted(job["user"], job["n"], job["k"], job["texts"], job["tasks"])
                else:
                    self.ends_from = time.monotonic()
        return True


class Nodes:
    """The Epilogs of all nodes: each tells berthd that a job ends, and ends when berthd has answered."""

    def __init__(self, port: int, controller: socket.socket) -> None:
        self._address = "127.0.0.1", port
        self._controller = controller
        self._select = selectors.DefaultSelector()
        self._select.register(controller, selectors.EVENT_READ)
        self._waiting: dict[socket.socket, tuple[float, str]] = {}
        self.took: list[float] = []
        self.unanswered = 0

    def run(self, result: Path) -> None:
        """Until the controller is gone."""
        while True:
            for key, _ in self._select.select(0.05):
                if key.fileobj is not self._controller:
                    self._hear(key.fileobj)  # type: ignore[arg-type]
                    continue
                try:
                    data = self._controller.recv(256)
                except ConnectionResetError:  # it went with ends unread
                    data = b""
                if not data:
                    told = {"took": self.took, "unanswered": self.unanswered, "processor_s": time.process_time()}
                    result.write_text(json.dumps(told), encoding="utf-8")
                    return
                self._tell(data.decode())
            now = time.monotonic()
            for peer in [one for one, (began, _) in self._waiting.items() if now - began > EPILOG_WAITS]:
                self.unanswered += 1
                self._end(peer)

    def _tell(self, end: str) -> None:
        number, name = end.split()
        text = credential(f"berth/1 epilog job={number} node={name}".encode()) + b"\n"
        began = time.monotonic()
        peer = socket.create_connection(self._address, timeout=EPILOG_WAITS)
        peer.sendall(text)
        self._waiting[peer] = began, end
        self._select.register(peer, selectors.EVENT_READ)

    def _hear(self, peer: socket.socket) -> None:
        try:
            answered = bool(peer.recv(64))
        except OSError:
            answered = False
        if answered:
            self.took.append(time.monotonic() - self._waiting[peer][0])
        else:
            self.unanswered += 1
        self._end(peer)

    def _end(self, peer: socket.socket) -> None:
        self._select.unregister(peer)
        peer.close()
        with contextlib.suppress(BrokenPipeError):  # the run is over
            self._controller.send(self._waiting.pop(peer)[1].encode())


class Hook:
    """The plugin's way to a daemon: one connection that is kept, one deadline."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channel: socket.socket | None = None

    def ask(self, datagram: bytes) -> tuple[bytes | None, float]:
        """The answer, None where there was none in time; and how long it took."""
        began = time.monotonic()
        try:
            if self._channel is None:
                self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._channel.settimeout(DEADLINE)
                self._channel.connect(str(self._path))
            self._channel.send(datagram)
            reply = self._channel.recv(wire.REPLY_BYTES) or None
        except OSError:
            reply = None
        took = time.monotonic() - began
        if reply is None and self._channel is not None:
            self._channel.close()
            self._channel = None
        return reply, took


class Users:
    """Submits jobs as slurmctld does: one hook call after the other, under its lock. Each is also sent to the echo.

    For each job that has begun one of its size comes, and for each array that is used up another: so the queue stays
    as it is, however long the run. Only bursts may be ahead of that, and take their sizes as the workload says.
    """

    def __init__(self, workload: Workload, berthd: Path, echo: Path, controller: socket.socket) -> None:
        self.workload = workload
        self.random = random.Random(workload.seed + 1)
        self._hook, self._echo = Hook(berthd), Hook(echo)
        self._controller = controller
        self._controller.setblocking(False)
        self._begun: deque[tuple[int, int]] = deque()
        """Sizes of jobs that have begun, for which none has come yet."""
        self._arrays: deque[tuple[int, int, int]] = deque()
        self._ahead = 0
        """Jobs that came before one had begun for them."""
        self._number = 0
        self.took: list[tuple[float, float]] = []
        self.unanswered = 0
        self.bursts: list[tuple[float, float]] = []

    def run(self, result: Path) -> None:
        """For as long as the workload says."""
        load = self.workload
        self._send(b"null")
        began = time.monotonic()
        steady = 0
        burst_at = began + load.bursts.every_s / 2 if load.bursts else float("inf")
        while (now := time.monotonic()) - began < load.seconds:
            if load.bursts and now >= burst_at:
                burst_at += load.bursts.every_s
                self._burst(load.bursts.submissions, load.bursts.clients)
            elif self._arrays:
                n, k, tasks = self._arrays.popleft()
                self._submit(1_500, (n, k), tasks)
            elif self._begun and steady < (now - began) * load.arrivals_per_second:
                steady += 1
                self._submit(1_500 + steady % 20, self._begun.popleft())
            else:
                time.sleep(0.001)
            self._hear_begun()
        told = {
            "took": self.took, "unanswered": self.unanswered, "bursts": self.bursts, "submitted": self._number,
            "began": began, "ended": time.monotonic(), "processor_s": time.process_time(),
        }  # fmt: skip
        result.write_text(json.dumps(told), encoding="utf-8")

    def _burst(self, submissions: int, clients: int) -> None:
        began = time.monotonic()
        left = deque([submissions // clients] * clients)
        client = 0
        while left:
            self._submit(2_000 + client % clients, self._next_size())
            client += 1
            if left[0] > 1:
                left[0] -= 1
                left.rotate(-1)
            else:
                left.popleft()
        self.bursts.append((began, time.monotonic()))

    def _hear_begun(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := self._controller.recv(65_536):
                for n, k, tasks in json.loads(data):
                    if tasks:
                        self._arrays.append((n, k, tasks))
                    elif self._ahead:
                        self._ahead -= 1
                    else:
                        self._begun.append((n, k))

    def _next_size(self) -> tuple[int, int]:
        if self._begun:
            return self._begun.popleft()
        self._ahead += 1
        sizes = self.workload.sizes
        size = self.random.choices(sizes, [one.weight for one in sizes])[0]
        return size.nodes, size.gpus

    def _send(self, data: bytes) -> None:
        """Waits where the controller is behind."""
        select.select([], [self._controller], [])
        self._controller.send(data)

    def _submit(self, user: int, size: tuple[int, int], tasks: int = 0) -> None:
        self._number += 1
        n, k = size
        asked = {"tres_per_node": f"gres/gpu:{k}"} if n > 1 else {"tres_per_job": f"gres/gpu:{k}"}
        fields = {
            "nonce": f"{self._number + (1 << 40):016x}", "uid": str(user), "client": "batch",
            "time_limit": str(self.random.choice([30, 60, 240, 1_440])), "name": "job", **asked,
            "num_tasks": str(n), "min_nodes": str(n), "max_nodes": str(n), "gpus": str(n * k),
            **({"array": f"0-{tasks - 1}"} if tasks else {}),
        }  # fmt: skip
        datagram = wire.encode("submit", fields)
        reply, took = self._hook.ask(datagram)
        _, echo = self._echo.ask(datagram)
        self.took.append((took, echo))
        self.unanswered += reply is None
        texts = texts_of(self._number, user, size, asked, fields, reply)
        if texts is None:
            return
        told = {"user": user, "n": n, "k": k, "tasks": tasks, "texts": texts}
        self._send(json.dumps(told).encode())


def texts_of(
    number: int, user: int, size: tuple[int, int], asked: dict[str, str], fields: dict[str, str], reply: bytes | None
) -> dict[str, str] | None:
    """Returns the texts of a submitted job's record as the plugin writes them, or None where it is refused."""
    n, k = size
    job = ModelJob(number, user, "job", n, k, "whole", 60, "COMPLETED", **asked)  # type: ignore[arg-type]
    if not apply(job, fields, reply):
        return None
    return {
        "required": job.req_nodes, "excluded": job.exc_nodes, "tres_per_node": job.tres_per_node,
        "tres_per_job": job.tres_per_job, "admin_comment": job.admin_comment, "extra": job.extra,
    }  # fmt: skip
