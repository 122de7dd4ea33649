# SPDX-License-Identifier: Apache-2.0
"""The kernels' PTX: what old drivers take, and what the assemblers of two CUDA versions make of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.nvidia import VERSIONS, cuda_files
from topology.calibrate.kernels import AMPERE, VOLTA, Ptx

ARCHITECTURES = {
    VOLTA: {"12": [70, 75], "13": [75]},
    AMPERE: {"12": [80, 86, 89, 90, 100, 120], "13": [80, 86, 89, 90, 100, 120]},
}
"""CUDA 13 has given up Volta."""


@pytest.mark.parametrize(
    ("ptx", "head", "product"),
    [
        (VOLTA, ".version 6.3\n.target sm_70\n", "wmma.mma.sync.aligned.row.col.m16n16k16"),
        (AMPERE, ".version 7.0\n.target sm_80\n", "mma.sync.aligned.m16n8k16"),
    ],
    ids=["volta", "ampere"],
)
def test_the_kernels_come_as_ptx_that_old_drivers_take(ptx: Ptx, head: str, product: str) -> None:
    text = ptx.path.read_text()

    kernels = {"compute", "fma32", "fill", "triad"}
    assert {name for name in kernels if f".visible .entry {name}(" in text} == kernels
    assert head in text
    assert product in text
    # What the launches assume of the arguments.
    assert "compute_param_1\n" in text
    assert "triad_param_3\n" in text
    assert "fma32_param_1\n" in text
    assert "fill_param_1\n" in text
    assert "fma.rn.f32" in text


@pytest.fixture(scope="module")
def assemblers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return ptxas of CUDA 12 and 13."""
    found = {}
    for version, folder in cuda_files(tmp_path_factory.mktemp("nvidia")).items():
        (found[version],) = folder.rglob("ptxas")
        found[version].chmod(0o755)
    return found


@pytest.mark.hard
@pytest.mark.parametrize("ptx", [VOLTA, AMPERE], ids=["volta", "ampere"])
@pytest.mark.parametrize("cuda", VERSIONS)
def test_the_assemblers_of_cuda_12_and_13_take_each_kernel_for_each_gpu(
    assemblers: dict[str, Path], ptx: Ptx, cuda: str, tmp_path: Path
) -> None:
    for architecture in ARCHITECTURES[ptx][cuda]:
        words = [str(assemblers[cuda]), f"-arch=sm_{architecture}", str(ptx.path), "-o", str(tmp_path / "made")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (architecture, done.stderr)
