# SPDX-License-Identifier: Apache-2.0
"""What the guard reads off a device, through real pynvml and a simulated driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import nvml

pytestmark = pytest.mark.slow

CODE = """
import time
from pathlib import Path
from prolog_epilog.guard.measure.telemetry import Telemetry
live = Path({live!r})
nvml.nvmlInit()
uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(1))
telemetry = Telemetry([uuid])
with live.open("a") as file:
    file.write({happens!r})
time.sleep(0.15)
one = telemetry.sample(uuid)
sample = None if one is None else [one.utilisation, one.sm_active, one.clock, one.held_back, one.memory, one.bandwidth]
parts = None if one is None else [one.pipes, one.dram]
limit = None if one is None else [one.sm_mhz, one.power_limit_w, one.at_power_limit]
answer = [sample, sorted(telemetry.users(uuid)), telemetry.xid(1.0), telemetry.uuids == {{uuid}}, uuid, parts, limit]
telemetry.close()
"""


def told(tmp_path: Path, name: str, happens: str) -> Any:
    machine = tmp_path / "machine"
    machine.write_text((nvml.MACHINES / name).read_text())
    return nvml.run(machine, CODE.format(live=f"{machine}.live", happens=happens))


def test_a_hopper_tells_its_busy_sms_and_pipes(tmp_path: Path) -> None:
    happens = (
        "gpu 1 util=97 mem-util=31 gpm-sm-active=42 gpm-fp32=12 gpm-tensor=31 gpm-dram=55\n"
        "gpu 1 sm-clock=990 sm-clock-max=1980 throttle=0x4\n"
        "gpu 1 memory=80000 reserved=0 used=20000\n"
        "process 1 4711 type=compute memory=10000\nprocess 1 4712 type=mps memory=10000\nxid 1 79\n"
    )
    sample, users, xid, watched, uuid, parts, limit = told(tmp_path, "hgx-h100", happens)

    assert sample == [0.97, 0.42, 0.5, True, 0.5, 0.31]
    assert parts == [0.31, 0.55], "the busiest kind of pipe"
    assert limit == [990, 700.0, True]
    assert users == [4711, 4712]
    assert xid == [uuid, 79]
    assert watched


LOST = """
from pathlib import Path
from prolog_epilog.guard.measure.telemetry import Telemetry
live = Path({live!r})
nvml.nvmlInit()
uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number)) for number in (0, 1)]
with live.open("a") as file:
    print("gpu 0 lost=1", file=file)
telemetry = Telemetry(uuids)
answer = [[telemetry.sample(uuid) is not None for uuid in uuids], telemetry.uuids == set(uuids),
          [sorted(telemetry.users(uuid)) for uuid in uuids],
          [bool(one and one.memory_bytes) for one in map(telemetry.sample, uuids)]]
with live.open("a") as file:
    print("gpu 0 lost=0", "xid 0 79", sep=chr(10), file=file)
answer += [[telemetry.sample(uuid) is not None for uuid in uuids], telemetry.xid(1.0) == (uuids[0], 79)]
telemetry.close()
"""


def test_a_gpu_that_is_lost_costs_the_others_no_metrics(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    machine.write_text((nvml.MACHINES / "hgx-h100").read_text())

    seen, watched, users, memory, again, hears = nvml.run(machine, LOST.format(live=f"{machine}.live"))

    assert (seen, watched, users, memory) == ([False, True], True, [[], []], [False, True])
    assert again == [True, True]
    assert hears


def test_who_draws_uses_the_gpu_as_well(tmp_path: Path) -> None:
    happens = "process 1 4711 type=compute memory=10\nprocess 1 4713 type=graphics memory=10\n"

    assert told(tmp_path, "hgx-h100", happens)[1] == [4711, 4713]


@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
def test_a_driver_that_cannot_tell_one_kind_of_users_tells_the_others(tmp_path: Path, kind: str) -> None:
    kinds = {"Compute": (4710, "compute"), "Graphics": (4711, "graphics"), "MPSCompute": (4712, "mps")}
    happens = f"refuse nvmlDeviceGet{kind}RunningProcesses_v3 not-supported\n"
    happens += "".join(f"process 1 {pid} type={one} memory=10\n" for pid, one in kinds.values())

    expected = [pid for name, (pid, _) in kinds.items() if name != kind]
    assert told(tmp_path, "hgx-h100", happens)[1] == expected


def test_an_older_device_has_utilisation_alone(tmp_path: Path) -> None:
    sample, _, xid, *_ = told(tmp_path, "dgx-1v", "gpu 1 util=50 throttle=0x1\n")

    assert sample[:2] == [0.5, None]
    assert sample[3] is False  # a clock that is low because the GPU idles is nobody's harm
    assert xid is None


def test_a_clock_that_heat_lowers_is_not_one_at_the_power_limit(tmp_path: Path) -> None:
    *_, limit = told(tmp_path, "hgx-h100", "gpu 1 sm-clock=990 sm-clock-max=1980 throttle=0x44\n")

    assert limit[2] is False


@pytest.mark.parametrize("call", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetCurrentClocksEventReasons"])
def test_a_metric_that_a_device_lacks_is_judged_by_nobody(tmp_path: Path, call: str) -> None:
    sample, *_ = told(tmp_path, "dgx-1v", f"refuse {call} not-supported\n")
    assert sample is not None
    assert sample[3] is False


def test_a_driver_that_fails_gives_no_sample(tmp_path: Path) -> None:
    sample, *_ = told(tmp_path, "dgx-1v", "refuse nvmlDeviceGetUtilizationRates unknown\n")
    assert sample is None
