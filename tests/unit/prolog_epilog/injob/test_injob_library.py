# SPDX-License-Identifier: Apache-2.0
"""The library between a CUDA program and its driver, a simulated one: quota, gate, leaving, and what passes by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prolog_epilog.injob import word
from prolog_epilog.injob.word import OPEN, OrderPage, read_beats
from tests.fakes import cuda
from tests.waiting import until

pytestmark = pytest.mark.slow

MIB = 1 << 20
LOOK_UPS = ["", "cuGetProcAddress", "cuGetProcAddress_v2", "cuGetProcAddress_v2_ptsz"]
ORDER = """
from pathlib import Path
from prolog_epilog.injob.word import OrderPage, read_beats
import json
WORD = Path(os.environ["BERTH_WORD"].split(":")[0])
page = OrderPage(WORD)
def order(duty, quota=0): page.give(duty, quota=quota, lease_s=600)
def mine(): return next(one for one in read_beats(WORD) if one.pid == os.getpid())
"""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return word.create(tmp_path / "42", [cuda.uuid(0)], os.getuid(), os.getgid())[0]


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_every_way_to_take_memory_keeps_the_quota(made: Path, look_up: str) -> None:
    OrderPage(made).give(OPEN, quota=100 * MIB, lease_s=600)
    code = f"""
Context()
if {look_up!r}: use_get_proc({look_up!r})
answers = {{}}
for name, take in ALLOCATIONS.items():
    first, give_back = take(60)
    second, _ = take(60)
    answers[name] = [first, second, give_back(), take(101)[0], cuda.fakeCudaUsed(0)]
import json
print(json.dumps(answers))
"""
    answers = json.loads(cuda.run(code, str(made)))

    assert len(answers) == 11
    assert {name: answer for name, answer in answers.items() if answer != [0, 2, 0, 2, 0]} == {}


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_every_way_to_launch_waits_at_a_shut_gate(made: Path, look_up: str) -> None:
    code = f"""{ORDER}
context = Context()
if {look_up!r}: use_get_proc({look_up!r})
empty = kernel(0)
for launch in LAUNCHES.values():
    assert launch(empty) == 0
before = cuda.fakeCudaLaunches()
order(0)
passed = []
def through(name, launch):
    cuda.cuCtxSetCurrent(context)
    assert launch(empty) == 0
    passed.append(name)
threads = [threading.Thread(target=through, args=one) for one in LAUNCHES.items()]
for one in threads: one.start()
time.sleep(0.3)
held = (len(passed), cuda.fakeCudaLaunches() - before)
order(1000)
for one in threads: one.join(5)
print(json.dumps([held, len(passed), cuda.fakeCudaLaunches() - before, mine().idle_ns > 0]))
"""
    held, passed, launched, idled = json.loads(cuda.run(code, str(made)))

    assert held == [0, 0]
    assert (passed, launched, idled) == (12, 12, True)


def test_a_linked_program_is_counted(made: Path) -> None:
    page = OrderPage(made)
    page.give(0, lease_s=600)
    with subprocess.Popen(
        [cuda.launcher(), "1000"], env=cuda.environment(str(made)), stdout=subprocess.PIPE, text=True
    ) as program:
        launches = until("its first launch", lambda: [one.launches for one in read_beats(made)])
        held = program.poll() is None
        page.give(OPEN, lease_s=600)
        assert program.wait(10) == 0

    assert held
    assert launches == [1]


@pytest.mark.parametrize("duty", [50, 250, 500, 950])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_gpu_is_busy_for_no_more_than_the_duty(made: Path, duty: int, threads: int) -> None:
    code = f"""{ORDER}
context = Context()
work = kernel(700)
order({duty})
stop = time.monotonic() + 1.5
def through():
    cuda.cuCtxSetCurrent(context)
    while time.monotonic() < stop:
        call("cuLaunchKernel", work, *[1] * 6, 0, None, None, None)
