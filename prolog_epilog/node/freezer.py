# SPDX-License-Identifier: Apache-2.0
"""The freezer: stops a job's processes by the kernel's freezer, only in Slurm's own control groups of that job.

v2: it freezes the groups of the job's tasks, one level below the group that Slurm itself freezes. So Slurm's `scontrol
resume` does not undo our freezing, nor do we undo its suspend. v1: it freezes the groups of the job's steps, which
Slurm freezes as well. There is none below, and the job's own group above holds slurmstepd, which has to hear Slurm.
SIGSTOP is never used: a program may notice when it ends, and any user may undo it.

A caller that freezes a job writes a lease first (/run/berth/frozen/JOBID). If the lease is not renewed, the guard's
dead-man, its successor, its ExecStopPost or the job's Epilog thaws the job.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prolog_epilog.errors import NodeError
from prolog_epilog.node import cgroups, files, processes
from prolog_epilog.node.paths import Paths

ROOT = cgroups.ROOT
LEASE_SECONDS = 4.0
"""Seconds after the guard's last sign of life at which a guest is thawed at the latest."""

_V1 = "freezer/slurm*/uid_*"
_STEPD = "slurmstepd"
_LEASE_BYTES = 64


def jobs_groups(job: int, root: Path = ROOT) -> list[Path]:
    """Returns the control groups that Slurm made for a job as a whole, where its processes can be frozen."""
    if cgroups.version(root) == "v2":
        return cgroups.groups_of(job, root)
    # Groups that a user's own systemd made may bear any name.
    found = root.glob(f"{_V1}/job_{job}")
    return [path for path in found if cgroups.job_in(f"0::/{path.relative_to(root)}") == job]


def groups(job: int, root: Path = ROOT) -> list[Path]:
    """Returns the control groups that hold all processes of the job's programs, and only them."""
    found: list[Path] = []
    steps = [step for one in jobs_groups(job, root) for step in cgroups.below(one, "step_")]
    if cgroups.version(root) != "v2":
        return steps
    for user in (step / "user" for step in steps):
        # Slurm makes a group for each task; a plugin set without task/cgroup keeps them together.
        tasks = cgroups.below(user, "task_")
        found += tasks or ([user] if user.is_dir() else [])
    return found


def switches(job: int, root: Path = ROOT) -> list[Path]:
    """Returns the files that Slurm writes to before it ends a job, to thaw what may be frozen."""
    files_of = ("freezer.state",) if cgroups.version(root) != "v2" else ("cgroup.freeze", "user/cgroup.freeze")
    steps = (step for one in jobs_groups(job, root) for step in cgroups.below(one, "step_"))
    return [path for step in steps for name in files_of if (path := step / name).exists()]


def freeze(job: int, root: Path = ROOT) -> bool:
    """Freezes all of the job's processes; the caller holds a lease. False if there is nothing to freeze."""
    # Skip a group with slurmstepd: a task that it has just forked is frozen once it runs the user's program.
    return _write([one for one in groups(job, root) if not _has_stepd(one)], frozen=True)


def thaw(job: int, root: Path = ROOT) -> bool:
    """Thaws them, also tasks that have come since: a task that is put into a frozen group stops at once."""
    return _write(groups(job, root), frozen=False)


