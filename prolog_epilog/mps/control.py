"""One command at a time to nvidia-cuda-mps-control: by absolute path, in a clean environment, with a time limit."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prolog_epilog.errors import ControlError

__all__ = ["Abilities", "Config", "Control", "abilities", "mebibytes"]

#: A control command answers in milliseconds; one that hangs says that the daemon is ill.
COMMAND_SECONDS = 10.0
_POLL_SECONDS = 0.05
#: sun_path holds 108 bytes; past that the daemon dies with a sentence that says nothing.
_MAX_SOCKET_PATH = 107
_UNITS = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20}


class Config(Protocol):
    """What MPS needs of `[node]` in berth.conf (prolog_epilog.config.NodeConfig)."""

    @property
    def mps_control(self) -> str:
        """Path of NVIDIA's control program."""

    @property
    def mps_start_timeout(self) -> float:
        """Seconds for daemon and server to come up."""

    @property
    def mps_stop_timeout(self) -> float:
        """Seconds for them to go before they are killed."""

    @property
    def multi_user(self) -> bool:
        """Whether jobs of several users may share one daemon."""

    @property
    def static_partitions(self) -> str:
        """`auto`: where the driver can; `never`."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What this driver's control program says that it can."""

    namespaces: bool
    static: bool
    multi_user: str | None


@dataclass(frozen=True, slots=True)
class Control:
    """The way to one daemon."""

    program: str
    pipe: Path
    log: Path
    uuids: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """All that the program sees: nothing of a user's, and the daemon's GPUs by UUID."""
        return {
            "PATH": "/usr/bin:/bin",
            "LC_ALL": "C",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "CUDA_VISIBLE_DEVICES": ",".join(self.uuids),
        }

    def check_path(self) -> None:
        """Refuse a folder in which the daemon could not make its sockets."""
        path = self.pipe / "control_privileged"
        if len(str(path)) > _MAX_SOCKET_PATH:
            raise ControlError(f"{path} is longer than {_MAX_SOCKET_PATH} bytes, too long for a socket; use /run/berth")

    def tell(self, command: str, seconds: float = COMMAND_SECONDS) -> str:
        """A command of the interactive interface (MPS v2); what it printed."""
        return _run(self.program, [], self.environment, seconds, command + "\n")

    def call(self, *words: str, seconds: float = COMMAND_SECONDS) -> str:
        """A module's verb (MPS v3); what it printed."""
        return _run(self.program, list(words), self.environment, seconds)

    def await_answer(self, command: str, until: float) -> str:
        """Tell until the daemon answers: it has just been started."""
        return _await(lambda: self.tell(command), until)

    def await_call(self, words: tuple[str, ...], until: float) -> str:
        """Call until the daemon answers."""
        return _await(lambda: self.call(*words), until)


def abilities(program: str, pipe: Path = Path("/run/berth/mps")) -> Abilities:
    """Ask the program's own help: versions of driver and manual do not always agree. Never the default pipe in /tmp."""
    text = _run(program, ["-h"], Control(program, pipe, pipe, ()).environment, COMMAND_SECONDS)
    flags = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", text))
    multi_user = next((flag for flag in ("--multiuser", "-multiuser-server", "-m", "-M") if flag in flags), None)
    return Abilities("--protocol" in flags, bool({"-S", "--static-partitioning"} & flags), multi_user)


def mebibytes(text: str) -> tuple[int, str] | None:
    """Amount and unit of a limit that MPS printed, such as `12G`; None where it printed none."""
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


def _run(program: str, words: list[str], environment: Mapping[str, str], seconds: float, text: str = "") -> str:
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
        )
    except FileNotFoundError as error:
        raise ControlError(
            f"{program} is not on this node; install the driver's MPS or set [node] mps_control"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ControlError(f"MPS did not answer {asked!r} within {seconds:g} s; look at its control.log") from error
    except OSError as error:
        raise ControlError(f"{program} cannot be run ({error.strerror}); check its rights") from error
    if done.returncode:
        first = done.stdout.strip().partition("\n")[0] or f"exit status {done.returncode}"
        raise ControlError(f"MPS refused {asked!r}: {first}; look at its control.log")
    return done.stdout
