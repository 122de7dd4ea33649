"""The Epilog's notices: "job J ends on node N", sent by `berth-notice` on the node (docs/formats.md).

The planner takes them between two passes and never waits for a peer: all sockets hang on one epoll, whose descriptor
goes into the planner's own select. Only decoding a credential may wait, for munged, and so it has a thread of its own.
"""

import contextlib
import os
import queue
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from policy.daemon import log
from policy.daemon.munge import EXPIRED, NO_MUNGED, REPLAYED, REWOUND, Credential, Munge
from policy.errors import DaemonError

DONE, STANDBY = b"berth/1 done\n", b"berth/1 standby\n"

_REQUEST_BYTES = 1_024
"""A credential takes some 250."""
_PREFIX = b"MUNGE:"
_CREDENTIAL = re.compile(rb"MUNGE:[A-Za-z0-9+/=]+:")
_PAYLOAD = re.compile(rb"berth/1 epilog job=([1-9][0-9]{0,9}) node=([A-Za-z0-9_.-]{1,255})")
_MOST_JOBS = 2**32 - 1

_MOST_OPEN = 256
"""Together with the planner's own files well below 1,024, beyond which select() takes none."""
_MOST_AT_ONCE = 64
_BACKLOG = 4_096
_PATIENCE = 2.0
"""Seconds for a connection from beginning to end; the client goes after 0.3."""
_SAY_EVERY = 60.0


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    peer: str
    until: float
    received: bytearray = field(default_factory=bytearray)
    reading: bool = True
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """A root of this cluster says that a job ends on a node; the node's Epilog waits for the answer."""

    job: int
    node: str
    _reply: Callable[[bytes], None]

    def answer(self, *, done: bool = True) -> None:
        """Let the Epilog end. `done=False` where another controller is in charge: it asked that one as well."""
        self._reply(DONE if done else STANDBY)