began = time.monotonic()
others = [threading.Thread(target=through) for _ in range({threads})]
for one in others: one.start()
for one in others: one.join()
cuda.cuCtxSynchronize()
print(cuda.fakeCudaBusyNs(0) / 1e9 / (time.monotonic() - began))
"""
    # On a busy machine the program itself is kept waiting, and the GPU with it: less is no fault of the gate.
    assert 0 < float(cuda.run(code, str(made))) < duty / 1000 + 0.03


def test_recording_a_graph_is_never_disturbed(made: Path) -> None:
    code = f"""{ORDER}
Context()
order(100)
work = kernel(2000)
for _ in range(20):
    call("cuLaunchKernel", work, *[1] * 6, 0, None, None, None)
recorded = Capture(*[work] * 50)
print(recorded.ended)
"""
    assert cuda.run(code, str(made)).strip() == "0"


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_all_processes_of_a_job_share_one_quota_and_the_dead_hold_nothing(made: Path, ending: str) -> None:
    OrderPage(made).give(OPEN, quota=100 * MIB, lease_s=600)
    holder = (
        f"Context()\nassert ALLOCATIONS['cuMemAlloc_v2'](60)[0] == 0\nprint(1, flush=True)\nsys.stdin.read()\n{ending}"
    )
    taker = "Context()\nprint(ALLOCATIONS['cuMemAlloc_v2'](60)[0], ALLOCATIONS['cuMemAlloc_v2'](30)[0])"
    with subprocess.Popen(
        [sys.executable, "-c", f"from tests.fakes.cuda.program import *\n{holder}"],
        env=cuda.environment(str(made)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        together = cuda.run(taker, str(made)).split()
        program.communicate("")

    assert together == ["2", "0"]
    assert cuda.run(taker, str(made)).split() == ["0", "0"]


def test_a_forked_child_counts_for_itself(made: Path) -> None:
    OrderPage(made).give(OPEN, quota=100 * MIB, lease_s=600)
    code = f"""{ORDER}
lib = c.CDLL(None)
assert lib.berth_ready() == 1
if os.fork() == 0:
    Context()
    taken = ALLOCATIONS["cuMemAlloc_v2"](70)
    assert taken[0] == 0 and mine().used == 70 * MIB
    os._exit(len(read_beats(WORD)))
