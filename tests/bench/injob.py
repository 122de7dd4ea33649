# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=injob`: what the part inside the job costs, and how well it holds the duty that the guard orders.

Launches and duty of the library are measured on the simulated driver. What things cost is processor time, so that a
busy machine gives the same figures. The figures of the PyTorch hooks need a Python
that has torch: this one, or the one that BERTH_TORCH_PYTHON names; without one they are left out, and a line says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prolog_epilog.injob import word
from prolog_epilog.injob.job import Job
from prolog_epilog.injob.word import OPEN, OrderPage
from tests.fakes import cuda

from .table import Figure, at_most, report

SITE = Path(word.__file__).parent / "site"
PYTHON = os.environ.get("BERTH_TORCH_PYTHON", sys.executable)
DUTIES = (50, 100, 250, 500, 750, 900, 950)
STEP_MS = 50.0
"""The step that the hooks' overhead is compared with."""

STEPS = """
import json, sys, time, torch
torch.set_num_threads(1)
parameter = torch.nn.Parameter(torch.ones(4))
model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(50)])
parameter.grad = torch.ones(4)
optimizer = torch.optim.SGD([parameter], lr=0.1)
def steps(count):
    began = time.process_time()
    for _ in range(count): model(parameter); optimizer.step()
    return (time.process_time() - began) / count * 1e6
steps(500)
print(json.dumps(min(steps(1000) for _ in range(7))))
"""
DUTY = """
import json, os, random, sys, time, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import berth_injob
from prolog_epilog.injob import word
torch.set_num_threads(1)
path = Path(os.environ["BERTH_WORD"])
page = word.OrderPage(path)
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dice = random.Random(1)
def step():
    length = dice.choice([0.01, 0.02, 0.05, 0.1]) * dice.lognormvariate(0, 0.3)
    began = time.perf_counter()
    model(torch.ones(2, 8)).sum().backward()
    left = length - (time.perf_counter() - began)
    if left > 0: time.sleep(left)
    optimizer.step()
def idle(): return next(one.idle_ns for one in word.read_beats(path) if one.pid == os.getpid()) / 1e9
step(); step()
held = {}
for duty in json.loads(sys.argv[2]):
    page.give(duty, lease_s=600)
    time.sleep(0.1)
    for _ in range(4): step()
    began, before = time.perf_counter(), idle()
    while time.perf_counter() - began < float(sys.argv[3]): step()
    held[duty] = 1 - (idle() - before) / (time.perf_counter() - began)
print(json.dumps(held))
"""
LAUNCHES = """
from pathlib import Path
from prolog_epilog.injob.word import OrderPage, read_beats
import json
path = Path(os.environ["BERTH_WORD"])
page = OrderPage(path)
Context()
work = kernel(500)
call("cuLaunchKernel", work, *[1] * 6, 0, None, None, None)
def idle(): return next(one.idle_ns for one in read_beats(path) if one.pid == os.getpid()) / 1e9
def run(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until: call("cuLaunchKernel", work, *[1] * 6, 0, None, None, None)
    cuda.cuCtxSynchronize()
held = {{}}
for duty in {duties}:
    page.give(duty, lease_s=600)
    run(0.5)
    began, before, busy = time.monotonic(), idle(), cuda.fakeCudaBusyNs(0)
    run({seconds})
    took = time.monotonic() - began
    held[duty] = [1 - (idle() - before) / took, (cuda.fakeCudaBusyNs(0) - busy) / 1e9 / took]
print(json.dumps(held))
"""


def launch_ns(made: Path, launches: int, threads: int, *, preload: bool) -> float:
    environment = cuda.environment(str(made), preload=preload)
    command = [str(cuda.launcher()), str(launches), str(threads)]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def launches(made: Path, count: int, rounds: int) -> list[Figure]:
    figures = []
    OrderPage(made).give(OPEN, lease_s=3600)
    for threads, name in ((1, "launch_open_ns"), (2, "launch_open_two_threads_ns")):
        pairs = [[launch_ns(made, count, threads, preload=preload) for preload in (True, False)] for _ in range(rounds)]
        ours, bare = (statistics.median(one) for one in zip(*pairs, strict=True))
        figures.append(at_most(name, ours, 100, "ns", "without the library", bare))
    return figures


def calls(made: Path) -> list[Figure]:
    """What the plain API costs while the gate is open."""
    job = Job((made,))
    job.ready()

    def each(call: Any) -> float:
        began = time.process_time()
        for _ in range(20_000):
            call()
        return (time.process_time() - began) / 20_000 * 1e6

    return [
        Figure(f"{name}_us", min(each(call) for _ in range(5)), "us")
        for name, call in (("gate", job.gate), ("step", job.step))
    ]


def library_duty(made: Path, seconds: float) -> list[Figure]:
    code = LAUNCHES.format(duties=list(DUTIES), seconds=seconds)
    held = json.loads(cuda.run(code, str(made)))
    idle = max(abs(by_idle - int(duty) / 1000) for duty, (by_idle, _) in held.items())
    beyond = [busy - int(duty) / 1000 for duty, (_, busy) in held.items()]
    return [
        at_most("library_duty_error", 100 * idle, 2, "points"),
        # How much busier the GPU was than ordered; it is less busy where the program launches too slowly.
        at_most("library_gpu_over_duty", 100 * max(beyond), 2, "points"),
        Figure("library_gpu_least_over_duty", 100 * min(beyond), "points"),
    ]


def torch_runs(code: str, made: Path, *arguments: str, site: bool) -> Any:
    changed = {"BERTH_WORD": str(made)} | ({"PYTHONPATH": str(SITE)} if site else {})
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", code, *arguments],
        env=os.environ | changed, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def hooks(made: Path, seconds: float) -> list[Figure]:
    OrderPage(made).give(OPEN, lease_s=3600)
    pairs = [[torch_runs(STEPS, made, site=site) for site in (True, False)] for _ in range(3)]
    with_us, alone = (min(one) for one in zip(*pairs, strict=True))
    share = (with_us - alone) / 1000 / STEP_MS
    held = torch_runs(DUTY, made, str(SITE), json.dumps(DUTIES), str(seconds), site=False)
    error = max(abs(value - int(duty) / 1000) for duty, value in held.items())
    return [
        at_most("hooks_percent_of_50ms", 100 * share, 1, "%"),
        Figure("hooks_step_us", with_us, "us", "without hooks", alone),
        at_most("torch_duty_error", 100 * error, 2, "points"),
    ]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.injob", description=main.__doc__)
    parser.add_argument("--launches", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="at each duty")
    given = parser.parse_args()
    has_torch = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    with tempfile.TemporaryDirectory() as folder:
        (made,) = word.create(Path(folder) / "42", [cuda.uuid(0)], os.getuid(), os.getgid())
        figures = [
            *launches(made, given.launches, given.rounds),
            *calls(made),
            *library_duty(made, given.seconds),
            *(hooks(made, given.seconds) if has_torch else ()),
        ]
    if not has_torch:
        print("no torch here: the figures of the hooks are left out; BERTH_TORCH_PYTHON names a Python that has it")
    notes = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "launches": f"{given.launches}, median of {given.rounds} rounds",
        "duties": ", ".join(f"{duty / 10:g} %" for duty in DUTIES),
    }
    report("injob", "inside the job: launches, gate, hooks", figures, notes)


if __name__ == "__main__":
    main()
