# SPDX-License-Identifier: Apache-2.0
"""Matches guests to seats in a process of its own, so that scipy's memory and seconds do not burden the planner.

The process starts with the first matching. If it dies or hangs, berthd does not wait for it: guests get their seats one
by one, and the next matching starts it anew.
"""

import os
import pickle
import select
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

from policy.plan.opinions.guests.choosing import Problem
from policy.sharing.matching import Matching, match
from policy.site import log
from policy.site.host import give_way

_HEAD = struct.Struct("!Q")


class ProcessMatcher:
    """The planner's end: one process, and one matching at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._waits = False
        self._said = bytearray()

    def ask(self, problem: Problem) -> None:
        """Begins a matching; ends the process first if it still works on an earlier one."""
        if self._waits or (self._process is not None and self._process.poll() is not None):
            self.close()
        try:
            process = self._process or self._start()
        except OSError as failed:
            log.error(f"guests are not matched, but seated one by one: {failed}", 646)
            return
        data = pickle.dumps((problem.seats, problem.guests, problem.tables), protocol=5)
        # In a thread: a pipe holds less than that, and a new process reads nothing for a second.
        threading.Thread(target=_send, args=(process, _HEAD.pack(len(data)) + data), daemon=True).start()
        self._waits = True

    def done(self) -> Matching | None:
        """Returns the answer once it is complete; None until then."""
        process = self._process
        if not self._waits or process is None or process.stdout is None:
            return None
        while select.select([process.stdout], [], [], 0)[0]:
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                log.error("the matcher has ended; guests are seated one by one", 646)
                self.close()
                return None
            self._said += data
        if len(self._said) < _HEAD.size:
            return None
        [size] = _HEAD.unpack_from(self._said)
        if len(self._said) < _HEAD.size + size:
            return None
        # It comes from our own child through a pipe of ours.
        found: Matching = pickle.loads(self._said[_HEAD.size : _HEAD.size + size])  # noqa: S301
        self._said.clear()
        self._waits = False
        return found

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        self._process, self._waits = None, False
        self._said.clear()

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "policy.daemon.known.matcher"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._process


def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
    # If the process has ended, `done` finds that out.
    with suppress(OSError, ValueError):
        assert process.stdin is not None, "it was started with pipes"  # noqa: S101 - narrows the type
        process.stdin.write(data)
        process.stdin.flush()


def main() -> int:
    """Answers matchings until the planner is gone."""
    give_way()
    # A library that prints must not write between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while (asked := _read(sys.stdin.buffer)) is not None:
        seats, guests, tables = pickle.loads(asked)  # noqa: S301 - from our own parent
        data = pickle.dumps(match(seats, guests, tables), protocol=5)
        answers.write(_HEAD.pack(len(data)) + data)
        answers.flush()
    return 0


def _read(file: BinaryIO) -> bytes | None:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    return file.read(_HEAD.unpack(head)[0])


if __name__ == "__main__":
    sys.exit(main())
