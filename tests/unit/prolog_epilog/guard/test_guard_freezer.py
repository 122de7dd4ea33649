# SPDX-License-Identifier: Apache-2.0
"""Who is frozen, who is thawed and by whom, and who is never touched: on folders like cgroups and in the kernel."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prolog_epilog.guard.hold import deadman
from prolog_epilog.guard.hold.freezer_watch import FreezerWatch
from prolog_epilog.guard.hold.guest_hold import Ground, GuestHold
from prolog_epilog.guard.roll import Member
from prolog_epilog.injob.word import WordBeat
from prolog_epilog.node import cgroups, files, freezer
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.guard_keys import ActionSettings
from tests.examples import examples
from tests.fakes.mps.world import await_true
from tests.unit.guard_world import Cgroups
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[4]

PLACES = {
    "v2": ("system.slice/slurmstepd.scope", "system.slice/n1_slurmstepd.scope", "slurmstepd.scope"),
    "v1": ("freezer/slurm/uid_1000", "freezer/slurm_n1/uid_1000"),
}
STRANGERS = (
    "user.slice/user-1000.slice/slurmstepd.scope",
    "user.slice/slurmstepd.scope",
    "system.slice/docker.scope",
    "freezer/user.slice/slurm/uid_1000",
    "memory/slurm/uid_1000",
    "machine.slice",
)


def test_a_signal_that_a_held_process_has_yet_to_get_is_awaited(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path, "v1")
    cgroups.job("freezer/slurm/uid_1000", 42)
    (group, *_) = freezer.groups(42, tmp_path)
    with subprocess.Popen(["/bin/sleep", "60"]) as held:
        try:
            (group / "cgroup.procs").write_text(str(held.pid))
            held.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, held.pid, os.WSTOPPED)
            assert not freezer.awaits(42, signal.SIGTERM, tmp_path)

            held.send_signal(signal.SIGTERM)

            assert freezer.awaits(42, signal.SIGTERM, tmp_path)
            assert not freezer.awaits(42, signal.SIGUSR1, tmp_path)
            assert not freezer.awaits(43, signal.SIGTERM, tmp_path), "it is no process of that job"
        finally:
            held.kill()


def test_v2_freezes_tasks_and_neither_slurms_level_nor_slurmstepd(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path, "v2")
    cgroups.job("system.slice/slurmstepd.scope", 42)

    assert freezer.freeze(42, tmp_path)
    base = "system.slice/slurmstepd.scope/job_42/step_0/user"
    assert cgroups.frozen() == {f"{base}/task_0", f"{base}/task_1"}

    assert freezer.thaw(42, tmp_path)
    assert cgroups.frozen() == set()


def test_v1_freezes_steps_and_not_the_job_where_slurmstepd_is(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path, "v1")
    folder = cgroups.job("freezer/slurm/uid_1000", 42)
    for path in folder.rglob("cgroup.freeze"):
        path.unlink()
    (folder / "cgroup.freeze").unlink(missing_ok=True)

    assert freezer.freeze(42, tmp_path)
    assert cgroups.frozen() == {"freezer/slurm/uid_1000/job_42/step_0"}
    assert freezer.is_frozen(42, tmp_path)
    freezer.thaw(42, tmp_path)
    assert not freezer.is_frozen(42, tmp_path)


def test_a_group_with_slurms_own_process_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroups = Cgroups(tmp_path, "v1")
    folder = cgroups.job("freezer/slurm/uid_1000", 42)
    (folder / "step_0" / "cgroup.procs").write_text(f"{os.getpid()}\n")
    monkeypatch.setattr(freezer, "_name", lambda _pid: "slurmstepd")

    assert not freezer.freeze(42, tmp_path)
    assert cgroups.frozen() == set()


def test_a_task_that_was_put_into_a_frozen_group_is_thawed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups = Cgroups(tmp_path, "v2")
    folder = cgroups.job("system.slice/slurmstepd.scope", 42)
    freezer.freeze(42, tmp_path)
    # Between fork and exec a task is a slurmstepd.
    (folder / "step_0/user/task_0/cgroup.procs").write_text(f"{os.getpid()}\n")
    monkeypatch.setattr(freezer, "_name", lambda _pid: "slurmstepd")

    freezer.thaw(42, tmp_path)

    assert cgroups.frozen() == set()


numbers = st.integers(1, 60)


@settings(max_examples=examples(40), deadline=None)
@given(
    version=st.sampled_from(["v1", "v2"]),
    jobs=st.lists(st.tuples(st.integers(0, 2), numbers), min_size=1, max_size=5),
    strangers=st.lists(st.tuples(st.sampled_from(STRANGERS), numbers), max_size=5),
    wanted=numbers,
)
def test_no_bystander_is_ever_touched(
    version: str, jobs: list[tuple[int, int]], strangers: list[tuple[str, int]], wanted: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cgroups = Cgroups(Path(folder) / "fs", version)
        places = PLACES[version]
        for place, job in jobs:
            cgroups.job(places[place % len(places)], job)
        for place_name, job in strangers:
            cgroups.job(place_name, job)

        freezer.freeze(wanted, cgroups.root)

        touched = cgroups.frozen()
        rights = [f"{place}/job_{wanted}" for place in places]
        assert all(any(one == right or one.startswith(f"{right}/") for right in rights) for one in touched)
        assert bool(touched) == any(job == wanted for _, job in jobs)
        assert not any(one.endswith("/slurm") for one in touched)
        freezer.thaw(wanted, cgroups.root)
        assert cgroups.frozen() == set()


def test_leases_end_and_only_theirs_are_thawed(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path / "fs", "v2")
    paths = Paths(tmp_path / "run")
    files.prepare(paths)
    for job in (1, 2, 3):
        cgroups.job("slurmstepd.scope", job)
        freezer.lease(paths, job, 60.0 if job == 3 else 0.0 if job == 1 else 3.0)
        freezer.freeze(job, cgroups.root)
    (paths.frozen / "4").write_text("rubbish")

    assert sorted(freezer.thaw_expired(paths, cgroups.root)) == [1, 3, 4]  # no lease is believed for an hour
    assert {one.split("/")[1] for one in cgroups.frozen()} == {"job_2"}
    assert freezer.thaw_expired(paths, cgroups.root, every=True) == [2]
    assert cgroups.frozen() == set()
    assert freezer.leases(paths) == {}


@pytest.mark.slow
def test_the_dead_man_thaws_when_leases_are_not_renewed_and_when_the_guard_is_gone(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path / "fs", "v2")
    paths = Paths(tmp_path / "run")
    files.prepare(paths)
    for job in (1, 2):
        cgroups.job("slurmstepd.scope", job)
        freezer.lease(paths, job, 0.2 if job == 1 else freezer.LEASE_SECONDS)
        freezer.freeze(job, cgroups.root)
    dead_man = deadman.start(paths, cgroups.root)
    assert dead_man.lives()
    until("the first to be thawed", lambda: {one.split("/")[1] for one in cgroups.frozen()} == {"job_2"})

    dead_man.dismiss()

    assert cgroups.frozen() == set()
    assert not dead_man.lives()


# The kernel's own freezer, in whichever hierarchy this machine has.

# What a test that was killed left behind bears another number.
JOB = 1_000_000 + os.getpid()


@dataclass
class Kernels:
    """A job's control groups in the machine's own hierarchy, v1's freezer or the unified one, as Slurm makes them."""

    job: Path
    unified: bool

    @property
    def programs(self) -> Path:
        """Where the first step's processes are."""
        return self.tasks("step_0")

    def tasks(self, step: str) -> Path:
        return self.job / step / ("user/task_0" if self.unified else "")

    def make(self, step: str) -> None:
        self.tasks(step).mkdir(parents=True)

    def let_go(self, step: str) -> None:
        """As Slurm does before it ends a job."""
        if self.unified:
            (self.job / step / "cgroup.freeze").write_text("0")
        else:
            (self.job / step / "freezer.state").write_text("THAWED")

    def remove(self, top: Path) -> None:
        for folder, _, _ in os.walk(top, topdown=False):
            for _ in range(100):
                with suppress(OSError):
                    Path(folder).rmdir()
                    break
                time.sleep(0.02)


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    unified = cgroups.version() == "v2"
    top = cgroups.ROOT / (
        f"berth-test-{os.getpid()}_slurmstepd.scope" if unified else f"freezer/slurm_berth-test-{os.getpid()}"
    )
    found = Kernels(top / ("" if unified else "uid_0") / f"job_{JOB}", unified)
    try:
        found.make("step_0")
    except OSError:
        pytest.skip("this machine lets nobody make control groups")
    yield found
    freezer.thaw(JOB)
    for pid in (found.programs / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    found.remove(top)


def spin(*groups: Path) -> subprocess.Popen[str]:
    """A program that computes for ever."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], text=True)
    for group in groups:
        (group / "cgroup.procs").write_text(str(process.pid))
    return process


def computes(pid: int, seconds: float = 0.4) -> bool:
    def used() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    until = time.monotonic() + seconds
    before = used()
    while time.monotonic() < until:
        time.sleep(0.05)
        if used() > before:
            return True
    return False


def test_a_real_job_stands_still_and_its_neighbour_does_not(kernels: Kernels) -> None:
    with spin(kernels.programs) as guest, spin() as bystander:
        try:
            assert list(freezer.pids(JOB)) == [guest.pid]
            assert freezer.freeze(JOB)
            await_true(lambda: freezer.is_frozen(JOB))
            time.sleep(0.1)
            assert freezer.is_frozen(JOB)
            assert not computes(guest.pid)
            assert computes(bystander.pid, 5.0)
            freezer.thaw(JOB)
            assert computes(guest.pid, 5.0)
        finally:
            freezer.thaw(JOB)
            guest.kill()
            bystander.kill()


def test_a_warning_reaches_only_who_catches_it(kernels: Kernels) -> None:
    code = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7)); print(1, flush=True)"
    code += "; signal.pause()"
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as catcher,
        subprocess.Popen(["/bin/sleep", "60"]) as deaf,
    ):
        try:
            assert catcher.stdout is not None
            catcher.stdout.readline()
            for one in (catcher, deaf):
                (kernels.programs / "cgroup.procs").write_text(str(one.pid))

            assert freezer.send(JOB, signal.SIGUSR1, catchers_only=True) == 1
            assert catcher.wait(10) == 7
            assert deaf.poll() is None
            assert freezer.send(JOB + 1, signal.SIGKILL) == 0
            assert freezer.send(JOB, signal.SIGKILL) == 1
            assert deaf.wait(10) == -signal.SIGKILL
        finally:
            catcher.kill()
            deaf.kill()


NOBODY = 65_534
FORKS = """
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words)
{
	char byte;
	pid_t task;
	if (count < 3)
		return pause();
	task = fork();
	if (task == 0) {
		if (setresuid(65534, 65534, 65534) || read(0, &byte, 1) != 1)
			_exit(1);
		execl(words[2], "slurmstepd", "600", NULL);
		_exit(2);
	}
	printf("%d\\n", task);
	fflush(stdout);
	return pause();
}
"""
"""Waits for ever, or as Slurm's own program does forks a task that gives up root, and becomes a program when told."""


