# SPDX-License-Identifier: Apache-2.0
# These calls are what pathlib calls.
# ruff: noqa: PTH101, PTH102, PTH105, PTH106, PTH108, PTH112, PTH114, PTH115, PTH116, PTH123, PTH207, PTH208
"""The kernel: stands in for `os` and its like in the node's programs, on real files in a folder for each node.

Each call is one operation: before it the world may stop or kill the program, and a write may find the file system full.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import io
import os
import posixpath
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, NamedTuple, Self

from tests.world.nodes.machine import Machine, ModelProcess
from tests.world.nodes.tasks import EndedError, NodeTasks

_VIRTUAL = 1 << 24
"""Descriptors from here on are handles of processes and ends of pipes."""


class ReadFile:
    """A file that is read."""

    def __init__(self, kernel: NodeKernel, handle: int, *, text: bool) -> None:
        self._kernel, self._handle, self._text = kernel, handle, text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kernel.close(self._handle)

    def fileno(self) -> int:
        return self._handle

    def read(self, most: int = 1 << 24) -> Any:
        data = b""
        while len(data) < most and (more := os.read(self._handle, most - len(data))):
            data += more
        return data.decode() if self._text else data


class WrittenFile:
    """A file that is written; its text goes out when it is closed."""

    def __init__(self, kernel: NodeKernel, handle: int) -> None:
        self._kernel, self._handle, self._data = kernel, handle, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._data:
                self._kernel.write(self._handle, self._data)
        finally:
            self._kernel.close(self._handle)

    def fileno(self) -> int:
        return self._handle

    def write(self, text: str) -> int:
        self._data += text.encode()
        return len(text)


class ScannedEntry:
    """An entry of a folder, by the path that a node's program knows."""

    def __init__(self, entry: os.DirEntry[str], path: str) -> None:
        self._entry, self.path, self.name = entry, path, entry.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> str:
        return self.path


class NamedEntry(NamedTuple):
    """An entry of a folder that is a model's alone."""

    path: str
    name: str


