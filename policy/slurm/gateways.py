# SPDX-License-Identifier: Apache-2.0
"""Chooses a gateway by name."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from policy.formats.errors import ConfigError
from policy.slurm.interface import Gateway

_SECONDS = 10
_NAMES = "auto, pyslurm, libslurm, command, or recorded:FOLDER"


# Each is imported only if it is chosen: the fast ones need packages that users' commands do not have.
def open_gateway(name: str, say: Callable[[str], None] = lambda _: None) -> Gateway:
    """Returns the gateway of this name; `auto` takes the fastest that fits the Slurm here, and says which and why."""
    kind, _, folder = name.partition(":")
    if kind == "recorded" and folder:
        from policy.slurm.by_command.recorded import recorded_gateway  # noqa: PLC0415

        return recorded_gateway(Path(folder))
    openers = {"auto": lambda: _fastest(say), "pyslurm": _pyslurm, "libslurm": _libslurm, "command": _command}
    if kind not in openers or folder:
        raise ConfigError(f"unknown gateway {name!r}; use {_NAMES}")
    return openers[kind]()


def _fastest(say: Callable[[str], None]) -> Gateway:
    refused: list[str] = []
    # libslurm reads only changes, pyslurm the whole queue each time.
    for opener in (_libslurm, _pyslurm):
        try:
            gateway = opener()
        except ConfigError as problem:
            refused.append(str(problem))
        else:
            break
    else:
        gateway = _command()
    say("; ".join([f"Slurm is reached through {gateway.name}", *refused]))
    return gateway


def _pyslurm() -> Gateway:
    from policy.slurm.by_library import pyslurm_gateway  # noqa: PLC0415

    if reason := pyslurm_gateway.fits():
        raise ConfigError(f"the gateway pyslurm does not fit: {reason}")
    return pyslurm_gateway.PyslurmGateway()


def _libslurm() -> Gateway:
    path = program_path()
    if reason := _unfit(path):
        raise ConfigError(f"the gateway libslurm does not fit: {reason}")
    from policy.slurm.by_library.libslurm import LibslurmGateway  # noqa: PLC0415

    return LibslurmGateway(path)


def _command() -> Gateway:
    from policy.slurm.by_command.command import CommandGateway  # noqa: PLC0415

    return CommandGateway()


def program_path() -> Path:
    """Returns the path to which `make install` copies berth-slurm: under the prefix of the Slurm it was built for."""
    scontrol = shutil.which("scontrol")
    prefix = Path(scontrol).resolve().parents[1] if scontrol else Path("/usr")
    return prefix / "libexec" / "berth" / "berth-slurm"


def _unfit(path: Path) -> str:
    """Returns why this program cannot be used with the Slurm of this host; empty if it can."""
    try:
        done = subprocess.run([path, "--version"], check=False, capture_output=True, timeout=_SECONDS)
    except OSError as problem:
        return f"{path} cannot be started: {problem.strerror}; install it with 'make -C slurm_plugins install'"
    except subprocess.TimeoutExpired:
        return f"{path} did not say its version within {_SECONDS} s"
    if done.returncode == 0:
        return ""
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return said[-1] if said else f"{path} ended with status {done.returncode}"
