"""Which job a process belongs to, by Slurm's control groups (v1 and v2)."""

import re
from pathlib import Path

# v2: .../slurmstepd.scope/job_42/step_0; v1: /slurm/uid_7/job_42. A host with several slurmds adds their names.
_JOB = re.compile(r"/(?:(?:[\w.-]+_)?slurmstepd\.scope|slurm(?:_[\w.-]+)?/uid_\d+)/job_(\d{1,10})(?:/|$)", re.ASCII)
# What a user's own systemd makes: he names these groups as he likes.
_OF_USERS = "/user.slice/"
_FOLDERS = (
    "system.slice/*slurmstepd.scope/job_*",
    "*slurmstepd.scope/job_*",
    "*/slurm*/uid_*/job_*",
    "slurm*/uid_*/job_*",
)


def job_of(pid: int) -> int | None:
    """The job of a process; None where it is in none, or gone."""
    try:
        return job_in(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def job_in(text: str) -> int | None:
    """Read /proc/PID/cgroup. The outermost job counts: below it a user may make groups of any name."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1] + "/"
        match = _JOB.search(path)
        if match and _OF_USERS not in path[: match.start() + 1]:
            return int(match.group(1))
    return None


def jobs(root: Path = Path("/sys/fs/cgroup")) -> set[int]:
    """The jobs that have a control group on this node."""
    return {int(one.name[4:]) for pattern in _FOLDERS for one in root.glob(pattern) if one.name[4:].isdecimal()}


def version(root: Path = Path("/sys/fs/cgroup")) -> str:
    """`v2`, `v1`, or `none`."""
    if (root / "cgroup.controllers").exists():
        return "v2"
    return "v1" if any((root / name).is_dir() for name in ("memory", "devices", "freezer")) else "none"


def controllers(root: Path = Path("/sys/fs/cgroup")) -> set[str]:
    """Of v2: what the kernel can hold, `dmem` for device memory among them."""
    try:
        return set((root / "cgroup.controllers").read_text(encoding="ascii").split())
    except OSError:
        return set()
