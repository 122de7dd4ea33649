# SPDX-License-Identifier: Apache-2.0
"""The looks at the node's GPUs, with a driver that tells what the test says."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from prolog_epilog.errors import DriverError
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.looks import watch
from prolog_epilog.looks.gpu_use import TOLD_EVERY, GpuLooks, GpuNotice, GpuPart, parts_of
from prolog_epilog.looks.still import StillLooks
from prolog_epilog.looks.watch import PERIOD
from prolog_epilog.node import cgroups, devices, files
from prolog_epilog.node.devices import Driver, GpuProcess, NodeGpu, Worked
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import state
from prolog_epilog.tenants.state import SetState, Tenant
from tests.fakes import nvml

KNOWN = (NodeGpu(0, 0, "GPU-a"), NodeGpu(1, 1, "GPU-b"))


@dataclass
class Told:
    """The driver."""

    busy: dict[str, int] = field(default_factory=lambda: {"GPU-a": 0, "GPU-b": 93})
    processes_of: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)

    def worked(self, uuid: str, since: int) -> Worked | None:
        if uuid in self.lost:
            raise DriverError("lost")
        return None if uuid in self.silent else Worked(self.busy[uuid], since + 1)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        if uuid in self.lost:
            raise DriverError("lost")
        return tuple(GpuProcess(pid, "mps", 5) for pid in range(1, 1 + self.processes_of.get(uuid, 0)))

    def memory_used_mib(self, _: str) -> int:
        return 512

    def power_w(self, uuid: str) -> int | None:
        return 410 if uuid == "GPU-b" else None


@dataclass
class Node:
    """Looks at a node every 15 s."""

    told: Told = field(default_factory=Told)
    found: GpuLooks = field(default_factory=GpuLooks)
    now: float = 0.0
    parts: tuple[GpuPart, ...] = ()

    def for_seconds(self, seconds: float) -> list[str]:
        said = []
        until = self.now + seconds
        while self.now < until:
            self.now += PERIOD
            self.found.look(cast("Driver", cast("Any", self.told)), KNOWN, self.now, self.parts)
            if (text := self.found.due(self.now)) is not None:
                said.append(text)
        return said


def test_each_gpu_is_told_once_a_minute() -> None:
    node = Node()

    assert node.for_seconds(PERIOD) == ["0:0:0:0:512:-,1:0:0:93:512:410"]
    assert node.for_seconds(TOLD_EVERY - PERIOD) == []
    assert node.for_seconds(TOLD_EVERY) == ["0:60:60:0:512:-,1:0:0:93:512:410"]


def test_a_process_without_a_kernel_is_told_as_such() -> None:
    node = Node(Told(processes_of={"GPU-a": 1}))
    node.for_seconds(PERIOD)

    assert node.for_seconds(TOLD_EVERY)[0].startswith("0:0:60:0:512")


def test_a_kernel_ends_what_was_idle() -> None:
    node = Node()
    node.for_seconds(TOLD_EVERY)
    node.told.busy["GPU-a"] = 1

    assert node.for_seconds(TOLD_EVERY)[0].startswith("0:0:0:1:512")


def test_a_gpu_that_does_not_tell_or_is_lost_is_left_out_and_costs_the_other_nothing() -> None:
    node = Node(Told({"GPU-a": 0, "GPU-b": 0}, silent={"GPU-a"}))
    assert node.for_seconds(PERIOD) == ["1:0:0:0:512:410"]
    node.told.lost = {"GPU-b"}
    assert node.for_seconds(4 * TOLD_EVERY) == []


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 1 is of job 31, 2 of job 32, and 3 is MPS's own."""
    monkeypatch.setattr(cgroups, "job_of", {1: 31, 2: 32}.get)


def parts_in(node: Node, seconds: float = TOLD_EVERY) -> str:
    return node.for_seconds(seconds)[-1].partition(" parts=")[2]


@pytest.mark.usefixtures("jobs")
def test_of_two_jobs_on_a_gpu_that_works_the_one_without_a_process_idles() -> None:
    node = Node(Told(processes_of={"GPU-b": 1}), parts=tuple(GpuPart("1", "GPU-b", job) for job in (31, 32)))
    node.for_seconds(PERIOD)

    assert parts_in(node) == "1:60:60:0:32,1:0:0:5:31"
    node.told.processes_of["GPU-b"] = 2
    assert parts_in(node) == "1:0:0:5:31,1:0:0:5:32"
    # Now none of them works: each holds its memory for nothing.
    node.told.busy["GPU-b"] = 0
    assert parts_in(node) == "1:0:60:5:31,1:0:60:5:32"


