# SPDX-License-Identifier: Apache-2.0
"""The node that the fakes stand on: the simulated machine of tests/fakes/nvml, and what a test wants to go wrong.

Standard library only, and quick to import: each control command starts Python anew.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

SETTINGS = "fake-mps.json"
DEFAULT_SETTINGS = "/etc/berth-fake/mps.json"
DEFAULT_MACHINE = "/etc/berth-fake/machine"
PROHIBITED, EXCLUSIVE_PROCESS = 2, 3

#: Streaming multiprocessors, which NVML does not tell.
_SMS = {"H200": 132, "H100": 132, "A100": 108, "V100": 80, "A6000": 84, "L40S": 142}


class Gpu:
    """One GPU of the machine file."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.minor = index
        self.uuid = ""
        self.name = ""
        self.memory = 0
        self.major = 9
        self.mode = 0

    @property
    def sms(self) -> int:
        """How many multiprocessors a GPU of this name has."""
        return next((count for model, count in _SMS.items() if model in self.name), 132)

    @property
    def chunk(self) -> int:
        """Multiprocessors of the smallest static partition."""
        return 8 if self.major >= 9 else 4


class Process:
    """A process that a GPU runs, as NVML lists it."""

    def __init__(self, pid: int, kind: str, memory: int) -> None:
        self.pid = pid
        self.kind = kind
        self.memory = memory


def settings(pipe: str) -> dict[str, Any]:
    """What the test set for this node: beside the pipe directory or above it, else the node's own file."""
    places = [os.environ.get("BERTH_FAKE_MPS", "")]
    folder = os.path.abspath(pipe)  # noqa: PTH100 - pathlib takes ten milliseconds to import
    while folder not in {"/", ""}:
        places.append(f"{folder}/{SETTINGS}")
        folder = os.path.dirname(folder)  # noqa: PTH120
    for place in [*places, DEFAULT_SETTINGS]:
        try:
            with open(place) as file:  # noqa: PTH123
                return dict(json.load(file))
        except (OSError, ValueError):
            continue
    return {}


def machine_file(wanted: dict[str, Any]) -> str:
    """The machine file of this node."""
    return str(wanted.get("machine") or os.environ.get("BERTH_FAKE_NVML") or DEFAULT_MACHINE)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:  # noqa: PTH123
            return file.read().split("\n")
    except OSError:
        return []


def _words(line: str) -> list[str]:
    words, quoted = [""], False
    for character in line.partition("#")[0]:
        if character == '"':
            quoted = not quoted
        elif character.isspace() and not quoted:
            words.append("")
        else:
            words[-1] += character
    return [word for word in words if word]


def _set_gpu(gpu: Gpu, key: str, value: str) -> None:
    match key:
        case "uuid":
            gpu.uuid = value
        case "name":
            gpu.name = value
        case "minor":
            gpu.minor = int(value)
        case "memory":
            gpu.memory = int(value)
        case "sm":
            gpu.major = int(value.partition(".")[0])
        case "compute-mode":
            gpu.mode = int(value)


def _alive(pid: int) -> bool:
    """The dead do not count, even where nobody has buried them."""
    text = "".join(_lines(f"/proc/{pid}/stat"))
    return text.rpartition(")")[2].strip()[:1] not in {"", "Z", "X"}


class Machine:
    """The machine file with what was appended to its live file."""

    def __init__(self, path: str) -> None:
        self.live = path + ".live"
        self.gpus: list[Gpu] = []
        self.processes: dict[tuple[int, int], Process] = {}
        for line in _lines(path) + _lines(self.live):
            words = _words(line)
            if words[:1] == ["gpu"]:
                self._gpu(words)
            elif words[:1] == ["process"]:
                self._process(words)

    def _gpu(self, words: list[str]) -> None:
        first, _, last = words[1].partition("-")
        for index in range(int(first), int(last or first) + 1):
            while len(self.gpus) <= index:
                self.gpus.append(Gpu(len(self.gpus)))
            for word in words[2:]:
                key, _, value = word.partition("=")
                _set_gpu(self.gpus[index], key, value)

    def _process(self, words: list[str]) -> None:
        where = int(words[1]), int(words[2])
        values = dict(word.partition("=")[::2] for word in words[3:])
        self.processes.pop(where, None)
        if "gone" not in values and (values.get("real") != "1" or _alive(where[1])):
            self.processes[where] = Process(where[1], values.get("type", "compute"), int(values.get("memory", "0")))

    def running(self, gpu: Gpu) -> list[Process]:
        """Who uses this GPU now."""
        return [process for (index, _), process in self.processes.items() if index == gpu.index]

    def taken(self, gpu: Gpu) -> bool:
        """Whether an exclusive GPU is somebody else's: clients of MPS have no context of their own on it."""
        others = [one for one in self.running(gpu) if one.kind == "compute" and one.pid != os.getpid()]
        return gpu.mode == PROHIBITED or (gpu.mode == EXCLUSIVE_PROCESS and bool(others))

    def visible(self, wanted: str | None) -> list[Gpu]:
        """GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; it ends at the first that is not there."""
        if wanted is None:
            return list(self.gpus)
        found: list[Gpu] = []
        for word in wanted.split(","):
            name = word.strip()
            if name.startswith("GPU-"):
                match_ = [gpu for gpu in self.gpus if gpu.uuid.startswith(name)]
            else:
                match_ = [gpu for place, gpu in enumerate(self.gpus) if str(place) == name]
            if len(match_) != 1:
                break
            found += match_
        return found


def shared(path: str) -> IO[str]:
    """Append to a file that processes of any user append to."""
    file = open(path, "a")  # noqa: PTH123, SIM115
    if os.fstat(file.fileno()).st_uid == os.geteuid():
        os.fchmod(file.fileno(), 0o666)
    return file


@contextmanager
def claimed(path: str) -> Iterator[Machine]:
    """The machine with nobody else changing who uses it."""
    with shared(path + ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Machine(path)


def note(machine: Machine, gpu: Gpu, pid: int, kind: str, memory: int) -> None:
    """Let NVML show this process until it dies."""
    with shared(machine.live) as file:
        file.write(f"process {gpu.index} {pid} type={kind} memory={memory} real=1\n")


def mebibytes(text: str) -> int | None:
    """A memory limit such as 4G, 512M or 512MB, in MiB; None: not one."""
    text = text.strip().upper().removesuffix("B")
    scale = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}.get(text[-1:])
    return int(int(text[:-1]) * scale) if scale and text[:-1].isdigit() else None
