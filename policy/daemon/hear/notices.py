# SPDX-License-Identifier: Apache-2.0
"""Notices of nodes: "job J ends on node N", from `berth-notice`, and those of guards (docs/develop/formats.md).

One thread serves the sockets: no peer delays the planner, and the planner, which often waits for slurmctld, delays no
Epilog longer than `ANSWER_WITHIN`. Another thread decodes credentials, which may wait for munged. The planner learns of
new notices through a descriptor in its own select.
"""

import contextlib
import os
import queue
import re
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from policy.daemon.hear import words
from policy.daemon.hear.words import Word
from policy.formats.errors import DaemonError
from policy.site import log
from policy.site.auth.credentials import FORM, MOST_BYTES, Credentials
from policy.site.auth.munge import EXPIRED, NO_MUNGED, REPLAYED, REWOUND, Credential
from policy.site.host import listen

DONE, STANDBY = b"berth/1 done\n", b"berth/1 standby\n"

_BEGINNINGS = (b"MUNGE:", b"eyJ", b"berth/1 ")
_PAYLOAD = re.compile(rb"berth/1 epilog job=([1-9][0-9]{0,9}) node=([A-Za-z0-9_.-]{1,255})( degraded)?")
_MOST_JOBS = 2**32 - 1

_HINTS_AT_ONCE, _HINTS_A_SECOND = 128.0, 64.0
"""Notices without a credential that are accepted, at once and each second: for each Slurm is asked about a job."""

_MOST_OPEN = 256
"""Connections open at a time. With the planner's own files they stay below 1,024, the limit of select()."""
_MOST_AT_ONCE = 64
ANSWER_WITHIN = 0.03
"""Seconds after an Epilog's call at which it is answered even if the planner has not written its pins yet. Jobs pinned
to the node earlier start then, and the planner goes on from there."""

_PATIENCE = 2.0
"""Seconds that a connection may last; the client closes after 0.3."""
_MAY_BE_SILENT = 0.05
"""Seconds after which a silent connection is closed if other ones wait for its place."""
_SAY_EVERY = 60.0
_LOOK_EVERY = 0.2
"""Seconds between checks for connections that have lasted too long."""


FAR_OFF = float("inf")


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    peer: str
    since: float
    received: bytearray = field(default_factory=bytearray)
    reading: bool = True
    closed: bool = False
    answer_by: float = FAR_OFF

    @property
    def until(self) -> float:
        """Returns the time at which the connection is closed."""
        return self.since + _PATIENCE


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice: a job ends on a node, and its Epilog waits for the answer; or another message of a node."""

    job: int
    node: str
    _reply: Callable[[bytes], None]
    degraded: bool = False
    """True if the node could not set up the share of a packed job, which then never began."""
    word: Word | None = None
    """The message of a node; an Epilog's notice has none."""
    is_hint: bool = False
    """True if the notice has no credential: Slurm is asked whether the job ends."""

    def answer(self, *, done: bool = True) -> None:
        """Answers the sender. `done=False` if another controller is in charge: an Epilog asks that one too."""
        self._reply(DONE if done else STANDBY)


