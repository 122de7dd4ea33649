# SPDX-License-Identifier: Apache-2.0
"""Which job a process belongs to: by what Slurm made, never by what a user may name."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prolog_epilog.node import cgroups, freezer


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n", 42),
        ("0::/system.slice/n1_slurmstepd.scope/job_42/step_batch/user/task_special\n", 42),
        ("0::/../../slurmstepd.scope/job_42/step_extern\n", 42),
        ("3:memory:/slurm/uid_1000/job_42/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n", 42),
        ("3:devices:/docker/abc/slurm_n1/uid_1000/job_42/step_0\n", 42),
        ("0::/system.slice/slurmstepd.scope/job_42/step_0/user/slurmstepd.scope/job_43/x\n", 42),
        ("0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_43/x\n", None),
        ("0::/user.slice/user-1000.slice/session-1.scope\n", None),
        ("0::/system.slice/sshd.service/job_42\n", None),
        ("", None),
    ],
)
def test_a_processs_job_is_what_slurm_made_of_it(text: str, job: int | None) -> None:
    assert cgroups.job_in(text) == job


@contextmanager
def called(title: str, user: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that calls itself so."""
    with subprocess.Popen(["bash", "-c", f"exec -a '{title}' sleep 60"], user=user) as process:
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(title.encode()):
            time.sleep(0.01)
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Path]:
    """A node of Slurm 26.05: job 42's group is named by its SLUID, and its slurmstepd lives."""
    group = tmp_path / "system.slice/n1_slurmstepd.scope/sF75M82ANNKE00"
    (group / "step_batch/slurm").mkdir(parents=True)
    (tmp_path / "cgroup.controllers").touch()
    with called("slurmstepd: [42.batch]") as stepd:
        (group / "step_batch/slurm/cgroup.procs").write_text(f"{os.getpid()}\n{stepd.pid}\n")
        monkey = pytest.MonkeyPatch()
        monkey.setattr(cgroups, "_known", {})
        yield tmp_path
        monkey.undo()


def test_a_group_that_does_not_tell_its_job_is_known_by_who_watches_its_steps(watched: Path) -> None:
    path = "system.slice/n1_slurmstepd.scope/sF75M82ANNKE00"

    assert cgroups.job_in(f"0::/{path}/step_batch/user/task_0\n", watched) == 42
    assert cgroups.job_in(f"0::/{path}\n", watched) == 42
    assert cgroups.jobs(watched) == {42}
    assert cgroups.groups_of(42, watched) == [watched / path]
    assert cgroups.groups_of(4, watched) == []
    assert freezer.jobs_groups(42, watched) == [watched / path]


def test_a_job_once_known_is_known_until_its_group_is_gone(watched: Path) -> None:
    cgroups.jobs(watched)
    for file in watched.rglob("cgroup.procs"):
        file.write_text("")

    assert cgroups.jobs(watched) == {42}


def test_nothing_that_a_user_can_name_is_taken_for_slurms(watched: Path) -> None:
    own = "user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/sF75M82ANNKE00"
    stranger = "system.slice/slurmstepd.scope/sF75M82ARQXZ00"
    (watched / stranger / "step_0/slurm").mkdir(parents=True)
    # No slurmstepd, and nobody.
    (watched / stranger / "step_0/slurm/cgroup.procs").write_text(f"{os.getpid()}\n4194303\n")

    assert cgroups.job_in(f"0::/{own}/step_0\n", watched) is None
    assert cgroups.job_in(f"0::/{stranger}/step_0\n", watched) is None
    assert cgroups.job_in("0::/system.slice/slurmstepd.scope/system\n", watched) is None
    assert cgroups.jobs(watched) == {42}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")
def test_a_users_program_that_slurmstepd_started_is_not_believed(watched: Path) -> None:
    """As a step's own epilog, which is where slurmstepd is: whatever it calls itself."""
    file = next(watched.rglob("cgroup.procs"))
    with called("slurmstepd: [43.batch]", user=65_534) as liar:
        file.write_text(f"{liar.pid}\n{file.read_text()}")
        assert cgroups.jobs(watched) == {42}

        cgroups._known.clear()
        file.write_text(f"{liar.pid}\n")
        assert cgroups.jobs(watched) == set()


def test_this_process_is_in_no_job() -> None:
    assert cgroups.job_of(os.getpid()) is None
    assert cgroups.job_of(2**22 + 1) is None


def test_jobs_with_a_control_group_are_listed(tmp_path: Path) -> None:
    for path in (
        "system.slice/slurmstepd.scope/job_1/step_0",
        "system.slice/n1_slurmstepd.scope/job_2",
        "memory/slurm/uid_0/job_3",
        "memory/slurm_n1/uid_0/job_4",
        "user.slice/job_5",
    ):
        (tmp_path / path).mkdir(parents=True)

    assert cgroups.jobs(tmp_path) == {1, 2, 3, 4}
    assert cgroups.version(tmp_path) == "v1"
    (tmp_path / "cgroup.controllers").write_text("cpu memory dmem\n")
    assert cgroups.version(tmp_path) == "v2"
    assert "dmem" in cgroups.controllers(tmp_path)
