# SPDX-License-Identifier: Apache-2.0
"""The door to the model: it stands in for `subprocess` where Slurm's commands are run, and loses, delays or doubles."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from tests.world import commands
from tests.world.clock import VirtualTime
from tests.world.cluster import ModelCluster, Refusal

CALL_FAULTS = ("refuse", "lost", "late", "double", "stale", "partial", "cut", "slow", "kill")
"""The faults of a call: slurmctld refuses it; it gets lost, or its answer; it comes twice; the answer is an old one,
lacks records, is cut off, or takes seconds; the caller is killed before it.

Kept scripts know one more, `half`: slurmctld writes the lists of nodes and refuses the rest, as it does where it knows
no such licence.
"""

_OF_NODES = ("JobId=", "ReqNodeList=", "ExcNodeList=")

_TAKES = 0.004
"""Seconds of a call."""


class KilledError(BaseException):
    """berthd's process is killed in the middle of a call."""


class SlurmDoor:
    """Runs command lines on the model."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired
    CalledProcessError = subprocess.CalledProcessError

    def __init__(self, cluster: ModelCluster, clock: VirtualTime) -> None:
        self.cluster, self._clock = cluster, clock
        self.calls = 0
        self.faults: dict[int, list[str]] = {}
        """By the number of a call."""
        self.faults_of_changes: dict[int, list[str]] = {}
        """By the number of a call that changes something: most calls read."""
        self.changes = 0
        self.troubles = 0
        """Calls that did not go as they should, or in the middle of which others did something."""
        self.during: dict[int, list[Callable[[], None]]] = {}
        self.during_changes: dict[int, list[Callable[[], None]]] = {}
        self.out_until = 0.0
        self.counted: dict[str, int] = {}
        self.passes: Callable[[float], None] = self._passes
        """Lets seconds pass."""
        self.asked_by_berthd: Callable[[tuple[str, ...]], None] = lambda _: None
        self._last: dict[tuple[str, ...], str] = {}
        self._changed: tuple[str, ...] = ()
        """The words of the last change, without the name of what is changed."""

    def clear(self) -> None:
        """No more faults."""
        self.faults.clear()
        self.faults_of_changes.clear()
        self.during.clear()
        self.during_changes.clear()
        self.out_until = 0.0

    def _passes(self, seconds: float) -> None:
        self._clock.passed += seconds

    def run(self, words: Sequence[bytes], **_: Any) -> subprocess.CompletedProcess[bytes]:  # noqa: PLR0912 - a table
        """As subprocess.run does."""
        command = tuple(map(os.fsdecode, words))
        self.calls += 1
        number = self.calls
        before = {job.id: job.user_excluded for job in self.cluster.jobs.values()}
        for step in self.during.pop(number, []):
            self.troubles += 1
            step()
        self.passes(_TAKES)
        faults = self.faults.pop(number, [])
        if command[:2] in {("scontrol", "update"), ("scontrol", "requeue")}:
            self.changes += 1
            for step in self.during_changes.pop(self.changes, []):
                self.troubles += 1
                step()
            if command[3:] != self._changed:
                self.cluster.crossed = set()  # else it goes on with one change, of an array's tasks one by one
            self._changed = command[3:]
            self.cluster.crossed |= {
                number for number, job in self.cluster.jobs.items() if job.user_excluded != before.get(number, "")
            }
            faults += self.faults_of_changes.pop(self.changes, [])
        for fault in faults:
            self.troubles += 1
            self.counted[fault] = self.counted.get(fault, 0) + 1
            if fault == "kill":
                raise KilledError
            if fault == "refuse":
                raise self._failed(command, "Unable to contact slurm controller (connect failure)")
            if fault == "lost":
                self.passes(20.0)
                raise subprocess.TimeoutExpired(words, 20)
            if fault == "late":
                self._answer(command)
                self.passes(20.0)
                raise subprocess.TimeoutExpired(words, 20)
            if fault == "double":
                self._answer(command)
            if fault == "half" and any("NodeList=" in word for word in command):
                self._answer(tuple(word for word in command if "=" not in word or word.startswith(_OF_NODES)))
                raise self._failed(command, "slurm_update error: Invalid license specification")
            if fault == "slow":
                self.passes(3.0)
            if fault == "stale" and (old := self._last.get(_kind(command))) is not None:
                return _done(words, _with_mark(old, command))
            lists = command[0] == "squeue" or command[:3] == ("scontrol", "show", "node")
            if fault in {"partial", "cut"} and lists and "--json" not in command:
                text = self._answer(command)
                half = "".join(text.splitlines(keepends=True)[::2]) if fault == "partial" else text[: len(text) // 2]
                if command[0] == "scontrol":
                    # berthd does not know of them until it reads them again.
                    self.cluster.came_back |= {name for name in self.cluster.nodes if f"NodeName={name} " not in half}
                return _done(words, half)
        return _done(words, self._answer(command))

    def _answer(self, command: tuple[str, ...]) -> str:
        if self.out_until > self._clock.passed:
            self.troubles += 1
            raise self._failed(command, "Unable to contact slurm controller (connect failure)")
        self.cluster.now = self._clock.time()
        self.asked_by_berthd(command)
        try:
            text = commands.answer(self.cluster, command)
        except Refusal as refusal:
            raise self._failed(command, f"slurm_update error: {refusal}") from None
        if command[0] == "squeue" or command[1] == "show":
            self._last[_kind(command)] = _without_mark(text, command)
        return text

    def _failed(self, command: tuple[str, ...], why: str) -> subprocess.CalledProcessError:
        return subprocess.CalledProcessError(1, list(command), b"", f"{why}\n".encode())


def _done(words: Sequence[bytes], text: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.CompletedProcess(words, 0, text.encode("utf-8", "surrogateescape"), b"")


def _mark(command: tuple[str, ...]) -> str:
    return command[-1].rpartition(":")[2] if command[0] == "squeue" and "-O" in command else ""


def _kind(command: tuple[str, ...]) -> tuple[str, ...]:
    return command[:-1] if _mark(command) else command


def _without_mark(text: str, command: tuple[str, ...]) -> str:
    mark = _mark(command)
    return text.replace(mark, "\0") if mark else text


def _with_mark(text: str, command: tuple[str, ...]) -> str:
    return text.replace("\0", _mark(command))
