# SPDX-License-Identifier: Apache-2.0
"""MPS on a real GPU by Berth's own life cycle: what limits hold, what escapes, what a fault does to others.

The GPU's settings stay as they are: the compute mode is not changed, so what rests on EXCLUSIVE_PROCESS (a private
daemon, an unset pipe directory) and on the kernel's memory limits (dmem) is not tried here. Rows go to
build/bench/gpu-mps.json (`make bench NAME=gpu-mps`).
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from prolog_epilog.guard.measure.telemetry import Telemetry
from prolog_epilog.mps import lifecycle, trouble
from prolog_epilog.mps.control import abilities
from prolog_epilog.mps.lifecycle import Attached
from prolog_epilog.node import devices
from prolog_epilog.node.devices import Driver, NodeGpu
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.tenants.state import Tenant
from tests.bench.table import Figure, report
from tests.unit.prolog_epilog.mps.status import server_status

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
CONTROL = Path(os.environ.get("BERTH_MPS_CONTROL", NodeConfig().mps_control))
CONFIG = NodeConfig(mps_control=str(CONTROL))
NOBODY = 65534
WINDOW_S = 8.0

Record = Callable[..., None]


@pytest.fixture(scope="module")
def record() -> Iterator[Record]:
    """Keep a figure with its unit; words of the driver's go to the notes."""
    figures: list[Figure] = []
    with devices.driver():
        notes = {
            "gpu": str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))),
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        }

    def keep(name: str, value: float, unit: str, words: str = "") -> None:
        figures.append(Figure(name, value, unit))
        if words:
            notes[name] = words

    yield keep
    report("gpu-mps", "MPS on a real GPU", figures, notes)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> NodeGpu:
    """The first GPU, whose compute mode nobody touches."""
    if not CONTROL.exists():
        pytest.skip(f"no MPS here: {CONTROL}")
    if os.geteuid():
        pytest.skip("MPS is started as slurmd starts it: as root")
    monkeypatch.setattr(Driver, "set_compute_mode", lambda *_: None)
    with devices.driver() as nvml:
        return nvml.gpus()[0]


@pytest.fixture
def paths(tmp_path_factory: pytest.TempPathFactory, gpu: NodeGpu) -> Iterator[Paths]:
    """A state of our own; whatever is left of MPS goes at the end."""
    # A socket's path is short.
    root = Path(f"/run/berth-gpu-test-{os.getpid()}")
    root.mkdir(mode=0o755)
    found = Paths(root=root)
    yield found
    for tenant in lifecycle.tenants(found, gpu.uuid):
        lifecycle.detach(found, CONFIG, tenant.job)
    subprocess.run(["rm", "-rf", str(root)], check=True)


def share(paths: Paths, gpu: NodeGpu, job: int, percent: int, mib: int | None = None, uid: int = 0) -> Attached:
    return lifecycle.attach(paths, CONFIG, [gpu], Tenant(job, uid, percent, mib))


def start(held: Attached | None, *words: object, uid: int = 0, **more: str) -> subprocess.Popen[str]:
    """A client with a job's environment; None: beside MPS."""
    own = held.environment if held else {}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.client", *map(str, words)],
        env={name: value for name, value in os.environ.items() if not name.startswith("CUDA_")} | own | more,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, user=uid or None,
    )  # fmt: skip


def said(client: subprocess.Popen[str], *, fails: bool = False) -> list[str]:
    printed, errors = client.communicate(timeout=120)
    assert bool(client.returncode) == fails, printed + errors
    return printed.split()


def rate(client: subprocess.Popen[str]) -> float:
    return float(said(client)[0])


