# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.load.day`: what berthd holds in memory after each hour of a day, on a clock of its own.

Slurm is on paper, as in `make bench NAME=load`, and berthd's answering and planning parts are objects of this process.
Both read a clock that this program sets, so an hour takes seconds. Once an hour garbage is collected, and all objects
that berthd's two parts reach are counted, with their bytes: a workload whose queue stays as it is has to stay level.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import socket
import sys
import tempfile
import types
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from policy.daemon.answer.answerer import Answerer
from policy.daemon.hear.notices import Notice
from policy.daemon.passes.handover import Receiver, Sender
from policy.daemon.passes.planner import Planner
from policy.formats import wire
from policy.site import config
from policy.slurm.by_library.libslurm import LibslurmGateway
from policy.slurm.by_library.program import Program, Record, decode
from policy.slurm.command_failures import failed
from tests.bench.load import slurm as paper
from tests.bench.load.__main__ import WORKLOADS, lay_out
from tests.bench.load.processes import texts_of
from tests.bench.load.workload import Workload, load
from tests.world.clock import Replaced, VirtualTime

_NOT_DATA = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType)
STEP = 5.0
"""Seconds between two passes."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is held at one moment."""

    at: float
    """Hours from the beginning."""
    objects: int
    megabytes: float
    rss_mb: float
    records: int
    waiting: int


class PaperProgram(Program):
    """Stands in for berth-slurm, without a process."""

    def __init__(self, slurm: paper.PaperSlurm) -> None:
        super().__init__(Path("berth-slurm"))
        self._slurm, self.starts = slurm, 1

    def ask(self, command: str) -> Sequence[Record]:
        """The records of the answer."""
        records, last = decode("".join(f"{line}\n" for line in self._slurm.answer(command)).encode("ascii"))
        if text := getattr(last, "text", ""):
            raise failed(f"Slurm said: {text}")
        return records


class Day:
    """Slurm, the users and berthd, one step after another."""

    def __init__(self, workload: Workload, folder: Path, clock: VirtualTime) -> None:
        lay_out(folder, workload)
        site = config.load(folder / "berth.conf", must_exist=True)
        self.clock, self.workload = clock, workload
        self.slurm = paper.PaperSlurm(workload)
        gateway = LibslurmGateway()
        gateway._program = PaperProgram(self.slurm)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._receiver, self._channels = Receiver(ours), (ours, theirs)
        self.answerer, self.planner = Answerer(site, "day", 1), Planner(gateway, site, Sender(theirs))
        self._random = random.Random(workload.seed)
        self._begun: deque[tuple[int, int, int]] = deque()
        self._due, self._number = 0.0, 0
        self.ended = self.unanswered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._channels:
            one.close()

    def step(self) -> None:
        """Some jobs end, others start, users submit as many anew, and berthd makes a pass."""
        self.clock.passed += STEP
        self._due += STEP * self.workload.ends_per_second
        notices = []
        while self._due >= 1:
            self._due -= 1
            job = self.slurm.end_one()
            if job is not None:
                self.ended += 1
                notices += [(job.id, name) for name in job.on]
        self.planner.take([Notice(number, name, lambda _: None) for number, name in notices])
        for number, name in notices:
            self.slurm.epilog_ended(number, name)
        self.slurm.schedule()
        self.slurm.forget()
        self._begun += self.slurm.started
        self.slurm.started.clear()
        while self._begun:
            self._submit(*self._begun.popleft())
        self.planner.one_pass(ended=False)
        self.hear()
        while self.planner.write_one():
            pass

    def hear(self) -> None:
        """The answering part takes what the planner handed over."""
        snapshot = self._receiver.receive()
        if snapshot is not None:
            self.answerer.take(snapshot, self.clock.time())
        while self.answerer.catching_up:
            self.answerer.catch_up()

    def _submit(self, n: int, k: int, tasks: int) -> None:
        self._number += 1
        user = 1_500 + self._number % 50
        asked = {"tres_per_node": f"gres/gpu:{k}"} if n > 1 else {"tres_per_job": f"gres/gpu:{k}"}
        fields = {
            "nonce": f"{self._number + (1 << 40):016x}", "uid": str(user), "client": "batch",
            "time_limit": str(self._random.choice([30, 60, 240, 1_440])), "name": "job", **asked,
            "num_tasks": str(n), "min_nodes": str(n), "max_nodes": str(n), "gpus": str(n * k),
            **({"array": f"0-{tasks - 1}"} if tasks else {}),
        }  # fmt: skip
        reply = self.answerer.answer(wire.encode("submit", fields), self.clock.time())
        self.answerer.settle()
        texts = texts_of(self._number, user, (n, k), asked, fields, reply)
        self.unanswered += texts is None
        if texts is not None:
            self.slurm.submitted(user, n, k, texts, tasks)

    def held(self, at: float) -> Held:
        """Counts what berthd's two parts reach."""
        gc.collect()
        objects, size = reached(self.planner, self.answerer)
        rss = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1e6
        waiting = sum(max(1, len(job.tasks)) for job in self.slurm.jobs.values() if job.state == "PENDING")
        return Held(at, objects, size / 1e6, rss, len(self.slurm.jobs), waiting)


def reached(*roots: object) -> tuple[int, int]:
    """Returns how many objects can be reached from some, and their bytes; Slurm on paper is not counted."""
    seen: set[int] = set()
    size, left = 0, list(roots)
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, (*_NOT_DATA, paper.PaperSlurm)):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        left += gc.get_referents(one)
    return len(seen), size


def day(workload: Workload, hours: float, every: float) -> Iterator[Held]:
    """Plays so many hours; yields what is held at the beginning, and after each part of so many hours."""
    clock, replaced = VirtualTime(), Replaced()
    with tempfile.TemporaryDirectory(prefix="berth-day-") as name:
        replaced.set_time(clock)
        replaced.set(paper, "time", clock)
        try:
            with Day(workload, Path(name), clock) as one:
                for _ in range(5):
                    one.step()
                yield one.held(0)
                for part in range(1, round(hours / every) + 1):
                    until = clock.passed + 3_600 * every
                    while clock.passed < until:
                        one.step()
                    yield one.held(part * every)
        finally:
            replaced.undo()


def main() -> int:
    """Prints a line for each part; exit status 1 where the objects have grown by more than 2 % since the first."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.load.day", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("workload", nargs="?", default="small", help="a file of tests/load without .yaml")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--every", type=float, default=1.0, help="hours between two lines")
    options = parser.parse_args()
    workload = replace(load(WORKLOADS / f"{options.workload}.yaml"), keep_ended_s=300.0)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    found = []
    print("hour  objects  of berthd   process  records  waiting")
    for held in day(workload, options.hours, options.every):
        found.append(held)
        print(
            f"{held.at:4.4g}  {held.objects:7}  {held.megabytes:6.2f} MB  {held.rss_mb:5.0f} MB  {held.records:7}"
            f"  {held.waiting:7}", flush=True,
        )  # fmt: skip
    return int(found[-1].megabytes > 1.02 * found[1].megabytes)


if __name__ == "__main__":
    sys.exit(main())
