# SPDX-License-Identifier: Apache-2.0
"""The machine: processes, control groups, GPUs and files of a node, as far as Berth's programs see them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from tests.world.nodes.tasks import NodeTask, NodeTasks

GPU_MIB = 81_920
SLURM_SCOPE = "sys/fs/cgroup/system.slice/slurmstepd.scope"
STARTED_PER_SECOND = 100


class ModelProcess:
    """A process of a node."""

    def __init__(self, machine: Machine, pid: int, program: str, uid: int) -> None:
        self.machine, self.pid, self.program, self.uid = machine, pid, program, uid
        self.argv: list[str] = [program]
        self.environ: dict[str, str] = {}
        self.parent = 1
        self.started = round(machine.tasks.clock.passed * STARTED_PER_SECOND)
        self.job: int | None = None
        self.group = ""
        self.dead = False
        self.stalled = False
        self.ignores_term = False
        self.pending: set[int] = set()
        self.tasks: list[NodeTask] = []
        self.main: NodeTask | None = None
        """The thread with which its process ends."""
        self.fds: dict[int, str] = {}
        self.handlers: dict[int, Callable[[int, object], object]] = {}
        self.on_end: list[Callable[[], None]] = []
        self.got: list[int] = []
        """Signals that Berth's programs sent to it."""
        self.uuids: tuple[str, ...] = ()
        self.kind = "compute"

    def end(self) -> None:
        """It is gone: its locks, descriptors and threads too."""
        if self.dead:
            return
        with self.machine.tasks.aside():
            self._end()

    def _end(self) -> None:
        self.dead = True
        self.machine.processes.pop(self.pid, None)
        for task in list(self.tasks):
            self.machine.tasks.run(task)
        for file in list(self.fds):
            os.close(file)
        self.fds.clear()
        self.machine.forget_locks(self)
        self.machine.ungroup(self)
        for call in self.on_end:
            call()

    def signal(self, number: int) -> None:
        """A signal comes."""
        if self.dead:
            return
        frozen = self.machine.is_frozen(self)
        if number == signal.SIGKILL:
            self.end()
        elif number in self.handlers:
            self.handlers[number](number, None)
        elif frozen:
            self.pending.add(number)
        elif number == signal.SIGTERM and not self.ignores_term:
            self.end()


class ModelGpu:
    """A GPU as NVML shows it."""

    def __init__(self, index: int, uuid: str) -> None:
        self.index, self.minor, self.uuid = index, index, uuid
        self.mode = 0
        self.busy = 10
        self.memory_used = 0.1
        self.slow_clock = False
        self.lost = False


