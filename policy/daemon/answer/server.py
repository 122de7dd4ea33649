# SPDX-License-Identifier: Apache-2.0
"""The answering loop: one thread, one epoll, no call that waits for another process.

All waiting requests are read before one is answered: the one whose user is next (turns.py). A connection that was
closed meanwhile gets no answer.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from policy.daemon.answer.answerer import Answerer
from policy.daemon.answer.turns import Turns, asker
from policy.daemon.passes.handover import HURRY, UNSEEN, Receiver
from policy.daemon.processes.child import Child
from policy.daemon.processes.notify import notify, watchdog_seconds
from policy.daemon.processes.planner_watchdog import PlannerWatchdog
from policy.formats.errors import DaemonError
from policy.formats.wire import REQUEST_BYTES, encode
from policy.site import log, overview

_BACKLOG = 1_024
_MOST_CONNECTIONS = 512
_PATIENCE = 2.0
"""Seconds for which a connection without a request may stay silent."""
_KEPT = 60.0
"""Seconds for which a connection is kept after an answer: slurmctld sends its next request over the same one."""
_ENOUGH = 0.025
"""Seconds of processor time after which the search for a place ends; the plugin waits twice as long."""
_RESTART_AFTER = 1.0
_COLLECT_EVERY = 60.0


class Server:
    """Owns the socket, the planner process, and the loop."""

    def __init__(
        self,
        answerer: Answerer,
        path: Path,
        planner_command: list[str],
        children: Sequence[Child] = (),
        watchdog: PlannerWatchdog | None = None,
    ) -> None:
        self._answerer = answerer
        self._watchdog = watchdog or PlannerWatchdog()
        self._path = path
        self._planner_command = planner_command
        self._children = children
        self._allowed = {0, os.geteuid()}
        self._poll = select.epoll()
        self._open: dict[int, tuple[socket.socket, float]] = {}
        """By file number, the connections and the monotonic time until which each may be silent."""
        self._asked: dict[int, tuple[bytes, tuple[str, int] | None]] = {}
        """By file number, the requests that are read and not yet answered, each with its nonce and user."""
        self._turns = Turns()
        self._listener = _listen(path)
        self._poll.register(self._listener, select.EPOLLIN)
        self._planner: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._receiver: Receiver | None = None
        self._restart_at = 0.0
        self._stop = False
        self._said_ready = False

    def run(self) -> None:
        """Answers until SIGTERM or SIGINT; raises DaemonError if no planner lives long enough to be of use."""
        wake = self._catch_signals()
        self._start_planner()
        # Objects that exist now live as long as the process: the collector skips them. Replies make no cycles: it runs
        # only in quiet moments.
        gc.freeze()
        gc.disable()
        every = watchdog_seconds()
        tend_at = collect_at = 0.0
        try:
            while not self._stop:
                clock = time.time()
                busy = self._answerer.catching_up or self._answerer.expects(clock)
                # Replies that stand ready are made anew when the second of their texts has ended.
                timeout = 0.0 if busy or self._asked else min(0.5, 1.001 - clock % 1)
                for file, events in self._poll.poll(timeout):
                    self._serve(file, events, wake)
                if self._asked:
                    self._answer_next()
                self._answerer.catch_up()
                if not self._asked:
                    self._look_ahead()
                now = time.monotonic()
                if now >= tend_at:
                    tend_at = now + min(every or 0.5, 0.5)
                    self._tend(now, watchdog=every is not None)
                if now >= collect_at and not self._answerer.catching_up:
                    collect_at = now + _COLLECT_EVERY
                    gc.collect()
        finally:
            notify("STOPPING=1")
            self._close()

    def _serve(self, file: int, events: int, wake: int) -> None:
        if file in self._open:
            self._hear(file, events)
        elif file == self._listener.fileno():
            self._accept()
        elif self._channel is not None and file == self._channel.fileno():
            self._take_word()
        elif file == wake:
            os.read(wake, 64)

    def _accept(self) -> None:
        for _ in range(64):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as problem:
                log.error(f"cannot accept a connection: {problem}", 655)
                return
            connection.setblocking(False)  # noqa: FBT003 - its only argument
            if len(self._open) < _MOST_CONNECTIONS and self._may_ask(connection):
                file = connection.fileno()
                self._open[file] = connection, time.monotonic() + _PATIENCE
                self._poll.register(file, select.EPOLLIN)
                self._hear(file, select.EPOLLIN)
            else:
                connection.close()

    def _may_ask(self, connection: socket.socket) -> bool:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        uid: int = struct.unpack("iII", peer)[1]
        return uid in self._allowed

    def _hear(self, file: int, events: int) -> None:
        """Reads a request if it has arrived."""
        connection, _ = self._open[file]
        if events & select.EPOLLHUP:
            self._drop(file)
        elif file not in self._asked:
            try:
                datagram = connection.recv(REQUEST_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:
                datagram = b""
            if datagram:
                self._asked[file] = datagram, asker(datagram)
            else:
                self._drop(file)

    def _answer_next(self) -> None:
        """Replies to one request; a request that arrives now may come before the other ones."""
        # Requests for no job, such as `berth status`, come first.
        file = min(self._asked, key=lambda one: self._turns.of(who[1]) if (who := self._asked[one][1]) else -1)
        (datagram, who), now = self._asked.pop(file), time.monotonic()
        connection, _ = self._open[file]
        if _has_hung_up(connection):
            self._drop(file)
            return
        began = time.thread_time()
        if who and (seconds := self._turns.sent_away(who[1], now)):
            reply: bytes | None = encode("busy", {"nonce": who[0], "seconds": str(seconds)})
        else:
            reply = self._answerer.answer(datagram, time.time(), _enough(began))
        if reply is None:
            self._drop(file)
        else:
            # A client that has closed, or does not read, has met its own deadline.
            with contextlib.suppress(OSError):
                connection.send(reply)
            self._open[file] = connection, now + _KEPT
        self._answerer.settle()
        self._hurry()
        if who:
            self._turns.took(who[1], time.thread_time() - began, now)

    def _look_ahead(self) -> None:
        """Makes a reply in advance; if that took long, makes no more of its kind, since other requests may wait."""
        began = time.thread_time()
        asked = self._answerer.look_ahead(time.time(), _enough(began))
        if asked is not None and time.thread_time() - began > self._turns.usual:
            self._answerer.expect_no_more(asked)

    def _drop(self, file: int) -> None:
        self._asked.pop(file, None)
        connection, _ = self._open.pop(file)
        self._poll.unregister(file)
        connection.close()

    def _hurry(self) -> None:
        """Makes the planner read Slurm at once if a guest has to leave for a job."""
        if self._answerer.take_hurry() and self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send(HURRY)

    def _take_word(self) -> None:
        assert self._receiver is not None and self._channel is not None  # noqa: S101, PT018 - narrows the types
        try:
            snapshot = self._receiver.receive()
        except (OSError, EOFError):
            self._hang_up()
            return
        if self._receiver.take_sign():
            self._watchdog.hear(time.monotonic())
        if snapshot is None:
            return
        if snapshot.cluster is not None:
            self._turns.nodes(len(snapshot.cluster.fleet.names))
        if self._answerer.take(snapshot, time.time()):
            with contextlib.suppress(OSError):
                self._channel.send(UNSEEN)
        if self._answerer.ready and not self._said_ready:
            self._said_ready = True
            log.info(f"answers on {self._path}", 656)
            notify("READY=1")

    def _tend(self, now: float, *, watchdog: bool) -> None:
        for file, (_, until) in list(self._open.items()):
            if now > until:
                self._drop(file)
        if not self._stop:
            self._tend_planner(now)
        for child in self._children:
            child.tend(now)
        if watchdog:
            notify("WATCHDOG=1")

    def _tend_planner(self, now: float) -> None:
        """Starts, watches or kills the planner; never waits for its end, which a hung file system can delay."""
        if self._planner is None:
            if now >= self._restart_at:
                self._start_planner()
        elif (code := self._planner.poll()) is not None:
            self._lose_planner(code, now)
        elif self._watchdog.is_silent(now):
            log.error(
                f"the planner has neither read Slurm nor waited for it for {self._watchdog.silent_for:g} s: killed", 657
            )
            self._planner.kill()
        elif self._channel is None:
            self._planner.kill()
        if reason := self._watchdog.hopeless:
            raise DaemonError(f"{reason}; berthd ends, so that its unit gives waiting jobs back to Slurm")

    def _start_planner(self) -> None:
        self._watchdog.hear(time.monotonic())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._planner = subprocess.Popen(
                [*self._planner_command, "--channel", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._channel, self._receiver = ours, Receiver(ours)
        self._poll.register(ours, select.EPOLLIN)

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._poll.unregister(self._channel)
            self._channel.close()
            self._channel = None

    def _lose_planner(self, code: int, now: float) -> None:
        """Handles the end of the planner: a new one starts a moment later, and the last snapshot stays in use."""
        self._hang_up()
        log.error(f"the planner ended with {code}; a new one starts in {_RESTART_AFTER:.0f} s", 658)
        self._planner = None
        self._restart_at = now + _RESTART_AFTER
        self._watchdog.end(now)

    def _catch_signals(self) -> int:
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._poll.register(read_end, select.EPOLLIN)
        return read_end

    def _on_signal(self, *_: object) -> None:
        self._stop = True

    def _close(self) -> None:
        self._listener.close()
        for file in list(self._open):
            self._drop(file)
        for child in self._children:
            child.stop()
        # If the socket cannot be removed, the next berthd replaces it.
        with contextlib.suppress(OSError):
            self._path.unlink()
        if self._channel is not None:
            self._channel.close()
        if self._planner is not None:
            self._planner.terminate()
            try:
                self._planner.wait(5)
            except subprocess.TimeoutExpired:
                self._planner.kill()
                # A planner that does not die must not keep berthd's unit from undoing the pins.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._planner.wait(5)
        log.info("stopped", 659)


def _has_hung_up(connection: socket.socket) -> bool:
    """Tells whether the client has closed: other requests were answered since its own was read."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))


def _enough(began: float) -> Callable[[], bool]:
    return lambda: time.thread_time() - began > _ENOUGH


def _listen(path: Path) -> socket.socket:
    """Binds the socket: replaces that of a berthd that is gone; raises DaemonError if another berthd answers there."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            else:
                raise DaemonError(f"another berthd answers on {path}; stop it first")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
    except OSError as problem:
        raise DaemonError(f"cannot listen on {path}: {problem.strerror}") from None
    return listener


def planner_command(config: Path, gateway: str, path: Path) -> list[str]:
    """Returns the command that starts the planner with this interpreter and its packages."""
    command = [sys.executable, "-m", "policy.daemon.passes.planning", "--config", str(config), "--gateway", gateway]
    return [*command, "--overview", str(overview.path_of(path))]


def child_command(module: str, config: Path, gateway: str, path: Path) -> list[str]:
    """Returns the command that starts a process that asks this one over its socket."""
    command = [sys.executable, "-m", module, "--config", str(config), "--gateway", gateway]
    return [*command, "--socket", str(path)]
