# SPDX-License-Identifier: Apache-2.0
"""The simulated libnvidia-ml.so.1 held against NVIDIA's own headers and libraries, and Berth on older libraries."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.fakes import nvml
from tests.nvidia import VERSIONS, cuda_files
from tests.real.packages import DRIVERS, unpacked

pytestmark = [pytest.mark.slow]

SOURCE = Path(nvml.__file__).parent
NEWER = {
    "r535": {
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetMemoryLimits_v1",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetPlatformInfo",
        "nvmlDeviceGetProcessesUtilizationInfo",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceSetMemoryLimits_v1",
    },
    "r550": {
        "nvmlDeviceGetMemoryLimits_v1",
        "nvmlDeviceGetPlatformInfo",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceSetMemoryLimits_v1",
    },
    "r580": {"nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"},
    "r595": {"nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"},
}
"""Functions of the simulated library that a driver's library does not have yet."""
STRUCT = re.compile(r"typedef struct \{(?P<members>.*?)\n\} (?P<name>nvml\w+_t);", re.DOTALL)
MEMBER = re.compile(r"(\w+)(?:\[\w*\])?;$", re.MULTILINE)
NUMBER = re.compile(r"^\t(NVML_\w+)(?: = \w+)?,$", re.MULTILINE)
AFTER_12_9 = {"nvmlGetMemoryLimits_v1_t", "nvmlGpuFabricInfo_v3_t", "nvmlSetMemoryLimits_v1_t"}
OURS_ALONE = {"NVML_LINK_TO_GPU", "NVML_LINK_TO_SWITCH", "NVML_LINK_TO_UNKNOWN"}
"""Short names for values of nvmlIntNvLinkDeviceType_t."""
USE = """
from pathlib import Path
from prolog_epilog.guard.measure.telemetry import Telemetry
from prolog_epilog.node import devices
from topology.providers.nvml import discover
machine = discover("n1", sysfs_root=Path("/nowhere"))
with devices.driver() as driver:
    gpus = driver.gpus()
    processes = [driver.processes(gpu.uuid) for gpu in gpus]
    limited = driver.limit_memory(gpus[0].uuid, "/sys/fs/cgroup", 1000)
    obstacles = [driver.obstacle(gpu.uuid) for gpu in gpus]
telemetry = Telemetry([gpu.uuid for gpu in gpus])
samples = [telemetry.sample(gpu.uuid) is not None for gpu in gpus]
used = [sorted(telemetry.users(gpu.uuid)) for gpu in gpus]
telemetry.close()
links = sorted(str(link) for link in machine.links)
answer = {
    "gpus": [gpu.uuid for gpu in machine.gpus], "links": links, "paths": [list(row) for row in machine.paths],
    "processes": [[one.pid for one in found] for found in processes], "used": used,
    "samples": samples, "obstacles": obstacles, "limited": limited,
}
"""


def symbols(library: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def real(driver: str) -> set[str]:
    """The functions of this driver's library."""
    found = unpacked(driver)
    if isinstance(found, str):
        pytest.skip(f"NVIDIA's {driver} cannot be had: {found}")
    [library] = found.glob("usr/lib/**/libnvidia-ml.so.1")
    return symbols(library)


def test_it_exports_nothing_that_the_drivers_library_does_not(driver: str, real: set[str]) -> None:
    assert symbols(nvml.library()) - real == NEWER[driver]


def test_berth_reads_a_machine_alike_through_the_functions_that_a_driver_has(
    driver: str, real: set[str], tmp_path: Path
) -> None:
    machine = tmp_path / "machine"
    uses = "process 1 4711 type=compute memory=10000\ngpu 0-7 memory-limits=1\n"
    machine.write_text((nvml.MACHINES / "hgx-h100").read_text() + uses)
    names = tmp_path / "names"
    names.write_text(f"{{ global: {' '.join(f'{name};' for name in sorted(real))} local: *; }};\n")
    make = ["make", "--silent", "-C", str(SOURCE), f"BUILD={tmp_path}", f"LDFLAGS=-Wl,--version-script={names}"]
    subprocess.run(make, check=True)
    assert symbols(tmp_path / "libnvidia-ml.so.1") == symbols(nvml.library()) & real

    whole = nvml.run(machine, USE)
    older = nvml.run(machine, USE, through=tmp_path / "libnvidia-ml.so.1")

    assert [4711] in whole["used"]
    assert whole["used"] == whole["processes"]
    assert whole["samples"] == [True] * 8
    assert whole["limited"]
    assert not older.pop("limited")
    assert older == {key: value for key, value in whole.items() if key != "limited"}


def layout(folder: Path, header: Path, expressions: list[str]) -> dict[str, str]:
    """Return the value of each expression, by a program that includes the header."""
    folder.mkdir()
    lines = "".join(f'printf("%ld\\n", (long)({one}));\n' for one in expressions)
    text = f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{ {lines} return 0; }}\n'
    (folder / "one.c").write_text(text)
    subprocess.run(["gcc", "-w", "-o", folder / "one", folder / "one.c"], check=True)
    done = subprocess.run([folder / "one"], capture_output=True, text=True, check=True)
    return dict(zip(expressions, done.stdout.split(), strict=True))


@pytest.mark.hard
def test_structures_and_numbers_are_those_of_the_real_headers(tmp_path: Path) -> None:
    text = re.sub(r"/\*.*?\*/", "", (SOURCE / "abi.h").read_text(), flags=re.DOTALL)
    expressions = []
    for struct in STRUCT.finditer(text):
        # Members of a struct or union within it are found through that one.
        members = re.sub(r"(struct|union) \{.*?\n\t\} ", "", struct["members"], flags=re.DOTALL)
        expressions += [f"offsetof({struct['name']}, {member})" for member in MEMBER.findall(members)]
        if "[]" not in members:
            expressions.append(f"sizeof({struct['name']})")
    expressions += sorted(set(NUMBER.findall(text)) - OURS_ALONE)
    headers = cuda_files(tmp_path / "nvidia")
    assert len(expressions) > 100
    for version in VERSIONS:
        (header,) = headers[version].rglob("nvml.h")
        known = set(re.findall(r"\w+", header.read_text()))
        there = [one for one in expressions if set(re.findall(r"\bnvml\w+", one)) <= known]
        lacking = {name for one in set(expressions) - set(there) for name in re.findall(r"\bnvml\w+", one)}
        assert lacking == (AFTER_12_9 if version == "12" else set())
        ours = layout(tmp_path / f"ours-{version}", SOURCE / "abi.h", there)
        assert layout(tmp_path / f"real-{version}", header, there) == ours, version