class Machine:
    """One node."""

    def __init__(self, name: str, folder: Path, gpus: int, tasks: NodeTasks) -> None:
        self.name, self.folder, self.tasks = name, folder, tasks
        self.gpus = [ModelGpu(index, f"GPU-{name}-0000-000{index}") for index in range(gpus)]
        self.processes: dict[int, ModelProcess] = {}
        self.next_pid = 100
        self.boots = 0
        self.booted = tasks.clock.passed
        self.full = False
        self.write_faults: list[int] = []
        """How many writes on each of them fails."""
        self.locks: dict[int, list[tuple[int, int, bool, ModelProcess]]] = {}
        """Record locks by the file's number: first byte, length, exclusive, holder."""
        self.mounted: set[str] = set()
        """Folders that have a file system of their own."""
        self.nvml_fails = False
        self.nvml_stale = False
        self.xids: list[tuple[str, int]] = []
        self.nvml_open = 0
        self.frozen_since: dict[str, float] = {}
        self.thawed_at: dict[int, float] = {}
        self._make()

    def _make(self) -> None:
        for name in ("run", "sys/fs/cgroup/system.slice", "dev", "etc/slurm", "tmp", "var", "usr/bin"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
        (self.folder / SLURM_SCOPE).mkdir(exist_ok=True)
        for name in ("nvidia-cuda-mps-control", "scontrol"):
            (self.folder / "usr/bin" / name).touch(0o755)
        self.number_gpus(gap=False)

    def number_gpus(self, *, gap: bool) -> None:
        """Give the GPUs their minors; with a gap where a GPU has been taken out: 0, 2, 3 and so on."""
        for gpu in self.gpus:
            (self.folder / f"dev/nvidia{gpu.minor}").unlink(missing_ok=True)
            gpu.minor = gpu.index + (gap and gpu.index > 0)
        for gpu in self.gpus:
            (self.folder / f"dev/nvidia{gpu.minor}").touch()

    @property
    def boot_id(self) -> str:
        return f"boot-{self.name}-{self.boots}"

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC of this boot."""
        return self.tasks.clock.passed - self.booted + 100.0

    # Processes

    def spawn(self, program: str, uid: int, *, argv: list[str] | None = None, parent: int = 1) -> ModelProcess:
        """A new process."""
        self.next_pid += 1
        made = ModelProcess(self, self.next_pid, program, uid)
        made.argv, made.parent = argv or [program], parent
        self.processes[made.pid] = made
        return made

    def forget_locks(self, process: ModelProcess) -> None:
        for number, held in list(self.locks.items()):
            self.locks[number] = [one for one in held if one[3] is not process]
            if not self.locks[number]:
                del self.locks[number]

    def reboot(self) -> None:
        """All processes are gone, and all that is kept in memory."""
        for process in list(self.processes.values()):
            process.end()
        self.locks.clear()
        self.mounted.clear()
        self.boots += 1
        self.booted = self.tasks.clock.passed
        for name in ("run", "sys", "tmp"):
            shutil.rmtree(self.folder / name)
        for gpu in self.gpus:
            gpu.mode, gpu.busy, gpu.memory_used, gpu.slow_clock, gpu.lost = 0, 10, 0.1, False, False
        self.full = self.nvml_fails = self.nvml_stale = False
        self.xids.clear()
        self.write_faults.clear()
        self.frozen_since.clear()
        self._make()

    def gpus_back(self) -> None:
        """GPUs that had fallen off the bus are there again: the driver has lost their modes."""
        for gpu in self.gpus:
            if gpu.lost:
                gpu.lost, gpu.mode = False, 0

    # Control groups

    def job_group(self, job: int) -> Path:
        return self.folder / SLURM_SCOPE / f"job_{job}"

    def make_groups(self, job: int) -> str:
        """The groups of a job with one step and one task."""
        group = self.job_group(job)
        for tail in ("step_0/user/task_0", "step_0/user", "step_0", ""):
            folder = group / tail
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in (("cgroup.procs", ""), ("cgroup.freeze", "0\n"), ("cgroup.events", "frozen 0\n")):
                (folder / name).write_text(text)
        return str(group / "step_0/user/task_0")

    def remove_groups(self, job: int) -> None:
        shutil.rmtree(self.job_group(job), ignore_errors=True)
        self.frozen_since = {path: at for path, at in self.frozen_since.items() if f"/job_{job}/" not in path}

    def join(self, process: ModelProcess, job: int, group: str) -> None:
        """Put a process into a job's group."""
        process.job, process.group = job, group
        self._list(group)

    def ungroup(self, process: ModelProcess) -> None:
        if process.group:
            self._list(process.group)

    def _list(self, group: str) -> None:
        path = Path(group, "cgroup.procs")
        if path.exists():
            path.write_text("".join(f"{one.pid}\n" for one in self.processes.values() if one.group == group))

    def is_frozen(self, process: ModelProcess) -> bool:
        return process.group in self.frozen_since

    def froze(self, file: str) -> None:
        """Somebody wrote to a freezer."""
        with self.tasks.aside():
            self._froze(file)

    def _froze(self, file: str) -> None:
        group = str(Path(file).parent)
        frozen = Path(file).read_text().strip() == "1"
        Path(group, "cgroup.events").write_text(f"frozen {frozen:d}\n")
        if frozen:
            self.frozen_since.setdefault(group, self.tasks.clock.passed)
            return
        self.frozen_since.pop(group, None)
        for process in [one for one in self.processes.values() if one.group == group]:
            for number in list(process.pending):
                process.pending.discard(number)
                process.signal(number)

    # /proc

    def proc(self, path: str) -> bytes:
        """A file below /proc."""
        if path == "/proc/sys/kernel/random/boot_id":
            return f"{self.boot_id}\n".encode()
        words = path.split("/")
        process = self._process(words[2])
        match words[3:]:
            case ["stat"]:
                rest = " ".join(["0"] * 17)
                return f"{process.pid} (a b) S {process.parent} {rest} {process.started} 0 0 0 0 0 0\n".encode()
            case ["status"]:
                masks = "".join(
                    f"{name}:\t{self._mask(process, name):016x}\n" for name in ("SigPnd", "ShdPnd", "SigCgt")
                )
                return f"Name:\ta\nUid:\t{process.uid}\t{process.uid}\t{process.uid}\t{process.uid}\n{masks}".encode()
            case ["environ"]:
                return "\0".join(f"{key}={value}" for key, value in process.environ.items()).encode()
            case ["cmdline"]:
                return "\0".join(process.argv).encode()
            case ["cgroup"]:
                root = str(self.folder / "sys/fs/cgroup")
                return f"0::{process.group.removeprefix(root) or '/system.slice/other.service'}\n".encode()
            case ["task", number, "children"] if number == words[2]:
                return " ".join(str(one.pid) for one in self.processes.values() if one.parent == process.pid).encode()
        raise FileNotFoundError(2, "No such file or directory", path)

    def _mask(self, process: ModelProcess, name: str) -> int:
        return sum(1 << number - 1 for number in process.pending) if name == "ShdPnd" else 0

    def _process(self, word: str) -> ModelProcess:
        if not word.isdigit() or int(word) not in self.processes:
            raise FileNotFoundError(2, "No such file or directory", f"/proc/{word}")
        return self.processes[int(word)]

    def proc_list(self, path: str) -> list[str]:
        """A folder below /proc."""
        words = path.rstrip("/").split("/")
        if words == ["", "proc"]:
            return [*map(str, self.processes), "sys", "self"]
        self._process(words[2])
        if words[3:] == ["task"]:
            return [words[2]]
        raise FileNotFoundError(2, "No such file or directory", path)

    def proc_link(self, path: str) -> str:
        words = path.split("/")
        if words[3:] != ["exe"]:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self._process(words[2]).program

    # GPUs

    def gpu(self, uuid: str) -> ModelGpu | None:
        return next((one for one in self.gpus if one.uuid == uuid), None)

    def users_of(self, uuid: str, kind: str) -> list[ModelProcess]:
        """The processes on a GPU that NVML lists as of this kind."""
        return [one for one in self.processes.values() if uuid in one.uuids and one.kind == kind]
