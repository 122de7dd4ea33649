# SPDX-License-Identifier: Apache-2.0
"""On a real GPU: memory scaling in a real training, quota, gate and graphs; needs torch with CUDA, and gcc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prolog_epilog.injob import word
from prolog_epilog.injob.word import OPEN, OrderPage, read_beats
from tests.fakes import cuda

pytestmark = pytest.mark.gpu

SITE = Path(word.__file__).parent / "site"
PYTHON = os.environ.get("BERTH_TORCH_PYTHON", sys.executable)
MIB, GIB = 1 << 20, 1 << 30
BEGIN = """
import json, os, sys, time, torch
from pathlib import Path
import berth_injob
from prolog_epilog.injob import word
WORD = Path(os.environ["BERTH_WORD"])
page = word.OrderPage(WORD)
torch.manual_seed(1)
torch.backends.cuda.matmul.allow_tf32 = False
device = torch.device("cuda")
def order(duty=1000, memory=0, host=0, quota=0): page.give(duty, memory, host, quota=quota, lease_s=600)
def beat(): return word.read_beats(WORD)[0]
def model(width=2048, layers=16):
    return torch.nn.Sequential(*[one for _ in range(layers) for one in (torch.nn.Linear(width, width), torch.nn.GELU())]
                               ).to(device)
batch = torch.randn(8192, 2048, device=device)
def step(net, optimizer):
    optimizer.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    done = subprocess.run(
        [PYTHON, "-c", "import torch; print(torch.cuda.is_available() and torch.cuda.get_device_properties(0).uuid)"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    name = done.stdout.strip()
    if done.returncode or name in {"", "False"}:
        pytest.skip("no torch with a GPU here: name a Python that has it, BERTH_TORCH_PYTHON")
    return word.create(tmp_path / "42", [f"GPU-{name}"], os.getuid(), os.getgid())[0]


def run(code: str, made: Path, **more: str) -> Any:
    environment = os.environ | {"BERTH_WORD": str(made), "PYTHONPATH": str(SITE), **more}
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", BEGIN + code],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


TRAINING = """
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
losses, peaks = [], []
for number in range(60):
    if number == 20 and SCALED: order(memory=int(TARGET), host=16 << 30)
    if number == 40: order()
    torch.cuda.reset_peak_memory_stats()
    losses.append(step(net, optimizer).item())
    peaks.append(torch.cuda.max_memory_allocated())
print(json.dumps([losses, peaks, beat().spilled]))
"""


def test_state_and_activations_go_and_return_and_the_loss_curve_is_the_same(made: Path) -> None:
    losses, peaks, _ = run(TRAINING.replace("SCALED", "False"), made)
    target = int(0.6 * max(peaks))
    code = TRAINING.replace("SCALED", "True").replace("TARGET", str(target))

    scaled, scaled_peaks, left = run(code, made)

    assert scaled == losses
    assert max(scaled_peaks[30:39]) <= target * 1.05
    assert max(scaled_peaks[50:]) > target
    assert left == 0


@pytest.mark.parametrize("duty", [100, 500, 900])
def test_the_gpu_idles_as_ordered(made: Path, duty: int) -> None:
    code = f"""
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
def rate(seconds):
    torch.cuda.synchronize(); began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds: step(net, optimizer); count += 1
    torch.cuda.synchronize(); return count / (time.perf_counter() - began)
rate(2)
alone = rate(3)
order({duty}); rate(1)
print(json.dumps(rate(6) / alone))
"""
    assert run(code, made) == pytest.approx(duty / 1000, abs=0.05)


def test_a_recorded_step_beats_and_is_gated_and_nothing_moves(made: Path) -> None:
    code = """
net = model(layers=4)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3): step(net, optimizer)
torch.cuda.current_stream().wait_stream(side)
order(500, memory=1 << 20, host=16 << 30)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): step(net, optimizer)
before = beat()
for _ in range(50): graph.replay()
torch.cuda.synchronize()
after = beat()
print(json.dumps([after.steps - before.steps, after.idle_ns > before.idle_ns, after.spilled]))
"""
    steps, idled, spilled = run(code, made)

    assert steps >= 40
    assert idled
    assert spilled == 0


def test_the_library_keeps_quota_and_gate_of_a_program_that_knows_nothing(made: Path) -> None:
    preload = {"LD_PRELOAD": str(cuda.injob_library())}
    OrderPage(made).give(OPEN, quota=4 * GIB, lease_s=600)
    code = """
kept = torch.empty(3 << 30, dtype=torch.uint8, device=device)
try: torch.empty(2 << 30, dtype=torch.uint8, device=device); refused = False
except torch.cuda.OutOfMemoryError: refused = True
one = torch.randn(4096, 4096, device=device)
def rate(seconds):
    torch.cuda.synchronize(); began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds: one @ one; count += 1
    torch.cuda.synchronize(); return count / (time.perf_counter() - began)
rate(1); alone = rate(3); order(250, quota=4 << 30); rate(1)
print(json.dumps([refused, torch.cuda.mem_get_info()[1] <= 4 << 30, rate(5) / alone]))
"""
    refused, small, rate = run(code, made, **preload)

    assert refused
    assert small
    assert rate == pytest.approx(0.25, abs=0.05)
    assert read_beats(made) == ()
