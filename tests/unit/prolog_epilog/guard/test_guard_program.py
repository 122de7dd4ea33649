# SPDX-License-Identifier: Apache-2.0
"""berth-guard as a program beside a real freezer: what a Prolog meets, and what is left when the guard is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from prolog_epilog.guard import program
from prolog_epilog.guard.seats.watch import Watch
from prolog_epilog.guard.tell.notice import GuardNotice
from prolog_epilog.injob import word
from prolog_epilog.job.slurm import Scontrol
from prolog_epilog.node import cgroups, files, freezer
from prolog_epilog.node.devices import GpuProcess
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.tenants import arrivals, quarantine, share_file, state
from prolog_epilog.tenants.audit import AuditAction, Excess, Judge
from prolog_epilog.tenants.share_file import ShareRecord
from prolog_epilog.tenants.state import SetState, Tenant
from tests.unit.node_world import ROOT, World, berth

pytestmark = pytest.mark.slow

GUEST = 1_000_000 + os.getpid()
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(0.001)"
"""A guest that ignores everything: it has no gate and does not end when it is asked to."""


@dataclass(slots=True)
class Node(World):
    """A world with a guard, and a guest in a control group of the kernel's."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    log: Path = Path("guard.log")

    def start_guard(self) -> subprocess.Popen[bytes]:
        code = "from prolog_epilog.guard.program import main; raise SystemExit(main())"
        self.log = self.folder / "guard.log"
        with self.log.open("ab") as log:
            guard = subprocess.Popen(
                [sys.executable, "-c", code, "--config", str(self.configure()), "--root", str(self.root)],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stderr=log,
            )
        self.processes.append(guard)
        assert eventually(lambda: arrivals.guard_lives(self.paths), 30.0)
        return guard

    def guest(self, folder: Path) -> subprocess.Popen[bytes]:
        self.slurm_knows("seat:g2:1(IDX:2)", job=GUEST)
        done = self.run("prolog", berth(2, tier="opportunistic", way="time"), job=GUEST, user=0)
        assert (done.returncode, done.stderr) == (0, "")
        process = subprocess.Popen([sys.executable, "-c", DEAF])
        self.processes.append(process)
        (folder / "step_0" / "cgroup.procs").write_text(str(process.pid))
        self.happens(f"process 2 {process.pid} type=compute memory=500 real=1")
        return process

    def said(self) -> str:
        return self.log.read_text()


def eventually(so: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not so():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def group() -> Iterator[Path]:
    folder = Path("/sys/fs/cgroup/freezer") / f"slurm_berth-guard-{os.getpid()}" / "uid_0" / f"job_{GUEST}"
    try:
        (folder / "step_0").mkdir(parents=True)
    except OSError:
        pytest.skip("this machine lets nobody make groups in a v1 freezer")
    yield folder
    for part in (folder / "step_0", folder, folder.parent, folder.parent.parent):
        assert eventually(lambda part=part: removed(part), 5.0)  # type: ignore[misc]


def removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()


@pytest.fixture
def node(group: Path) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="bn") as folder:
        made = Node(Path(folder))

        made.with_gpus()
        yield made
        for process in made.processes:
            process.kill()
        (group / "step_0" / "freezer.state").write_text("THAWED")
        for process in made.processes:
            process.wait()


def test_a_job_without_a_berth_waits_until_its_stubborn_guest_is_gone(node: Node, group: Path) -> None:
    guard = node.start_guard()
    guest = node.guest(group)
    bystander = subprocess.Popen(["/bin/sleep", "100"])
    node.processes.append(bystander)
    time.sleep(1.0)
    node.slurm_knows("gpu:g2:1(IDX:2)", job=8)
    # Of the guest, too, when the guard asks.
    node.scontrol(f'sed "s/^JobId=8 /JobId=$3 /" {node.folder}/job')

    done = node.run("prolog", "", "2", job=8)

    # It would say so if the guard had not answered within 6 s.
    assert (done.returncode, done.stderr) == (0, "")
    assert guest.poll() == -signal.SIGKILL
    assert f"requeue {GUEST}" in node.asked
    assert bystander.poll() is None
    guard.terminate()
    assert guard.wait(20) == 0
    assert f"job {GUEST} is ended on GPU" in node.said()
    assert not arrivals.guard_lives(node.paths)


def test_a_frozen_guest_goes_on_within_5_s_of_its_guards_kill_and_the_next_guard_holds_it_again(
    node: Node, group: Path
) -> None:
    guard = node.start_guard()
    guest = node.guest(group)
    # A host that says nothing yet: until its step is known its guest stands still, by the freezer as it has no gate.
    assert node.run("prolog", berth(2, tier="guaranteed", mem=1024), "2", job=7).returncode == 0
    assert eventually(lambda: freezer.is_frozen(GUEST), 20.0), node.said()
    page = Path(share_file.read(node.paths, GUEST).word) / os.listdir(node.paths.word(7))[0].split(".")[0]  # type: ignore[union-attr] # noqa: PTH208
    assert word.read_order(word.map_order(page)).duty == 0

    guard.kill()
    guard.wait()
    assert eventually(lambda: not freezer.is_frozen(GUEST), 5.0)
    assert guest.poll() is None
    assert eventually(lambda: word.read_order(word.map_order(page)).duty == word.OPEN, 5.0)

    again = node.start_guard()
    assert eventually(lambda: freezer.is_frozen(GUEST), 20.0), node.said()
    again.terminate()
    assert again.wait(20) == 0
    assert not freezer.is_frozen(GUEST)
    assert freezer.leases(node.paths) == {}


def test_there_is_one_guard_on_a_node(node: Node) -> None:
    node.start_guard()
    code = "from prolog_epilog.guard.program import main; raise SystemExit(main())"
    words = ["--config", str(node.configure()), "--root", str(node.root)]

    second = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert second.returncode == 2
    assert "another berth-guard runs on this node" in second.stderr


