# SPDX-License-Identifier: Apache-2.0
"""The simulated NVML library against real pynvml: it must answer as a driver would."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import nvml as fake

# nvidia-smi topo -m of real machines, by NVML's index; 0 where the relation is not NVLink.
DGX_1V = """
0 1 1 2 2 0 0 0
1 0 2 1 0 2 0 0
1 2 0 2 0 0 1 0
2 1 2 0 0 0 0 1
2 0 0 0 0 1 1 2
0 2 0 0 1 0 2 1
0 0 1 0 1 2 0 2
0 0 0 1 2 1 2 0
"""
A6000_PAIRS = """
0 4 0 0 0 0 0 0
4 0 0 0 0 0 0 0
0 0 0 4 0 0 0 0
0 0 4 0 0 0 0 0
0 0 0 0 0 4 0 0
0 0 0 0 4 0 0 0
0 0 0 0 0 0 0 4
0 0 0 0 0 0 4 0
"""

OPEN = """
nvml.nvmlInit()
gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
def error(function, *arguments):
    try:
        function(*arguments)
    except nvml.NVMLError as failed:
        return failed.value
    return 0
"""

# Calls that Slurm's own gpu_nvml plugin needs; with one missing slurmd does not start.
SLURM_CALLS = """
Init_v2 Shutdown ErrorString SystemGetDriverVersion SystemGetNVMLVersion DeviceGetCount_v2
DeviceGetHandleByIndex_v2 DeviceGetName DeviceGetUUID DeviceGetPciInfo_v3 DeviceGetMinorNumber
DeviceGetCpuAffinity DeviceGetNvLinkState DeviceGetNvLinkRemotePciInfo_v2 DeviceGetMigMode
DeviceGetMaxMigDeviceCount DeviceGetMigDeviceHandleByIndex DeviceGetGpuInstanceId
DeviceGetComputeInstanceId DeviceGetAttributes_v2 DeviceGetComputeRunningProcesses_v3
DeviceGetGraphicsRunningProcesses_v3 DeviceGetProcessUtilization DeviceGetSupportedMemoryClocks
DeviceGetSupportedGraphicsClocks DeviceGetApplicationsClock DeviceSetApplicationsClocks
DeviceResetApplicationsClocks
"""
INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, TIMEOUT, LOST, VERSION = 2, 3, 6, 10, 15, 25


def numbers(text: str) -> list[list[int]]:
    return [[int(cell) for cell in row.split()] for row in text.split("\n") if row]


def ask(machine: str, code: str) -> Any:
    return fake.run(fake.MACHINES / machine, OPEN + code)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine of its own to change: two H100 with one link between them, live file beside it."""
    path = tmp_path / "machine"
    path.write_text(
        'gpu 0-1 name="NVIDIA H100" sm=9.0 memory=1000 nvlinks=2 nvlink-mbps=26562 nvlink-version=6\n'
        "gpu 0 uuid=GPU-a pci=0000:01:00.0\n"
        "gpu 1 uuid=GPU-b pci=0000:02:00.0\n"
        "nvlink 0:0 1:1\n"
    )
    return path


LIVE = """
import os
def live(text):
    with open(os.environ["BERTH_FAKE_NVML"] + ".live", "a") as file:
        file.write(text)
"""


def test_has_every_call_that_slurm_binds_at_start() -> None:
    library = ctypes.CDLL(str(fake.library()))
    missing = [name for name in SLURM_CALLS.split() if not hasattr(library, f"nvml{name}")]
    assert missing == []


@pytest.mark.parametrize(("name", "expected"), [("dgx-1v", DGX_1V), ("a6000-pairs", A6000_PAIRS)])
def test_direct_links_are_those_of_the_real_machine(name: str, expected: str) -> None:
    found = ask(
        name,
        """
where = {nvml.nvmlDeviceGetPciInfo(gpu).busId: i for i, gpu in enumerate(gpus)}
answer = [[0] * len(gpus) for _ in gpus]
for i, gpu in enumerate(gpus):
    for link in range(nvml.nvmlDeviceGetFieldValues(gpu, [91])[0].value.uiVal):
        assert nvml.nvmlDeviceGetNvLinkState(gpu, link) == 1
        assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link) == nvml.NVML_NVLINK_DEVICE_TYPE_GPU
        answer[i][where[nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId]] += 1
""",
    )
    assert found == numbers(expected)


