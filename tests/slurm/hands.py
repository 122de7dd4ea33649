# SPDX-License-Identifier: Apache-2.0
"""Runs commands inside a container, as `docker exec` would: each start of that costs more than most commands.

A request may also be a datagram for a socket there, which starts nothing at all.

This file is also the program that runs there, with any python3. It reads a request from each line of its standard
input, and writes a line for each command that has ended; many may run at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any


class Hands:
    """The client: one program in a container, started when it is first needed, and again when it is gone."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._waiting: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._last = 0

    def run(self, **request: Any) -> SimpleQueue[dict[str, Any]]:
        """Begins a command; the queue gets its answer: `rc`, `out` and `err`, or `failed`."""
        with self._lock:
            process = self._running()
            self._last += 1
            answer = self._waiting[self._last] = SimpleQueue()
            assert process.stdin is not None
            # Whoever reads the answers tells that the program is gone.
            with contextlib.suppress(OSError):
                process.stdin.write(json.dumps(request | {"id": self._last}) + "\n")
                process.stdin.flush()
            return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            program = Path(__file__).read_text(encoding="utf-8")
            words = ["docker", "exec", "-i", "-u", "root", "-w", "/tmp", self._container, "python3", "-c", program]
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self._waiting = {}
            threading.Thread(target=self._read, args=(self._process, self._waiting), daemon=True).start()
        return self._process

    def _read(self, process: subprocess.Popen[str], waiting: dict[int, SimpleQueue[dict[str, Any]]]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            answer = json.loads(line)
            waiting.pop(answer["id"]).put(answer)
        why = process.stderr.read().strip() or "it ended"
        process.wait()
        with self._lock:
            for queue in waiting.values():
                queue.put({"failed": f"{self._container} runs no more commands: {why}"})
            waiting.clear()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):
                    pipe.close()


def perform(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one command with the groups, folders and settings that `docker exec` gives it."""
    user = pwd.getpwnam(request["user"])
    inherited = {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}  # Python's own
    # Files, not pipes: what a command leaves running does not hold its answer back.
    out, err = (os.memfd_create(name) for name in ("out", "err"))
    for file in (out, err):
        # Such a file has no lock on its position: without this, two that write at once write over each other.
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
    try:
        process = subprocess.Popen(
            request["argv"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            cwd="/tmp",
            env=inherited | {"HOME": user.pw_dir} | request["env"],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
            umask=0o022,
            start_new_session=True,
        )
        process.communicate(request["stdin"].encode(errors="replace"))
        texts = [os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace") for file in (out, err)]
        return {"rc": process.returncode, "out": texts[0], "err": texts[1]}
    except OSError as error:
        return {"rc": 127, "out": "", "err": str(error)}
    finally:
        os.close(out)
        os.close(err)


def converse(request: dict[str, Any]) -> dict[str, Any]:
    """Sends one datagram, and wait for the answer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(2)
            channel.connect(request["socket"])
            channel.send(request["send"].encode())
            return {"rc": 0, "out": channel.recv(1 << 20).decode(), "err": ""}
    except OSError as error:
        return {"rc": 1, "out": "", "err": str(error)}


def serve() -> None:
    """Runs requests until there are no more."""
    lock = threading.Lock()

    def answer(request: dict[str, Any]) -> None:
        done = converse(request) if "socket" in request else perform(request)
        said = json.dumps(done | {"id": request["id"]})
        with lock:
            print(said, flush=True)

    for line in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    serve()
