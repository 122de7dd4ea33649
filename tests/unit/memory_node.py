# SPDX-License-Identifier: Apache-2.0
"""A node with one simulated GPU whose memory its processes share: real Prologs, the real guard, library and freezer."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from prolog_epilog.tenants import arrivals, share_file
from tests.fakes import cuda
from tests.unit.node_world import ROOT, World, berth

TOTAL_MIB = 16_384
UUID = cuda.uuid(0)
GPU = (
    f'gpu 0 minor=0 uuid={UUID} name="NVIDIA H100" pci=0000:18:00.0 numa=0 pcie=0/0/0 cpus=0-7 sm=9.0 '
    f"memory={TOTAL_MIB} sm-clock-max=1980 sm-clock=1980 power-limit-mw=700000\n"
)

GREEDY = """
from tests.fakes.cuda.program import *
kind = sys.argv[1]
if "deaf" in kind:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
Context()
# Large pieces first: it has to be full before the guard finds that it is.
work, held, piece, full = kernel(500), 0, 1024, False
while True:
    if "graphs" in kind:
        result, graph = GRAPH_MEMORY["cuGraphAddNode"](piece)
        if not result:
            made = c.c_void_p()
            cuda.cuGraphInstantiateWithFlags(c.byref(made), graph, c.c_uint64(0))
            result = call("cuGraphLaunch", made, None)
    else:
        result = ALLOCATIONS["cuMemAlloc_v2"](piece)[0]
    held += 0 if result else piece
    if result and piece > 128:
        piece //= 2
        continue
    if result and not full:
        full = True
        print(held, flush=True)
    if result:
        time.sleep(0.02)
    if full:
        LAUNCHES["cuLaunchKernel"](work)
"""
"""A guest that takes all memory it can get, and goes on asking. It launches once it is full: its gate is slow."""

OWNER = """
from tests.fakes.cuda.program import *
Context()
print("ready", flush=True)
for line in sys.stdin:
    began = time.monotonic()
    result = ALLOCATIONS["cuMemAlloc_v2"](int(line))[0]
    print(result, time.monotonic() - began, flush=True)
"""


def eventually(so: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not so():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def groups() -> Path:
    """Where this process may make groups of a v1 freezer."""
    return Path("/sys/fs/cgroup/freezer") / f"slurm_berth-memory-{os.getpid()}" / "uid_0"


@dataclass(slots=True)
class MemoryNode(World):
    """Use it with `with`; jobs begin by `begin` and end by `end`."""

    processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    guard: subprocess.Popen[bytes] | None = None
    alone: int = -1
    """A lock: a guard finds the groups of a job by its number, also those of another such node on this machine."""

    def __enter__(self) -> Self:
        self.alone = os.open(Path(tempfile.gettempdir()) / "berth-memory-node.lock", os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(self.alone, fcntl.LOCK_EX)
        self.folder.chmod(0o755)
        self.with_gpus()
        (self.folder / "machine").write_text(GPU)
        library = self.folder / "usr" / "lib" / "berth" / "libberth_injob.so"
        library.parent.mkdir(parents=True)
        shutil.copy(cuda.injob_library(), library)
        self.settings |= {"inject": "library", "inject_from": str(self.folder / "usr")}
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            self._kill(process)
        if self.guard is not None:
            self.guard.kill()
            self.guard.wait()
        for part in (*groups().glob("job_*/step_0"), *groups().glob("job_*"), groups(), groups().parent):
            with suppress(OSError):
                part.rmdir()
        os.close(self.alone)

    def _kill(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        for state in groups().glob("job_*/step_0/freezer.state"):
            state.write_text("THAWED")
        with process:
            pass  # it is waited for, and its pipes are closed

    def start_guard(self, *, waits: bool = True) -> None:
        code = "from prolog_epilog.guard.program import main; raise SystemExit(main())"
        with (self.folder / "guard.log").open("ab") as log:
            self.guard = subprocess.Popen(
                [sys.executable, "-c", code, "--config", str(self.configure()), "--root", str(self.root)],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stderr=log,
            )
        assert not waits or eventually(lambda: arrivals.guard_lives(self.paths), 30.0)

    def said(self) -> str:
        return (self.folder / "guard.log").read_text()

    def prolog(self, job: int, tier: str, **more: object) -> subprocess.CompletedProcess[str]:
        gpus = "0" if tier == "guaranteed" else ""
        done = self.run("prolog", berth(0, **{"tier": tier, "way": "time", **more}), gpus, job=job, user=0)
        assert done.returncode == 0, done.stderr
        return done

    def begin(self, job: int, code: str, *words: str, outside: bool = False) -> subprocess.Popen[str]:
        """A program of the job; `outside`: as in a container without what the Prolog names."""
        file = share_file.read(self.paths, job)
        assert file is not None
        assert not file.degraded, file.why
        environment = {
            **os.environ,
            **self.environment,
            "LD_LIBRARY_PATH": f"{cuda.library().parent}:{self.environment['LD_LIBRARY_PATH']}",
            "PYTHONPATH": str(ROOT),
            "BERTH_FAKE_CUDA_SHARED": str(self.folder / "gpus.shared"),
            "BERTH_FAKE_CUDA_MEMORY": str(TOTAL_MIB << 20),
        }
        if not outside:
            environment |= {**file.environment, **file.prepend}
        group = groups() / f"job_{job}" / "step_0"
        group.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                'echo $$ >"$0"/cgroup.procs && exec "$@"',
                str(group),
                sys.executable,
                "-c",
                code,
                *words,
            ],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.processes[job] = process
        return process

    def line(self, job: int) -> str:
        """What the job's program prints next."""
        out = self.processes[job].stdout
        assert out is not None
        return out.readline().strip()

    def takes(self, job: int, mib: int) -> tuple[int, float]:
        """An allocation of an owner: the driver's answer, and seconds."""
        into = self.processes[job].stdin
        assert into is not None
        into.write(f"{mib}\n")
        into.flush()
        result, seconds = self.line(job).split()
        return int(result), float(seconds)

    def end(self, job: int, tier: str) -> None:
        """Its programs are gone, and its Epilog runs."""
        process = self.processes.pop(job, None)
        if process is not None:
            self._kill(process)
        gpus = "0" if tier == "guaranteed" else ""
        assert self.run("epilog", berth(0, tier=tier, way="time"), gpus, job=job, user=0).returncode == 0
        if not self.processes:
            # Another process may get a number that stands in there.
            (self.folder / "machine.live").write_text("")
