# SPDX-License-Identifier: Apache-2.0
"""A node of the guard's in a folder: control groups, share files, words, devices, and a clock that a test moves."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prolog_epilog.errors import NodeSlurmError
from prolog_epilog.guard.hold.guest_hold import Ground
from prolog_epilog.guard.measure.device_reader import Look
from prolog_epilog.guard.measure.signals import DeviceSample
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.seats.keeper import PERIOD, Keeper
from prolog_epilog.guard.seats.seat import GuardedSeat
from prolog_epilog.guard.tell.notice import GuardNotice
from prolog_epilog.guard.tell.slow_work import SlowWork
from prolog_epilog.injob import word
from prolog_epilog.injob.word import (
    AT,
    EPOCH,
    LAUNCHES,
    PEAK,
    READY,
    STEP_NS,
    STEPS,
    USED,
    Order,
    WordSlot,
    map_order,
    read_order,
)
from prolog_epilog.node import files, freezer
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.guard_keys import GuardSettings
from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.share_file import ShareRecord
from prolog_epilog.tenants.state import SetState, Tenant

UUID = "GPU-00000000-0000-0000-0000-000000000001"
GIB = 1 << 30


def book(paths: Paths, job: int, uuids: tuple[str, ...], *, method: str = "time", tier: str = "") -> None:
    """A job's Prolog writes it into the books of these GPUs, which are one set."""
    files.prepare(paths)
    found = state.load(paths, uuids[0]) or SetState("boot", uuids, (), method, multi_user=True)
    state.store(paths, found.with_tenant(Tenant(job, 0, 0, tier=tier)))


def strike(paths: Paths, job: int) -> None:
    """Its Epilog takes it out of them."""
    for one in list(state.everything(paths)):
        left = one.without(job)
        if left.tenants:
            state.store(paths, left)
        else:
            state.forget(paths, one.uuids)


class Cgroups:
    """A folder that looks like /sys/fs/cgroup."""

    def __init__(self, root: Path, version: str) -> None:
        self.root, self.version = root, version
        root.mkdir(parents=True, exist_ok=True)
        if version == "v2":
            (root / "cgroup.controllers").touch()
        else:
            (root / "freezer").mkdir(exist_ok=True)

    def group(self, path: str) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.freeze").write_text("0\n")
        (folder / "freezer.state").write_text("THAWED\n")
        (folder / "cgroup.procs").write_text("")
        return folder

    def job(self, place: str, job: int) -> Path:
        base = f"{place}/job_{job}"
        for tail in ("", "/step_0", "/step_0/slurm", "/step_0/user", "/step_0/user/task_0", "/step_0/user/task_1"):
            self.group(base + tail)
        return self.root / base

    def frozen(self) -> set[str]:
        return {
            str(path.parent.relative_to(self.root))
            for name, words in (("cgroup.freeze", "1"), ("freezer.state", "FROZEN"))
            for path in self.root.rglob(name)
            if path.read_text() == words
        }


@dataclass
class Slurm:
    """What Slurm is asked."""

    asked: list[str] = field(default_factory=list)
    fails: bool = False
    sends_away: bool = True
    """Whether it is because berthd sent them away that it ends guests."""

    ends: set[int] = field(default_factory=set)
    """Whom it ends."""

    def is_sent_away(self, job: int) -> bool:
        if job not in self.ends:
            return False  # of each guest that begins this is asked once
        self.asked.append(f"is {job} sent away")
        return self.sends_away

    def requeue(self, job: int) -> None:
        if self.fails:
            raise NodeSlurmError("slurmctld is gone")
        self.asked.append(f"requeue {job}")

    def drain(self, node: str, reason: str) -> None:
        self.asked.append(f"drain {node} {reason}")


@dataclass
class Devices:
    """What the devices say."""

    looks: dict[str, Look] = field(default_factory=dict)
    watched: frozenset[str] = frozenset()
    came: list[tuple[str, int]] = field(default_factory=list)

    def watch(self, uuids: frozenset[str]) -> None:
        self.watched = uuids

    def xids(self) -> list[tuple[str, int]]:
        came, self.came = self.came, []
        return came


