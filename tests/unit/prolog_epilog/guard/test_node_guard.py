# SPDX-License-Identifier: Apache-2.0
"""berth-guard as a program, on a simulated driver and MPS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from prolog_epilog.node import cgroups, freezer
from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.share_file import ShareRecord
from tests.fakes.mps import programs
from tests.unit.node_world import ROOT, World, berth, is_alive
from tests.waiting import until

pytestmark = pytest.mark.slow

JOB = 1_000_000 + os.getpid()
"""A number that no other run of these tests has."""
STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="bn") as folder:
        made = World(Path(folder))
        made.with_gpus()
        yield made
        while STARTED:
            with STARTED.pop() as process:
                process.kill()
        for pid in made.daemons():
            os.kill(pid, signal.SIGKILL)


RUNS = "from prolog_epilog.guard.program import main; raise SystemExit(main())"


def guard(world: World, *words: str, code: str = RUNS) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-c",
            code,
            "--config",
            str(world.configure()),
            "--root",
            str(world.root),
            *words,
        ],
        cwd=ROOT,
        env={**os.environ, **world.environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    return process


def ended(watching: subprocess.Popen[str]) -> str:
    """Has the guard end; returns what it said since it was last read. One that hangs says where."""
    watching.terminate()
    try:
        return watching.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        watching.send_signal(signal.SIGABRT)
        raise AssertionError(f"the guard did not end: {watching.communicate(timeout=60)[1]}") from None


def looked_again(world: World, watching: subprocess.Popen[str], gpu: int = 2) -> list[str]:
    """What a guard says until it names a process that began after this call: it has looked at all that was before.

    It names one stranger of a GPU at a time.
    """
    assert watching.stderr is not None
    said: list[str] = []
    with subprocess.Popen(["/bin/sleep", "600"]) as new:
        try:
            world.happens(f"process {gpu} {new.pid} type=compute memory=500 real=1")
            for line in watching.stderr:
                if f"is used by process {new.pid} of no job" in line:
                    return said
                said.append(line.rstrip())
        finally:
            new.kill()
    raise AssertionError(f"the guard ended, and said: {said}")


def test_the_guard_sees_a_stranger_and_names_him_once(world: World) -> None:
    world.run("prolog", berth(2, share=30, way="mps"), "2")
    world.run("prolog", berth(3, share=30, way="mps"), "3", job=8)
    quiet = guard(world, "--once")
    assert (quiet.wait(30), quiet.communicate()[1]) == (0, "")
    with subprocess.Popen(["/bin/sleep", "100"]) as stranger:
        try:
            world.happens(f"process 2 {stranger.pid} type=compute memory=500")
            world.settings["violation"] = "requeue"
            watching = guard(world)
            assert watching.stderr is not None
            said = [watching.stderr.readline().rstrip(), *looked_again(world, watching, gpu=3)]
            said += ended(watching).splitlines()
            assert watching.returncode == 0
            assert [line for line in said if f"is used by process {stranger.pid} of no job; watching" in line] == said[
                :1
            ]
            assert is_alive(stranger.pid)
            assert "requeue" not in world.asked
        finally:
            stranger.kill()


@pytest.mark.parametrize(("lost", "other"), [(2, 3), (3, 2)])
def test_a_gpu_that_is_lost_costs_the_audit_of_no_other(world: World, lost: int, other: int) -> None:
    world.run("prolog", berth(2, share=30, way="mps"), "2")
    world.run("prolog", berth(3, share=30, way="mps"), "3", job=8)
    world.happens(f"gpu {lost} lost=1")
    watching = guard(world)
    said = looked_again(world, watching, gpu=other)
    assert watching.stderr is not None
    assert any("has fallen off the bus" in line for line in chain(said, watching.stderr))
    ended(watching)


def test_it_ends_wherever_in_its_wait_the_signal_finds_it(world: World) -> None:
    code = (
        "import os, signal, threading, time\n"
        "from prolog_epilog.guard.program import main\n"
        "def interrupted(wait):\n"
        "    def waits(*words):\n"
        "        if words[-1] is not None and threading.current_thread() is threading.main_thread():\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "        return wait(*words)\n"
        "    return waits\n"
        "threading.Condition.wait = interrupted(threading.Condition.wait)\n"
        "time.sleep = interrupted(time.sleep)\n"
        "raise SystemExit(main())"
    )
    assert guard(world, code=code).wait(60) == 0


def test_the_guard_takes_back_the_share_of_a_job_whose_epilog_never_came(world: World) -> None:
    world.run("prolog", berth(2, share=30, way="mps"), "2")
    world.scontrol("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")

    watching = guard(world)
    until("the share to be taken back", lambda: not (world.books() or world.daemons()))
    said = ended(watching)

    assert "job 7 is over, but its Epilog never came: its share is taken back" in said
    assert world.books() == {}
    assert world.daemons() == []
    assert not world.paths.job(7).exists()


@pytest.mark.parametrize("mps_lives", [True, False])
def test_the_guard_clears_what_an_epilog_that_was_killed_has_left(world: World, mps_lives: bool) -> None:
    world.slurm_knows("seat:g2:1(IDX:2)")
    world.run("prolog", berth(2, tier="opportunistic", way="mps"))
    [left] = state.everything(world.paths)
    state.store(world.paths, left.without(7))
    freezer.lease(world.paths, 7)
    ago = time.time() - 90.0
    os.utime(world.paths.job(7), (ago, ago))
    world.scontrol("echo 'JobId=7 JobName=train'; echo '   JobState=CANCELLED'")
    if not mps_lives:
        for pid in world.daemons():
            os.kill(pid, signal.SIGKILL)

    watching = guard(world)
    until(
        "all to be cleared",
        lambda: not (list(state.everything(world.paths)) or world.daemons() or world.paths.job(7).exists()),
    )
    said = ended(watching)

    assert list(state.everything(world.paths)) == []
    assert world.daemons() == []
    assert "MPS failed" not in said
    assert "job 7 is over, and what its Epilog left of its share is removed" in said
    assert not world.paths.job(7).exists()
    assert not world.paths.word(7).exists()
    assert freezer.leases(world.paths) == {}


def test_of_a_job_that_could_not_share_the_guard_clears_the_words_and_leaves_the_file(world: World) -> None:
    world.slurm_knows("seat:g2:1(IDX:2)")
    world.run("prolog", berth(2, tier="opportunistic", way="mps"))
    [left] = state.everything(world.paths)
    state.store(world.paths, left.without(7))
    # Its Prolog was run once more, and could not set the share up; its Epilog was killed.
    share_file.write(world.paths, ShareRecord(7, os.geteuid(), why="MPS is gone"))
    ago = time.time() - 90.0
    os.utime(world.paths.job(7), (ago, ago))
    world.scontrol("echo 'JobId=7 JobName=train'; echo '   JobState=FAILED'")
    assert world.paths.word(7).exists()

    watching = guard(world)
    until("the words to be cleared", lambda: not world.paths.word(7).exists())
    ended(watching)

    assert world.paths.job(7).exists()


def test_the_guard_leaves_a_job_alone_that_slurm_knows(world: World) -> None:
    world.run("prolog", berth(2, share=30, way="mps"), "2")
    world.slurm_knows("shard:g2:30(30/100)")

    watching = guard(world)
    until("the guard to ask", lambda: world.asked.endswith("\nshow job 7\n"))
    assert looked_again(world, watching) == []

    assert ended(watching) == ""
    assert world.books() == {7: 30}
    assert world.asked.endswith("\nshow job 7\n")


@pytest.fixture
def job_cgroup() -> Iterator[Path]:
    """A control group as Slurm makes it, in which a job's processes are."""
    root = Path("/sys/fs/cgroup/pids") if cgroups.version() == "v1" else Path("/sys/fs/cgroup")
    folder = root / f"slurm_berth-test-{os.getpid()}" / "uid_0" / f"job_{JOB}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        pytest.skip("this machine lets nobody make control groups")
    yield folder
    for part in (folder, folder.parent, folder.parent.parent):
        # Killed processes are in their group until the kernel is done with them.
        until(f"{part} to be empty", partial(removed, part))


def removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def test_a_job_that_takes_too_much_is_warned_then_ended(world: World, job_cgroup: Path) -> None:
    world.settings["violation"] = "requeue"
    world.run("prolog", berth(2, share=30, mem=1024, way="mps"), "2", job=JOB, user=0)
    world.scontrol("exit 0")
    # A client that lost its limits: what stops it here is the audit alone.
    with subprocess.Popen(["/bin/sleep", "100"]) as thief:
        (job_cgroup / "cgroup.procs").write_text(str(thief.pid))
        world.happens(f"process 2 {thief.pid} type=mps memory=9000 real=1")
        watching = guard(world)
        try:
            assert thief.wait(20) == -signal.SIGTERM
        finally:
            thief.kill()
            watching.terminate()
    said = watching.communicate(timeout=30)[1].splitlines()

    done = [line.rpartition(";")[2].partition(" [")[0] for line in said]
    assert done == [" watching", " its processes on this GPU are ended"]
    assert f"job {JOB} holds 9000 MiB of GPU GPU-" in said[0]
    assert "was given 1024 MiB" in said[0]
    assert "requeue" not in world.asked
    assert world.run("epilog", job=JOB, user=0).returncode == 0


def app(world: World, job: int, *actions: str) -> subprocess.Popen[str]:
    """A program that uses CUDA as a job with this share file does."""
    share = share_file.read(world.paths, job)
    assert share is not None
    process = subprocess.Popen(
        [programs.app(), *actions], env={**world.environment, **share.environment}, stdout=subprocess.PIPE, text=True
    )
    STARTED.append(process)
    return process


