# SPDX-License-Identifier: Apache-2.0
"""The Slurm under test: a container of the test cluster, or a prefix on this machine."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty

from policy.formats import wire
from tests.told import Told

from .hands import Hands

#: Of berthd, in the test cluster.
SOCKET = "/run/berth/berthd.sock"


@dataclass(frozen=True, slots=True)
class Result:
    """A command's output and exit status."""

    argv: tuple[str, ...]
    rc: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class CommandFailed(AssertionError):
    """A command that a test relied on ended badly."""


@functools.cache
def _hands(container: str) -> Hands:
    return Hands(container)


class Target(ABC):
    """Runs commands as somebody where the cluster's client commands are."""

    name: str

    @abstractmethod
    def command(self, argv: Sequence[str], user: str, env: Mapping[str, str]) -> list[str]:
        """The command line on this machine that runs `argv` as `user` there."""

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "alice",
        check: bool = True,
        timeout: float = 90.0,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Result:
        result = self.perform(argv, user, env or {}, stdin, timeout)
        if check and result.rc:
            raise CommandFailed(f"{shlex.join(argv)} as {user} ended with {result.rc}: {result.err or result.out}")
        return result

    def perform(self, argv: Sequence[str], user: str, env: Mapping[str, str], stdin: str, timeout: float) -> Result:
        """Runs a command and wait for its end."""
        done = subprocess.run(
            self.command(argv, user, env),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        return Result(tuple(argv), done.returncode, done.stdout, done.stderr)

    def bash(self, script: str, *, user: str = "alice", check: bool = True, timeout: float = 90.0) -> Result:
        """Runs a script: one start where many commands are needed."""
        return self.run(["bash", "-s"], user=user, check=check, timeout=timeout, stdin=script)

    def popen(self, script: str, *, user: str = "alice") -> subprocess.Popen[str]:
        """Starts a script and go on; its output is read later."""
        process = subprocess.Popen(
            self.command(["bash", "-s"], user, {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdin is not None
        process.stdin.write(script)
        process.stdin.close()
        process.stdin = None
        return process

    def berthd(self) -> dict[str, str]:
        """Returns berthd's status; nothing if it does not answer."""
        said = self.run(["berth", "status", "--json"], user="root", check=False).out
        return Told(json.loads(said) if said.startswith("{") else {}, "berthd's status")


class Container(Target):
    """The controller's container of a Dockerized cluster."""

    def __init__(self, container: str) -> None:
        self.name = container

    def command(self, argv: Sequence[str], user: str, env: Mapping[str, str]) -> list[str]:
        settings = [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
        return ["docker", "exec", "-i", "-u", user, "-w", "/tmp", *settings, self.name, *argv]

    def perform(self, argv: Sequence[str], user: str, env: Mapping[str, str], stdin: str, timeout: float) -> Result:
        waiting = _hands(self.name).run(argv=list(argv), user=user, env=dict(env), stdin=stdin)
        try:
            answer = waiting.get(timeout=timeout)
        except Empty:
            raise subprocess.TimeoutExpired(list(argv), timeout) from None
        if "failed" in answer:
            raise CommandFailed(f"{shlex.join(argv)} as {user}: {answer['failed']}")
        return Result(tuple(argv), answer["rc"], answer["out"], answer["err"])

    def berthd(self) -> dict[str, str]:
        """Asks over berthd's socket: tests ask often, and to start Python for it keeps the processors busy."""
        answer = _hands(self.name).run(socket=SOCKET, send=wire.encode("status", {}).decode()).get(timeout=90)
        if answer.get("rc") or not answer.get("out"):
            return {}
        return Told(wire.decode(answer["out"].encode()).fields, "berthd's status")


class Prefix(Target):
    """A Slurm installed under a prefix on this machine, such as a build made by hand."""

    def __init__(self, prefix: Path) -> None:
        self.name = str(prefix)
        self._path = f"{prefix}/bin:{prefix}/sbin:{os.environ.get('PATH', os.defpath)}"
        self._conf = prefix / "etc" / "slurm.conf"

    def command(self, argv: Sequence[str], user: str, env: Mapping[str, str]) -> list[str]:
        settings = {"PATH": self._path, **env}
        if self._conf.exists():
            settings.setdefault("SLURM_CONF", str(self._conf))
        return ["runuser", "-u", user, "--", "env", *(f"{k}={v}" for k, v in settings.items()), *argv]


def from_environment(name: str) -> Target:
    """The target that BERTH_TEST_SLURM names: an existing directory is a prefix, else it is a container."""
    path = Path(name)
    return Prefix(path) if path.is_dir() else Container(name)