@dataclass
class Program:
    """A job's program as the word shows it, with a real process that can be signalled."""

    job: int
    word: Path
    process: subprocess.Popen[bytes]
    group: Path
    uuid: str = UUID
    place: WordSlot | None = None
    step: float = 0.0
    """Seconds a step at full speed; 0: it makes none."""
    tells: bool = True
    """Whether it tells its steps; else only the library in it counts its launches, a thousand for each."""
    obeys: bool = True
    lies: bool = False
    """Whether it ignores its gate, and copies the order's epoch as if it had obeyed."""
    done: float = 0.0
    ended: float | None = None
    """When its last step did, or its first one began."""
    listed: bool = False
    """Whether its control group names its process."""
    numbers: memoryview | None = None

    def order(self) -> Order:
        self.numbers = self.numbers or map_order(self.word)
        return read_order(self.numbers)

    def list(self) -> None:
        """Keep its control group as the kernel does."""
        lives = self.process.poll() is None
        if lives != self.listed:
            (self.group / "cgroup.procs").write_text(f"{self.process.pid}\n" if lives else "")
            self.listed = lives

    @property
    def frozen(self) -> bool:
        return (self.group / "cgroup.freeze").read_text() == "1"

    def run(self, now: float, seconds: float, speed: float) -> None:
        """Go on for so long at this speed, and tell of the steps that ended."""
        if self.place is None or not self.step:
            self.ended = None
            return
        self.ended = now - seconds if self.ended is None else self.ended
        self.done += seconds * speed / self.step
        numbers = self.place.numbers
        if not self.tells:
            numbers[LAUNCHES] = round(1000 * self.done)
            return
        steps = int(self.done) - numbers[STEPS]
        if steps > 0 and speed > 0.0:
            before, self.ended = self.ended, now - (self.done - int(self.done)) * self.step / speed
            # As a counter of C goes round, from whatever somebody has written there.
            numbers[STEPS] = (numbers[STEPS] + steps) % 2**64
            numbers[STEP_NS] = (numbers[STEP_NS] + round((self.ended - before) * 1e9)) % 2**64
            numbers[AT] = round(self.ended * 1e9)
        if (self.obeys or self.lies) and not self.frozen:
            numbers[EPOCH] = self.order().epoch

    def holds(self, used: int) -> None:
        assert self.place is not None
        self.place.numbers[USED] = self.place.numbers[PEAK] = used


def dies_of_it(program: Program) -> bool:
    """Whether a program neither ignores nor catches SIGTERM."""
    if program.process.poll() is not None:
        return False
    lines = Path(f"/proc/{program.process.pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigIgn:", "SigCgt:"))]
    return not any(mask >> signal.SIGTERM - 1 & 1 for mask in masks)


