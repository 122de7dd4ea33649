# SPDX-License-Identifier: Apache-2.0
"""The looks at the node's GPUs, with a driver that tells what the test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from prolog_epilog.errors import DriverError
from prolog_epilog.looks.gpu_use import TOLD_EVERY, GpuLooks, GpuNotice
from prolog_epilog.looks.watch import PERIOD
from prolog_epilog.node.devices import Driver, GpuProcess, NodeGpu, Worked
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
        return (GpuProcess(7, "compute", 5),) * self.processes_of.get(uuid, 0)

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

    def for_seconds(self, seconds: float) -> list[str]:
        said = []
        until = self.now + seconds
        while self.now < until:
            self.now += PERIOD
            self.found.look(cast("Driver", cast("Any", self.told)), KNOWN, self.now)
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


def test_the_notice() -> None:
    assert GpuNotice("n1", "0:60:60:0:512:-").text == "berth/1 gpus node=n1 gpus=0:60:60:0:512:-"


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