@pytest.mark.usefixtures("jobs")
def test_a_mig_instance_idles_while_it_has_no_process_and_its_gpu_is_left_out() -> None:
    node = Node(Told(silent={"GPU-a", "GPU-b"}, processes_of={"MIG-x": 1}))
    node.parts = (GpuPart("0.9", "MIG-x", 31), GpuPart("0.10", "MIG-y", 32))

    assert node.for_seconds(PERIOD) == ["- parts=0.9:0:0:5:31,0.10:0:0:0:32"]
    assert parts_in(node) == "0.10:60:60:0:32,0.9:0:0:5:31"
    node.told.lost = {"MIG-x"}
    assert parts_in(node) == "0.10:120:120:0:32"


def test_of_many_parts_the_longest_idle_are_told() -> None:
    node = Node(parts=tuple(GpuPart("1", "GPU-b", job) for job in range(100, 150)))

    assert len(parts_in(node).split(",")) == 40


def test_parts_are_those_of_the_books_and_the_instances_of_the_lists(tmp_path: Path) -> None:
    paths = Paths(tmp_path, boot_id=tmp_path / "boot")
    paths.boot_id.write_text("boot\n")
    tenants = tuple(Tenant(job, 1_000, 50) for job in (31, 32))
    files.prepare(paths)
    state.store(paths, SetState("boot", ("GPU-b",), (0,), "ceiling", multi_user=False, tenants=tenants))
    gpus = [["MIG-x", "0.9"], ["GPU-b", "1"]]
    listed = {"job": 33, "uid": 1_000, "start": 0, "owns": True, "gpus": gpus}
    files.write(paths.listed, json.dumps({"format": "berth-listed/1", "boot": "boot", "jobs": [listed]}))

    books = [GpuPart("1", "GPU-b", 31), GpuPart("1", "GPU-b", 32)]
    assert parts_of(paths, KNOWN) == [*books, GpuPart("0.9", "MIG-x", 33)]


def test_the_notice() -> None:
    assert GpuNotice("n1", "0:60:60:0:512:-").text == "berth/1 gpus node=n1 gpus=0:60:60:0:512:-"


def test_a_trouble_that_lasts_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(
        [DriverError("no driver"), DriverError("no driver"), None, DriverError("no driver"), DriverError("ill")]
    )
    ends, said = iter([False] * 5 + [True]), list[str]()

    def gpus(_: Paths) -> tuple[NodeGpu, ...]:
        if problem := next(looks):
            raise problem
        return KNOWN

    monkeypatch.setattr(watch, "PERIOD", 0.0)
    monkeypatch.setattr(devices, "gpus", gpus)
    monkeypatch.setattr(devices, "driver", lambda: nullcontext(Told()))
    monkeypatch.setattr(StillLooks, "look", lambda *_: ())
    watch.watch(Paths(tmp_path), NoticeOptions(), said.append, lambda: next(ends))
    assert [text.partition(" [")[0] for text in said] == ["no driver", "no driver", "ill"]


COST = """
import time
from types import SimpleNamespace
from prolog_epilog.looks.gpu_use import GpuLooks
from prolog_epilog.looks.watch import PERIOD
from prolog_epilog.node import devices

nvml.nvmlInit()
handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
gpus = [SimpleNamespace(position=place, uuid=nvml.nvmlDeviceGetUUID(one)) for place, one in enumerate(handles)]
nvml.nvmlShutdown()
found = GpuLooks()
begin = time.process_time()
for turn in range(50):
    with devices.driver() as driver:
        found.look(driver, gpus, turn * PERIOD)
answer = [sorted(found.gpus), (time.process_time() - begin) / 50 / PERIOD, found.due(50 * PERIOD)]
"""


def test_eight_gpus_of_a_simulated_driver_cost_less_than_half_a_percent_of_a_core() -> None:
    seen, cost, told = nvml.run(nvml.MACHINES / "hgx-h100", COST)

    assert (seen, cost < 0.005) == ([*range(8)], True)
    assert told.startswith("0:")