def _write(found: list[Path], *, frozen: bool) -> bool:
    done = False
    for one in found:
        # Try v2 first: a hybrid node has no such file in v1's folders.
        for name, words in (("cgroup.freeze", ("0", "1")), ("freezer.state", ("THAWED", "FROZEN"))):
            with suppress(OSError):
                # Without O_CREAT: these files are the kernel's.
                handle = os.open(one / name, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
                try:
                    os.write(handle, words[frozen].encode())
                    done = True
                finally:
                    os.close(handle)
                break
    return done


def is_frozen(job: int, root: Path = ROOT) -> bool:
    """Tells whether the kernel has stopped all of them, and not only begun to."""
    found = groups(job, root)
    return bool(found) and all(_is_still(one) for one in found)


def was_thawed(job: int, root: Path = ROOT) -> bool:
    """Tells whether another process thawed what we froze; a group that is new has not been frozen yet."""
    return any(_is_free(one) for one in groups(job, root))


def _is_still(group: Path) -> bool:
    with suppress(OSError):
        return "frozen 1" in (group / "cgroup.events").read_text(encoding="ascii")
    with suppress(OSError):
        return (group / "freezer.state").read_text(encoding="ascii").strip() == "FROZEN"
    return False


def _is_free(group: Path) -> bool:
    for name, word in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
        with suppress(OSError):
            return (group / name).read_text(encoding="ascii").strip() == word
    return False


def pids(job: int, root: Path = ROOT) -> Iterator[int]:
    """Returns the processes of the job's programs now."""
    for one in groups(job, root):
        for folder, _, _ in os.walk(one):
            with suppress(OSError):
                words = (Path(folder) / "cgroup.procs").read_text(encoding="ascii").split()
                # 0: a process of another pid namespace.
                yield from (int(word) for word in words if word != "0")


def send(job: int, number: signal.Signals, *, root: Path = ROOT, catchers_only: bool = False) -> int:
    """Sends a signal to the job's processes; returns to how many. `catchers_only`: only to those that catch it."""
    sent = 0
    for pid in pids(job, root):
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # The handle is taken: the process that has this number now is the one that gets the signal.
                theirs = cgroups.job_of(pid) == job and not _is_stepd(pid)
                if theirs and (not catchers_only or _catches(pid, number)):
                    signal.pidfd_send_signal(handle, number)
                    sent += 1
            finally:
                os.close(handle)
    return sent


def awaits(job: int, number: signal.Signals, root: Path = ROOT) -> bool:
    """Tells whether a process of the job would get this signal if it were not frozen: v1 holds up even SIGKILL."""
    for pid in pids(job, root):
        with suppress(OSError):
            if _has(pid, number, ("ShdPnd:", "SigPnd:")):
                return True
    return False


def _catches(pid: int, number: signal.Signals) -> bool:
    return _has(pid, number, ("SigCgt:",))


def _has(pid: int, number: signal.Signals, masks: tuple[str, ...]) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return any(int(line.split()[1], 16) >> (number - 1) & 1 for line in lines if line.startswith(masks))


def _has_stepd(group: Path) -> bool:
    """Tells whether Slurm's own process is in the group: freezing it would keep Slurm from hearing the job's end."""
    with suppress(OSError):
        words = (group / "cgroup.procs").read_text(encoding="ascii").split()
        return any(_is_stepd(int(word)) for word in words)
    return False


def _is_stepd(pid: int) -> bool:
    """Tells whether this is Slurm's own process, or a task that it forked and that is not the user's program yet.

    Any user may call a program slurmstepd, or run Slurm's own: only root's counts. A task gives up root some time
    before it becomes the user's program. Until then its memory layout is that of the slurmstepd that forked it. The
    layout is chosen when a program begins, and for root's processes only root can read it.
    """
    if _is_roots_stepd(pid):
        return True
    if not _name(pid).startswith(_STEPD):
        return False
    parent, layout = _origin(pid)
    return _is_roots_stepd(parent) and layout is not None and layout == _origin(parent)[1]


def _is_roots_stepd(pid: int) -> bool:
    return _name(pid).startswith(_STEPD) and processes.real_user_of(pid) == os.getuid()


def _origin(pid: int) -> tuple[int, tuple[str, str] | None]:
    """Returns a process's parent, and where its program and its stack begin; None if the kernel does not say."""
    with suppress(OSError, IndexError):
        # The name before them may hold blanks and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        program, stack = fields[23], fields[25]
        return int(fields[1]), None if stack == "0" else (program, stack)
    return 0, None


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""


def lease(paths: Paths, job: int, seconds: float = LEASE_SECONDS) -> None:
    """Writes until when the job may be frozen; called before it is frozen, and again and again."""
    files.own_folder(paths.frozen)
    files.write(paths.frozen / str(job), f"{time.monotonic_ns() + round(seconds * 1e9)}\n")


def end_lease(paths: Paths, job: int) -> None:
    """Removes the lease, because the job is thawed."""
    with suppress(OSError):
        (paths.frozen / str(job)).unlink()


def leases(paths: Paths) -> dict[int, float]:
    """Returns the jobs that may be frozen now, and the seconds left; a lease that cannot be read has ended."""
    found = {}
    with suppress(OSError):
        for name in os.listdir(paths.frozen):  # noqa: PTH208 - twice a second
            if name.isdecimal():
                until = 0
                with suppress(NodeError, ValueError):
                    until = int(files.read(paths.frozen / name, _LEASE_BYTES) or 0)
                found[int(name)] = until / 1e9 - time.monotonic()
    return found


def release(paths: Paths, job: int, root: Path = ROOT) -> None:
    """Thaws a job, also one that another process froze, and ends the lease."""
    if (paths.frozen / str(job)).exists():
        thaw(job, root)
        end_lease(paths, job)


def thaw_expired(paths: Paths, root: Path = ROOT, *, every: bool = False) -> list[int]:
    """Thaws the jobs whose lease has ended; with `every`, all. Returns the thawed jobs."""
    ended = [job for job, seconds in leases(paths).items() if every or not 0.0 < seconds <= 2 * LEASE_SECONDS]
    for job in ended:
        release(paths, job, root)
    return ended