def test_nvswitch_machine_has_18_links_to_four_switches_and_none_to_a_gpu() -> None:
    found = ask(
        "hgx-h100",
        """
from collections import Counter
answer = []
for gpu in gpus:
    kinds = {nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link) for link in range(18)}
    remotes = Counter(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId for link in range(18))
    answer.append([sorted(kinds), sorted(remotes.items())])
""",
    )
    # As nvidia-smi nvlink -R shows it on a DGX H100.
    switches = [["00000000:05:00.0", 4], ["00000000:06:00.0", 5], ["00000000:07:00.0", 5], ["00000000:08:00.0", 4]]
    assert found == [[[2], switches]] * 8


def test_pcie_relations_follow_from_the_tree() -> None:
    found = ask(
        "l40s",
        "answer = [[nvml.nvmlDeviceGetTopologyCommonAncestor(a, b) for b in gpus if b is not a] for a in gpus]",
    )
    assert found[0] == [10, 20, 20, 50, 50, 50, 50]
    assert found[7] == [50, 50, 50, 50, 40, 40, 10]


def test_minor_numbers_do_not_follow_nvml_order_on_some_machines() -> None:
    minors = {
        path.name: ask(path.name, "answer = [nvml.nvmlDeviceGetMinorNumber(gpu) for gpu in gpus]")
        for path in fake.MACHINES.iterdir()
    }
    assert all(sorted(numbers) == list(range(8)) for numbers in minors.values())
    assert sum(numbers != sorted(numbers) for numbers in minors.values()) >= 2


def test_says_no_as_a_driver_does() -> None:
    found = ask(
        "dgx-1v",
        """
wrong = nvml.c_nvmlGpuFabricInfo_v3_t(); wrong.version = 7
answer = [
    error(nvml.nvmlDeviceGetNvLinkState, gpus[0], 6),
    error(nvml.nvmlDeviceGetMigMode, gpus[0]),
    nvml.nvmlDeviceGetFieldValues(gpus[0], [(165, 0)])[0].nvmlReturn,
    error(nvml.nvmlDeviceGetHandleByUUID, b"GPU-nobody"),
    error(nvml.nvmlDeviceGetHandleByIndex, 8),
    error(nvml.nvmlDeviceGetTopologyCommonAncestor, gpus[0], gpus[0]),
    error(nvml.nvmlDeviceGetProcessUtilization, gpus[0], 0),
    error(nvml.nvmlDeviceGetGpuFabricInfoV, gpus[0], nvml.byref(wrong)),
]
nvml.nvmlShutdown()
answer.append(error(nvml.nvmlDeviceGetCount))
""",
    )
    assert found == [
        INVALID_ARGUMENT,
        NOT_SUPPORTED,
        NOT_SUPPORTED,
        NOT_FOUND,
        INVALID_ARGUMENT,
        INVALID_ARGUMENT,
        NOT_FOUND,
        VERSION,
        1,
    ]
    assert ask("l40s", "answer = error(nvml.nvmlDeviceGetNvLinkState, gpus[0], 0)") == NOT_SUPPORTED


def test_structs_have_the_layout_that_pynvml_reads(machine: Path) -> None:
    with machine.open("a") as file:
        file.write(
            "gpu 0 used=100 reserved=50 util=80 mem-util=30 fabric-state=3 clique=7\n"
            "gpu 0 cluster=01020304-0506-0708-090a-0b0c0d0e0f10 chassis=SN1 tray=4 gpm-sm-active=61.5\n"
            "process 0 11 type=compute memory=200 sm=55 mem=5\n"
            "process 0 12 type=mps memory=300\n"
        )
    found = fake.run(
        machine,
        OPEN
        + """
memory = nvml.nvmlDeviceGetMemoryInfo(gpus[0], version=nvml.nvmlMemory_v2)
load = nvml.nvmlDeviceGetUtilizationRates(gpus[0])
fabric = nvml.c_nvmlGpuFabricInfo_v3_t()
nvml.nvmlDeviceGetGpuFabricInfoV(gpus[0], nvml.byref(fabric))
old = nvml.c_nvmlGpuFabricInfo_v2_t()
nvml.nvmlDeviceGetGpuFabricInfoV(gpus[0], nvml.byref(old))
place = nvml.c_nvmlPlatformInfo_v2_t()
nvml.nvmlDeviceGetPlatformInfo(gpus[0], nvml.byref(place))
one, two = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
request = nvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=2, sample1=one, sample2=two)
request.metrics[0].metricId, request.metrics[1].metricId = 2, 999
for sample in (one, two):
    nvml.nvmlGpmSampleGet(gpus[0], sample)
nvml.nvmlGpmMetricsGet(request)
answer = {
    "memory": [memory.total >> 20, memory.reserved >> 20, memory.used >> 20, memory.free >> 20],
    "load": [load.gpu, load.memory],
    "fabric": [bytes(fabric.clusterUuid).hex(), fabric.cliqueId, fabric.state, fabric.healthSummary],
    "old fabric": [old.cliqueId, old.state],
    "place": [place.chassisSerialNumber, ord(place.trayIndex)],
    "compute": [[p.pid, p.usedGpuMemory >> 20] for p in nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpus[0])],
    "mps": [[p.pid, p.usedGpuMemory >> 20] for p in nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(gpus[0])],
    "samples": [[p.pid, p.smUtil, p.memUtil] for p in nvml.nvmlDeviceGetProcessUtilization(gpus[0], 0)],
    "infos": [[p.pid, p.smUtil] for p in nvml.nvmlDeviceGetProcessesUtilizationInfo(gpus[0], 0)],
    "gpm": [request.metrics[0].value, request.metrics[1].nvmlReturn],
    "idle": nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpus[1]),
}
""",
    )
    assert found == {
        "memory": [1000, 50, 600, 350],
        "load": [80, 30],
        "fabric": ["0102030405060708090a0b0c0d0e0f10", 7, 3, 1],
        "old fabric": [7, 3],
        "place": ["SN1", 4],
        "compute": [[11, 200]],
        "mps": [[12, 300]],
        "samples": [[11, 55, 5]],
        "infos": [[11, 55]],
        "gpm": [61.5, NOT_SUPPORTED],
        "idle": [],
    }


