# SPDX-License-Identifier: Apache-2.0
"""Runs a program with a time limit: its whole process group is killed when the time is up.

Slurm does the same to the Prolog itself, so a program in a group of its own must be killed when Slurm's SIGTERM comes.
"""

import fcntl
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from prolog_epilog.errors import Interrupted, TookTooLong

CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""The environment of root's helper programs: nothing of the job's."""

_REAP_SECONDS = 0.5
_LOOK_SECONDS = 0.2
"""Seconds after which the program is looked at whether or not a signal came: a thread of the driver's may take it."""
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)


class ProgramEnd(NamedTuple):
    """The end of a program."""

    code: int
    """Its exit status; if a signal killed it, 128 and the signal's number."""
    output: str = ""


def run(command: Sequence[str], environment: Mapping[str, str], seconds: float, *, capture: bool = False) -> ProgramEnd:
    """Runs one program to its end; with `capture` its standard output and error are kept, else they are ours."""
    output = _file() if capture else None
    waited = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        code = _wait(_start(command, environment, output), command[0], seconds)
        return ProgramEnd(code, _text(output))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, waited)
        if output is not None:
            os.close(output)


def _file() -> int:
    """Returns a file in memory; each write appends, since such a file has no lock on its position."""
    file = os.memfd_create("output")
    fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
    return file


def _start(command: Sequence[str], environment: Mapping[str, str], output: int | None) -> int:
    kept = () if output is None else ((os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2))
    return os.posix_spawn(
        command[0],
        list(command),
        environment,
        file_actions=((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *kept),
        setpgroup=0,
        # Python ignores these; a shell script needs their defaults.
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        setsigmask=(),
    )


def _wait(group: int, name: str, seconds: float) -> int:
    due = time.monotonic() + seconds
    try:
        while True:
            done, status = os.waitpid(group, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            left = due - time.monotonic()
            if left <= 0.0:
                raise TookTooLong(f"{name} did not end within {seconds:.3g} s; find out what it waits for")
            caught = signal.sigtimedwait(_SIGNALS, min(left, _LOOK_SECONDS))
            if caught is not None and caught.si_signo == signal.SIGTERM:
                raise Interrupted(f"{name} was ended because Slurm ends the Prolog or Epilog; see PrologEpilogTimeout")
    finally:
        _kill(group)


def _kill(group: int) -> None:
    """Ends what is left of a process group, as Slurm does after each script."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    with suppress(ChildProcessError):
        if not os.waitpid(group, os.WNOHANG)[0]:
            # Wait only for a moment: a process that hangs in the kernel does not die, and init reaps it when we are
            # gone.
            signal.sigtimedwait({signal.SIGCHLD}, _REAP_SECONDS)
            os.waitpid(group, os.WNOHANG)


def _text(output: int | None) -> str:
    return "" if output is None else os.pread(output, 1 << 22, 0).decode("utf-8", "surrogateescape")
