# SPDX-License-Identifier: Apache-2.0
"""Processes that are proven to be those that Berth started: number, start time, program and boot must all agree."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_SECONDS = 0.02
_KILL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Proven:
    """A proven process: its number alone may belong to another program by now."""

    pid: int
    started: int
    program: str
    boot: str


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Returns the id of this boot, which differs after each boot."""
    return path.read_text(encoding="ascii").strip()


def prove(pid: int, boot: str) -> Proven | None:
    """Returns the proof of this process; None if there is none, or it is dead and not yet reaped."""
    try:
        state, started = _stat(pid)
        program = str(Path(f"/proc/{pid}/exe").readlink())
    except (OSError, ValueError, IndexError):
        return None
    return None if state in {"Z", "X"} else Proven(pid, started, program.removesuffix(" (deleted)"), boot)


def _stat(pid: int) -> tuple[str, int]:
    """Returns state letter and start time in clock ticks; the name before them may hold blanks and brackets."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])


def alive(process: Proven, boot: str) -> bool:
    """Tells whether this very process still runs, in this boot."""
    return process.boot == boot and prove(process.pid, boot) == process


def user_of(pid: int) -> int | None:
    """Returns the effective user of a process."""
    return _user(pid, 2)


def real_user_of(pid: int) -> int | None:
    """Returns the real user of a process: the caller of a setuid program, or root for a daemon that acts for a user."""
    return _user(pid, 1)


def _user(pid: int, place: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[place]) for line in lines if line.startswith("Uid:")), None)


def children(pid: int) -> tuple[int, ...]:
    """Returns its child processes."""
    try:
        tasks = [task.joinpath("children").read_text(encoding="ascii") for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return ()
    return tuple(int(word) for text in tasks for word in text.split())


def serving(program: str, setting: str) -> tuple[int, ...]:
    """Returns processes of our user that run this program and were started with this setting (`NAME=value`).

    It finds what a killed Prolog started and had no time to write down. A user's processes have another user, and the
    environment that a process was started with cannot be changed from outside.
    """
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or setting.encode() not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            # A script's first word is its interpreter.
            words = (folder / "cmdline").read_bytes().split(b"\0")[:3]
        except OSError:
            continue
        if program.encode() in words and user_of(int(folder.name)) == os.geteuid():
            found.append(int(folder.name))
    return tuple(found)


def end(process: Proven, boot: str, patience: float) -> bool:
    """Asks the process to end, and kills it if it has not after so many seconds; True when it is gone.

    The handle is taken before the last check, so no other program can take over the number in between.
    """
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, _KILL_SECONDS)):
                if not alive(process, boot):
                    return True
                signal.pidfd_send_signal(handle, number)
                if _gone(process, boot, seconds):
                    return True
        finally:
            os.close(handle)
    return not alive(process, boot)


@contextlib.contextmanager
def held(pids: Iterable[int], is_theirs: Callable[[int], bool]) -> Iterator[dict[int, int]]:
    """Yields handles of these processes, and their numbers; `is_theirs` checks a number once its handle is taken."""
    with contextlib.ExitStack() as stack:
        handles: dict[int, int] = {}
        for pid in pids:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                stack.callback(os.close, handle)
                if is_theirs(pid):
                    handles[handle] = pid
        yield handles


def end_all(handles: Mapping[int, int], is_theirs: Callable[[int], bool], patience: float) -> None:
    """Asks these processes to end, all at once, and kills those that have not after so many seconds.

    Before each signal it asks whose they are: a process may be moved to another job while it is waited for.
    """
    left = dict(handles)
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, _KILL_SECONDS)):
        left = {handle: pid for handle, pid in left.items() if is_theirs(pid)}
        for handle in left:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, number)
        _await(left, seconds)


def _await(handles: dict[int, int], seconds: float) -> None:
    """Waits for these processes, and removes those that end."""
    ends = select.poll()
    for handle in handles:
        ends.register(handle, select.POLLIN)
    until = time.monotonic() + seconds
    while handles and (left := until - time.monotonic()) > 0.0:
        for handle, _ in ends.poll(left * 1000.0):
            ends.unregister(handle)
            del handles[handle]


def _gone(process: Proven, boot: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while alive(process, boot):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def start_detached(argv: Sequence[str], environment: Mapping[str, str], log: Path | None = None) -> int:
    """Starts a program that outlives us, in a session of its own and with none of our descriptors; returns its number.

    Its output is appended to `log`.

    slurmd kills the process group of a Prolog at its end, and waits for every descriptor that it gave to it. This
    function returns when the process has become the program: the pipe closes with that, and not before.
    """
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        _become(argv, environment, writing, log)
    os.close(writing)
    os.waitpid(middle, 0)
    with os.fdopen(reading, "rb") as pipe:
        pid, _, error = pipe.read().partition(b" ")
    if error or not pid:
        number = int(error or 0)
        raise OSError(number, os.strerror(number), argv[0])
    return int(pid)


def _become(argv: Sequence[str], environment: Mapping[str, str], writing: int, log: Path | None) -> None:
    """Becomes the program, in the child; one more fork leaves it without a parent that must reap it."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open("/dev/null", os.O_RDWR)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        out = null if log is None else os.open(log, flags, 0o600)
        os.dup2(null, 0)
        for number in (1, 2):
            os.dup2(out, number)
        os.dup2(writing, 3, inheritable=False)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        os.chdir("/")
        os.umask(0o022)
        # This fails if the other end is closed: a Prolog that was killed meanwhile starts nothing.
        os.write(3, str(os.getpid()).encode())
        # Signals that Python or our starter ignores, or that a Prolog blocks, would stay so in the program.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(argv[0], list(argv), dict(environment))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(3, f" {error.errno}".encode())
    finally:
        os._exit(127)