def test_chip_to_chip_links_are_fields_of_their_own(machine: Path) -> None:
    with machine.open("a") as file:
        file.write("gpu 0 c2c-links=3 c2c-mbps=44712 c2c-down=1\n")
    found = fake.run(
        machine,
        OPEN
        + """
def seen(gpu, field):
    value = nvml.nvmlDeviceGetFieldValues(gpu, [field])[0]
    return [value.nvmlReturn, value.value.uiVal]
answer = [seen(gpus[0], field) for field in (170, (171, 0), (172, 0), (171, 2), (172, 2), (171, 3))]
answer += [seen(gpus[1], 170), seen(gpus[1], (171, 0))[0]]
""",
    )
    assert found[:5] == [[0, 3], [0, 1], [0, 44712], [0, 0], [0, 0]]
    assert found[5][0] == INVALID_ARGUMENT
    assert found[6:] == [[0, 0], NOT_SUPPORTED]


def test_mig_devices_can_be_counted_and_nothing_else(machine: Path) -> None:
    with machine.open("a") as file:
        file.write("gpu 0 mig=1 mig-devices=2\n")
    found = fake.run(
        machine,
        OPEN
        + """
answer = [error(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpus[0], i) for i in range(3)]
answer.append(error(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpus[1], 0))
answer.append(error(nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[0], 0)))
""",
    )
    assert found == [0, 0, NOT_FOUND, NOT_FOUND, INVALID_ARGUMENT]


def test_lines_appended_to_the_live_file_change_a_running_program(machine: Path) -> None:
    found = fake.run(
        machine,
        OPEN
        + LIVE
        + """
def seen():
    return [
        nvml.nvmlDeviceGetClockInfo(gpus[0], nvml.NVML_CLOCK_SM),
        nvml.nvmlDeviceGetCurrentClocksEventReasons(gpus[0]),
        nvml.nvmlDeviceGetNvLinkState(gpus[0], 0),
        nvml.nvmlDeviceGetNvLinkState(gpus[1], 1),
        len(nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpus[0])),
    ]
answer = [seen()]
live("gpu 0 sm-clock=900 throttle=0x4\\nnvlink 0:0 down\\nprocess 0 5 type=compute\\ngpu 0 sm-clo")
answer.append(seen())
live("ck=800\\nprocess 0 5 gone\\nnvlink 0:0 up\\n")
answer.append(seen())
os.truncate(os.environ["BERTH_FAKE_NVML"] + ".live", 0)
answer.append(seen())
live("gpu 1 lost=1\\n")
answer.append(error(nvml.nvmlDeviceGetName, gpus[1]))
""",
    )
    before = [210, 1, 1, 1, 0]
    # A line without its end is not read yet.
    assert found == [before, [900, 4, 0, 0, 1], [800, 4, 1, 1, 0], before, LOST]


def test_counters_grow_with_time_and_only_while_their_reason_holds(machine: Path) -> None:
    with machine.open("a") as file:
        file.write("gpu 0 power-mw=400000 throttle=0x4\n")
    found = fake.run(
        machine,
        OPEN
        + """
import time
def seen(gpu):
    return [field.value.ullVal for field in nvml.nvmlDeviceGetFieldValues(gpu, [74, 269, 83])]
before = [seen(gpu) for gpu in gpus]
time.sleep(0.1)
answer = [[b - a for a, b in zip(old, seen(gpu))] for gpu, old in zip(gpus, before)]
""",
    )
    (capped_ns, thermal_ns, energy_mj), (idle_capped_ns, _, _) = found
    assert 100e6 <= capped_ns < 2e9
    assert energy_mj == pytest.approx(capped_ns / 1e9 * 400_000, rel=0.05)
    assert thermal_ns == idle_capped_ns == 0


