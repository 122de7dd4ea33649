# SPDX-License-Identifier: Apache-2.0
"""Sends commands to nvidia-cuda-mps-control, one at a time: absolute path, clean environment, time limit."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from prolog_epilog.errors import ControlError
from prolog_epilog.node import processes

#: A control command answers in milliseconds; if one hangs, the daemon does not work.
COMMAND_SECONDS = 10.0
_POLL_SECONDS = 0.05
#: sun_path holds 108 bytes; with a longer path the daemon dies with a message that does not help.
_MAX_SOCKET_PATH = 107
_TRIAL = "try-"
_TRIAL_POLL_SECONDS = 0.01
_MISSING = "{program} is not on this node; install the driver's MPS or set [node] mps_control"
#: Why a daemon ends at once, by its exit status: CUDA's error (500, 100), as far as a status holds it. From driver 580
#: on the daemon opens the driver's library at its start, and says nothing if it cannot.
_ENDINGS = {
    244: "does not find libcuda.so.1 (it ended with status 244); name the folder of the driver's libraries in "
    "/etc/ld.so.conf.d and run ldconfig, because Berth starts MPS without LD_LIBRARY_PATH",
    100: "sees no GPU (it ended with status 100); look at nvidia-smi -L, and at the device files below /dev",
}
#: Refusals as drivers 535 to 595, and the interface of 615, print them.
_REFUSAL = re.compile(
    r"Unknown command|Invalid |Insufficient privileges|Server (?:\d+ )?not found|Not enough privilege|Unable to accept"
)
_UNTRIED = "what MPS can do cannot be tried in {folder} ({error}); try it as root"
_UNITS = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20}


class MpsConfig(Protocol):
    """The settings that MPS needs from `[node]` in berth.conf (prolog_epilog.settings.config.NodeConfig)."""

    @property
    def mps_control(self) -> str:
        """Returns the path of NVIDIA's control program."""

    @property
    def mps_start_timeout(self) -> float:
        """Returns the seconds for daemon and server to come up."""

    @property
    def mps_stop_timeout(self) -> float:
        """Returns the seconds for them to end before they are killed."""

    @property
    def multi_user(self) -> bool:
        """Tells whether jobs of several users may share one daemon."""


class Refused(ControlError):
    """MPS answered a command with a refusal; `said` is all of it."""

    def __init__(self, text: str, said: str) -> None:
        super().__init__(text)
        self.said = said


@dataclass(frozen=True, slots=True)
class Abilities:
    """The options with which this driver's daemon starts."""

    namespaces: bool
    multi_user: str | None


@dataclass(frozen=True, slots=True)
class Control:
    """The connection to one daemon."""

    program: str
    pipe: Path
    log: Path
    uuids: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Returns the whole environment of the program: nothing of a user's, and the daemon's GPUs by UUID."""
        return {
            # The daemon looks for its server here: beside itself (containers), or in /usr/sbin (Debian).
            "PATH": f"{Path(self.program).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "CUDA_VISIBLE_DEVICES": ",".join(self.uuids),
        }

    def check_path(self) -> None:
        """Refuses a folder in which the daemon could not make its sockets."""
        path = self.pipe / "control_privileged"
        if len(str(path)) > _MAX_SOCKET_PATH:
            raise ControlError(f"{path} is longer than {_MAX_SOCKET_PATH} bytes, too long for a socket; use /run/berth")

    def tell(self, command: str, seconds: float = COMMAND_SECONDS, *, uid: int | None = None) -> str:
        """Sends a command of the interactive interface (MPS v2), as another user if `uid` is given; returns the output.

        The exit status is 0 whatever happened: a Refused has the sentence.
        """
        shown = _run(self.program, [], self.environment, seconds, command + "\n", uid)
        if _REFUSAL.match(shown.strip()):
            raise Refused(f"MPS refused {command!r}: {shown.strip().splitlines()[0]}", shown.strip())
        return shown

    def call(self, *words: str, seconds: float = COMMAND_SECONDS) -> str:
        """Calls a module's verb (MPS v3); returns the output."""
        return _run(self.program, list(words), self.environment, seconds)

    def await_answer(self, command: str, until: float) -> str:
        """Repeats a command until the daemon answers: it has just been started."""
        return _await(lambda: self.tell(command), until)

    def await_call(self, words: tuple[str, ...], until: float) -> str:
        """Repeats a call until the daemon answers."""
        return _await(lambda: self.call(*words), until)


