# SPDX-License-Identifier: Apache-2.0
"""A real control program with a stub server beside it, and what it answers to a fixed list of commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prolog_epilog.mps.control import Control
from tests.building import built
from tests.real.packages import UBUNTUS, unpacked

STUB = Path(__file__).parent / "nvidia-cuda-mps-server"
LIBRARY = "libcuda.so.1"
OWNER, OTHER = 1000, 65534
"""The user of the server, and one who has nothing to do with it."""
NOBODY = 1 << 22
"""A number that no process can have: Linux gives smaller ones. The stub server cannot end a process that lives."""
UUIDS = ("GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000")

COMMANDS: tuple[tuple[int | None, str], ...] = (
    *((None, text) for text in ("get_server_list", "get_default_active_thread_percentage")),
    *((None, f"set_default_active_thread_percentage {value}") for value in (30, 0, 101, "x")),
    (None, "get_default_active_thread_percentage"),
    (None, "get_default_device_pinned_mem_limit 0"),
    (None, f"set_default_device_pinned_mem_limit {UUIDS[0]} 5000M"),
    (None, f"get_default_device_pinned_mem_limit {UUIDS[0]}"),
    (None, "get_default_device_pinned_mem_limit 0"),
    *((None, f"set_default_device_pinned_mem_limit {word}") for word in ("0 5000M", "1 500M", "7 3G", "0")),
    *((None, f"get_default_device_pinned_mem_limit {ordinal}") for ordinal in (0, 1, 7, 99)),
    (None, f"get_server_status {NOBODY}"),
    (None, f"set_active_thread_percentage {NOBODY} 30"),
    (None, f"terminate_client {NOBODY} 1"),
    *((None, text) for text in ("ps", "lspart", "sm_partition add 0 1", "help")),
    (OTHER, "set_default_active_thread_percentage 40"),
    (OTHER, "set_default_device_pinned_mem_limit 0 80G"),
    (OTHER, "start_server -uid 0"),
    (None, "set_default_active_thread_percentage 30"),
    (None, "set_default_device_pinned_mem_limit 0 5000M"),
    (None, f"start_server -uid {OWNER}"),
    (None, "get_server_list"),
    *((None, f"{text} SERVER") for text in ("get_server_status", "get_client_list", "get_active_thread_percentage")),
    (None, "set_active_thread_percentage SERVER 40"),
    *((None, f"get_device_pinned_mem_limit SERVER {ordinal}") for ordinal in (0, 1, 2)),
    (None, "set_device_pinned_mem_limit SERVER 0 2000M"),
    (None, "get_device_pinned_mem_limit SERVER 0"),
    (None, "get_default_device_pinned_mem_limit 0"),
    (None, f"terminate_client SERVER {NOBODY}"),
    (OTHER, "set_active_thread_percentage SERVER 100"),
    (OTHER, f"terminate_client SERVER {NOBODY}"),
    (OTHER, "get_active_thread_percentage SERVER"),
    (OWNER, "set_active_thread_percentage SERVER 90"),
    (OWNER, "set_device_pinned_mem_limit SERVER 0 80G"),
    (OWNER, "get_device_pinned_mem_limit SERVER 0"),
    (OWNER, f"terminate_client SERVER {NOBODY}"),
    (OTHER, "quit"),
    (OTHER, "shutdown_server SERVER -f"),
)

PARTITIONS: tuple[tuple[int | None, str], ...] = (
    (None, "lspart"),
    *((None, f"sm_partition add {UUIDS[0]} {chunks}") for chunks in (4, 0, 13, 11)),
    (None, f"sm_partition add {UUIDS[0]}"),
    (None, "sm_partition add GPU-cccccccc-0000-0000-0000-000000000000 1"),
    (None, f"sm_partition add {UUIDS[1]} 16"),
    (None, f"start_server -uid {OWNER}"),
    (None, "get_server_list"),
    (None, "lspart"),
    (None, f"sm_partition rm {UUIDS[0]} PARTITION1"),
    (None, f"sm_partition rm {UUIDS[0]} PARTITION1"),
    (None, f"sm_partition rm {UUIDS[0]}/PARTITION2"),
    (OTHER, f"sm_partition rm {UUIDS[1]} PARTITION3"),
    (OTHER, f"sm_partition add {UUIDS[0]} 2"),
    (OTHER, "lspart"),
    (OWNER, "set_active_thread_percentage SERVER 90"),
)
"""What is asked of a daemon with static partitions, which have names in the order in which they are made."""


def install(driver: str, folder: Path) -> str:
    """The control program of this driver in a folder of its own, the stub server beside it; its path."""
    found = unpacked(driver)
    if isinstance(found, str):
        raise FileNotFoundError(found)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    shutil.copy2(found / "usr/bin/nvidia-cuda-mps-control", folder)
    shutil.copy2(STUB, folder)
    (folder / STUB.name).chmod(0o755)
    if driver in UBUNTUS:
        shutil.copy2(library(), folder)
    return str(folder / "nvidia-cuda-mps-control")


def library() -> Path:
    """The library that a control program of driver 580 or later asks for GPUs, without one (mps_internals.c)."""
    return built(LIBRARY, [Path(__file__).with_name("mps_internals.c")], (), ("-fPIC", "-shared"))


def find_library_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets control programs find their library in their own folder. On a node the dynamic linker knows where it is."""
    whole = Control.environment.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Control, "environment", property(lambda one: {**whole(one), "LD_LIBRARY_PATH": str(Path(one.program).parent)})
    )