def test_an_xid_wakes_the_one_who_waits_and_only_for_registered_gpus(machine: Path) -> None:
    found = fake.run(
        machine,
        OPEN
        + LIVE
        + """
import threading
events = nvml.nvmlEventSetCreate()
nvml.nvmlDeviceRegisterEvents(gpus[1], nvml.nvmlEventTypeXidCriticalError, events)
threading.Timer(0.1, live, ["xid 0 31\\nxid 1 79\\n"]).start()
event = nvml.nvmlEventSetWait(events, 5000)
answer = [nvml.nvmlDeviceGetUUID(event.device), event.eventType, event.eventData]
answer.append(error(nvml.nvmlEventSetWait, events, 20))
answer.append(error(nvml.nvmlDeviceRegisterEvents, gpus[1], nvml.nvmlEventTypePState, events))
nvml.nvmlEventSetFree(events)
""",
    )
    assert found == ["GPU-b", 8, 79, TIMEOUT, NOT_SUPPORTED]


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("gpu 0 uuid=GPU-a name=x memory=1 colour=red\n", 1, 'a GPU has no "colour"'),
        ("# fine\ngpu 1 minor=1\n", 2, "GPU 0 comes next"),
        ("gpu 0-1 nvlinks=2\nnvlink 0:0 1:0\nnvlink 0:0 1:1\n", 3, "joined twice"),
        ("gpu 0-1 nvlinks=2\nnvlink 0:0-1 1:0\n", 2, "as many links"),
        ("gpu 0 nvlinks=99\n", 1, "cannot read"),
        ('gpu 0 name="half\n', 1, "quote"),
        ("gpu 0 memory=-1\n", 1, "cannot read"),
        ("fan 0\n", 1, 'no statement "fan"'),
        ("gpu 0-1 uuid=GPU-a name=x memory=1\n", 1, "share"),
    ],
)
def test_a_bad_machine_file_is_refused_with_file_and_line(tmp_path: Path, text: str, line: int, complaint: str) -> None:
    path = tmp_path / "machine"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"],
        env=fake.environment(path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pynvml.NVMLError" in done.stderr
    assert done.stderr.splitlines()[0].startswith(f"{path}:{line}: ")
    assert complaint in done.stderr.splitlines()[0]


def test_a_missing_machine_file_looks_like_a_missing_driver(tmp_path: Path) -> None:
    code = """
try:
    nvml.nvmlInit()
except nvml.NVMLError_DriverNotLoaded as error:
    answer = str(error)
"""
    assert fake.run(tmp_path / "nothing", code) == "Driver Not Loaded"


def test_what_is_set_holds_for_every_program(machine: Path) -> None:
    code = OPEN + "nvml.nvmlDeviceSetComputeMode(gpus[1], 3)\nanswer = error(nvml.nvmlDeviceSetComputeMode, gpus[0], 1)"
    assert fake.run(machine, code) == INVALID_ARGUMENT
    assert fake.run(machine, OPEN + "answer = [nvml.nvmlDeviceGetComputeMode(gpu) for gpu in gpus]") == [0, 3]


def test_a_process_of_this_machine_is_listed_while_it_lives(machine: Path) -> None:
    code = """
import os, subprocess
real = subprocess.Popen(["/bin/sleep", "60"])
live(f"process 0 {real.pid} type=mps memory=100 real=1\\nprocess 0 99999999 type=mps memory=50 real=1\\n")
def look():
    listed = [process.pid == real.pid for process in nvml.nvmlDeviceGetMPSComputeRunningProcesses(gpus[0])]
    return [listed, nvml.nvmlDeviceGetMemoryInfo(gpus[0]).used >> 20]
answer = [look()]
real.kill()
os.waitid(os.P_PID, real.pid, os.WEXITED | os.WNOWAIT)
answer.append(look())
real.wait()
answer.append(look())
"""
    assert fake.run(machine, OPEN + LIVE + code) == [[[True], 100], [[], 0], [[], 0]]


def test_cores_are_told_where_the_machine_has_them(machine: Path) -> None:
    code = """
answer = [error(nvml.nvmlDeviceGetNumGpuCores, gpus[0])]
live("gpu 0 cores=16896\\n")
answer.append(nvml.nvmlDeviceGetNumGpuCores(gpus[0]))
"""
    assert fake.run(machine, OPEN + LIVE + code) == [NOT_SUPPORTED, 16896]
