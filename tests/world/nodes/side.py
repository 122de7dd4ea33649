# SPDX-License-Identifier: Apache-2.0
"""The node side: real programs, and the models that stand in for what they touch."""

from __future__ import annotations

import fcntl
import glob
import os
import pathlib
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from policy.daemon.hear import words
from policy.retry.classes import CLASSES
from prolog_epilog import chain, monitoring, programs  # noqa: F401
from prolog_epilog.failed import aftermath
from prolog_epilog.failed.aftermath import FailureWord
from prolog_epilog.failed.spool import Failed
from prolog_epilog.guard import program
from prolog_epilog.guard.hold import deadman, freezer_watch
from prolog_epilog.guard.measure import device_reader
from prolog_epilog.guard.seats import keeper, watch
from prolog_epilog.guard.tell import notice, slow_work
from prolog_epilog.guard.tell.notice import Payload
from prolog_epilog.here import Here
from prolog_epilog.injob import word  # noqa: F401
from prolog_epilog.job import slurm as slurm_module
from prolog_epilog.mps import control
from prolog_epilog.node import devices, files, freezer, mounts, processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings import config
from prolog_epilog.sharing import tenancy, time_slices  # noqa: F401
from tests.world.clock import Replaced, VirtualTime
from tests.world.cluster import ModelCluster
from tests.world.nodes.kernel import (
    NodeClock,
    NodeKernel,
    NodeLocks,
    NodeSignals,
    TrialFolder,
    node_glob,
    node_io,
    node_select,
)
from tests.world.nodes.machine import Machine, ModelProcess
from tests.world.nodes.mps import ModelMps
from tests.world.nodes.nvml import ModelNvml
from tests.world.nodes.slurm import NodeSlurm
from tests.world.nodes.tasks import NodeTask, NodeTasks
from tests.world.nodes.threads import node_queue, node_threading

GUARD = "/opt/berth/bin/berth-guard"
_DEFECT = re.compile(r"this is a fault in Berth|\b\w+(?:Error|Exception|Iteration)\b in \w+\.py, line \d+: ")
_MOST_SAID = 400
RESTART_SECONDS = 2.0


class SaidLines:
    """Stands in for `sys`: what a program of a node writes to its standard error is kept."""

    def __init__(self, side: NodeSide) -> None:
        self._side = side
        self.argv = ["berth"]
        self.executable = sys.executable
        self.stderr = self.stdout = self

    def write(self, text: str) -> None:
        for line in text.splitlines():
            self._side.say(line)

    def flush(self) -> None:
        pass


