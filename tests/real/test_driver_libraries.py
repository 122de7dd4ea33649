# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's real libnvidia-ml.so.1 and libcuda.so.1 without a GPU: each program answers with one sentence."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.all import ROOT
from tests.gpu.client import DevResource
from tests.nvidia import cuda_files
from tests.real.packages import DRIVERS, unpacked
from tests.unit.node_world import World, berth
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="the driver is loaded here"),
]

NOT_LOADED = r"([Dd]river Not Loaded|Unknown Error)"
"""The second from driver 580 on, where the machine lets it make no device file, as in a container."""


@pytest.fixture(params=DRIVERS)
def libraries(request: pytest.FixtureRequest) -> str:
    """The folder with the libraries of this driver."""
    found = unpacked(str(request.param))
    if isinstance(found, str):
        pytest.skip(f"NVIDIA's {request.param} cannot be had: {found}")
    [library] = found.glob("usr/lib/**/libnvidia-ml.so.1")
    return str(library.parent)


def run(libraries: str, *words: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def berth_command(libraries: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run(libraries, "-c", f"from policy.cli.main import main; raise SystemExit(main({list(words)!r}))")


def test_the_doctor_names_the_driver_in_one_line(libraries: str) -> None:
    done = berth_command(libraries, "doctor", "node")

    assert re.search(rf"^FAIL +driver: .*{NOT_LOADED}.*; .*$", done.stdout, re.MULTILINE)
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", [("topo", "discover"), ("calibrate", "node")])
def test_a_command_that_needs_a_gpu_ends_with_a_sentence(libraries: str, words: tuple[str, ...]) -> None:
    done = berth_command(libraries, *words)

    assert done.returncode not in {0, -11}
    assert re.fullmatch(rf"berth[a-z ]*: .*{NOT_LOADED}.*\[BERTH-\d+\]\n", done.stderr)


def test_a_prolog_stops_the_share_and_leaves_the_node_in_service(libraries: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.environment["LD_LIBRARY_PATH"] = libraries
    world.settings |= {"jobs_for_dcgm": str(tmp_path / "dcgm"), "mps_control": "/bin/true"}

    done = world.run("prolog", berth(0, share=30, way="mps"), "0")

    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines
    assert all(re.search(rf"{NOT_LOADED}.*\[BERTH-\d+\]", line) for line in lines)
    assert "status=degraded" in (world.jobs / "7").read_text()
    assert world.run("epilog", berth(0, share=30, way="mps"), "0").returncode == 0


def hears(program: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Tells whether a program that was started acts on a signal by now."""
    for line in Path(f"/proc/{program.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def test_a_guard_goes_on_without_a_driver(libraries: str, tmp_path: Path) -> None:
    (tmp_path / "berth.conf").write_text("[guard]\n")
    code = "from prolog_epilog.guard.program import main; raise SystemExit(main())"
    guard = subprocess.Popen(
        [sys.executable, "-c", code, "--config", str(tmp_path / "berth.conf"), "--root", str(tmp_path / "run")],
        cwd=ROOT, env=os.environ | {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until("the guard to be at work", lambda: hears(guard, signal.SIGTERM) or guard.poll() is not None)
    with pytest.raises(subprocess.TimeoutExpired):
        guard.wait(4.0)
    guard.terminate()
    said, _ = guard.communicate(timeout=20)
    assert guard.returncode == 0
    assert "Traceback" not in said


def test_cuda_says_that_there_is_no_gpu(libraries: str) -> None:
    done = run(libraries, "-m", "tests.gpu.client", "sms")

    assert (done.returncode, done.stdout) == (1, "cuInit 100\n")


def test_the_structure_of_green_contexts_is_cudas(tmp_path: Path) -> None:
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <cuda.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        'int main(void) { printf("%zu %zu %d", sizeof(CUdevResource), offsetof(CUdevResource, sm.smCount),'
        " CU_DEV_RESOURCE_TYPE_SM); }\n"
    )
    for version, folder in cuda_files(tmp_path / "wheels").items():
        [header] = folder.rglob("cuda.h")
        program = tmp_path / f"sizes-{version}"
        subprocess.run(["gcc", f"-I{header.parent}", str(source), "-o", str(program)], check=True)
        shown = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        assert shown == f"{ctypes.sizeof(DevResource)} {DevResource.sm_count.offset} 1"