status = os.wait()[1]
Context()
print(os.WEXITSTATUS(status), ALLOCATIONS["cuMemAlloc_v2"](70)[0], mine().used // MIB)
"""
    assert cuda.run(code, str(made)).split() == ["2", "0", "70"]


def test_a_child_of_a_busy_parent_waits_at_the_gate_too(made: Path) -> None:
    code = f"""{ORDER}
lib = c.CDLL(None)
lib.berth_ready()
order(300)
def work():
    while True: lib.berth_gate()
for _ in range(4): threading.Thread(target=work, daemon=True).start()
for _ in range(20):
    if os.fork() == 0:
        Context()
        empty = kernel(0)
        for _ in range(200): LAUNCHES["cuLaunchKernel"](empty)
        os._exit(0)
    assert os.wait()[1] == 0
order(0)
if os.fork() == 0:
    lib.berth_gate()
    os._exit(0)
time.sleep(0.2)
held = os.waitpid(-1, os.WNOHANG) == (0, 0)
order(1000)
print(held, os.wait()[1], flush=True)
os._exit(0)
"""
    assert cuda.run(code, str(made)).split() == ["True", "0"]


def test_many_threads_never_exceed_the_quota_and_leave_nothing_booked(made: Path) -> None:
    OrderPage(made).give(OPEN, quota=100 * MIB, lease_s=600)
    code = f"""{ORDER}
import random
context = Context()
most, refused = [0], [0]
def through(seed):
    cuda.cuCtxSetCurrent(context)
    dice, held = random.Random(seed), []
    for _ in range(300):
        if held and dice.random() < 0.5:
            assert held.pop(dice.randrange(len(held)))() == 0
        else:
            result, give_back = ALLOCATIONS[dice.choice(list(ALLOCATIONS))](dice.choice([1, 7, 20]))
            if result == 0: held.append(give_back)
            else: refused[0] += 1
        most[0] = max(most[0], cuda.fakeCudaUsed(0))
    for one in held: assert one() == 0
threads = [threading.Thread(target=through, args=(seed,)) for seed in range(8)]
for one in threads: one.start()
for one in threads: one.join()
print(json.dumps([most[0] / MIB, refused[0], cuda.fakeCudaUsed(0), mine().used, mine().refused, mine().peak / MIB]))
"""
    most, refused, left, booked, counted, peak = json.loads(cuda.run(code, str(made)))

    assert most <= 100
    assert peak <= 100
    assert refused > 0
    assert counted >= refused
    assert (left, booked) == (0, 0)


def test_physical_memory_counts_until_its_last_handle_and_mapping_are_gone(made: Path) -> None:
    code = f"""{ORDER}
order(1000, 100 * MIB)
Context()
handle, address, again = c.c_uint64(), c.c_uint64(), c.c_uint64()
held = []
def note(): held.append((mine().used // MIB, cuda.fakeCudaUsed(0) // MIB))
assert call("cuMemCreate", c.byref(handle), 20 * MIB, c.byref(Prop(1, 0, 1, 0)), 0) == 0
assert cuda.cuMemAddressReserve(c.byref(address), c.c_size_t(40 * MIB), 0, 0, 0) == 0
note()
assert call("cuMemMap", address.value, 10 * MIB, 0, handle.value, 0) == 0
assert call("cuMemMap", address.value + 10 * MIB, 10 * MIB, 10 * MIB, handle.value, 0) == 0
assert call("cuMemRelease", handle.value) == 0
note()
assert call("cuMemRetainAllocationHandle", c.byref(again), c.c_void_p(address.value)) == 0
assert call("cuMemUnmap", address.value, 20 * MIB) == 0
note()
assert call("cuMemRelease", again.value) == 0
note()
host = call("cuMemCreate", c.byref(handle), 500 * MIB, c.byref(Prop(1, 0, 3, 0)), 0)
print(json.dumps([held, host]))
"""
    held, host = json.loads(cuda.run(code, str(made)))

    assert held == [[20, 20], [20, 20], [20, 20], [0, 0]]
    assert host == 0


@pytest.mark.parametrize(
    ("primary", "end"),
    [
        (False, "call('cuCtxDestroy_v2', context)"),
        (True, "call('cuDevicePrimaryCtxReset_v2', 0)"),
        (True, "call('cuDevicePrimaryCtxRelease_v2', 0)"),
    ],
)
def test_a_context_takes_its_bookings_along(made: Path, *, primary: bool, end: str) -> None:
    code = f"""{ORDER}
order(1000, 100 * MIB)
context = Context(primary={primary})
assert ALLOCATIONS["cuMemAlloc_v2"](40)[0] == ALLOCATIONS["cuArrayCreate_v2"](40)[0] == 0
assert {end} == 0
print(mine().used, cuda.fakeCudaUsed(0))
"""
    assert cuda.run(code, str(made)).split() == ["0", "0"]


def test_a_program_sees_a_gpu_as_large_as_its_quota(made: Path) -> None:
    code = f"""{ORDER}
Context()
free, total = c.c_size_t(), c.c_size_t()
def look():
    call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
    return [free.value // MIB, total.value // MIB]
whole = look()
order(1000, 100 * MIB)
ALLOCATIONS["cuMemAlloc_v2"](30)
print(json.dumps([whole, look()]))
"""
    assert json.loads(cuda.run(code, str(made))) == [[1024, 1024], [70, 100]]


def test_each_gpu_has_the_quota_of_its_own_word(tmp_path: Path) -> None:
    # In another order than the driver's: names decide.
    words = word.create(tmp_path / "42", [cuda.uuid(1), cuda.uuid(0)], os.getuid(), os.getgid())
    OrderPage(words[0]).give(OPEN, quota=50 * MIB, lease_s=600)
    OrderPage(words[1]).give(OPEN, quota=100 * MIB, lease_s=600)
    code = """
answers = []
for device in (0, 1):
    Context(device)
    answers.append(ALLOCATIONS["cuMemAlloc_v2"](80)[0])
print(*answers)
"""
    assert cuda.run(code, ":".join(map(str, words)), BERTH_FAKE_CUDA_GPUS="2").split() == ["0", "2"]


def test_an_entry_point_that_nobody_knows_passes_and_is_counted(made: Path) -> None:
    code = f"""{ORDER}
Context()
order(0)
address = get_proc("cuLaunchKernelTomorrow", 14000)
result = c.CFUNCTYPE(c.c_int, c.c_void_p)(address)(kernel(0))
assert cuda.cuLaunchKernelTomorrow(kernel(0)) == 0
assert get_proc("cuStreamSynchronize", 13000) and not get_proc("cuNoSuchThing", 13000)
print(result, cuda.fakeCudaLaunches(), mine().unknown)
"""
    assert cuda.run(code, str(made)).split() == ["0", "2", "2"]


@pytest.mark.parametrize(("base", "version", "name"), [
    ("cuCtxCreate", 11000, "cuCtxCreate_v2"), ("cuCtxCreate", 11040, "cuCtxCreate_v3"),
    ("cuCtxCreate", 13000, "cuCtxCreate_v4"), ("cuGetProcAddress", 11030, "cuGetProcAddress"),
    ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"), ("cuMemAlloc", 13000, "cuMemAlloc_v2"),
    ("cuLaunchKernel", 13000, "cuLaunchKernel"),
])  # fmt: skip
def test_the_look_up_gives_the_version_that_was_asked_for(made: Path, base: str, version: int, name: str) -> None:
    code = f"print(get_proc({base!r}, {version}) == c.cast(cuda.{name}, c.c_void_p).value)"

    assert cuda.run(code, str(made)).strip() == "True"
    assert cuda.run(code, "", preload=False).strip() == "True"


def test_a_thread_that_dies_while_it_settles_holds_nobody(made: Path) -> None:
    code = f"""{ORDER}
context = Context()
order(500)
work = kernel(3000)
def through(count):
    cuda.cuCtxSetCurrent(context)
    for _ in range(count): LAUNCHES["cuLaunchKernel"](work)
cuda.fakeCudaDeadly(c.c_uint64(1))
victim = threading.Thread(target=through, args=(1000,), daemon=True)
victim.start()
time.sleep(0.5)
cuda.fakeCudaDeadly(c.c_uint64(0))
began = time.monotonic()
through(20)
print(time.monotonic() - began, flush=True)
os._exit(0)
"""
    assert float(cuda.run(code, str(made))) < 4


def test_a_thread_that_is_cancelled_at_the_gate_holds_nobody(made: Path) -> None:
    code = f"""{ORDER}
context = Context()
empty = kernel(0)
order(0)
def through():
    cuda.cuCtxSetCurrent(context)
    LAUNCHES["cuLaunchKernel"](empty)
victims = [threading.Thread(target=through, daemon=True) for _ in range(5)]
for one in victims: one.start()
time.sleep(0.1)
for one in victims: c.CDLL(None).pthread_cancel(c.c_ulong(one.ident))
time.sleep(0.1)
order(1000)
before = cuda.fakeCudaLaunches()
through()
ALLOCATIONS["cuMemAlloc_v2"](1)
print(before, cuda.fakeCudaLaunches() - before, flush=True)
os._exit(0)
"""
    assert cuda.run(code, str(made)).split() == ["0", "1"]


def leaves(tmp_path: Path, made: Path, code: str, number: int) -> tuple[int, str]:
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", f"from tests.fakes.cuda.program import *\n{ORDER}\n{code}"],
        env=cuda.environment(str(made), BERTH_FAKE_CUDA_LOG=str(log)),
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        program.send_signal(number)
        ended = program.wait(15)
    return ended, log.read_text() if log.exists() else ""


BUSY = """
context = Context(primary={primary})
work = kernel(300_000)
for _ in range(2): LAUNCHES["cuLaunchKernel"](work)
print(1, flush=True)
while True: LAUNCHES["cuLaunchKernel"](work)
"""


@pytest.mark.parametrize(("primary", "said"), [
    (True, "reset 0 with 0 ns of work left\n"), (False, "destroy 0 with 0 ns of work left\n"),
])  # fmt: skip
def test_on_sigterm_the_gpu_finishes_and_the_context_is_given_back(
    tmp_path: Path, made: Path, *, primary: bool, said: str
) -> None:
    ended, log = leaves(tmp_path, made, BUSY.format(primary=primary), signal.SIGTERM)

    assert (ended, log) == (-signal.SIGTERM, said)


def test_on_sigterm_at_a_shut_gate_too(tmp_path: Path, made: Path) -> None:
    code = """
Context()
order(0)
threading.Timer(0.3, print, ("in",), {"flush": True}).start()
LAUNCHES["cuLaunchKernel"](kernel(0))
"""

    ended, log = leaves(tmp_path, made, code, signal.SIGTERM)

    assert (ended, log) == (-signal.SIGTERM, "reset 0 with 0 ns of work left\n")


def test_work_that_does_not_end_is_ended_at_the_deadline(tmp_path: Path, made: Path) -> None:
    code = "Context()\nLAUNCHES['cuLaunchKernel'](kernel(60_000_000))\nprint(1, flush=True)\ntime.sleep(60)"
    began = time.monotonic()

    ended, _ = leaves(tmp_path, made, code, signal.SIGTERM)

    assert ended == -signal.SIGKILL
    assert time.monotonic() - began < 50


def test_a_programs_own_handler_is_kept(tmp_path: Path, made: Path) -> None:
    for early in (True, False):
        own = "signal.signal(signal.SIGTERM, lambda *_: os._exit(9))\n"
        launch = "Context()\nLAUNCHES['cuLaunchKernel'](kernel(0))\n"
        code = (own + launch if early else launch + own) + "print(1, flush=True)\nwhile True: time.sleep(0.01)"

        assert leaves(tmp_path, made, code, signal.SIGTERM)[0] == 9


def test_a_forked_child_dies_of_sigterm_as_ever(made: Path) -> None:
    code = """
Context()
LAUNCHES['cuLaunchKernel'](kernel(0))
child = os.fork()
if child == 0: time.sleep(30)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
print(os.waitpid(child, 0)[1])
"""
    assert cuda.run(code, str(made)).strip() == str(int(signal.SIGTERM))


def test_without_a_word_nothing_is_touched() -> None:
    code = """
Context()
for launch in LAUNCHES.values(): assert launch(kernel(0)) == 0
for take in ALLOCATIONS.values(): assert take(60)[0] == 0
lib = c.CDLL(None)
print(cuda.fakeCudaLaunches(), lib.berth_ready(), lib.berth_step(c.c_double(1)), int(signal.getsignal(signal.SIGTERM)))
"""
    assert cuda.run(code).split() == ["12", "0", "0", "0"]


def test_without_a_driver_the_three_calls_work(made: Path) -> None:
    code = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
print(lib.berth_ready(), lib.berth_step(ctypes.c_double(0.25)), lib.berth_step(ctypes.c_double(0.5)))
lib.berth_gate()
"""
    environment = os.environ | {"BERTH_WORD": str(made)}
    with subprocess.Popen(
        [sys.executable, "-c", code + "sys.stdout.flush(); sys.stdin.read()", str(cuda.injob_library())],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        said = program.stdout.readline()
        (beat,) = read_beats(made)
        program.communicate("")

    assert said.split() == ["1", "1", "1"]
    assert (beat.ready, beat.steps, beat.recent_us) == (True, 2, (250_000, 500_000))
    assert beat.step_ns / beat.steps == pytest.approx(0.375e9)


def test_other_preloaded_libraries_still_find_what_lies_behind_them(tmp_path: Path) -> None:
    source, other = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <unistd.h>\n"
        'pid_t getppid(void) { pid_t (*real)(void) = dlsym(RTLD_NEXT, "getppid"); return real ? real() + 1 : -1; }\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(other), str(source)], check=True)
    both = f"{other}:{cuda.injob_library()}", f"{cuda.injob_library()}:{other}"
    code = "import os; print(os.getppid())"

    for preload in both:
        environment = os.environ | {"LD_PRELOAD": preload}
        said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert int(said.stdout) == os.getpid() + 1


BETWEEN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
typedef int (*look_t)(size_t *, size_t *);
static look_t real;
__attribute__((constructor)) static void find(void) { real = (look_t)dlsym(RTLD_NEXT, "cuMemGetInfo_v2"); }
int cuMemGetInfo_v2(size_t *free, size_t *total)
{
	int result = real ? real(free, total) : 999;
	*free += 1;
	return result;
}
"""


@pytest.mark.parametrize("berth_first", [True, False])
def test_another_library_that_comes_between_cuda_calls_is_called_once(
    made: Path, tmp_path: Path, *, berth_first: bool
) -> None:
    source, other = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(BETWEEN)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(other), str(source)], check=True)
    both = [str(cuda.injob_library()), str(other)][:: 1 if berth_first else -1]
    code = """
context = Context()
free, total = c.c_size_t(), c.c_size_t()
print(c.CDLL(None).cuMemGetInfo_v2(c.byref(free), c.byref(total)), free.value % 2)
"""

    preload = ":".join([*both, str(cuda.library())])
    assert cuda.run(code, str(made), LD_PRELOAD=preload).split() == ["0", "0" if berth_first else "1"]


def test_threads_that_come_to_a_gpu_together_take_one_place_on_its_word(tmp_path: Path) -> None:
    words = word.create(tmp_path / "42", [cuda.uuid(0), cuda.uuid(1)], os.getuid(), os.getgid())
    for one in words:
        OrderPage(one).give(OPEN, quota=100 * MIB, lease_s=600)
    code = f"""{ORDER}
contexts = [Context(1) for _ in range(8)]
at_once = threading.Barrier(8)
def through(context):
    cuda.cuCtxSetCurrent(context)
    at_once.wait()
    result, give_back = ALLOCATIONS["cuMemAlloc_v2"](1)
    assert result == 0
    assert give_back() == 0
threads = [threading.Thread(target=through, args=(context,)) for context in contexts]
for one in threads: one.start()
for one in threads: one.join()
second = Path(os.environ["BERTH_WORD"].split(":")[1])
print([one.used for one in read_beats(second) if one.pid == os.getpid()])
"""
    for _ in range(5):
        said = cuda.run(code, ":".join(map(str, words)), BERTH_FAKE_CUDA_GPUS="2")
        assert said.strip() == "[0]"


def test_the_library_shows_nothing_but_what_it_is_for() -> None:
    names = subprocess.run(
        ["nm", "-D", "--defined-only", cuda.injob_library()], capture_output=True, text=True, check=True
    ).stdout.split()[2::3]

    assert {"dlsym", "berth_ready", "berth_step", "berth_gate"} <= set(names)
    assert [name for name in names if not name.startswith(("cu", "berth_")) and name != "dlsym"] == []
