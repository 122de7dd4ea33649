# SPDX-License-Identifier: Apache-2.0
"""Runs a command against the simulated GPU, and NVIDIA's real control program of MPS with the stub server.

    python -m tests.gpu.simulated r550 bash tests/gpu/window.sh

So the windows run from end to end without a GPU. What a GPU does with limits and faults is not shown by that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fakes import cuda, nvml
from tests.fakes.place import copy_of
from tests.real.control_program import install

__all__ = ["environment", "main"]

_MEMORY_MIB = 81_559
_MACHINE = f"""driver 580.159.04
nvml 13.580.159.04
cuda 13000
gpu 0 minor=0 uuid={cuda.uuid(0)} name="NVIDIA H100 80GB HBM3" sm=9.0 memory={_MEMORY_MIB} reserved=553
gpu 0 pci=0000:1b:00.0 numa=0 pcie=0/0/0 cpus=0 sm-clock=1980 sm-clock-max=1980 mem-clock=2619 mem-clock-max=2619
gpu 0 power-mw=690000 power-limit-mw=700000 temp=60 util=0
"""


def environment(driver: str, folder: Path) -> dict[str, str]:
    """An environment with one simulated H100 and the control program of this driver, whose files lie in `folder`."""
    control = install(driver, folder / "bin")
    machine = folder / "machine"
    machine.write_text(_MACHINE)
    kernels, live = folder / "kernels", folder / "machine.live"
    for shared in (kernels, live):
        shared.touch()
        shared.chmod(0o666)
    libraries = (cuda.library().parent, copy_of(nvml.library().parent, "nvml"))
    return os.environ | {
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "BERTH_FAKE_NVML": str(machine),
        "BERTH_FAKE_CUDA_MEMORY": str(_MEMORY_MIB << 20),
        "BERTH_FAKE_CUDA_SHARED": str(kernels),
        "BERTH_MPS_CONTROL": control,
        "PY": sys.executable,
    }


def main() -> int:
    """Run the command; returns its exit status."""
    driver, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="berth-gpu-", dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        return subprocess.run(command, env=environment(driver, folder), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
