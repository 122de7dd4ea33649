# SPDX-License-Identifier: Apache-2.0
"""A training job as host and a second one as guest on a real GPU: exclusive, time slices, MPS, and berth-guard.

Slurm is not needed: the share files are those that a Prolog would have written. The GPU's settings stay as they are.
`make bench NAME=gpu-guard` keeps the figures in build/bench/gpu-guard.json.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pynvml
import pytest

from prolog_epilog.injob import word
from prolog_epilog.job.extra import GUARANTEED, OPPORTUNISTIC
from prolog_epilog.mps import lifecycle
from prolog_epilog.node import devices, files
from prolog_epilog.node.devices import Driver, NodeGpu
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.sharing import time_slices
from prolog_epilog.tenants import arrivals, share_file
from prolog_epilog.tenants.share_file import ShareRecord
from prolog_epilog.tenants.state import Tenant
from tests.bench.table import Figure, report

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
CONTROL = os.environ.get("BERTH_MPS_CONTROL", NodeConfig().mps_control)
CONFIG = NodeConfig(mps_control=CONTROL)
HOST, GUEST = 1, 2
SECONDS = float(os.environ.get("BERTH_GUARD_S", "40"))
SETTLED = 0.5
"""The part of a run that is judged: the guard learns the host's own speed first."""
GUARD = "from prolog_epilog.guard.program import main; raise SystemExit(main())"


@dataclass
class Node:
    """This GPU, and berth-guard where it runs."""

    paths: Paths
    gpu: NodeGpu
    figures: list[Figure] = field(default_factory=list)

    def seat(self, job: int, tier: str) -> dict[str, str]:
        """What a job's Prolog leaves; the job's environment."""
        word.create(self.paths.word(job), (self.gpu.uuid,), 0, -1)
        time_slices.attach(self.paths, [self.gpu], Tenant(job, 0, 0, tier=tier))
        folder = str(self.paths.word(job))
        share_file.write(
            self.paths,
            ShareRecord(job, 0, gpus=(self.gpu.position,), minors=(self.gpu.minor,), uuids=(self.gpu.uuid,), way="time",
                  tier=tier, node="here", word=folder),
        )  # fmt: skip
        return {"BERTH_WORD": f"{folder}/{self.gpu.uuid}", "CUDA_VISIBLE_DEVICES": self.gpu.uuid}

    def leave(self) -> None:
        for job in (HOST, GUEST):
            time_slices.detach(self.paths, job)
            self.paths.job(job).unlink(missing_ok=True)
            shutil.rmtree(self.paths.word(job), ignore_errors=True)

    def keep(self, name: str, value: float, unit: str) -> None:
        print(f"{name}: {value:.4g} {unit}")
        self.figures.append(Figure(name, value, unit))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    if os.geteuid():
        pytest.skip("the guard runs as root")
    with devices.driver() as nvml:
        gpu = nvml.gpus()[0]
        about = {
            "gpu": str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))),
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        }
    root = Path(tempfile.mkdtemp(prefix="berth-", dir="/run"))
    root.chmod(0o755)
    found = Node(Paths(root), gpu)
    files.prepare(found.paths)
    yield found
    shutil.rmtree(root)
    report("gpu-guard", "A training job and its guest on a real GPU", found.figures, about)


def train(environment: dict[str, str], seconds: float = SECONDS) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "BERTH_WORD"))}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.client", "train", str(seconds)],
        env=clean | environment, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def steps(job: subprocess.Popen[str]) -> list[float]:
    """Milliseconds of each step once all has settled."""
    printed, _ = job.communicate(timeout=SECONDS + 60)
    assert job.returncode == 0
    took = [float(one) for one in printed.split()[1:]]
    return took[int(len(took) * SETTLED) :]


@pytest.fixture(scope="module")
def alone(node: Node) -> float:
    """Milliseconds of a step of a job that has the GPU for itself."""
    took = statistics.median(steps(train({"CUDA_VISIBLE_DEVICES": node.gpu.uuid}, SECONDS / 2)))
    node.keep("alone_step", took, "ms")
    return took


def beside(node: Node, alone: float, way: str, host: dict[str, str], guest: dict[str, str]) -> tuple[float, float]:
    """How much slower the host's steps became, and the guest's part of a GPU of its own."""
    jobs = train(host), train(guest)
    took = [steps(job) for job in jobs]
    slowdown = statistics.median(took[0]) / alone - 1
    gain = alone * len(took[1]) / sum(took[1])
    node.keep(f"{way}_host_slowdown", 100 * slowdown, "%")
    node.keep(f"{way}_host_slowdown_p99", 100 * (statistics.quantiles(took[0], n=100)[98] / alone - 1), "%")
    node.keep(f"{way}_guest", 100 * gain, "% of a GPU of its own")
    return slowdown, gain


def test_time_slices_halve_the_host(node: Node, alone: float) -> None:
    see = {"CUDA_VISIBLE_DEVICES": node.gpu.uuid}
    slowdown, gain = beside(node, alone, "time_slices", see, see)
    assert slowdown > 0.3
    assert gain > 0.2


def test_mps_alone_harms_the_host(node: Node, alone: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path(CONFIG.mps_control).exists():
        pytest.skip(f"no MPS here: {CONFIG.mps_control}")
    monkeypatch.setattr(Driver, "set_compute_mode", lambda *_: None)
    held = [
        lifecycle.attach(node.paths, CONFIG, [node.gpu], Tenant(job, 0, 100, tier=tier)).environment
        for job, tier in ((HOST, GUARANTEED), (GUEST, OPPORTUNISTIC))
    ]
    try:
        slowdown, _ = beside(node, alone, "mps", held[0], held[1])
    finally:
        for job in (HOST, GUEST):
            lifecycle.detach(node.paths, CONFIG, job)
    assert slowdown > 0.05


def test_the_guard_protects_the_host(node: Node, alone: float) -> None:
    config = node.paths.root / "berth.conf"
    config.write_text("[guard]\n")
    guard = subprocess.Popen(
        [sys.executable, "-c", GUARD, "--config", str(config), "--root", str(node.paths.root)], cwd=ROOT
    )
    try:
        until = time.monotonic() + 10
        while not arrivals.guard_lives(node.paths):
            assert time.monotonic() < until
            time.sleep(0.1)
        host, guest = node.seat(HOST, GUARANTEED), node.seat(GUEST, OPPORTUNISTIC)
        slowdown, gain = beside(node, alone, "guard", host, guest)
    finally:
        guard.terminate()
        guard.wait(timeout=20)
        node.leave()
    assert slowdown <= 0.05
    assert gain > 0