def test_after_a_fault_mps_runs_again_and_the_victims_are_requeued(world: World, job_cgroup: Path) -> None:
    for job in (JOB, 8):
        world.run("prolog", berth(2, share=30, way="mps"), "2", job=job, user=os.getuid())
    world.scontrol('echo "JobId=$3 JobName=train"; echo "   JobState=RUNNING"')
    watching = guard(world)
    victim = app(world, 8, "hold=600")
    # The victim is in no control group of Slurm's; once the guard has said so, it is looking.
    assert watching.stderr is not None
    assert "of no job" in watching.stderr.readline()
    # In its control group before it begins, as slurmd does it.
    enter = f"import os; open('{job_cgroup}/cgroup.procs', 'w').write('0')"
    code = f"{enter}; os.execv('{programs.app()}', ['fake-cuda-app', 'hold=4', 'fault'])"
    share = share_file.read(world.paths, JOB)
    assert share is not None
    culprit = subprocess.Popen([sys.executable, "-c", code], env={**world.environment, **share.environment})
    try:
        assert culprit.wait(60) == 1
        assert victim.wait(60) == 1
        until("the requeue", lambda: "requeue" in world.asked)
        said = "\n".join(looked_again(world, watching))
    finally:
        watching.terminate()
    said += watching.communicate(timeout=60)[1]
    victim.communicate()

    assert f"and runs again; the cause was job {JOB}" in said
    assert [line for line in world.asked.splitlines() if "requeue" in line] == ["requeue 8"]
    # A guard that starts later finds the fault in the logs, and leaves it in peace.
    later = guard(world)
    assert looked_again(world, later) == []
    assert ended(later) == ""
    again = app(world, 8, "hold=0")
    assert '"mps": true' in again.communicate(timeout=20)[0]
    for job in (JOB, 8):
        world.run("epilog", job=job)
    until("its MPS to be gone", lambda: not world.daemons())


def test_a_wrong_berth_conf_ends_the_guard_with_a_sentence(world: World) -> None:
    world.settings["violation"] = "shout"

    watching = guard(world)

    assert watching.wait(30) == 2
    assert "is one of warn, terminate, requeue" in watching.communicate()[1]


def test_the_cause_is_not_run_again_where_its_epilog_was_quicker_than_the_guard(world: World, job_cgroup: Path) -> None:
    states = 'case "$3" in 8) echo "   JobState=RUNNING";; *) echo "   JobState=FAILED";; esac'
    for job in (JOB, 8):
        extra = berth(2, share=30, way="mps")
        world.run("prolog", extra, "2", job=job, user=os.getuid(), SLURM_JOB_START_TIME="1000")
    world.scontrol(f'echo "JobId=$3 JobName=train"; {states}')
    watching = guard(world)
    victim = app(world, 8, "hold=600")
    assert watching.stderr is not None
    assert "of no job" in watching.stderr.readline()
    enter = f"import os; open('{job_cgroup}/cgroup.procs', 'w').write('0')"
    code = f"{enter}; os.execv('{programs.app()}', ['fake-cuda-app', 'hold=4', 'fault'])"
    share = share_file.read(world.paths, JOB)
    assert share is not None
    culprit = subprocess.Popen([sys.executable, "-c", code], env={**world.environment, **share.environment})
    try:
        assert culprit.wait(60) == 1
        ended = world.run("epilog", extra, "2", JOB, SLURM_JOB_START_TIME="1000", SLURM_JOB_EXIT_CODE2="1:0")
        assert ended.returncode == 0
        assert victim.wait(60) == 1
        until("the requeue", lambda: "requeue" in world.asked)
        said = "\n".join(looked_again(world, watching))
    finally:
        watching.terminate()
    assert f"the cause was job {JOB}" in said + watching.communicate(timeout=60)[1]
    assert [line for line in world.asked.splitlines() if "requeue" in line] == ["requeue 8"]
    world.run("epilog", job=8)
