# SPDX-License-Identifier: Apache-2.0
"""The looks for idle GPUs, with a driver that tells what the test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from prolog_epilog.errors import DriverError
from prolog_epilog.looks.idle import AGAIN_AFTER, IDLE_AFTER, IdleLooks, IdleNotice
from prolog_epilog.looks.watch import PERIOD
from prolog_epilog.node.devices import Driver, GpuProcess, NodeGpu, Worked
from tests.fakes import nvml

KNOWN = (NodeGpu(0, 0, "GPU-a"), NodeGpu(1, 1, "GPU-b"))


@dataclass
class Told:
    """The driver."""

    busy: dict[str, bool] = field(default_factory=lambda: {"GPU-a": False, "GPU-b": True})
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


@dataclass
class Node:
    """Looks at a node every 15 s."""

    told: Told = field(default_factory=Told)
    found: IdleLooks = field(default_factory=IdleLooks)
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


def test_nothing_is_told_before_ten_minutes_and_then_only_of_idle_gpus() -> None:
    node = Node()

    assert node.for_seconds(IDLE_AFTER) == []
    assert node.for_seconds(PERIOD) == ["0:600:600:512"]


def test_a_process_without_a_kernel_is_told_as_such() -> None:
    node = Node(Told(processes_of={"GPU-a": 1}))

    assert node.for_seconds(IDLE_AFTER + PERIOD) == ["0:0:600:512"]


def test_the_same_is_told_again_and_its_end_at_once() -> None:
    node = Node()
    node.for_seconds(IDLE_AFTER + PERIOD)

    assert len(node.for_seconds(4 * AGAIN_AFTER)) == 4
    node.told.busy["GPU-a"] = True
    assert node.for_seconds(AGAIN_AFTER) == ["-"]


def test_a_gpu_that_does_not_tell_or_is_lost_is_left_out_and_costs_the_other_nothing() -> None:
    node = Node(Told({"GPU-a": False, "GPU-b": False}, silent={"GPU-a"}))
    assert node.for_seconds(IDLE_AFTER + PERIOD) == ["1:600:600:512"]
    node.told.lost = {"GPU-b"}
    assert node.for_seconds(AGAIN_AFTER) == ["-"]


def test_the_notice() -> None:
    assert IdleNotice("n1", "0:600:600:512").text == "berth/1 idle node=n1 gpus=0:600:600:512"


COST = """
import time
from types import SimpleNamespace
from prolog_epilog.looks.idle import IdleLooks
from prolog_epilog.looks.watch import PERIOD
from prolog_epilog.node import devices

nvml.nvmlInit()
handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
gpus = [SimpleNamespace(position=place, uuid=nvml.nvmlDeviceGetUUID(one)) for place, one in enumerate(handles)]
nvml.nvmlShutdown()
found = IdleLooks()
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