class World:
    """The guard's keeper in it; `seconds` lets time pass."""

    def __init__(self, folder: Path, settings: GuardSettings | None = None, *, berthd: bool = False) -> None:
        self.paths = Paths(folder / "run")
        self.cgroups = Cgroups(folder / "fs", "v2")
        self.settings = settings or GuardSettings()
        self.slurm, self.devices = Slurm(), Devices()
        self.told: list[GuardNotice] = []
        self.said: list[str] = []
        self.programs: dict[int, Program] = {}
        self.now = 1.0
        self.memory = 0.3
        self.sm_active = 0.3
        self.driver = True
        self.tells_utilisation = True
        self.off_gpu: set[int] = set()
        """Jobs with nothing on the GPU."""
        self.held: dict[int | None, int] = {}
        """Bytes of GPU memory that each job holds, as the driver says."""
        self.harm = 0.0
        """Speed that hosts lose at the guest's full duty."""
        self.berthd = berthd
        self._send = freezer.send
        freezer.send = self._send_and_wait
        self._keepers: list[Keeper] = []
        self.restart()

    def restart(self) -> None:
        """A guard that knows nothing yet."""
        options = NoticeOptions(("ctl",))
        slow_work = SlowWork(self.slurm, options, self.said.append, lambda _guest: None, self._tell)  # type: ignore[arg-type]
        self.keeper = Keeper(
            Ground(self.paths, self.cgroups.root), self.settings, slow_work, self.devices, self.said.append
        )
        self._keepers.append(self.keeper)

    def _send_and_wait(self, job: int, number: signal.Signals, **more: Any) -> int:
        """Sends a signal; the kernel's time to end a program costs none of the world's, which runs faster."""
        program = self.programs.get(job)
        ends = program is not None and (number == signal.SIGKILL or (number == signal.SIGTERM and dies_of_it(program)))
        count = self._send(job, number, **more)
        if program is not None and ends and count:
            program.process.wait(30)
        return count

    def _tell(self, _options: NoticeOptions, notice: GuardNotice) -> bool:
        self.told.append(notice)
        return self.berthd

    @property
    def seat(self) -> GuardedSeat:
        return self.keeper.seats[UUID]

    @property
    def state(self) -> str:
        return self.seat.state.value

    def comes(
        self,
        job: int,
        tier: str,
        *,
        way: str = "time",
        step: float = 0.0,
        mem: int | None = None,
        tells: bool = True,
        uuid: str = UUID,
        start: int = 0,
    ) -> Program:
        """A job's Prolog has run, and its program begins; an owner needs a quarter of the GPU if nothing is said."""
        mem = 20 * 1024 if mem is None and tier == "guaranteed" else mem or None  # 0: it says nothing
        word.create(self.paths.word(job), (uuid,), os.getuid(), os.getgid())
        share = ShareRecord(
            job, 1000, gpus=(3,), minors=(3,), uuids=(uuid,), way=way, tier=tier, node="n1", mem_mib=mem,
            word=str(self.paths.word(job)), start=start,
        )  # fmt: skip
        book(self.paths, job, (uuid,), tier=tier)
        share_file.write(self.paths, share)
        folder = self.cgroups.job("system.slice/slurmstepd.scope", job)
        page = self.paths.word(job) / uuid
        process = subprocess.Popen(["/bin/sleep", "600"])
        program = Program(job, page, process, folder / "step_0/user/task_0", uuid, step=step, tells=tells)
        if step:
            program.place = WordSlot(page)
            program.place.numbers[READY] = int(tells)
        self.programs[job] = program
        return program

    def goes(self, job: int) -> None:
        """The job's Epilog has run."""
        program = self.programs.pop(job)
        program.process.kill()
        program.process.wait()
        strike(self.paths, job)
        share_file.remove(self.paths, job)
        word.remove(self.paths.word(job))
        (program.group / "cgroup.procs").write_text("")

    def seconds(self, count: float, until: Callable[[], bool] = lambda: False) -> float:
        """Let time pass; ends early once something is so. How long it took."""
        began = self.now
        while self.now < began + count - 1e-9 and not until():
            self.tick()
        return self.now - began

    def tick(self) -> None:
        self.now += PERIOD
        guest = next((one for one in self.programs.values() if one.job < 100), None)
        duty = self._speed(guest) if guest else 0.0
        for program in self.programs.values():
            program.list()
            program.run(self.now, PERIOD, duty if program is guest else 1.0 - self.harm * duty)
        if self.driver and round(self.now * 10) % 10 == 0:
            busy = 0.5 if duty > 0.0 or any(one is not guest for one in self.programs.values()) else 0.0
            utilisation = busy if self.tells_utilisation else None
            sms = self.sm_active if self.tells_utilisation else None
            sample = DeviceSample(self.now, utilisation, sms, 1.0, held_back=False, memory=self.memory)
            read = [uuid for uuid in self._uuids() if uuid in self.devices.watched]
            self.devices.looks = {uuid: Look(sample, self._on(uuid), 80 * GIB, self.held) for uuid in read}
        self.keeper.turn(self.now)
        for _ in range(self.keeper.slow_work._waiting.qsize()):
            self.keeper.slow_work.run(0.0)

    def _uuids(self) -> set[str]:
        return {UUID, *(program.uuid for program in self.programs.values())}

    def _on(self, uuid: str) -> frozenset[int]:
        return frozenset(job for job, one in self.programs.items() if one.uuid == uuid and job not in self.off_gpu)

    def _speed(self, guest: Program) -> float:
        """How fast the guest may run: jobs below 100 are guests."""
        if guest.process.poll() is not None or guest.frozen:
            return 0.0
        return guest.order().duty / 1000 if guest.obeys and not guest.lies else 1.0

    def job_of(self, pid: int) -> int | None:
        """Returns the job of a program's process, as the node's control groups tell it."""
        return next((one.job for one in self.programs.values() if one.process.pid == pid), None)

    def close(self) -> None:
        freezer.send = self._send
        for program in self.programs.values():
            program.process.kill()
            program.process.wait()
        # A user has 128 inotify handles; a guard without one hears of no thaw.
        for keeper in self._keepers:
            keeper._freezer_watch.close()
