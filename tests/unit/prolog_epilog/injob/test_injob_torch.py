# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the CPU: heartbeat, gate and memory scaling without a change to the program.

Needs a Python that has torch: this one, or the one that BERTH_TORCH_PYTHON names.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from prolog_epilog.injob import word
from prolog_epilog.injob.word import OrderPage

Test = TypeVar("Test", bound=Callable[..., None])

SITE = Path(word.__file__).parent / "site"
PYTHON = os.environ.get("BERTH_TORCH_PYTHON", sys.executable)


@functools.cache
def torch_version() -> str:
    done = subprocess.run(
        [PYTHON, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def needs_torch(test: Test) -> Test:
    """Mark a test that `make test-hard` runs, with PyTorch in an environment of its own."""
    skip = pytest.mark.skipif(not torch_version(), reason="no torch here: name a Python with it, BERTH_TORCH_PYTHON")
    marked: Test = pytest.mark.torch(skip(test))
    return marked


BEGIN = """
import json, os, sys, threading, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
torch.manual_seed(1)
torch.set_num_threads(1)
WORD = Path(os.environ["BERTH_WORD"].split(":")[0]) if os.environ.get("BERTH_WORD") else None
def training(steps, spin=0.0, layers=4, optimizer=torch.optim.SGD):
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(layers)])
    chosen = optimizer(model.parameters(), lr=0.01)
    for number in range(steps):
        began = time.perf_counter()
        chosen.zero_grad()
        loss = model(torch.ones(8, 64)).square().mean()
        loss.backward()
        length = spin(number) if callable(spin) else spin
        if length: time.sleep(max(length - (time.perf_counter() - began), 0))
        chosen.step()
    return loss.item()
"""
GUARD = """
from prolog_epilog.injob import word
def beats(): return word.read_beats(WORD)
"""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return word.create(tmp_path / "42", ["GPU-a"], os.getuid(), os.getgid())[0]


def run(code: str, words: object = "", *, site: bool = True, **more: str) -> Any:
    """Run a user's program that prints one line of JSON, in an environment as SPANK makes it."""
    changed = {"BERTH_WORD": str(words), "BERTH_INJOB": "verbose", **more}
    if site:
        changed["PYTHONPATH"] = str(SITE)
    done = subprocess.run(
        [PYTHON, "-c", BEGIN + code], env=os.environ | changed, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@needs_torch
def test_a_program_that_knows_nothing_of_us_beats_once_a_step(made: Path) -> None:
    code = "began = time.monotonic()\ntraining(20, 0.01)\ntook = time.monotonic() - began\n"
    code += f"import berth_injob\n{GUARD}"
    code += "print(json.dumps([[one.steps, one.ready, one.step_ns / one.steps / 1e9, took] for one in beats()]))"
    ((steps, ready, mean, took),), said = run(code, made)

    assert (steps, ready) == (19, True)
    assert 0.0095 <= mean <= took / 19
    assert said == ""


@needs_torch
def test_one_import_does_the_same_where_the_site_injects_nothing(made: Path) -> None:
    code = f"sys.path.insert(0, {str(SITE)!r})\nimport berth_injob\ntraining(20)\n{GUARD}"
    code += "print(json.dumps([one.steps for one in beats()]))"

    assert run(code, made, site=False)[0] == [19]


@needs_torch
def test_the_result_of_a_training_is_the_same_with_and_without_us(made: Path) -> None:
    code = "print(json.dumps(training(30, optimizer=torch.optim.AdamW)))"
    OrderPage(made).give(700, 1 << 20, 1 << 30, lease_s=3600)

    assert run(code, made)[0] == run(code, site=False)[0]


@needs_torch
@pytest.mark.parametrize("duty", [100, 500, 900])
def test_the_duty_holds_over_changing_steps(made: Path, duty: int) -> None:
    OrderPage(made).give(duty, lease_s=3600)
    code = f"""{GUARD}
import berth_injob
training(3)
first = beats()[0]
began = time.perf_counter()
training({60 if duty >= 500 else 20}, lambda number: 0.01 + 0.03 * (number % 3))
took = time.perf_counter() - began
last = beats()[0]
print(json.dumps(1 - (last.idle_ns - first.idle_ns) / 1e9 / took))
"""
    assert run(code, made)[0] == pytest.approx(duty / 1000, abs=0.03)


@needs_torch
def test_naps_are_taken_between_modules_too(made: Path) -> None:
    OrderPage(made).give(500, lease_s=3600)
    code = f"""{GUARD}
import berth_injob
naps, real = [], time.sleep
def watched(seconds):
    # Who calls: a nap within a module, or the end of a step.
    frame, names = sys._getframe(1), set()
    while frame: names.add(frame.f_code.co_name); frame = frame.f_back
    if "_nap" in names: naps.append("_at_module" in names)
    real(seconds)
time.sleep = watched
training(12, 0.04)
print(json.dumps([sum(naps), len(naps)]))
"""
    within, naps = run(code, made)[0]

    assert 5 <= within <= naps


@needs_torch
def test_a_program_that_only_infers_waits_at_a_shut_gate(made: Path) -> None:
    code = f"""{GUARD}
import berth_injob
page = word.OrderPage(WORD)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
done = []
def infer():
    while len(done) < 10**9 and not stop: model(torch.ones(8, 64)); done.append(1)
stop = False
worker = threading.Thread(target=infer)
worker.start()
time.sleep(0.2)
page.give(0, lease_s=3600)
time.sleep(0.5)
before = len(done)
time.sleep(0.3)
held = len(done) - before
page.give(1000, lease_s=3600)
time.sleep(0.3)
after = len(done) - before
stop = True
worker.join()
time.sleep(0.2)
print(json.dumps([before > 0, held, after > 0, len(torch.nn.modules.module._global_forward_pre_hooks)]))
"""
    assert run(code, made)[0] == [True, 0, True, 0]


@needs_torch
def test_an_open_gate_installs_no_module_hook(made: Path) -> None:
    code = "training(5)\ntime.sleep(0.2)\nprint(json.dumps(len(torch.nn.modules.module._global_forward_pre_hooks)))"

    assert run(code, made)[0] == 0


@needs_torch
def test_with_two_optimizers_one_marks_the_steps(made: Path) -> None:
    code = f"""{GUARD}
import berth_injob
one, two = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
first, second = torch.optim.SGD([one], lr=0.1), torch.optim.SGD([two], lr=0.1)
for _ in range(10):
    for chosen in (first, second):
        (one + two).sum().backward()
        chosen.step()
for _ in range(10): second.step()
print(json.dumps(beats()[0].steps))
"""
    assert run(code, made)[0] == 9 + 8


@needs_torch
def test_a_compiled_model_is_not_broken_by_the_gate(made: Path) -> None:
    OrderPage(made).give(500, lease_s=3600)
    code = """
import berth_injob
time.sleep(0.2)
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), backend="eager", fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad(); model(torch.ones(2, 8)).sum().backward(); optimizer.step()
print(json.dumps(torch._dynamo.utils.counters["graph_break"] or 0))
"""
    assert run(code, made)[0] in (0, {})


@needs_torch
def test_workers_and_forked_ranks_have_hearts_of_their_own(made: Path) -> None:
    code = f"""{GUARD}
import berth_injob
training(5)
if os.fork() == 0:
    training(8)
    os._exit(0 if sorted(one.steps for one in beats()) == [4, 7] else 1)
print(json.dumps(os.wait()[1]))
"""
    assert run(code, made)[0] == 0


@needs_torch
def test_a_failure_of_ours_stops_us_and_not_the_program(made: Path) -> None:
    code = """
import berth_injob
from prolog_epilog.injob import torch_hooks
def broken(self): raise RuntimeError("as a torch of tomorrow might")
torch_hooks.StepClock.tick = broken
training(5)
print(json.dumps(berth_injob.why()))
"""
    assert "the PyTorch hooks stopped: RuntimeError('as a torch of tomorrow might')" in run(code, made)[0]


@needs_torch
@pytest.mark.parametrize(
    ("words", "why"), [("", None), ("/nowhere/42/GPU-a", "in a container, bind /nowhere/42 into it")]
)
def test_without_a_guard_the_program_runs_and_can_be_told_why(words: str, why: str | None) -> None:
    loss, said = run("print(json.dumps(training(3)))", words)

    assert loss > 0
    assert said == "" if why is None else why in said


@needs_torch
def test_a_program_is_left_alone_where_it_asks_for_it(made: Path) -> None:
    code = "training(5)\nprint(json.dumps('prolog_epilog' in sys.modules))"

    assert run(code, made, BERTH_INJOB="off")[0] is False


def test_an_old_torch_is_told_from_a_new_one(tmp_path: Path, made: Path) -> None:
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '1.13.1'\nfrom torch import optim\n")
    (tmp_path / "torch" / "optim" / "__init__.py").write_text("from torch.optim import optimizer\n")
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text("")
    environment = os.environ | {
        "BERTH_WORD": str(made), "BERTH_INJOB": "verbose", "PYTHONPATH": f"{SITE}:{tmp_path}",
    }  # fmt: skip

    done = subprocess.run(
        [sys.executable, "-c", "import torch"], env=environment, capture_output=True, text=True, check=True
    )

    why = "torch 1.13.1 has no hooks for optimizer steps: 2.0 is the oldest that has"
    assert done.stderr == f"berth: {why} [BERTH-905]\n"


def test_without_torch_nothing_of_us_is_loaded_and_others_sitecustomize_runs(tmp_path: Path, made: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.theirs = 1\n")
    environment = os.environ | {"BERTH_WORD": str(made), "PYTHONPATH": f"{SITE}:{tmp_path}"}
    code = "import sys, json; print(sys.theirs, 'prolog_epilog' in sys.modules, 'torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["1", "False", "False"]
    assert done.stderr == ""


def test_a_missing_torch_is_missing_as_ever(made: Path) -> None:
    environment = os.environ | {"BERTH_WORD": str(made), "PYTHONPATH": str(SITE)}
    code = "try: import torch.none\nexcept ModuleNotFoundError as error: print(error.name.split('.')[0])"

    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "torch"


def test_the_api_needs_nothing_but_the_standard_library(made: Path) -> None:
    code = (
        "import sys, berth_injob\nassert berth_injob.ready()\nfor _ in range(3): berth_injob.step()\n"
        "berth_injob.gate()\nprint(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    environment = os.environ | {"BERTH_WORD": str(made), "PYTHONPATH": str(SITE)}

    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=True
    )

    allowed = {"__main__", "berth_injob", "prolog_epilog", "sitecustomize"}
    assert set(json.loads(done.stdout.replace("'", '"'))) <= allowed


DATA_PARALLEL = """
import torch.distributed as dist
store = os.environ["STORE"]
rank = 1 if os.fork() == 0 else 0
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)
    def forward(self, x):
        time.sleep(0.2 if rank else 0.02)
        return self.inner(x)
model = torch.nn.parallel.DistributedDataParallel(Slow())
if MIXED: model.module.norm = torch.nn.SyncBatchNorm(64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(12):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
dist.barrier()
if rank == 0:
    print(json.dumps([[one.step_ns / one.steps / 1e9, one.own_steps, one.own_ns / 1e9, one.app] for one in beats()]))
dist.barrier()
"""


@needs_torch
def test_ranks_that_wait_for_each_other_tell_what_each_takes_by_itself(made: Path, tmp_path: Path) -> None:
    told, said = run(GUARD + "MIXED = False\n" + DATA_PARALLEL, made, STORE=str(tmp_path / "store"))
    fast, slow = sorted(told, key=lambda one: one[2])

    # Their steps are equally long, and their own parts are not.
    assert fast[0] == pytest.approx(slow[0], rel=0.25)
    assert fast[1] == slow[1] >= 9
    assert slow[2] / slow[1] >= 0.2
    assert fast[2] / fast[1] < 0.5 * slow[2] / slow[1]
    assert fast[3] == slow[3] > 0
    assert said == ""


@needs_torch
def test_layers_that_talk_to_other_ranks_leave_no_time_that_is_a_ranks_own(made: Path, tmp_path: Path) -> None:
    told, _ = run(GUARD + "MIXED = True\n" + DATA_PARALLEL, made, STORE=str(tmp_path / "store"))

    assert [one[1] for one in told] == [0, 0]