@contextmanager
def running(
    program: str, folder: Path, uuids: tuple[str, ...] = UUIDS, options: tuple[str, ...] = ()
) -> Iterator[Control]:
    """A daemon of its own in a folder, and the way to it."""
    pipe, log = folder / "pipe", folder / "log"
    for one in (pipe, log):
        one.mkdir(parents=True)
        one.chmod(0o777)
    folder.chmod(0o755)
    control = Control(program, pipe, log, uuids)
    with (log / "control.log").open("ab") as out:
        daemon = subprocess.Popen(
            [program, "-f", *options], env=control.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        while not (pipe / "control").exists():
            assert daemon.poll() is None, (log / "control.log").read_text()
            time.sleep(0.01)
        yield control
    finally:
        subprocess.run([program], input="quit -t 1\n", env=control.environment, text=True, check=False, timeout=20)
        daemon.kill()
        daemon.wait()


def tell(control: Control, command: str, uid: int | None = None) -> str:
    """What the program prints, word for word."""
    done = subprocess.run(
        [control.program],
        input=command + "\n",
        env=control.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=uid,
        cwd="/",
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout)
    return done.stdout


def transcript(control: Control, commands: tuple[tuple[int | None, str], ...] = COMMANDS) -> list[list[str]]:
    """Every command of the list with its answer; the server's number stands as SERVER, root as an empty user."""
    found = []
    server = ""
    names: dict[str, str] = {}
    for uid, command in commands:
        if not server and "SERVER" in command:
            server = _ready(control)
        answer = tell(control, with_names(command, names).replace("SERVER", server or "SERVER"), uid)
        if command == "get_server_list" and answer.strip():
            server = _ready(control)
            answer = tell(control, command)
        shown = without_names(answer, names)
        # A limit of 500M holds no server whose number is 500.
        shown = re.sub(rf"(?<![\w.]){server}(?![\w.])", "SERVER", shown) if server else shown
        found.append(["" if uid is None else str(uid), command, shown])
    return found


def with_names(command: str, names: dict[str, str]) -> str:
    """A command with the real names of partitions in place of PARTITION1, PARTITION2..."""
    return re.sub(r"PARTITION\d+", lambda found: names.get(found[0], found[0]), command)


def without_names(answer: str, names: dict[str, str]) -> str:
    """An answer with PARTITION1... in place of the names, as wide as they are; learns the name of a new one."""
    made = re.match(r"Partition GPU-[0-9a-f-]+/(\S+) created", answer)
    if made:
        names[f"PARTITION{len(names) + 1}"] = made[1]
    for word, name in names.items():
        answer = answer.replace(name, word.ljust(len(name), "_"))
    return answer


def _ready(control: Control) -> str:
    """The server's number, once it is connected to the daemon."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        server = tell(control, "get_server_list").strip()
        if server and tell(control, f"get_active_thread_percentage {server}").strip():
            return server
        time.sleep(0.02)
    raise AssertionError((control.log / "control.log").read_text())
