# SPDX-License-Identifier: Apache-2.0
"""The node's GPUs through real pynvml and a simulated driver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prolog_epilog.errors import DriverError, HardwareFault
from prolog_epilog.node import devices
from prolog_epilog.node.devices import GpuProcess, NodeGpu
from tests.fakes import nvml
from tests.fakes.mps.world import GPUS, Node, fresh_node

FIRST = GPUS[1]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with fresh_node(monkeypatch) as made:
        yield made


def test_positions_follow_the_device_files_and_not_nvml(node: Node) -> None:
    assert devices.gpus(node.paths) == (NodeGpu(0, 0, GPUS[1], 1), NodeGpu(1, 1, GPUS[0], 0))


def test_the_driver_is_asked_once_in_a_boot(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    first = devices.gpus(node.paths)
    monkeypatch.setenv("BERTH_FAKE_NVML", "/nothing")
    assert devices.gpus(node.paths) == first
    node.paths.boot_id.write_text("another")
    with pytest.raises(DriverError, match="is the NVIDIA driver loaded"):
        devices.gpus(node.paths)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "berth-gpus/1", "boot": "boot-1", "gpus": [{}]}'])
def test_a_damaged_list_of_gpus_is_made_anew(node: Node, content: str) -> None:
    expected = devices.gpus(node.paths)
    node.paths.identity.write_text(content)
    assert devices.gpus(node.paths) == expected


def test_a_compute_mode_holds_for_every_process_and_one_gpu(node: Node) -> None:
    with devices.driver() as driver:
        driver.set_compute_mode(FIRST, devices.EXCLUSIVE_PROCESS)
    code = "nvml.nvmlInit(); handle = nvml.nvmlDeviceGetHandleByUUID"
    answer = f"answer = [nvml.nvmlDeviceGetComputeMode(handle(uuid.encode())) for uuid in {GPUS!r}]"
    assert nvml.run(node.machine, f"{code}\n{answer}") == [0, 3]


def test_processes_of_all_kinds_are_seen_while_they_live(node: Node) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as real:
        node.live(f"process 1 {real.pid} type=mps memory=512 real=1")
        node.live("process 1 77 type=compute memory=100")
        node.live("process 1 78 type=graphics memory=10")
        with devices.driver() as driver:
            seen = {GpuProcess(77, "compute", 100), GpuProcess(78, "graphics", 10)}
            assert set(driver.processes(FIRST)) == seen | {GpuProcess(real.pid, "mps", 512)}
            assert driver.processes(GPUS[0]) == ()
            real.kill()
            real.wait()
            assert set(driver.processes(FIRST)) == seen


def test_what_a_gpu_is(node: Node) -> None:
    with devices.driver() as driver:
        assert driver.memory_mib(FIRST) == 80000
        assert driver.obstacle(FIRST) is None


def test_a_gpu_that_is_not_there_is_the_hardwares_fault_and_a_driver_that_refuses_is_not(node: Node) -> None:
    with devices.driver() as driver:
        with pytest.raises(HardwareFault, match="not in this node any more"):
            driver.compute_mode("GPU-gone")
        node.live("refuse nvmlDeviceGetComputeMode unknown")
        with pytest.raises(DriverError, match="look at nvidia-smi"):
            driver.compute_mode(FIRST)


def test_without_pynvml_there_is_a_sentence(node: Node) -> None:
    code = """
import sys
sys.modules["pynvml"] = None
from prolog_epilog.node import devices
from prolog_epilog.errors import DriverError
try:
    with devices.driver():
        pass
except DriverError as error:
    print(error)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert "pynvml is not installed" in done.stdout
    assert node.paths
