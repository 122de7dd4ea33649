# SPDX-License-Identifier: Apache-2.0
"""A node with simulated GPUs and a simulated MPS, for tests of the node side: all under one short folder."""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from prolog_epilog.mps import Attached, Tenant, attach
from prolog_epilog.node import devices
from prolog_epilog.node.devices import NodeGpu
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.config import NodeConfig
from tests.fakes import nvml
from tests.fakes.mps import programs
from tests.fakes.mps.node import SETTINGS
from tests.rights import sees_others

GPUS = ("GPU-0a000000-0000-0000-0000-000000000000", "GPU-0b000000-0000-0000-0000-000000000000")
#: Whose jobs these are: as root another user than root, else the only one that we can be.
USER = 1000 if sees_others() else os.geteuid()

_MACHINE = """\
gpu 0-1 name="NVIDIA H100" sm=9.0 memory=80000 cores=16896
gpu 0 uuid={0} pci=0000:01:00.0 minor=1
gpu 1 uuid={1} pci=0000:02:00.0 minor=0
"""


class App:
    """A running fake-cuda-app."""

    def __init__(self, arguments: tuple[str, ...], environment: Mapping[str, str], user: int | None) -> None:
        self.process = subprocess.Popen(
            [programs.app(), *arguments], env=dict(environment), stdout=subprocess.PIPE, user=user, group=user
        )
        self.pid = self.process.pid
        self._said = b""

    def says(self, seconds: float = 40) -> dict[str, Any]:
        """The next line."""
        until = time.monotonic() + seconds
        assert self.process.stdout
        while b"\n" not in self._said:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the program says nothing"
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, "the program ended without a word"
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return dict(json.loads(line))

    def silent(self, seconds: float = 0.3) -> bool:
        """Whether it says nothing for a while: it waits in cuInit."""
        assert self.process.stdout
        return not self._said and not select.select([self.process.stdout], [], [], seconds)[0]

    def end(self, number: int = signal.SIGKILL) -> int:
        """End it."""
        self.process.send_signal(number)
        return self.process.wait(10)


class Node:
    """One node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = root / "machine"
        self.machine.write_text(_MACHINE.format(*GPUS))
        boot = root / "boot_id"
        boot.write_text("boot-1\n")
        self.paths = Paths(root=root / "run", boot_id=boot, systemd=root / "no-systemd")
        self.config = NodeConfig(mps_control=programs.control(), mps_start_timeout=60, mps_stop_timeout=30)
        self.apps: list[App] = []
        self.wishes: dict[str, Any] = {"machine": str(self.machine), "devices": ""}
        self.wish()

    def wish(self, **wishes: Any) -> None:
        """What shall go wrong from now on."""
        self.wishes |= wishes
        temporary = self.root / "wishes"
        temporary.write_text(json.dumps(self.wishes))
        temporary.replace(self.root / SETTINGS)

    def reboot(self) -> None:
        """Every process of the node is gone, the driver has forgotten, files under /run stay: the worst case."""
        self.kill_all()
        Path(f"{self.machine}.live").unlink(missing_ok=True)
        self.paths.boot_id.write_text(f"boot-{time.monotonic_ns()}\n")

    def live(self, line: str) -> None:
        """Change the simulated machine."""
        with Path(f"{self.machine}.live").open("a") as file:
            file.write(line + "\n")

    def gpus(self, *positions: int) -> tuple[NodeGpu, ...]:
        """GPUs by position."""
        every = devices.gpus(self.paths)
        return tuple(every[position] for position in positions or (0,))

    def attach(
        self, job: int, share: int, mem: int | None = None, uid: int = USER, gpus: tuple[int, ...] = (0,)
    ) -> Attached:
        """What the Prolog does."""
        return attach(self.paths, self.config, self.gpus(*gpus), Tenant(job, uid, share, mem))

    def environment(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Environment of a job's process on this node."""
        return {"PATH": "/usr/bin:/bin", "BERTH_FAKE_MPS": str(self.root / SETTINGS), **(given or {})}

    def app(
        self, *arguments: str, given: Mapping[str, str] | None = None, uid: int = USER, user: int | None = None
    ) -> App:
        """Start a CUDA program, as `uid` for MPS; with `user` it really is that user."""
        claimed = () if user is not None else (f"as={uid}",)
        app = App((*claimed, *arguments), self.environment(given), user)
        self.apps.append(app)
        return app

    def mode(self, position: int = 0) -> int:
        """A GPU's compute mode."""
        with devices.driver() as driver:
            return driver.compute_mode(self.gpus(position)[0].uuid)

    def processes(self) -> dict[int, str]:
        """Processes of MPS on this node, by pid."""
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                environment = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
                if str(self.root).encode() in environment:
                    words = (folder / "cmdline").read_bytes().decode().split("\0")
                    found[int(folder.name)] = next((word for word in words if "mps-" in word or "cuda-app" in word), "")
            except OSError:
                continue
        return found

    def clean(self) -> bool:
        """Whether nothing is left of any sharing."""
        ours = {pid for pid, name in self.processes().items() if "mps-" in name}
        folders = [one for made in (self.paths.gpus, self.paths.mps) if made.exists() for one in made.iterdir()]
        return not ours and not folders and self.mode(0) == self.mode(1) == devices.DEFAULT

    def kill_all(self) -> None:
        """End all processes of this node, also those that begin meanwhile."""
        await_true(lambda: not [self._kill(pid) for pid in self.processes()])
        for app in self.apps:
            app.process.wait(10)
            if app.process.stdout:
                app.process.stdout.close()
        self.apps.clear()

    @staticmethod
    def _kill(pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def run(self, code: str) -> subprocess.Popen[str]:
        """Python with Berth and this node's NVML, in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env=nvml.environment(self.machine),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def await_true(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something to become true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not become true in time"
        time.sleep(0.02)


@contextmanager
def fresh_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A fresh node; its processes end with the test."""
    # Loaded once under its own name, so that pynvml finds this library and no real one.
    ctypes.CDLL(str(nvml.library()))
    root = Path(tempfile.mkdtemp(prefix="bn", dir="/tmp"))
    root.chmod(0o711)
    made = Node(root)
    monkeypatch.setenv("BERTH_FAKE_NVML", str(made.machine))
    # On a loaded machine a process may need longer to end; what shall not end by itself is said with `wish`.
    monkeypatch.setattr("prolog_epilog.mps.daemon._LEAVE_SECONDS", 30.0)
    try:
        yield made
    finally:
        made.kill_all()
        shutil.rmtree(root)