class Notices:
    """Receives notices; hostile or slow peers cost at most some connections and some of munged's time."""

    def __init__(
        self, listener: socket.socket, decode: Callable[[bytes], Credential], within: float = ANSWER_WITHIN
    ) -> None:
        self.taken = 0
        self.refused = 0
        self.late = 0
        """Notices that were answered before the planner had handled them."""
        self.in_charge = False
        """True if the slurmctld of this host is in charge; it decides the answer that a late planner's nodes get."""
        self.busy_until = 0.0
        """The planner's estimate of the time until which it will handle no notice."""
        self._within = within
        self._listener = listener
        self._decode = decode
        self._trusted = {0, os.geteuid()}
        self._poll = select.epoll()
        self._listening = True
        self._open: dict[int, _Connection] = {}
        """Connections by file number, the oldest first."""
        self._work: queue.SimpleQueue[tuple[_Connection, bytes] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[_Connection, Credential | None]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[_Connection, bytes]] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        self._unanswered: deque[_Connection] = deque()
        """Connections that wait for the planner's answer, the oldest first."""
        self._ending = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._said: dict[str, float] = {}
        self._hints_left, self._hints_since = _HINTS_AT_ONCE, time.monotonic()
        listener.setblocking(False)  # noqa: FBT003 - its only argument
        self._poll.register(listener, select.EPOLLIN)
        self._poll.register(self._wake, select.EPOLLIN)
        self._decoder = threading.Thread(target=self._decode_all, name="berth-credentials", daemon=True)
        self._decoder.start()
        self._server = threading.Thread(target=self._serve, name="berth-notices", daemon=True)
        self._server.start()

    @property
    def port(self) -> int:
        """Returns the port on which it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def fileno(self) -> int:
        """Returns a descriptor for select(): it is readable when notices have come."""
        return self._bell

    def ready(self) -> list[Notice]:
        """Returns the notices that have come since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        found: list[Notice] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._found.get_nowait())
        return found

    def close(self) -> None:
        """Closes all connections and ends the threads."""
        self._ending = True
        os.eventfd_write(self._wake, 1)
        self._server.join()
        for connection in list(self._open.values()):
            self._close(connection)
        self._listener.close()
        self._work.put(None)
        self._decoder.join(1.0)
        self._poll.close()
        os.close(self._bell)
        # A decoder that still waits for munged will write to it.
        if not self._decoder.is_alive():
            os.close(self._wake)

    # In the thread of the sockets

    def _serve(self) -> None:
        while not self._ending:
            for file, _ in self._poll.poll(self._until_next()):
                if file == self._listener.fileno():
                    self._accept()
                elif file == self._wake:
                    os.eventfd_read(self._wake)
                elif (connection := self._open.get(file)) and connection.reading:
                    with self._alone(connection):
                        self._read(connection)
            self._decoded()
            self._answer()
            now = time.monotonic()
            for late in [one for one in self._open.values() if one.until < now]:
                self._close(late)
            self._listen_again()

    def _until_next(self) -> float:
        """Returns the seconds until the first notice has waited long enough, or until the next check."""
        next_one = self._unanswered[0].answer_by - time.monotonic() if self._unanswered else _LOOK_EVERY
        return max(0.0, min(next_one, _LOOK_EVERY if self._listening else _MAY_BE_SILENT))

    def _answer(self) -> None:
        """Sends the planner's answers, and answers the connections that have waited long enough."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._say_to(*self._answers.get_nowait())
        now = time.monotonic()
        while self._unanswered and (self._unanswered[0].closed or self._unanswered[0].answer_by <= now):
            connection = self._unanswered.popleft()
            if not connection.closed:
                self.late += 1
                self._say_to(connection, DONE if self.in_charge else STANDBY)

    def _say_to(self, connection: _Connection, line: bytes) -> None:
        if connection.closed:
            return
        # A client that has closed has met its own deadline.
        with contextlib.suppress(OSError):
            connection.socket.send(line)
        self._close(connection)

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            if not self._make_room():
                return
            try:
                accepted, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as problem:
                self._say("accept", f"cannot accept a notice: {problem}")
                return
            accepted.setblocking(False)  # noqa: FBT003 - its only argument
            connection = _Connection(accepted, address[0], time.monotonic())
            self._open[accepted.fileno()] = connection
            with self._alone(connection):
                self._poll.register(accepted, select.EPOLLIN)
                self._read(connection)

    def _make_room(self) -> bool:
        """Closes a silent connection if there are too many; if none is silent, new connections wait in the backlog."""
        if len(self._open) < _MOST_OPEN:
            return True
        eldest = next((one for one in self._open.values() if one.reading), None)
        if eldest is not None and eldest.since + _MAY_BE_SILENT < time.monotonic():
            self._close(eldest)
            return True
        self._listening = False
        self._poll.modify(self._listener, 0)
        return False

    def _listen_again(self) -> None:
        if not self._listening and self._make_room():
            self._listening = True
            self._poll.modify(self._listener, select.EPOLLIN)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(MOST_BYTES + 1 - len(connection.received))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.received += data
        line, end, rest = bytes(connection.received).partition(b"\n")
        begins = any(line.startswith(one[: len(line)]) for one in _BEGINNINGS)
        if data and not end and len(line) <= MOST_BYTES and begins:
            return
        if end and not rest and line.startswith(b"berth/1 "):
            self._hear_hint(connection, line)
            return
        if not end or rest or not FORM.fullmatch(line) or self._work.qsize() >= _MOST_OPEN:
            self._close(connection)
            return
        connection.reading = False
        self._poll.unregister(connection.socket)
        self._work.put((connection, line))

    def _hear_hint(self, connection: _Connection, line: bytes) -> None:
        """Takes an Epilog's notice without a credential, unless there were many: Slurm is asked about each."""
        now = time.monotonic()
        left = min(_HINTS_AT_ONCE, self._hints_left + (now - self._hints_since) * _HINTS_A_SECOND)
        self._hints_left, self._hints_since = max(0.0, left - 1.0), now
        content = _PAYLOAD.fullmatch(line)
        notice = self._epilog(content, partial(self._reply, connection)) if content and not content[3] else None
        if notice is None or left < 1.0:
            self.refused += 1
            self._close(connection)
            return
        connection.reading = False
        self._poll.unregister(connection.socket)
        self._take(connection, replace(notice, is_hint=True))

    def _decode_all(self) -> None:
        """Decodes credentials, in a thread of its own."""
        while (work := self._work.get()) is not None:
            connection, credential = work
            if connection.closed:
                continue
            self._results.put((connection, self._vouched(connection, credential)))
            os.eventfd_write(self._wake, 1)

    def _vouched(self, connection: _Connection, credential: bytes) -> Credential | None:
        """Returns munged's answer; None after an unexpected exception."""
        try:
            return self._decode(credential)
        except Exception as fault:  # noqa: BLE001 - one credential must not end the answers to all
            self._say_fault(connection, fault)
            return None

    # In the thread of the sockets again

    def _decoded(self) -> None:
        while True:
            try:
                connection, credential = self._results.get_nowait()
            except queue.Empty:
                return
            if credential is None:
                self._close(connection)
                continue
            with self._alone(connection):
                self._hear(connection, credential)

    def _hear(self, connection: _Connection, credential: Credential) -> None:
        # Any user can get a credential for any text: only root's and berthd's own user's are read.
        notice = self._notice(connection, credential.payload) if self._may_speak(credential) else None
        if notice is None:
            self.refused += 1
            self._say_why(connection.peer, credential)
            self._close(connection)
            return
        self._take(connection, notice)

    def _take(self, connection: _Connection, notice: Notice) -> None:
        self.taken += 1
        # Only an Epilog is answered after a while; the sender of another message waits until it is handled.
        if notice.word is None:
            connection.answer_by = connection.since + self._within
            if self.busy_until > connection.answer_by:
                # The planner will not answer in time, so the Epilog is answered now.
                connection.answer_by = connection.since
                self._unanswered.appendleft(connection)
            else:
                self._unanswered.append(connection)
        self._tell(notice)

    def _notice(self, connection: _Connection, payload: bytes) -> Notice | None:
        """Returns the notice in a payload; None if it is not one."""
        reply = partial(self._reply, connection)
        if word := words.read(payload):
            return Notice(word.job, word.node, reply, word=word)
        return self._epilog(_PAYLOAD.fullmatch(payload), reply)

    @staticmethod
    def _epilog(content: re.Match[bytes] | None, reply: Callable[[bytes], None]) -> Notice | None:
        """Returns an Epilog's notice; None if it is not one."""
        if content is None or int(content[1]) > _MOST_JOBS:
            return None
        return Notice(int(content[1]), content[2].decode(), reply, degraded=bool(content[3]))

    @contextlib.contextmanager
    def _alone(self, connection: _Connection) -> Iterator[None]:
        """Closes a connection if berthd itself fails over it, so that the thread goes on for all others."""
        try:
            yield
        except Exception as fault:  # noqa: BLE001 - nothing starts this thread again
            self._say_fault(connection, fault)
            self._close(connection)

    def _say_fault(self, connection: _Connection, fault: Exception) -> None:
        self._say("fault", f"a fault of berthd's own, a notice from {connection.peer} is not heard: {fault!r}")

    def _tell(self, notice: Notice) -> None:
        self._found.put(notice)
        os.eventfd_write(self._bell, 1)

    def _reply(self, connection: _Connection, line: bytes) -> None:
        """Queues an answer; called in the planner's thread."""
        if not self._ending:
            self._answers.put((connection, line))
            os.eventfd_write(self._wake, 1)

    def _may_speak(self, credential: Credential) -> bool:
        return credential.error == 0 and credential.uid in self._trusted

    def _close(self, connection: _Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        del self._open[connection.socket.fileno()]
        connection.socket.close()

    def _say_why(self, peer: str, credential: Credential) -> None:
        """Logs a refusal and how an admin can mend its cause."""
        content = _PAYLOAD.fullmatch(credential.payload)
        # A sender with the key may name any node: the name is only logged.
        sender = content[2].decode() if content and credential.uid in self._trusted else peer
        what = f"a notice from {sender} was refused"
        if credential.error in {EXPIRED, REWOUND}:
            clock = f"its clock and this host's differ by {abs(credential.skew)} s"
            self._say("clock", f"{what}: {clock}; keep the clocks in step (chrony, ntpd)")
        elif credential.error == REPLAYED:
            self._say("replay", f"{what}: it came a second time")
        elif credential.error == NO_MUNGED:
            self._say("munged", f"{what}: no credential is checked on this host ({credential.reason}); start it")
        elif credential.error:
            self._say("key", f"{what}: {credential.reason}; the nodes need the key of this host")
        elif credential.uid not in self._trusted:
            self._say("uid", f"{what}: uid {credential.uid} sent it, and only root's notices count")
        else:
            self._say("text", f"{what}: it is not a notice of this version of Berth")

    def _say(self, kind: str, text: str) -> None:
        """Logs a text at most once a minute for each kind of trouble."""
        now = time.monotonic()
        if now >= self._said.get(kind, 0.0):
            self._said[kind] = now + _SAY_EVERY
            log.error(text, 626)


def open_notices(port: int, munge_socket: str = "") -> Notices | None:
    """Listens on every interface; if that fails, logs it and returns None, and jobs are pinned by the timer alone."""
    try:
        return Notices(listen(port), Credentials(munge_socket).decode)
    except DaemonError as problem:
        log.error(f"no Epilog's notice is heard: {problem}", 628)
        return None
