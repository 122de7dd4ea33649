# SPDX-License-Identifier: Apache-2.0
"""Talks to berth-slurm, a program that answers one command per line (slurm_plugins/berth_slurm/gateway.h)."""

import os
import re
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from policy.formats.errors import NoAnswer, SlurmError, UnreadableError
from policy.slurm.command_failures import failed
from policy.slurm.unreadable import why_unreadable
from policy.slurm.waits import WAITS

_SECONDS = 20.0
_SAID_BYTES = 2_048
_CHUNK = 1 << 20


class JobRecord(msgspec.Struct, array_like=True, frozen=True, tag="job"):
    """A job. Texts are percent-escaped; times are seconds since 1970, or 0."""

    id: int
    state: str
    over: int
    user: int
    partition: str
    priority: int
    submitted: int
    start: int
    end: int
    eligible: int
    minutes: int | None
    cpus: int
    count: int
    nodes: str
    required: str
    excluded: str
    features: str
    reason: str
    tres_per_job: str
    tres_per_node: str
    tres_per_socket: str
    tres_per_task: str
    tres: str
    gres: list[str]
    array: int
    task: int | None
    tasks: str
    at_once: int
    het: int
    reservation: str
    licenses: str
    admin_comment: str
    extra: str
    account: str = ""
    name: str = ""
    base: str = ""
    """The state without the marks that Slurm shows in its place."""
    planned: str = ""


class NodeRecord(msgspec.Struct, array_like=True, frozen=True, tag="node"):
    """A node; its id is its place in Slurm's table."""

    id: int
    name: str
    cpus: int
    cpus_used: int
    mem: int
    mem_used: int
    threads: int
    state: str
    gres: str
    gres_used: str
    features: str
    partitions: str
    weight: int = 1
    cores_kept: int = 0


class PartitionRecord(msgspec.Struct, array_like=True, frozen=True, tag="partition"):
    """A partition, as scontrol prints it."""

    id: int
    text: str


class ReservationRecord(msgspec.Struct, array_like=True, frozen=True, tag="reservation"):
    """A reservation."""

    id: int
    name: str
    start: int
    end: int
    nodes: str
    text: str = ""
    """The reservation as scontrol prints it; empty from an older program."""


class UnreadableJob(msgspec.Struct, frozen=True):
    """A job whose record has another form than Berth knows."""

    id: int
    why: str


class Gone(msgspec.Struct, array_like=True, frozen=True, tag="gone"):
    """A record that Slurm does not have any more."""

    kind: str
    id: int


class NodesLook(msgspec.Struct, array_like=True, frozen=True, tag="nodes"):
    """Says that jobs have started or ended since the last look at the nodes (1), or that a look follows (0)."""

    behind: int


class SlurmConfig(msgspec.Struct, array_like=True, frozen=True, tag="config"):
    """Slurm's configuration, as scontrol prints it."""

    text: str


class Ping(msgspec.Struct, array_like=True, frozen=True, tag="ping"):
    """The controller that answers first, and the federation."""

    controller: str
    federation: str


class _Ok(msgspec.Struct, array_like=True, frozen=True, tag="ok"):
    """The end of an answer."""


class _Error(msgspec.Struct, array_like=True, frozen=True, tag="error"):
    """The end of an answer that failed."""

    text: str


_Told = JobRecord | NodeRecord | PartitionRecord | ReservationRecord | NodesLook | Gone | SlurmConfig | Ping
Record = _Told | UnreadableJob
_DECODER = msgspec.json.Decoder(_Told | _Ok | _Error)
_JOB = re.compile(rb'\["job",(\d+),')


class Program:
    """Runs berth-slurm, and starts it again after it has ended or hung."""

    def __init__(self, path: Path, seconds: float = _SECONDS) -> None:
        self._path = path
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self.starts = 0
        """The number of starts: the first reading after a start is complete."""

    def ask(self, command: str) -> Sequence[Record]:
        """Sends a command; returns the records of the answer."""
        process = self._process or self._start()
        try:
            os.write(_fileno(process.stdin), command.encode("ascii") + b"\n")
        except OSError:
            raise self._ended() from None
        return self._answer(process)

    def close(self) -> None:
        """Ends the program."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # This also closes its pipes.
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._process = subprocess.Popen(
                [self._path], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as problem:
            raise SlurmError(f"{self._path} cannot be started: {problem.strerror}; is Berth installed whole?") from None
        self._said = b""
        self.starts += 1
        self._answer(self._process)
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> Sequence[Record]:
        data = self._read_answer(process)
        try:
            records, last = decode(data)
        except (msgspec.MsgspecError, ValueError) as problem:
            self.close()
            raise UnreadableError(f"{self._path.name} answered in a form that Berth does not know: {problem}") from None
        if isinstance(last, _Error):
            raise failed(f"Slurm said: {last.text}")
        return records

    def _read_answer(self, process: subprocess.Popen[bytes]) -> bytes:
        WAITS.begin()
        out, err = _fileno(process.stdout), _fileno(process.stderr)
        due = time.monotonic() + self._seconds
        data = bytearray()
        # `select.select` takes no file number above 1,023, and a process with many connections has more.
        poll = select.poll()
        poll.register(out, select.POLLIN)
        poll.register(err, select.POLLIN)
        while not _is_whole(data):
            readable = {file for file, _ in poll.poll(1_000 * max(0.0, due - time.monotonic()))}
            if not readable:
                self.close()
                raise NoAnswer(f"{self._path.name} did not answer within {self._seconds:g} s; is slurmctld up?")
            if err in readable:
                self._said = (self._said + os.read(err, _CHUNK))[-_SAID_BYTES:]
            if out in readable:
                chunk = os.read(out, _CHUNK)
                if not chunk:
                    raise self._ended()
                data += chunk
        return bytes(data)

    def _ended(self) -> SlurmError:
        process = self._process
        if process is not None and process.stderr is not None:
            process.kill()
            self._said += process.stderr.read()
        self.close()
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return SlurmError(f"{self._path.name} ended{f': {lines[-1]}' if lines else ''}")


def decode(data: bytes) -> tuple[list[Record], _Ok | _Error]:
    """Returns the records of an answer, and its end."""
    try:
        *records, last = _DECODER.decode_lines(data)
    except (msgspec.MsgspecError, ValueError):
        # Only one job's record may be wrong: it is reported by its number.
        *lines, end = filter(None, data.splitlines())
        records, last = [_decode_line(line) for line in lines], _DECODER.decode(end)
    return records, last


def _decode_line(line: bytes) -> Record:
    try:
        record: Record = _DECODER.decode(line)
    except (msgspec.MsgspecError, ValueError) as problem:
        job = _JOB.match(line)
        if job is None:
            raise
        return UnreadableJob(int(job[1]), why_unreadable(problem))
    return record


def _is_whole(data: bytearray) -> bool:
    if not data.endswith(b"\n"):
        return False
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    return data.startswith((b'["ok"', b'["error"'), start)


def _fileno(stream: object) -> int:
    return stream.fileno()  # type: ignore[attr-defined, no-any-return]