class Notices:
    """Hostile or slow peers cost at most some connections and munged's time."""

    def __init__(self, listener: socket.socket, decode: Callable[[bytes], Credential]) -> None:
        self.taken = 0
        self.refused = 0
        self._listener = listener
        self._decode = decode
        self._trusted = {0, os.geteuid()}
        self._poll = select.epoll()
        self._listening = True
        self._open: dict[int, _Connection] = {}
        """Eldest first: all have the same patience."""
        self._work: queue.SimpleQueue[tuple[_Connection, bytes] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[_Connection, Credential]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._said: dict[str, float] = {}
        listener.setblocking(False)  # noqa: FBT003 - its only argument
        self._poll.register(listener, select.EPOLLIN)
        self._poll.register(self._wake, select.EPOLLIN)
        self._decoder = threading.Thread(target=self._decode_all, name="berth-munge", daemon=True)
        self._decoder.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def fileno(self) -> int:
        """One descriptor for all of it, to wait for in a select."""
        return self._poll.fileno()

    def ready(self) -> list[Notice]:
        """Serve the sockets and take what has come; to be called after every select, also one that timed out."""
        for file, _ in self._poll.poll(0):
            if file == self._listener.fileno():
                self._accept()
            elif file == self._wake:
                os.eventfd_read(self._wake)
            elif (connection := self._open.get(file)) and connection.reading:
                self._read(connection)
        found = self._decoded()
        now = time.monotonic()
        for late in [one for one in self._open.values() if one.until < now]:
            self._close(late)
        return found

    def close(self) -> None:
        """Hang up on all."""
        for connection in list(self._open.values()):
            self._close(connection)
        self._listener.close()
        self._work.put(None)
        self._decoder.join(1.0)
        self._poll.close()
        # A decoder that still waits for munged will write to it.
        if not self._decoder.is_alive():
            os.close(self._wake)

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
            connection = _Connection(accepted, address[0], time.monotonic() + _PATIENCE)
            self._open[accepted.fileno()] = connection
            self._poll.register(accepted, select.EPOLLIN)
            self._read(connection)

    def _make_room(self) -> bool:
        """The eldest that has said nothing yet goes for a new one; when all have, the new ones wait in the backlog."""
        if len(self._open) < _MOST_OPEN:
            return True
        silent = next((one for one in self._open.values() if one.reading), None)
        if silent is not None:
            self._close(silent)
            return True
        self._listening = False
        self._poll.modify(self._listener, 0)
        return False

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_REQUEST_BYTES + 1 - len(connection.received))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.received += data
        line, end, rest = bytes(connection.received).partition(b"\n")
        if data and not end and len(line) <= _REQUEST_BYTES and line.startswith(_PREFIX[: len(line)]):
            return
        if not end or rest or not _CREDENTIAL.fullmatch(line) or self._work.qsize() >= _MOST_OPEN:
            self._close(connection)
            return
        connection.reading = False
        self._poll.unregister(connection.socket)
        self._work.put((connection, line))

    def _decode_all(self) -> None:
        """The other thread."""
        while (work := self._work.get()) is not None:
            connection, credential = work
            if connection.closed:
                continue
            self._results.put((connection, self._decode(credential)))
            os.eventfd_write(self._wake, 1)

    def _decoded(self) -> list[Notice]:
        found: list[Notice] = []
        while True:
            try:
                connection, credential = self._results.get_nowait()
            except queue.Empty:
                return found
            content = _PAYLOAD.fullmatch(credential.payload)
            if content and int(content[1]) <= _MOST_JOBS and self._may_speak(credential):
                self.taken += 1
                found.append(self._notice(connection, int(content[1]), content[2].decode()))
            else:
                self.refused += 1
                self._say_why(connection.peer, credential)
                self._close(connection)

    def _may_speak(self, credential: Credential) -> bool:
        return credential.error == 0 and credential.uid in self._trusted

    def _notice(self, connection: _Connection, job: int, node: str) -> Notice:
        def reply(line: bytes) -> None:
            if not connection.closed:
                # A client that has gone has met its own deadline.
                with contextlib.suppress(OSError):
                    connection.socket.send(line)
                self._close(connection)

        return Notice(job, node, reply)

    def _close(self, connection: _Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        del self._open[connection.socket.fileno()]
        connection.socket.close()
        if not self._listening:
            self._listening = True
            self._poll.modify(self._listener, select.EPOLLIN)

    def _say_why(self, peer: str, credential: Credential) -> None:
        """Log a refusal so that an admin knows what to mend."""
        content = _PAYLOAD.fullmatch(credential.payload)
        # Whoever has the key may name any node, but only to put it into our log.
        sender = content[2].decode() if content and credential.uid in self._trusted else peer
        what = f"a notice from {sender} was refused"
        if credential.error in {EXPIRED, REWOUND}:
            clock = f"its clock and this host's differ by {abs(credential.skew)} s"
            self._say("clock", f"{what}: {clock}; keep the clocks in step (chrony, ntpd)")
        elif credential.error == REPLAYED:
            self._say("replay", f"{what}: it came a second time")
        elif credential.error == NO_MUNGED:
            self._say("munged", f"{what}: munged does not answer on this host ({credential.reason}); start it")
        elif credential.error:
            self._say("key", f"{what}: {credential.reason}; the nodes need the munge key of this host")
        elif credential.uid not in self._trusted:
            self._say("uid", f"{what}: uid {credential.uid} sent it, and only root's notices count")
        else:
            self._say("text", f"{what}: it is not a notice of this version of Berth")

    def _say(self, kind: str, text: str) -> None:
        """At most once a minute for each kind of trouble."""
        now = time.monotonic()
        if now >= self._said.get(kind, 0.0):
            self._said[kind] = now + _SAY_EVERY
            log.error(text)


def open_notices(port: int, munge_socket: str = "") -> Notices | None:
    """Listen on every interface; None, and a line in the log, where that cannot be: the timer alone pins jobs then."""
    try:
        munge = Munge(munge_socket)
        return Notices(_listen(port), munge.decode)
    except DaemonError as problem:
        log.error(f"no Epilog's notice is heard: {problem}")
        return None


def _listen(port: int) -> socket.socket:
    problem = OSError()
    # A host whose kernel has no IPv6, or has it switched off, still has IPv4.
    for family, dual in ((socket.AF_INET6, True), (socket.AF_INET, False)):
        try:
            return socket.create_server(("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
        except (OSError, ValueError) as found:
            problem = found if isinstance(found, OSError) else problem
    raise DaemonError(f"cannot listen on port {port}: {problem.strerror}")
