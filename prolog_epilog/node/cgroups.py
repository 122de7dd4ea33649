# SPDX-License-Identifier: Apache-2.0
"""Finds the job that a process belongs to, by Slurm's control groups (v1 and v2)."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prolog_epilog.node import processes

ROOT = Path("/sys/fs/cgroup")

# v2: .../slurmstepd.scope/job_42/step_0; v1: /slurm/uid_7/job_42. A node with several slurmds adds their names. Slurm
# 26.05 names a job's group in v2 by its SLUID, which does not show the job: sF75M82ANNKE00.
_SLUID = "s[0-9A-Z]{13}"
_JOB = re.compile(
    r"/(?:(?:[\w.-]+_)?slurmstepd\.scope|slurm(?:_[\w.-]+)?/uid_\d+)"
    rf"/(?P<name>job_\d{{1,10}}|{_SLUID})(?:/|$)",
    re.ASCII,
)
# Groups of a user's own systemd: the user may give them any name.
_OF_USERS = "/user.slice/"
_SCOPE = "slurmstepd.scope"
_FOLDERS_V1 = ("*/slurm*/uid_*/job_*", "slurm*/uid_*/job_*")
_TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})\.")

_known: dict[str, int] = {}
"""The job of each SLUID; a SLUID is never given twice."""
_MOST_KNOWN = 4_096


def job_of(pid: int) -> int | None:
    """Returns the job of a process; None if it is in none, or gone."""
    try:
        return job_in(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def job_in(text: str, root: Path = ROOT) -> int | None:
    """Reads /proc/PID/cgroup. The outermost job counts: below it a user may make groups of any name."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1] + "/"
        match = _JOB.search(path)
        if match and _OF_USERS not in path[: match.start() + 1]:
            return _job_named(root / path[: match.end("name")].lstrip("/"))
    return None


def jobs(root: Path = ROOT) -> set[int]:
    """Returns the jobs that have a control group on this node."""
    found = {_job_named(one) for one in _groups_of_v2(root)}
    found |= {_job_named(one) for pattern in _FOLDERS_V1 for one in root.glob(pattern)}
    return {job for job in found if job is not None}


def groups_of(job: int, root: Path = ROOT) -> list[Path]:
    """Returns, for v2, the groups that Slurm made for a job as a whole."""
    return [one for one in _groups_of_v2(root) if _job_named(one) == job]


def below(group: Path, starts: str = "", ends: str = "") -> list[Path]:
    """Returns the groups below a group whose names begin and end so; none if it is gone."""
    # The guard asks ten times a second, and a pattern costs more.
    try:
        with os.scandir(group) as found:
            return [
                group / one.name
                for one in found
                if one.name.startswith(starts) and one.name.endswith(ends) and one.is_dir()
            ]
    except OSError:
        return []


def _groups_of_v2(root: Path) -> Iterator[Path]:
    scopes = (scope for above in (root / "system.slice", root) for scope in below(above, ends=_SCOPE))
    return (job for scope in scopes for job in below(scope))


def _job_named(group: Path) -> int | None:
    """Returns the job of a group that Slurm made, by the group's name or by the slurmstepd of one of its steps."""
    if group.name.startswith("job_"):
        return int(group.name[4:]) if group.name[4:].isdecimal() else None
    if group.name not in _known and re.fullmatch(_SLUID, group.name) and (job := _job_watched(group)):
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[group.name] = job
    return _known.get(group.name)


def _job_watched(group: Path) -> int | None:
    """Returns the job that the slurmstepd of one of the group's steps shows as its title."""
    for file in group.glob("step_*/slurm/cgroup.procs"):
        with suppress(OSError):
            for pid in map(int, file.read_text(encoding="ascii").split()):
                # It also starts the user's programs there, which may give themselves any title.
                if processes.real_user_of(pid) != os.getuid():
                    continue
                if title := _TITLE.match(Path(f"/proc/{pid}/cmdline").read_bytes()):
                    return int(title.group(1))
    return None


def version(root: Path = ROOT) -> str:
    """Returns `v2`, `v1`, or `none`."""
    if (root / "cgroup.controllers").exists():
        return "v2"
    return "v1" if any((root / name).is_dir() for name in ("memory", "devices", "freezer")) else "none"


def controllers(root: Path = ROOT) -> set[str]:
    """Returns, for v2, the controllers of the kernel; `dmem` among them limits device memory."""
    try:
        return set((root / "cgroup.controllers").read_text(encoding="ascii").split())
    except OSError:
        return set()