@pytest.fixture
def stepd() -> Iterator[Path]:
    """A program that is called as Slurm's own is, where everybody can run it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Path(folder) / "slurmstepd"
        subprocess.run(["cc", "-x", "c", "-o", made, "-"], input=FORKS, text=True, check=True, timeout=60)
        made.chmod(0o755)
        yield made


def test_a_guest_that_bears_the_name_of_slurms_own_program_is_held_all_the_same(kernels: Kernels, stepd: Path) -> None:
    with subprocess.Popen([stepd], user=NOBODY) as guest:
        try:
            (kernels.programs / "cgroup.procs").write_text(str(guest.pid))

            assert freezer.freeze(JOB)
            await_true(lambda: freezer.is_frozen(JOB))
            time.sleep(0.1)
            assert freezer.is_frozen(JOB)
            freezer.thaw(JOB)
            assert freezer.send(JOB, signal.SIGKILL) == 1
            assert guest.wait(10) == -signal.SIGKILL
        finally:
            freezer.thaw(JOB)
            guest.kill()


@pytest.mark.parametrize("program", ["Slurm's own", "the user's"])
def test_a_task_is_slurms_until_it_becomes_the_users_program_whatever_that_is_called(
    kernels: Kernels, stepd: Path, program: str
) -> None:
    own = stepd.parent / "bin/slurmstepd"
    own.parent.mkdir(mode=0o755)
    shutil.copy("/bin/sleep", own)
    becomes = stepd if program == "Slurm's own" else own
    with subprocess.Popen(
        [stepd, "forks", becomes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdin is not None
            assert parent.stdout is not None
            task = int(parent.stdout.readline())
            (kernels.programs / "cgroup.procs").write_text(str(task))
            assert not freezer.freeze(JOB)
            assert freezer.send(JOB, signal.SIGKILL) == 0

            parent.stdin.write("x")
            parent.stdin.flush()
            # Its words change as it becomes the user's program.
            await_true(lambda: b"600" in Path(f"/proc/{task}/cmdline").read_bytes())

            assert freezer.freeze(JOB)
            freezer.thaw(JOB)
            assert freezer.send(JOB, signal.SIGKILL) == 1
        finally:
            freezer.thaw(JOB)
            parent.kill()


def test_a_frozen_guest_that_slurm_kills_can_die(kernels: Kernels, tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as guest, contextlib.ExitStack() as at_end:
        # Else a failure would leave it frozen, and wait for it for ever.
        at_end.callback(guest.kill)
        at_end.callback(freezer.thaw, JOB)
        (kernels.programs / "cgroup.procs").write_text(str(guest.pid))
        paths = Paths(tmp_path)
        files.prepare(paths)
        held = GuestHold(Ground(paths), ActionSettings(), "GPU-1", Member(JOB, 0, ("GPU-1",), {}, "time"))
        held.hold(0.0, 0.0, by_freezer=True)
        until("the guest to be frozen", lambda: freezer.is_frozen(JOB))
        guest.kill()
        time.sleep(0.1)
        # v1 lets not even SIGKILL through.
        assert kernels.unified or guest.poll() is None

        held.turn(1.1)

        assert guest.wait(60) == -signal.SIGKILL
        held.turn(1.2)
        # In the unified hierarchy it has died without our help, and what is left is an empty group.
        assert kernels.unified or not freezer.is_frozen(JOB)


@pytest.mark.parametrize("unknown", [0, 3])
def test_functions_that_a_gate_does_not_know_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unknown: int
) -> None:
    beat = WordBeat(1, 100, True, False, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, unknown, ())
    monkeypatch.setattr(GuestHold, "beats", lambda _: (beat,))
    held = GuestHold(Ground(Paths(tmp_path)), ActionSettings(), "GPU-1", Member(JOB, 0, ("GPU-1",), {}, "time"))

    assert held.unknown_functions() == unknown


def test_it_is_heard_when_slurm_lets_a_job_go_on(kernels: Kernels) -> None:
    freezer_watch = FreezerWatch()
    try:
        assert freezer_watch.watch([JOB]) == {JOB}
        assert freezer_watch.watch([JOB]) == set()
        assert freezer_watch.heard() == set()
        kernels.let_go("step_0")
        assert freezer_watch.heard() == {JOB}
        assert freezer_watch.heard() == set()
        kernels.make("step_7")
        assert freezer_watch.watch([JOB]) == set()
        kernels.let_go("step_7")
        assert freezer_watch.heard() == {JOB}
        kernels.remove(kernels.job / "step_7")
        freezer_watch.watch([JOB])
        assert freezer_watch.heard() == set()
        freezer_watch.watch([])
    finally:
        freezer_watch.close()


GUARD = """
import sys, time
from pathlib import Path
from prolog_epilog.guard.hold import deadman
from prolog_epilog.node import files, freezer
from prolog_epilog.guard.hold.guest_hold import GuestHold, Ground
from prolog_epilog.guard.roll import Member
from prolog_epilog.settings.guard_keys import ActionSettings
from prolog_epilog.guard.hold.freezer_watch import FreezerWatch
from prolog_epilog.node.paths import Paths
paths = Paths(Path(sys.argv[1]))
files.prepare(paths)
deadman.start(paths)
freezer.lease(paths, {job})
freezer.freeze({job})
print("frozen", flush=True)
time.sleep(60)
"""


def test_a_guest_is_thawed_within_5_s_of_its_guards_death(kernels: Kernels, tmp_path: Path) -> None:
    with spin(kernels.programs) as guest:
        code = GUARD.format(job=JOB)
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as guard:
            assert guard.stdout is not None
            assert guard.stdout.readline() == "frozen\n"
            assert not computes(guest.pid)
            guard.kill()
            began = time.monotonic()
            assert computes(guest.pid, 5.0)
            assert time.monotonic() - began < 5.0
        guest.kill()