class NodeSide:
    """All nodes with their programs."""

    def __init__(self, clock: VirtualTime, cluster: ModelCluster, folder: Path) -> None:
        self.tasks = NodeTasks(clock)
        self.kernel = NodeKernel(self.tasks)
        self.machines = {
            name: Machine(name, folder / name, node.gpus, self.tasks) for name, node in cluster.nodes.items()
        }
        self.mps = ModelMps(self.kernel)
        self.nvml = ModelNvml(self.kernel)
        self.slurm = NodeSlurm(cluster, self.machines, self.kernel, self.mps)
        self.slurm.run_program = lambda name: programs.prolog if name == "prolog" else programs.epilog
        self.guards: dict[str, ModelProcess] = {}
        self.deadmen: dict[str, ModelProcess] = {}
        self.enabled: set[str] = set()
        """Nodes on which systemd begins a guard anew that has ended."""
        self.guard_since: dict[str, float] = {}
        self.guard_gone_at: dict[str, float] = dict.fromkeys(self.machines, 0.0)
        self.said: list[tuple[str, str]] = []
        self.defects: list[str] = []
        self.told: list[tuple[str, str]] = []
        """What guards told berthd: node and text."""
        self.hears = True
        """Whether berthd hears guards."""
        self.answer: Callable[[str, str], bool] = lambda _node, _text: False
        self.sys = SaidLines(self)

    # Replacing

    def put_in(self, put: Replaced) -> None:
        """Put the models in the places of what they stand for."""
        kernel = self.kernel
        clock, locks, signals = NodeClock(kernel), NodeLocks(kernel), NodeSignals(kernel)
        stand_ins: dict[str, tuple[Any, Any]] = {
            "os": (os, kernel),
            "time": (time, clock),
            "fcntl": (fcntl, locks),
            "signal": (signal, signals),
            "select": (select, node_select(kernel)),
            "sys": (sys, self.sys),
        }
        for name, module in list(sys.modules.items()):
            if name.startswith("prolog_epilog") and ".injob." not in f"{name}.".replace(".injob.word.", "."):
                for attribute, (real, model) in stand_ins.items():
                    if getattr(module, attribute, None) is real:
                        put.set(module, attribute, model)
        put.set(_pathlib(), "os", kernel)
        put.set(_pathlib(), "io", node_io(kernel))
        if (globber := getattr(glob, "_StringGlobber", None)) is not None:
            # From Python 3.13 on pathlib looks for patterns through it.
            put.set(globber, "scandir", staticmethod(kernel.scandir))
            put.set(globber, "lstat", staticmethod(kernel.lstat))
        put.set(chain, "glob", node_glob(kernel))
        put.set(chain, "children", self.slurm)
        put.set(slurm_module, "children", self.slurm)
        trees = SimpleNamespace(rmtree=kernel.remove_tree)
        put.set(files, "shutil", trees)
        put.set(control, "shutil", trees)
        put.set(control, "subprocess", self.mps)
        put.set(
            control, "tempfile",
            SimpleNamespace(TemporaryDirectory=lambda **words: TrialFolder(kernel, words["prefix"], words["dir"])),
        )  # fmt: skip
        put.set(processes, "start_detached", self.mps.start_detached)
        put.set(devices, "importlib", SimpleNamespace(import_module=lambda _: self.nvml))
        put.set(program, "threading", node_threading(kernel, lambda: 0.0))
        put.set(device_reader, "threading", node_threading(kernel, lambda: kernel.pace))
        put.set(slow_work, "queue", node_queue(kernel))
        put.set(
            freezer_watch, "ctypes", SimpleNamespace(CDLL=lambda *_, **__: SimpleNamespace(inotify_init1=lambda _: -1))
        )
        put.set(mounts, "mount_small", lambda folder, _: self._mounted().add(str(folder)))
        put.set(mounts, "unmount", lambda folder: self._mounted().discard(str(folder)))
        put.set(mounts, "is_seen", lambda _folder, _pid: True)
        put.set(deadman, "start", self._start_dead_man)
        put.set(program, "SlowWork", partial(slow_work.SlowWork, tell=self._tell))
        put.set(program, "notice", SimpleNamespace(tell=self._tell))
        put.set(notice, "tell", self._tell)
        put.set(aftermath, "_looked_into", _looked_into)
        put.set(aftermath, "_log", self.say)
        put.set(sys, "argv", ["berth"])
        put.set(program, "PERIOD", keeper.PERIOD)
        put.set(watch, "PERIOD", watch.PERIOD)
        put.set(device_reader, "PERIOD", device_reader.PERIOD)
        config.open = self._open  # type: ignore[attr-defined]
        kernel.after_fork = self._aftermath

    def _mounted(self) -> set[str]:
        self.kernel.operation()
        return self.kernel.machine.mounted

    def take_out(self) -> None:
        """End all programs."""
        for machine in self.machines.values():
            for process in list(machine.processes.values()):
                process.on_end.clear()
                process.end()
        del config.open  # type: ignore[attr-defined]

    def pace(self, seconds: float) -> None:
        """How often guards look: a long wait is played with fewer turns."""
        vars(program)["PERIOD"] = seconds
        watch.PERIOD = device_reader.PERIOD = max(1.0, seconds)
        self.kernel.pace = seconds

    def _open(self, path: str, mode: str = "r") -> Any:
        self.kernel.operation()
        return Path(self.kernel.real(path)).open(mode)

    # Lines

    def say(self, line: str) -> None:
        """A line of a program's log."""
        task = self.tasks.current
        node = task.process.machine.name if task is not None else ""
        self.said.append((node, line))
        if len(self.said) > _MOST_SAID:
            del self.said[: _MOST_SAID // 2]
        if _DEFECT.search(line):
            self.defects.append(f"{node}: {line}")

    def _tell(self, _: object, one: Payload) -> bool:
        self.kernel.operation()
        node = self.kernel.machine.name
        if words.read(one.text.encode()) is None:
            self.defects.append(f"{node}: berthd does not understand {one.text!r}")
        self.told.append((node, one.text))
        if len(self.told) > _MOST_SAID:
            del self.told[: _MOST_SAID // 2]
        return self.hears and self.answer(node, one.text)

    # Programs

    def start_guard(self, node: str) -> None:
        """As its unit does, after `berth-guard --thaw` of the one before."""
        machine = self.machines[node]
        self.enabled.add(node)
        if node in self.guards and not self.guards[node].dead:
            return
        process = machine.spawn(GUARD, os.geteuid())
        process.environ = {"SLURM_CONF": "/etc/slurm/slurm.conf"}
        self.guards[node] = process
        self.guard_since[node] = self.tasks.clock.passed
        process.on_end.append(partial(self._guard_ends, node))
        self.tasks.start(f"guard {node}", process, program.main).on_end = self._ended

    def restart_guards(self) -> None:
        """What systemd does a few seconds after a guard has ended."""
        for node in sorted(self.enabled):
            if self.guards[node].dead and self.tasks.clock.passed - self.guard_gone_at[node] >= RESTART_SECONDS:
                self.start_guard(node)

    def stop_guard(self, node: str) -> None:
        """systemctl stop."""
        self.enabled.discard(node)
        if node in self.guards:
            self.guards[node].signal(signal.SIGTERM)

    def _guard_ends(self, node: str) -> None:
        self.guard_gone_at[node] = self.tasks.clock.passed
        self.guard_since.pop(node, None)

    def _ended(self, task: NodeTask) -> None:
        if task.failure is not None:
            self.defects.append(f"{task.name} ended with {task.failure!r}")

    def _start_dead_man(self, paths: Paths, root: Path = freezer.ROOT) -> deadman.DeadMan:
        """Stands in for the fork of deadman.start."""
        guard = self.kernel.process
        process = guard.machine.spawn("berth-dead-man", guard.uid, parent=guard.pid)
        self.deadmen[guard.machine.name] = process
        pipe = self.kernel.pipe_to(guard)
        task = self.tasks.start(f"dead-man {guard.machine.name}", process, lambda: deadman._watch(paths, root, pipe))
        task.on_end = self._ended
        return deadman.DeadMan(process.pid, pipe)

    def _aftermath(self) -> int:
        """Stands in for the fork of an Epilog whose job failed: the process that stays takes all from the spool."""
        machine = self.kernel.machine
        process = machine.spawn("berth-aftermath", os.geteuid())
        here = Here(config.NodeConfig(), slurm_module.Scontrol(""), self.say, conf="/etc/slurm/berth.conf")
        work = partial(aftermath.go_through, here)
        self.tasks.start(f"aftermath {machine.name}", process, work).on_end = self._ended
        # The process between them, for which the Epilog waits, has ended by then.
        machine.next_pid += 1
        return machine.next_pid

    def programs(self, kinds: Sequence[str]) -> list[ModelProcess]:
        """The processes of Berth's programs whose names begin so."""
        found = {id(task.process): task.process for task in self.tasks.living if task.name.startswith(tuple(kinds))}
        return list(found.values())


def _looked_into(failed: Failed, _: Here) -> FailureWord:
    """Stands in for the processes that read a log: what it shows is chosen by the job's number."""
    kinds, start = sorted(CLASSES), failed.job.environment["SLURM_JOB_START_TIME"]
    kind = kinds[failed.job.id % len(kinds)]
    job = failed.job
    return FailureWord(job.id, job.node, kind, job.id % 2 == 0, "a sign", int(start or "0"), failed.degraded)


def _pathlib() -> Any:
    return sys.modules.get("pathlib._local", pathlib)