class ScannedFolder(list[ScannedEntry | NamedEntry]):
    """What os.scandir returns."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class NodePath:
    """Stands in for os.path."""

    def __init__(self, kernel: NodeKernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(posixpath, name)

    def _ask(self, call: Callable[[str], bool], path: Any) -> bool:
        self._kernel.operation()
        return call(self._kernel.real(path))

    def lexists(self, path: Any) -> bool:
        return self._ask(posixpath.lexists, path)

    def exists(self, path: Any) -> bool:
        return self._ask(posixpath.exists, path)

    def isdir(self, path: Any) -> bool:
        return self._ask(posixpath.isdir, path)

    def isfile(self, path: Any) -> bool:
        return self._ask(posixpath.isfile, path)


class NodeKernel:
    """Stands in for `os`; outside of a node's programs it is `os` itself."""

    def __init__(self, tasks: NodeTasks) -> None:
        self.tasks = tasks
        self.path = NodePath(self)
        self._handles: dict[int, ModelProcess] = {}
        self._pipes: dict[int, ModelProcess] = {}
        self._next = _VIRTUAL
        self.signalled: list[tuple[str, ModelProcess, int]] = []
        """Signals that a node's program sent to a process: sender, whom, which."""
        self.after_fork: Callable[[], int] = lambda: 1
        self.pace = 0.0
        """Seconds that a look around waits at least for the next one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # What each call does first

    @property
    def process(self) -> ModelProcess:
        """The process that calls."""
        task = self.tasks.current
        assert task is not None, "no program of a node runs"
        return task.process

    @property
    def machine(self) -> Machine:
        return self.process.machine

    def operation(self, *, writes: str = "") -> None:
        """One operation; `writes` is the path that it writes to."""
        if self.tasks.current is None:
            return
        self.tasks.operation()
        if not writes or "/run" not in writes:
            return
        machine = self.machine
        faults = [left - 1 for left in machine.write_faults]
        machine.write_faults = [left for left in faults if left > 0]
        if machine.full or 0 in faults:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), writes)

    def real(self, path: Any) -> Any:
        """Where the file really lies."""
        if self.tasks.current is None or isinstance(path, int):
            return path
        text, root = os.fspath(path), str(self.machine.folder)
        if isinstance(text, bytes):
            text = text.decode()
        return text if text.startswith(root) or not text.startswith("/") else root + text

    def _new(self, path: Any) -> str:
        """The path, if something has to be made there: what is there already needs no room."""
        return "" if os.path.lexists(self.real(path)) else str(os.fspath(path))

    # Calls

    def open(self, path: Any, flags: int, mode: int = 0o777, **_: Any) -> int:
        self.operation(writes=self._new(path) if flags & os.O_CREAT else "")
        handle = os.open(self.real(path), flags, mode)
        if self.tasks.current is not None:
            self.process.fds[handle] = self.real(path)
            if flags & os.O_CREAT and not os.fstat(handle).st_size:
                self._stamp(handle)
        return handle

    def _stamp(self, file: Any) -> None:
        """Files bear the times of the virtual clock; no two writes have the same."""
        at = round(self.tasks.clock.time() * 1e9) + self.tasks.operations
        os.utime(file, ns=(at, at))

    def close(self, handle: int) -> None:
        if handle >= _VIRTUAL:
            self._handles.pop(handle, None)
            self._pipes.pop(handle, None)
            return
        if self.tasks.current is not None:
            self._drop_locks(handle)
            if self.process.fds.pop(handle, None) is None and self.process.dead:
                return
        os.close(handle)

    def _drop_locks(self, handle: int) -> None:
        """Closing any descriptor of a file drops all record locks that the process has on it."""
        locks = self.machine.locks
        if locks and (number := os.fstat(handle).st_ino) in locks:
            locks[number] = [one for one in locks[number] if one[3] is not self.process]
            if not locks[number]:
                del locks[number]

    def read(self, handle: int, most: int) -> bytes:
        return os.read(handle, most)

    def write(self, handle: int, data: bytes) -> int:
        if self.tasks.current is None:
            return os.write(handle, data)
        path = self.process.fds.get(handle, "")
        self.operation(writes=path)
        done = os.write(handle, data)
        self._stamp(handle)
        if path.endswith("/cgroup.freeze"):
            self.machine.froze(path)
        return done

    def pwrite(self, handle: int, data: bytes, place: int) -> int:
        self.operation(writes=self.process.fds.get(handle, "") if self.tasks.current else "")
        return os.pwrite(handle, data, place)

    def fdopen(self, handle: int, mode: str = "r", **_: Any) -> Any:
        if self.tasks.current is None:
            return os.fdopen(handle, mode)
        return WrittenFile(self, handle) if "w" in mode else ReadFile(self, handle, text="b" not in mode)

    def fchmod(self, handle: int, mode: int) -> None:
        self.operation()
        os.fchmod(handle, mode)

    def fchown(self, handle: int, uid: int, gid: int) -> None:
        """Files stay ours: whoever runs the tests may give none away."""

    def setxattr(self, path: Any, *_: Any) -> None:
        self.operation()
        os.stat(self.real(path))

    def stat(self, path: Any, *, follow_symlinks: bool = True, **_: Any) -> os.stat_result:
        self.operation()
        return os.stat(self.real(path), follow_symlinks=follow_symlinks)

    def lstat(self, path: Any, **_: Any) -> os.stat_result:
        return self.stat(path, follow_symlinks=False)

    def listdir(self, path: Any = ".") -> list[str]:
        self.operation()
        if self.tasks.current is not None and os.fspath(path).startswith("/proc"):
            return self.machine.proc_list(os.fspath(path))
        return sorted(os.listdir(self.real(path)))

    def scandir(self, path: Any) -> Any:
        self.operation()
        if self.tasks.current is None:
            return os.scandir(path)
        if os.fspath(path).startswith("/proc"):
            # Path.iterdir asks so from Python 3.13 on.
            base = os.fspath(path).rstrip("/")
            return ScannedFolder(NamedEntry(f"{base}/{name}", name) for name in self.machine.proc_list(base))
        return ScannedFolder(
            ScannedEntry(one, f"{os.fspath(path).rstrip('/')}/{one.name}") for one in os.scandir(self.real(path))
        )

    def walk(self, path: Any) -> Iterator[Any]:
        self.operation()
        return os.walk(self.real(path))

    def mkdir(self, path: Any, mode: int = 0o777, **_: Any) -> None:
        self.operation(writes=self._new(path))
        os.mkdir(self.real(path), mode)

    def unlink(self, path: Any, **_: Any) -> None:
        self.operation()
        os.unlink(self.real(path))

    remove = unlink

    def rmdir(self, path: Any, **_: Any) -> None:
        self.operation()
        os.rmdir(self.real(path))

    def replace(self, source: Any, target: Any, **_: Any) -> None:
        self.operation()
        os.replace(self.real(source), self.real(target))

    rename = replace

    def chmod(self, path: Any, mode: int, **_: Any) -> None:
        self.operation()
        os.chmod(self.real(path), mode)

    def utime(self, path: Any, *_: Any, **__: Any) -> None:
        self.operation()
        self._stamp(self.real(path))

    def access(self, path: Any, mode: int, **_: Any) -> bool:
        if mode == os.X_OK:
            # By the file's mode alone: the folder of the test may lie where nothing can be started.
            there = Path(self.real(path))
            return there.exists() and bool(there.stat().st_mode & 0o111)
        return os.access(self.real(path), mode)

    def readlink(self, path: Any, **_: Any) -> str:
        self.operation()
        if self.tasks.current is not None and os.fspath(path).startswith("/proc/"):
            return self.machine.proc_link(os.fspath(path))
        return str(os.readlink(self.real(path)))

    def remove_tree(self, path: Any, ignore_errors: bool = False, **_: Any) -> None:
        """Stands in for shutil.rmtree."""
        try:
            for name in self.listdir(path):
                one = f"{os.fspath(path)}/{name}"
                if os.path.isdir(self.real(one)) and not os.path.islink(self.real(one)):
                    self.remove_tree(one)
                else:
                    self.unlink(one)
            self.rmdir(path)
        except OSError:
            if not ignore_errors:
                raise

    # Processes

    @property
    def environ(self) -> dict[str, str]:
        return dict(os.environ) if self.tasks.current is None else self.process.environ

    def getpid(self) -> int:
        return os.getpid() if self.tasks.current is None else self.process.pid

    def handle_of(self, process: ModelProcess) -> int:
        self._next += 1
        self._handles[self._next] = process
        return self._next

    def pidfd_open(self, pid: int) -> int:
        self.operation()
        found = self.machine.processes.get(pid)
        if found is None:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return self.handle_of(found)

    def pipe_to(self, process: ModelProcess) -> int:
        """The end of a pipe that this process keeps open: it closes when the process ends."""
        self._next += 1
        self._pipes[self._next] = process
        return self._next

    def is_gone(self, handle: int) -> bool:
        """Tells whether the process behind a handle has ended, or a pipe is closed."""
        process = self._handles.get(handle) or self._pipes.get(handle)
        return process is None or process.dead

    def pidfd_send_signal(self, handle: int, number: int) -> None:
        self.operation()
        process = self._handles[handle]
        if process.dead:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        self._send(process, number)

    def kill(self, pid: int, number: int) -> None:
        self.operation()
        process = self.machine.processes.get(pid)
        if process is None:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        self._send(process, number)

    def _send(self, process: ModelProcess, number: int) -> None:
        self.signalled.append((self.process.program, process, int(number)))
        process.signal(int(number))

    def waitpid(self, pid: int, flags: int) -> tuple[int, int]:
        self.operation()
        if pid in self.machine.processes:
            if flags & os.WNOHANG:
                return 0, 0
            process = self.machine.processes[pid]
            self.tasks.block(None, lambda: process.dead)
        return pid, 0

    def fork(self) -> int:
        self.operation()
        return self.after_fork()


class NodeLocks:
    """Stands in for `fcntl`: record locks belong to a model's process."""

    def __init__(self, kernel: NodeKernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(fcntl, name)

    def flock(self, handle: Any, how: int) -> None:
        self._kernel.operation()
        number = handle if isinstance(handle, int) else handle.fileno()
        while True:
            try:
                fcntl.flock(number, how | fcntl.LOCK_NB)
            except OSError:
                if how & fcntl.LOCK_NB or self._kernel.tasks.current is None:
                    raise
                self._kernel.tasks.block(0.01)
            else:
                return

    def lockf(self, handle: int, how: int, length: int = 0, start: int = 0, _: int = 0) -> None:
        if self._kernel.tasks.current is None:
            return
        self._kernel.operation()
        machine, process = self._kernel.machine, self._kernel.process
        number, exclusive = os.fstat(handle).st_ino, bool(how & fcntl.LOCK_EX)
        end = start + length if length else 1 << 62
        held = machine.locks.setdefault(number, [])
        for first, size, theirs_exclusive, holder in held:
            overlaps = first < end and start < (first + size if size else 1 << 62)
            if holder is not process and overlaps and (exclusive or theirs_exclusive):
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        held.append((start, length, exclusive, process))


class NodeClock:
    """Stands in for `time`."""

    def __init__(self, kernel: NodeKernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return self._kernel.tasks.clock.time()

    def monotonic(self) -> float:
        tasks = self._kernel.tasks
        return tasks.clock.passed if tasks.current is None else self._kernel.machine.monotonic()

    def monotonic_ns(self) -> int:
        return round(self.monotonic() * 1e9)

    def sleep(self, seconds: float) -> None:
        self._kernel.operation()
        if self._kernel.tasks.current is not None:
            self._kernel.tasks.block(seconds)


class EndsPoll:
    """Stands in for select.poll: waits for the ends of processes."""

    def __init__(self, kernel: NodeKernel) -> None:
        self._kernel, self._handles = kernel, list[int]()

    def register(self, handle: int, _: int) -> None:
        self._handles.append(handle)

    def unregister(self, handle: int) -> None:
        self._handles.remove(handle)

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        gone = lambda: any(map(self._kernel.is_gone, self._handles))  # noqa: E731 - asked again and again
        self._kernel.tasks.block(milliseconds / 1000.0, gone)
        return [(one, select.POLLIN) for one in self._handles if self._kernel.is_gone(one)]


def node_select(kernel: NodeKernel) -> SimpleNamespace:
    """Stands in for `select`."""

    def wait(readable: list[int], _: object, __: object, seconds: float) -> tuple[list[int], list[int], list[int]]:
        kernel.operation()
        machine, due = kernel.machine, kernel.tasks.clock.passed + max(seconds, kernel.pace)

        def ready() -> bool:
            # While nobody is frozen there is nothing to look for.
            looks = bool(machine.frozen_since) and kernel.tasks.clock.passed >= due
            return looks or any(map(kernel.is_gone, readable))

        kernel.tasks.block(10.0 * max(seconds, kernel.pace), ready)
        return [one for one in readable if kernel.is_gone(one)], [], []

    return SimpleNamespace(select=wait, poll=lambda: EndsPoll(kernel), POLLIN=select.POLLIN)


class NodeSignals:
    """Stands in for `signal`."""

    def __init__(self, kernel: NodeKernel) -> None:
        self._kernel = kernel
        self.pidfd_send_signal = kernel.pidfd_send_signal

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> None:
        if handler is signal.SIG_IGN:
            self._kernel.process.handlers[number] = lambda _number, _frame: None
        elif callable(handler):
            self._kernel.process.handlers[number] = handler

    def pthread_sigmask(self, *_: Any) -> set[int]:
        return set()

    def alarm(self, _: int) -> int:
        return 0


def node_io(kernel: NodeKernel) -> SimpleNamespace:
    """Stands in for `io` where pathlib opens files."""

    def opened(path: Any, mode: str = "r", *words: Any, **more: Any) -> Any:
        if kernel.tasks.current is None:
            return open(path, mode, *words, **more)
        name = os.fspath(path)
        kernel.operation(writes=name if {"w", "a"} & set(mode) else "")
        if name.startswith("/proc/"):
            data = kernel.machine.proc(name)
            return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode())
        return open(kernel.real(path), mode, *words, **more)

    return SimpleNamespace(open=opened, text_encoding=io.text_encoding)


def node_glob(kernel: NodeKernel) -> SimpleNamespace:
    """Stands in for `glob`, where scripts of a site are looked for."""

    def found(pattern: str) -> list[str]:
        kernel.operation()
        root = str(kernel.machine.folder)
        return [path.removeprefix(root) for path in sorted(glob.glob(root + pattern))]

    return SimpleNamespace(glob=found, has_magic=glob.has_magic)


class TrialFolder:
    """Stands in for tempfile.TemporaryDirectory."""

    made = 0

    def __init__(self, kernel: NodeKernel, prefix: str, folder: Any) -> None:
        TrialFolder.made += 1
        self._kernel = kernel
        self.name = f"{os.fspath(folder)}/{prefix}{TrialFolder.made}"
        kernel.mkdir(self.name, 0o700)

    def __enter__(self) -> str:
        return self.name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not EndedError:
            self._kernel.remove_tree(self.name, ignore_errors=True)
