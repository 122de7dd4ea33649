# SPDX-License-Identifier: Apache-2.0
"""Calibration on a real GPU: runs agree with each other, and the kernels do what they say."""

import pytest

pytest.importorskip("pynvml")

from policy.cli.main import main
from topology.calibrate.runs import Visit, load, verdict

pytestmark = pytest.mark.gpu

KERNELS = {"own": ["--own-kernels"], "installed": []}
"""Ours, and cuBLAS where that is installed."""


@pytest.fixture(scope="module", params=KERNELS)
def visits(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Visit, ...]:
    """Three measurements of this machine."""
    path = tmp_path_factory.mktemp("runs") / "runs"
    for _ in range(3):
        assert main(["calibrate", "node", "--node", "n1", "--output", str(path), *KERNELS[request.param]]) == 0
    return load(path)


def test_three_runs_agree_within_half_a_percent(visits: tuple[Visit, ...]) -> None:
    for position in range(len(visits[0].gpus)):
        times = [visit.gpus[position].runs[0].time_ms for visit in visits]
        print(f"compute on GPU {position}, {visits[0].gpus[position].runs[0].kernel}: {times} ms")
        assert max(times) / min(times) <= 1.005
    assert not any(verdict(gpu, run) for visit in visits for gpu in visit.gpus for run in gpu.runs)


def test_the_clock_stands_before_the_first_phase_begins(visits: tuple[Visit, ...]) -> None:
    for visit in visits:
        for gpu in visit.gpus:
            print(f"GPU {gpu.position}: steady after {gpu.steady_s} s")
            assert gpu.steady_s < 15.0


def test_each_phase_and_each_copy_has_a_throughput(visits: tuple[Visit, ...]) -> None:
    for gpu in visits[-1].gpus:
        for run in gpu.runs:
            print(f"{run.kernel}: {run.tflops} TFLOP/s, {run.gb_per_s} GB/s")
            assert max(run.tflops, run.gb_per_s) > 1.0
        rates = {link.kind: link.gb_per_s for link in gpu.links}
        print(rates)
        assert min(rates.values()) > 1.0