def test_what_is_left_frozen_is_thawed_by_hand(node: Node, group: Path) -> None:
    (node.root / "frozen").mkdir(parents=True, mode=0o700)
    freezer.lease(node.paths, GUEST)
    freezer.freeze(GUEST)
    code = "from prolog_epilog.guard.program import main; raise SystemExit(main())"

    done = subprocess.run(
        [sys.executable, "-c", code, "--thaw", "--root", str(node.root)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert done.stderr == f"berth-guard: job {GUEST} is thawed [BERTH-936]\n"
    assert (group / "step_0" / "freezer.state").read_text() == "THAWED\n"


def test_berthd_hears_whose_program_brought_mps_down(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    files.prepare(paths)
    for job in (7, 8):
        share_file.write(
            paths, ShareRecord(job, 1000 + job, gpus=(1, 2), minors=(1, 2), uuids=("GPU-a", "GPU-b"), node="n1")
        )
    share_file.remove(paths, 8)  # its Epilog was quicker
    told: list[str] = []

    class SlowWork:
        def notify(self, one: GuardNotice) -> None:
            told.append(one.text)

    one = SetState(
        "boot", ("GPU-b",), (), "ceiling", multi_user=True, tenants=(Tenant(8, 1008, 30), Tenant(7, 1007, 30))
    )
    watch = Watch(paths, NodeConfig(), Scontrol("/bin/true"), Judge("warn"), "boot")
    watch.on_culprit = partial(program._blame, SlowWork())  # type: ignore[arg-type]

    # Of job 6 the Epilog is through with the books too.
    watch.users[6] = 1006
    watch._requeue_victims(one, one.tenants, {8, 6, None})

    assert sorted(told) == [f"berth/1 guard node=n1 gpu=2 job={job} state=unhealthy word=fault" for job in (6, 8)]
    assert quarantine.left(paths, 1006) > 3_500.0
    assert quarantine.left(paths, 1008) > 3_500.0
    assert quarantine.left(paths, 1007) == 0.0


class Device:
    """Lists the processes that it is told of."""

    def __init__(self, *pids: int) -> None:
        self.pids = pids

    def processes(self, _: str) -> tuple[GpuProcess, ...]:
        return tuple(GpuProcess(pid, "mps", 100) for pid in self.pids)


def test_the_job_of_a_process_stays_known_when_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths(tmp_path)
    files.prepare(paths)
    state.store(paths, SetState("boot", ("GPU-b",), (), "ceiling", multi_user=True, tenants=(Tenant(8, 1008, 30),)))
    watch = Watch(paths, NodeConfig(), Scontrol("/bin/true"), Judge("warn"), "boot")
    watch.driver = Device(80, 81)  # type: ignore[assignment]
    jobs: dict[int, int | None] = {80: 8, 81: None}
    monkeypatch.setattr(cgroups, "job_of", jobs.get)

    watch.look()
    jobs.clear()  # both are zombies now, which the driver still lists
    watch.look()
    state.forget(paths, ["GPU-b"])

    assert watch.jobs == {80: 8, 81: None}
    assert watch.users == {8: 1008}


DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(100)"


@pytest.fixture
def deaf() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Five processes that ignore SIGTERM."""
    made = [subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) for _ in range(5)]
    for one in made:
        assert one.stdout is not None
        one.stdout.readline()
    yield made
    for one in made:
        one.kill()
        one.communicate()


def ends(folder: Path, deaf: list[subprocess.Popen[bytes]]) -> None:
    """The guard answers job 7's excess."""
    watch = Watch(Paths(folder), NodeConfig(violation="terminate"), Scontrol("/bin/true"), Judge("terminate"), "boot")
    excess = Excess("GPU-b", 7, "memory", tuple(one.pid for one in deaf), "job 7 holds too much")
    watch.act(AuditAction("terminate", excess))


def test_many_processes_that_ignore_sigterm_are_ended_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(cgroups, "job_of", lambda _: 7)
    began = time.monotonic()

    ends(tmp_path, deaf)

    assert time.monotonic() - began < 8.0
    assert [one.wait(1) for one in deaf] == [-signal.SIGKILL] * 5


def test_a_process_of_another_job_by_now_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: list[subprocess.Popen[bytes]]
) -> None:
    asked: Counter[int] = Counter()
    # SIGTERM would end these two.
    never, soon = others = [subprocess.Popen(["/bin/sleep", "100"]) for _ in range(2)]
    later = deaf[0]
    looks = {never.pid: 0, soon.pid: 1, later.pid: 2}

    def job_of(pid: int) -> int | None:
        """The number becomes another job's, or no job's, while the guard is at it."""
        asked[pid] += 1
        return 7 if asked[pid] <= looks.get(pid, 9) else (8 if pid != later.pid else None)

    monkeypatch.setattr(cgroups, "job_of", job_of)
    try:
        ends(tmp_path, [*others, *deaf])

        assert [one.wait(1) for one in deaf[1:]] == [-signal.SIGKILL] * 4
        assert [one.poll() for one in (never, soon, later)] == [None] * 3
    finally:
        for one in others:
            one.kill()
            one.wait()


def test_who_brought_mps_down_is_told_once_a_minute_and_right_after_a_boot_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    watch = Watch(Paths(tmp_path), NodeConfig(), Scontrol("/bin/true"), Judge("warn"), "boot")
    watch.on_culprit = lambda *words: told.append(words)
    # The clock counts from the boot.
    for now in (5.0, 30.0, 64.0, 66.0):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        watch._blame("n1", 0, {18, None})

    assert told == [("n1", 0, 18)] * 2