def test_up_and_down_leave_nothing(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    began = time.monotonic()
    held = share(paths, gpu, 1, 50)
    record("mps_start_ms", round(1000 * (time.monotonic() - began)), "ms", held.level.name)
    assert server_status(paths, CONFIG, gpu.uuid) == "ACTIVE"
    assert said(start(held, "sms"))

    began = time.monotonic()
    gone = lifecycle.detach(paths, CONFIG, 1)
    record("mps_stop_ms", round(1000 * (time.monotonic() - began)), "ms")

    assert gone.leftovers == ()
    assert not list(paths.mps.iterdir())


def test_a_tenant_cannot_command_the_daemon(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    held = share(paths, gpu, 1, 50, uid=NOBODY)
    asked = subprocess.run(
        [str(CONTROL)], input="quit\n", env=held.environment, user=NOBODY,
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    alive = server_status(paths, CONFIG, gpu.uuid) == "ACTIVE"
    record("quit_refused", int(alive), "yes or no", (asked.stdout + asked.stderr).strip()[:80])
    assert alive


def test_percentages_are_multiprocessors(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    whole = int(said(start(None, "sms"))[0])
    for percent in (10, 25, 30, 50, 70, 90, 100):
        held = share(paths, gpu, 1, percent)
        shown = int(said(start(held, "sms"))[0])
        lifecycle.detach(paths, CONFIG, 1)
        record(f"sms_at_{percent}", shown, f"of {whole} SMs")
        assert abs(shown - whole * percent / 100) <= 2


def test_memory_is_limited_and_one_name_too_many_escapes(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    held = share(paths, gpu, 1, 50, mib=4096)
    assert said(start(held, "allocate", 3000)) == ["allocated"]
    assert said(start(held, "allocate", 6000), fails=True) == ["cuMemAlloc_v2", "2"]

    escape = start(held, "allocate", 6000, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G,1=4G")
    escape.communicate(timeout=120)
    record("memory_limit_escaped", int(escape.returncode == 0), "yes or no")


@pytest.mark.parametrize("what", ["loop", "gemm"])
def test_two_loops_get_their_shares(gpu: NodeGpu, paths: Paths, record: Record, what: str) -> None:
    alone = rate(start(share(paths, gpu, 1, 100), what, WINDOW_S))
    lifecycle.detach(paths, CONFIG, 1)
    both = {percent: share(paths, gpu, percent, percent) for percent in (30, 70)}
    clients = {percent: start(held, what, WINDOW_S) for percent, held in both.items()}
    for percent, client in clients.items():
        got = 100 * rate(client) / alone
        record(f"{what}_throughput_at_{percent}", round(got, 1), "% of the rate alone")
        assert got == pytest.approx(percent, rel=0.1)


def test_green_contexts_of_two_processes(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    """Multiprocessors that a program takes for itself: without MPS, then under MPS, where no percentage limits it."""
    alone = rate(start(None, "loop", WINDOW_S / 2))
    for way in ("alone", "under_mps"):
        place = None if way == "alone" else share(paths, gpu, 1, 100)
        clients = {percent: start(place, "green", percent, WINDOW_S) for percent in (30, 70)}
        for percent, client in clients.items():
            sms, launches, *_ = said(client)
            record(f"green_{way}_sms_at_{percent}", int(sms), "multiprocessors")
            record(
                f"green_{way}_throughput_at_{percent}", round(100 * float(launches) / alone, 1), "% of the rate alone"
            )


def test_killing_a_busy_client_beside_another(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    held = share(paths, gpu, 1, 50)
    beside = start(held, "loop", 60)
    broken = 0
    for _ in range(20):
        victim = start(held, "loop", 60)
        time.sleep(1.5)
        victim.kill()
        victim.communicate(timeout=30)
        broken += beside.poll() is not None or server_status(paths, CONFIG, gpu.uuid) != "ACTIVE"
    record("killed_busy_clients_that_broke_others", broken, "of 20")
    beside.kill()
    beside.communicate(timeout=30)


def test_a_fault_is_everybodys_and_passes(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    held = share(paths, gpu, 1, 50)
    beside = start(held, "loop", 60)
    time.sleep(2)
    said(start(held, "fault"), fails=True)
    began = time.monotonic()
    beside.communicate(timeout=60)
    record("fault_reaches_others_ms", round(1000 * (time.monotonic() - began)), "ms", f"status {beside.returncode}")
    reset = trouble.reset_after_fault(paths, CONFIG, gpu.uuid)
    record(
        "fault_recovered_ms",
        round(1000 * (time.monotonic() - began)),
        "ms",
        "begun anew" if reset.restarted else "by itself",
    )
    assert rate(start(held, "loop", 1)) > 0


def test_what_nvml_sees_of_clients(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    held = share(paths, gpu, 1, 50)
    client = start(held, "allocate", 2048, 20)
    assert client.stdout
    assert client.stdout.readline() == "allocated\n"
    with devices.driver() as nvml:
        seen = {one.pid: one for one in nvml.processes(gpu.uuid)}
    client.kill()
    client.communicate(timeout=30)
    record("client_memory_seen", seen[client.pid].memory_mib or 0, "MiB", seen[client.pid].kind)
    assert (seen[client.pid].memory_mib or 0) >= 2048


def test_busy_multiprocessors_are_seen_under_mps(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    held = share(paths, gpu, 1, 50)
    client = start(held, "loop", 8)
    watched = Telemetry([gpu.uuid])
    try:
        time.sleep(3)
        watched.sample(gpu.uuid)
        time.sleep(1)
        sample = watched.sample(gpu.uuid)
    finally:
        watched.close()
    said(client)
    assert sample
    if sample.sm_active is None:
        pytest.skip("no GPM on this GPU")
    record("gpm_sm_active_at_50", round(100 * sample.sm_active, 1), "%")


@pytest.mark.parametrize("duty", [25, 50, 75])
def test_standing_still_leaves_the_gpu_to_others(gpu: NodeGpu, paths: Paths, record: Record, duty: int) -> None:
    """SIGSTOP stands for the kernel's freezer here, which is Slurm's to set up: both stop a process's launches."""
    held = share(paths, gpu, 1, 100)
    guest, host = start(held, "loop", WINDOW_S), start(held, "loop", WINDOW_S)
    until = time.monotonic() + WINDOW_S
    while guest.poll() is None and time.monotonic() < until:
        time.sleep(0.2 * duty / 100)
        guest.send_signal(signal.SIGSTOP)
        time.sleep(0.2 * (1 - duty / 100))
        guest.send_signal(signal.SIGCONT)
    rates = {"guest": said(guest), "host": said(host)}
    for who, printed in rates.items():
        record(f"{who}_median_launch_at_duty_{duty}", statistics.median(map(float, printed[1:])), "ms")
        record(f"{who}_rate_at_duty_{duty}", round(float(printed[0]), 1), "launches/s")


def test_the_drivers_own_gate(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    held = share(paths, gpu, 1, 50)
    client = start(held, "loop", 10)
    time.sleep(3)
    locker = start(held, "lock", client.pid)
    printed, _ = locker.communicate(timeout=60)
    record("checkpoint_lock_of_a_client", int(locker.returncode == 0), "yes or no", printed.strip()[:80])
    client.kill()
    client.communicate(timeout=30)


def test_what_this_driver_offers(gpu: NodeGpu, paths: Paths, record: Record) -> None:
    began = time.monotonic()
    able = abilities(str(CONTROL), paths.root, [gpu.uuid])
    record("abilities_ms", round(1000 * (time.monotonic() - began)), "ms", f"{able}")
    record("namespaces", int(able.namespaces), "yes or no")
    record("multi_user", int(able.multi_user is not None), "yes or no")