def abilities(program: str, folder: Path, uuids: Sequence[str], *, multi_user: bool = True) -> Abilities:
    """Finds out which options this driver's daemon accepts, by starting it; its help does not tell.

    A daemon with an option that it does not know ends at once, and so does one that sees no GPU (from driver 580 on).
    Each option is tried in a folder of its own below `folder`, never in the default one in /tmp, without a server.
    """
    if not os.access(program, os.X_OK):
        raise ControlError(_MISSING.format(program=program))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _folder_locked(folder, fcntl.LOCK_SH):
            return _try_all(partial(_try, program, folder, uuids), multi_user=multi_user)
    except OSError as error:
        raise ControlError(_UNTRIED.format(folder=folder, error=error.strerror)) from error


def why_not_started(program: str, folder: Path, uuids: Sequence[str]) -> str:
    """Returns why a daemon without options ends at once, by starting one; empty if it does not end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _folder_locked(folder, fcntl.LOCK_SH):
            status = _try(program, folder, uuids, ())
    except OSError as error:
        raise ControlError(_UNTRIED.format(folder=folder, error=error.strerror)) from error
    if status is None:
        return ""
    return f"{program} " + _ENDINGS.get(status, f"-f ends at once with status {status}; start it by hand to see why")


def _try_all(trial: Callable[[tuple[str, ...]], int | None], *, multi_user: bool) -> Abilities:
    flags = ("--multiuser", "-multiuser-server") if multi_user else ()
    return Abilities(
        namespaces=trial(("-p", "3")) is None,
        multi_user=next((flag for flag in flags if trial((flag,)) is None), None),
    )


def _try(program: str, folder: Path, uuids: Sequence[str], options: tuple[str, ...]) -> int | None:
    """Starts a daemon for a moment; returns its exit status if it ended by itself or was not ready, else None."""
    with tempfile.TemporaryDirectory(prefix=_TRIAL, dir=folder) as place:
        trial = Control(program, Path(place), Path(place), tuple(uuids))
        trial.check_path()
        try:
            daemon = subprocess.Popen(
                [program, "-f", *options],
                env=trial.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise ControlError(f"{program} cannot be run ({error.strerror}); check its rights") from error
        try:
            until = time.monotonic() + COMMAND_SECONDS
            while daemon.poll() is None and time.monotonic() < until:
                if os.path.lexists(trial.pipe / "control"):
                    return None
                time.sleep(_TRIAL_POLL_SECONDS)
            return -signal.SIGKILL if daemon.returncode is None else daemon.returncode
        finally:
            daemon.kill()
            daemon.wait()


def clear_trials(program: str, folder: Path) -> None:
    """Ends what the trials of a killed Prolog left; does nothing while a trial runs."""
    with suppress(OSError), _folder_locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
        for place in folder.glob(f"{_TRIAL}*"):
            for pid in processes.serving(program, f"CUDA_MPS_PIPE_DIRECTORY={place}"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _folder_locked(folder: Path, how: int) -> Iterator[None]:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(number, how)
        yield
    finally:
        os.close(number)


def mebibytes(text: str) -> tuple[int, str] | None:
    """Returns amount (MiB) and unit of a limit that MPS printed, such as `12G`; None if it printed none."""
    found = re.search(r"(\d+)\s*([KMGT]?)(?:i?B)?\s*$", text.strip())
    if not found:
        return None
    return int(int(found[1]) * _UNITS[found[2]]), found[2]


def _await(ask: Callable[[], str], until: float) -> str:
    while True:
        try:
            return ask()
        except ControlError:
            if time.monotonic() > until:
                raise
        time.sleep(_POLL_SECONDS)


def _run(
    program: str,
    words: list[str],
    environment: Mapping[str, str],
    seconds: float,
    text: str = "",
    uid: int | None = None,
) -> str:
    asked = (text or " ".join(words)).strip()
    try:
        done = subprocess.run(
            [program, *words],
            input=text,
            env=dict(environment),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            user=uid,
        )
    except FileNotFoundError as error:
        raise ControlError(_MISSING.format(program=program)) from error
    except subprocess.TimeoutExpired as error:
        raise ControlError(f"MPS did not answer {asked!r} within {seconds:g} s; look at its control.log") from error
    except OSError as error:
        raise ControlError(f"{program} cannot be run ({error.strerror}); check its rights") from error
    if done.returncode:
        first = done.stdout.strip().partition("\n")[0] or f"exit status {done.returncode}"
        raise ControlError(f"MPS refused {asked!r}: {first}; look at its control.log")
    return done.stdout
